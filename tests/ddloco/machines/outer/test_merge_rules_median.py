"""The median: what one wrong contribution can do, and what weights cannot."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddloco.machines.outer import merge_rules
from ddloco.machines.outer.merge import REPLACING, TensorSegment, WeightedFragment, merge_fragment
from ddloco.machines.outer.merge_rules import MEDIAN
from ddloco.machines.outer.optimizers.table import zero_state

SIZE = 300


def merged(theta, values, weights, rule, *, state=False, adopt=False):
    """The global parameters after a merge with learning rate 1."""
    parts = [
        WeightedFragment(f"learner-{n}", weight, value.view(np.uint8))
        for n, (value, weight) in enumerate(zip(values, weights, strict=True))
    ]
    segments = (TensorSegment(0, SIZE, rule, "float32", 0, state),)
    state = zero_state(REPLACING, theta)
    return merge_fragment(theta, state, parts, segments, adopt=adopt, outer=REPLACING).theta


@given(st.integers(1, 3), st.floats(-1e6, 1e6, width=32), st.floats(0.1, 1e6), st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_a_minority_of_wrong_contributions_does_not_move_it(wrong, size, weight, seed):
    """Every element stays in the range of the sound ones, whatever the others and their weights."""
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal(SIZE, np.float32)
    sound = theta + 0.01 * rng.standard_normal((wrong + 1, SIZE), np.float32)
    garbage = np.float32(size) * rng.standard_normal((wrong, SIZE), np.float32)
    values, weights = [*sound, *garbage], [1.0] * (wrong + 1) + [weight] * wrong

    for how in ({}, {"state": True}, {"adopt": True}):
        found = merged(theta, values, weights, "median", **how)
        slack = 1e-6 * (1 + np.abs(theta))
        assert (found >= sound.min(0) - slack).all()
        assert (found <= sound.max(0) + slack).all()


def test_the_same_garbage_moves_the_other_rules():
    """The test above would see it: one of three contributions is thirty times too large."""
    rng = np.random.default_rng(0)
    theta = rng.standard_normal(SIZE, np.float32)
    changes = 0.01 * rng.standard_normal((3, SIZE), np.float32)
    changes[2] *= 30.0
    honest = theta + changes[:2].mean(0)
    off = {
        rule: np.linalg.norm(merged(theta, [*(theta + changes)], [1.0] * 3, rule) - honest)
        for rule in ("median", "average", "rda")
    }
    assert off["median"] < 0.01 * SIZE**0.5
    assert min(off["average"], off["rda"]) > 5 * off["median"]


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_a_zero_has_one_sign(count):
    """Where the middle changes are zeros of both signs, the result is 0.0 on any processor."""
    anchor, out = np.zeros(count, np.float32), np.ones(count, np.float32)
    signs = np.where(np.eye(count, dtype=bool), np.float32(-0.0), np.float32(0.0))
    for raws in (signs, -signs):
        MEDIAN.combine(anchor, list(raws), out)
        assert not np.signbit(out).any()
    MEDIAN.combine(-anchor, list(anchor + signs), out)
    assert not np.signbit(out).any()


@pytest.mark.parametrize("elements", [1, 40, 10**9])
def test_its_memory_is_bounded_and_does_not_change_a_bit(monkeypatch, elements):
    """However few changes are sorted at a time, the result and its sum of squares are the same."""
    rng = np.random.default_rng(5)
    anchor, *raws = rng.standard_normal((6, SIZE), np.float32)
    whole, parts = np.empty_like(anchor), np.empty_like(anchor)
    square = MEDIAN.combine(anchor, raws, whole)
    monkeypatch.setattr(merge_rules, "SCRATCH_ELEMENTS", elements)
    assert square == MEDIAN.combine(anchor, raws, parts)
    assert whole.tobytes() == parts.tobytes()
    np.testing.assert_array_equal(whole, np.median(anchor - np.array(raws), axis=0))
