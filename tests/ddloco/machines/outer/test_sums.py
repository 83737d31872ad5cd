"""Sums of relays: merged they are what their contributions would have been."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddloco.job.config import Outer
from ddloco.machines.outer.merge import (
    BLOCK_ELEMENTS,
    SummedFragment,
    TensorSegment,
    WeightedFragment,
    merge_fragment,
)
from ddloco.machines.outer.optimizers.table import zero_state
from ddloco.machines.outer.sums import sum_contributions
from ddloco.workers.merge_kernel import merge_kernel

SIZES = (5, 1024, 3000)


def segments_of(rule, sizes=SIZES):
    ends = [int(end) for end in np.cumsum(sizes)]
    starts = [0, *ends[:-1]]
    rules = ["average", *[rule] * (len(sizes) - 1)]
    return [
        TensorSegment(start, end, each, "float32", 4 * start, name=f"{which}")
        for which, (start, end, each) in enumerate(zip(starts, ends, rules, strict=True))
    ]


def contribution(name, weight, values):
    return WeightedFragment(name, weight, values.astype(np.float32).view(np.uint8))


def summed(anchor, given, segments, **options):
    """What a syncer has of a relay's sum."""
    found = sum_contributions(anchor, given, segments, **options)
    weights = {each.name: each.weight for each in given}
    told = [weights[name] for name in found.accepted]
    return SummedFragment(found.accepted, told, found.directions.view(np.uint8), found.lengths)


def drawn(rng, count, sizes=SIZES):
    anchor = rng.normal(size=sum(sizes)).astype(np.float32)
    given = [
        contribution(f"learner-{k}.1", rng.uniform(0.1, 9), anchor + rng.normal(size=anchor.size))
        for k in range(count)
    ]
    return anchor, given


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32), st.sampled_from(["rda", "average"]),
    st.lists(st.integers(0, 3), min_size=1, max_size=9),
)  # fmt: skip
def test_a_merge_of_sums_is_that_of_the_contributions(seed, rule, sites):
    """Site 0 has no relay."""
    anchor, given = drawn(np.random.default_rng(seed), len(sites))
    segments, outer = segments_of(rule), Outer(merge=rule, average=())
    state = zero_state(outer, anchor)
    whole = merge_fragment(anchor, state, given, segments, outer=outer)
    alone = [each for each, site in zip(given, sites, strict=True) if not site]
    sums = [
        summed(anchor, [e for e, at in zip(given, sites, strict=True) if at == site], segments)
        for site in sorted({*sites} - {0})
    ]
    found = merge_fragment(anchor, state, alone, segments, outer=outer, sums=sums)
    assert found.accepted == whole.accepted
    np.testing.assert_allclose(found.weights, whole.weights, rtol=1e-12)
    np.testing.assert_allclose(found.theta, whole.theta, rtol=1e-4, atol=1e-5)


def test_neither_threads_nor_the_kernel_change_a_bit():
    """Of a sum, and of a merge with one."""
    sizes = (7, BLOCK_ELEMENTS * 5 + 3)
    anchor, given = drawn(np.random.default_rng(1), 5, sizes)
    segments, outer = segments_of("rda", sizes), Outer()
    results = []
    with ThreadPoolExecutor(4) as pool:
        for options in ({}, {"map_chunks": pool.map}, {"kernel": merge_kernel()}):
            sums = [summed(anchor, given[:3], segments, **options)]
            state = zero_state(outer, anchor)
            found = merge_fragment(
                anchor, state, given[3:], segments, outer=outer, sums=sums, **options
            )
            results.append((sums[0].buffer.tobytes(), sums[0].lengths, found.theta.tobytes()))
    assert results[0] == results[1] == results[2]


def test_what_is_not_finite_is_left_out_at_the_site():
    """With the reason; a sum of nothing is zeros."""
    anchor, given = drawn(np.random.default_rng(2), 3)
    given[1] = contribution("learner-1.1", 1.0, np.full(anchor.size, np.nan))
    found = sum_contributions(anchor, given, segments_of("rda"))
    assert found.accepted == ("learner-0.1", "learner-2.1")
    assert found.refused == (("learner-1.1", "tensor 0: NaN or Inf"),)
    assert np.isfinite(found.directions).all()
    nothing = sum_contributions(anchor, given[1:2], segments_of("rda"))
    assert nothing.accepted == ()
    assert not nothing.directions.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_sum_that_is_not_finite_is_refused_for_all_of_it(bad):
    """The others are merged as if it had not come."""
    anchor, given = drawn(np.random.default_rng(3), 4)
    segments, outer = segments_of("rda"), Outer()
    sums = [summed(anchor, given[:2], segments), summed(anchor, given[2:], segments)]
    sums[0].buffer.view(np.float32)[-1] = bad
    state = zero_state(outer, anchor)
    found = merge_fragment(anchor, state, [], segments, outer=outer, sums=sums)
    assert found.accepted == ("learner-2.1", "learner-3.1")
    assert [name for name, _ in found.refused] == ["learner-0.1", "learner-1.1"]
    rest = merge_fragment(anchor, state, [], segments, outer=outer, sums=sums[1:])
    assert found.theta.tobytes() == rest.theta.tobytes()
    none = merge_fragment(anchor, state, [], segments, outer=outer, sums=sums[:1])
    assert none.accepted == ()
    assert none.theta.tobytes() == anchor.tobytes()


def test_a_sum_longer_than_what_is_in_it_is_refused():
    """Of directions of length one, and of changes in a tensor that is averaged."""
    anchor, given = drawn(np.random.default_rng(6), 3)
    segments, outer = segments_of("rda"), Outer()
    state = zero_state(outer, anchor)
    for which, segment in enumerate(segments):
        one = summed(anchor, given, segments)
        one.buffer.view(np.float32)[segment.start : segment.stop] *= 5.0
        found = merge_fragment(anchor, state, [], segments, outer=outer, sums=[one])
        assert {why for _, why in found.refused} == {
            f"tensor {which}: the sum of its relay is longer than what is in it"
        }


def test_lengths_beyond_float32_are_refused():
    """Weights times such lengths would be infinite."""
    anchor, given = drawn(np.random.default_rng(4), 2)
    segments, outer = segments_of("rda"), Outer()
    one = summed(anchor, given, segments)
    one = one._replace(lengths=(*one.lengths[:-1], 1e35))
    state = zero_state(outer, anchor)
    found = merge_fragment(anchor, state, [], segments, outer=outer, sums=[one])
    assert len(found.refused) == 2


def test_directions_that_cancel_are_averaged():
    """Between sites as within one: what is left is the weighted mean of the changes."""
    anchor = np.zeros(sum(SIZES), np.float32)
    change = np.random.default_rng(5).normal(size=anchor.size).astype(np.float32)
    given = [contribution("a.1", 1.0, change), contribution("b.1", 1.0, -change)]
    segments, outer = segments_of("rda"), Outer(optimizer="sgd", lr=1.0, average=())
    state = zero_state(outer, anchor)
    sums = [summed(anchor, [each], segments) for each in given]
    found = merge_fragment(anchor, state, [], segments, outer=outer, sums=sums)
    np.testing.assert_allclose(found.theta, anchor, atol=1e-6)
