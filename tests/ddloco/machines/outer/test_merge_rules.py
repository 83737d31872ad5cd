"""Which rule merges which tensor."""

import typing

import pytest

from ddloco.job.config import MergeRuleName, Outer
from ddloco.machines.outer.merge_rules import MERGE_RULES, tensor_rule, value_rule


def test_every_name_of_the_settings_has_a_rule():
    """And every rule a name."""
    assert typing.get_args(MergeRuleName) == tuple(MERGE_RULES)


@pytest.mark.parametrize("rule", list(MERGE_RULES))
def test_patterns_are_averaged_whatever_the_rule(rule):
    """By default embeddings; by no pattern, nothing."""
    assert ("average", rule) == (
        tensor_rule(Outer(merge=rule), "embed/token"),
        tensor_rule(Outer(merge=rule), "layer/kernel"),
    )
    assert rule == tensor_rule(Outer(merge=rule, average=()), "embed/token")


def test_values_have_no_direction():
    """What is merged by direction is averaged where there are only values."""
    assert ["average", "average", "median"] == [value_rule(rule) for rule in MERGE_RULES]
