"""The merge rules by name. A new one is its file, its line here and its name in ``job.config``."""

from fnmatch import fnmatchcase

from ddloco.job.config import MergeRuleName, Outer
from ddloco.machines.outer.merge_rules.average import AVERAGE
from ddloco.machines.outer.merge_rules.median import MEDIAN
from ddloco.machines.outer.merge_rules.rda import RDA
from ddloco.machines.outer.merge_rules.rule import MergeRule

MERGE_RULES: dict[MergeRuleName, MergeRule] = {"rda": RDA, "average": AVERAGE, "median": MEDIAN}


def tensor_rule(outer: Outer, name: str) -> MergeRuleName:
    averaged = any(fnmatchcase(name, pattern) for pattern in outer.average)
    return "average" if averaged else outer.merge


def value_rule(rule: MergeRuleName) -> MergeRuleName:
    """The rule by which a tensor's values are merged if its changes are merged by ``rule``."""
    return rule if MERGE_RULES[rule].merges_values else "average"
