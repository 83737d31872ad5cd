"""Learners that differ from all others: who is named, and who is not."""

import pytest

from ddloco.machines.syncer.apart import counts_otherwise, far_held_out, shaped_otherwise


@pytest.mark.parametrize(
    ("counted", "who"),
    [
        ({"a.1": 32, "b.1": 320, "c.1": 32}, "b.1"),
        ({"a.1": 32, "b.1": 3, "c.1": 31}, "b.1"),
        ({"a.1": 32, "b.1": 64, "c.1": 32}, ""),
        ({"a.1": 32, "b.1": 320}, ""),
        ({"a.1": 32, "b.1": 320, "b.2": 320}, ""),
        ({"a.1": 32, "b.1": 320, "b.2": 320, "c.1": 32, "c.2": 32}, "b.1"),
        ({"a.1": 1, "b.1": 30, "c.1": 900}, ""),
        ({}, ""),
    ],
)
def test_who_counts_tokens_otherwise(counted, who):
    """One learner, of three or more, beside others that agree."""
    learner, said = counts_otherwise(counted)
    assert learner == who
    assert bool(said) == bool(who)


def test_how_it_counts_is_said():
    """Beside the others."""
    _, said = counts_otherwise({"a.1": 32, "b.1": 320, "c.1": 32})
    assert said == "it counts 320 tokens a step, the others 32"


@pytest.mark.parametrize(
    ("shapes", "who"),
    [
        ({"a.1": "8x9", "b.1": "4x9", "c.1": "8x9"}, "b.1"),
        ({"a.1": "8x9", "b.1": "4x9", "c.1": "8x9", "b.2": "4x9"}, "b.1"),
        ({"a.1": "8x9", "b.1": "4x9", "c.1": "8x9", "d.1": "4x9"}, ""),
        ({"a.1": "8x9", "b.1": "4x9", "c.1": "2x9"}, ""),
        ({"a.1": "8x9", "b.1": "4x9", "c.1": ""}, ""),
        ({"a.1": "8x9", "b.1": "various", "c.1": "8x9"}, ""),
        ({"a.1": "8x9", "b.1": "4x9", "c.1": "various", "d.1": "8x9"}, "b.1"),
        ({"a.1": "8x9", "b.1": "8x9", "c.1": "8x9"}, ""),
        ({}, ""),
    ],
)
def test_who_has_batches_of_other_shapes(shapes, who):
    """One learner, of three or more whose batches are always alike, beside others that agree."""
    learner, said = shaped_otherwise(shapes)
    assert learner == who
    assert said == ("its batches are 4x9, those of the others 8x9" if who else "")


@pytest.mark.parametrize(
    ("held_out", "training", "first", "said"),
    [
        (0.166, [0.025, 0.03, 0.02], 2.0, "6.6 times the training loss: 0.166 and 0.025"),
        (0.06, [0.025, 0.03, 0.02], 2.0, ""),
        (1e-5, [1e-9], 2.0, ""),
        (0.5, [-1.0], 2.0, "above the training loss: 0.5 and -1"),
        (0.5, [], 2.0, ""),
        (0.5, [0.1], 0.0, ""),
        (float("nan"), [0.1], 2.0, ""),
    ],
)
def test_a_held_out_loss_that_is_far(held_out, training, first, said):
    """Three times as large, and not next to nothing beside the first losses."""
    assert far_held_out(held_out, training, first).partition("loss is ")[2] == said
