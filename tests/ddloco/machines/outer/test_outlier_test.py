"""Which contributions of a merge are refused as outliers, and what is no reason to refuse one."""

import math

import numpy as np
import pytest

from ddloco.job.config import Outer
from ddloco.job.protocol.work import MergeFragment, Share
from ddloco.machines.outer.merge import (
    SummedFragment,
    TensorSegment,
    WeightedFragment,
    merge_fragment,
)
from ddloco.machines.outer.optimizers.table import zero_state
from ddloco.machines.outer.outlier_test import DIRECTED_MIN, RUN, SAMPLE, OutlierTest
from ddloco.machines.outer.weights import lower_median, usual_norm
from transport import DTYPES

SIZE = 4096
NAMES = tuple(f"learner-{index}.1" for index in range(6))
SEGMENTS = (
    TensorSegment(0, 1000, "average", "float32", 0, name="0"),
    TensorSegment(1000, SIZE, "rda", "float32", 4000),
)


class Merge:
    """Contributions that mostly agree, and whatever is done to some of them."""

    def __init__(self, many, *, size=SIZE, common=1.0, segments=SEGMENTS):
        rng = np.random.default_rng(7)
        self.segments = segments
        self.theta = rng.standard_normal(size, np.float32)
        self.common = rng.standard_normal(size, np.float32)
        self.usual_direction = np.zeros(size, np.float32)
        own = rng.standard_normal((many, size), np.float32)
        self.deltas = [0.01 * (common * self.common + each) for each in own]
        self.steps, self.usual, self.moved = [4] * many, [0.0] * many, [0.0] * many

    def outlier_test(self, band=32.0, cosine=None):
        """(accepted, reasons by learner's index, outlier_test)."""
        shares, contributions = [], []
        for i, delta in enumerate(self.deltas):
            name = NAMES[i]
            shares.append(Share(name, "", 1.0, 0, self.steps[i], self.usual[i], self.moved[i]))
            array = (self.theta - delta).astype(np.float32)
            contributions.append(WeightedFragment(name, 1.0, array.view(np.uint8)))
        out = ("t", "m", "w")
        work = MergeFragment(1, 1, 0, "", "", tuple(shares), {}, {}, out, band, cosine)
        outlier_test = OutlierTest(work, self.theta, self.usual_direction, self.segments)
        result = merge_fragment(
            self.theta, zero_state(Outer(), self.theta), contributions, self.segments,
            outer=Outer(), outlier_test=outlier_test,
        )  # fmt: skip
        reasons = {NAMES.index(name): reason for name, reason in result.refused}
        return [NAMES.index(name) for name in result.accepted], reasons, outlier_test


@pytest.mark.parametrize("many", [1, 2, 3, 4, 6])
def test_honest_ones_are_believed(many):
    """However many, whatever is known of earlier merges; each is measured."""
    merge = Merge(many)
    for cosine in (None, 0.5, 0.9):
        accepted, reasons, outlier_test = merge.outlier_test(cosine=cosine)
        assert (list(range(many)), {}) == (accepted, reasons)
        for delta, each in zip(merge.deltas, outlier_test.measured, strict=True):
            assert math.isclose(np.linalg.norm(delta), each.norm, rel_tol=1e-3)
            assert each.cosine is None if many == 1 else 0.3 < each.cosine < 0.9


@pytest.mark.parametrize("many", [3, 4, 6])
def test_a_norm_among_others(many):
    """A thousand times longer than the median is refused in the very first merge, with numbers."""
    merge = Merge(many)
    merge.deltas[1] = 1000 * merge.deltas[1]
    accepted, reasons, outlier_test = merge.outlier_test()
    assert 1 not in accepted
    assert [1] == list(reasons)
    assert "this fragment's band ends at" in reasons[1]
    assert reasons[1].startswith(f"norm {outlier_test.measured[1].norm:.4g}")


@pytest.mark.parametrize("many", [1, 2])
def test_a_norm_against_what_is_usual(many):
    """One or two alone are held against earlier merges; without any they are accepted."""
    merge = Merge(many)
    usual = float(np.linalg.norm(merge.deltas[0]))
    merge.deltas[0] = 1000 * merge.deltas[0]
    assert list(range(many)) == merge.outlier_test()[0]
    merge.usual = [usual] * many
    assert list(range(1, many)) == merge.outlier_test()[0]
    assert list(range(many)) == merge.outlier_test(band=2000.0)[0], "a wider band"


def test_what_happens_to_most_is_no_error():
    """Where the majority jumps, as after a jump of the learning rate, it is believed."""
    merge = Merge(3)
    merge.usual = [float(np.linalg.norm(merge.deltas[0]))] * 3
    merge.deltas = [1000 * each for each in merge.deltas[:2]] + [merge.deltas[2]]
    assert [0, 1, 2] == merge.outlier_test()[0]


def test_more_steps_may_go_further():
    """Ten times the steps, ten times the norm."""
    merge = Merge(1)
    usual = float(np.linalg.norm(merge.deltas[0]))
    merge.deltas[0] = 100 * merge.deltas[0]
    merge.usual = [usual]
    assert [] == merge.outlier_test()[0]
    merge.usual = [usual_norm([(usual, 4)], 40)]
    assert [0] == merge.outlier_test()[0]


def test_short_ones_are_believed():
    """A change of zero passes, and has no direction that could be tested."""
    merge = Merge(4)
    merge.deltas[2] = 0 * merge.deltas[2]
    accepted, _, outlier_test = merge.outlier_test()
    assert [0, 1, 2, 3] == accepted
    assert (0.0, None) == (outlier_test.measured[2].norm, outlier_test.measured[2].cosine)


@pytest.mark.parametrize("many", [3, 4, 6])
def test_a_turned_sign_among_others(many):
    """The one is refused, whose cosine is below the band; what is left is measured without it."""
    merge = Merge(many)
    merge.deltas[2] = -merge.deltas[2]
    accepted, reasons, outlier_test = merge.outlier_test()
    assert [i for i in range(many) if i != 2] == accepted
    assert reasons[2].startswith("cosine -0.")
    assert outlier_test.measured[2].cosine is None
    assert all(outlier_test.measured[i].cosine > 0.3 for i in accepted)


@pytest.mark.parametrize(
    ("size", "accepted"), [(DIRECTED_MIN - 1, [0, 1, 2]), (DIRECTED_MIN, [0, 1])]
)
def test_few_numbers_have_no_direction(size, accepted):
    """Two of three agree by chance, and the third one is as honest."""
    merge = Merge(3, size=size, common=9.0, segments=(TensorSegment(0, size, "rda", "float32", 0),))
    merge.deltas[2] = -merge.deltas[2]
    assert accepted == merge.outlier_test()[0]


def test_of_two_momentum_says_which_one_turned():
    """Without it, or where it sides with neither, both are believed."""
    merge = Merge(2, common=2.0)
    merge.deltas[0] = -merge.deltas[0]
    assert [0, 1] == merge.outlier_test(cosine=0.8)[0]
    merge.usual_direction = np.random.default_rng(3).standard_normal(SIZE, np.float32)
    assert [0, 1] == merge.outlier_test(cosine=0.8)[0]
    merge.usual_direction = 0.3 * merge.common
    assert [1] == merge.outlier_test(cosine=0.8)[0]
    merge.usual_direction = -0.3 * merge.common
    assert [0] == merge.outlier_test(cosine=0.8)[0], "the direction is all there is"
    merge.usual_direction = None
    assert [0, 1] == merge.outlier_test(cosine=0.8)[0], "an optimizer without one"


def test_all_may_turn_together():
    """An outer step that went too far: all changes oppose momentum, none opposes the others."""
    merge = Merge(4)
    merge.usual_direction = -0.3 * merge.common
    assert [0, 1, 2, 3] == merge.outlier_test(cosine=0.8)[0]


def test_one_alone_has_no_direction_to_be_held_against():
    """Momentum alone cannot tell a turned sign from an outer step that went too far."""
    merge = Merge(1)
    merge.usual_direction = -0.3 * merge.common
    accepted, _, outlier_test = merge.outlier_test(cosine=0.8)
    assert [0] == accepted
    assert outlier_test.measured[0].cosine is None


def test_where_none_agree_none_is_an_outlier():
    """Three that pull apart, as around an optimum of none of them: their sum is zero."""
    merge = Merge(3, common=0.0)
    merge.deltas[2] = -merge.deltas[0] - merge.deltas[1]
    accepted, _, outlier_test = merge.outlier_test(cosine=0.5)
    assert [0, 1, 2] == accepted
    assert all(each.cosine < -0.9 for each in outlier_test.measured)


def test_those_who_have_nothing_in_common_are_believed():
    """Learners that pull at right angles, and ones that have been at odds before."""
    assert [0, 1, 2, 3] == Merge(4, common=0.0).outlier_test()[0]
    merge = Merge(4)
    merge.deltas[2] = -merge.deltas[2]
    assert [0, 1, 2, 3] == merge.outlier_test(cosine=-0.9)[0]


def test_small_tensors_agree_by_chance():
    """Of sixteen elements no direction says anything."""
    merge = Merge(4, size=16, segments=(TensorSegment(0, 16, "rda", "float32", 0),))
    merge.deltas[2] = -merge.deltas[2]
    assert [0, 1, 2, 3] == merge.outlier_test()[0]


def test_what_is_stale_holds_what_others_did():
    """Its norm may be as much longer, and its direction is not tested."""
    merge = Merge(4)
    usual = float(np.linalg.norm(merge.deltas[0]))
    merge.usual = [usual] * 4
    merge.deltas[2] = -40 * merge.deltas[2]
    assert [0, 1, 3] == merge.outlier_test()[0]
    merge.moved[2] = 7 * usual
    accepted, _, outlier_test = merge.outlier_test()
    assert [0, 1, 2, 3] == accepted
    assert outlier_test.measured[2].cosine is None
    merge.moved[2] = math.inf
    assert [0, 1, 2, 3] == merge.outlier_test()[0]
    merge.deltas[2] = 1000 * merge.deltas[2]
    merge.moved[2] = 7 * usual
    assert [0, 1, 3] == merge.outlier_test()[0]


def test_a_flipped_bit_in_an_exponent():
    """Upwards the norm shows it; downwards one number of thousands is gone, and nothing shows."""
    merge = Merge(3)
    merge.theta[5] = 0.0
    merge.deltas[1][5] = -0.05
    merge.deltas[1][5] *= 2.0**16
    assert [0, 2] == merge.outlier_test()[0]
    merge.deltas[1][5] = 0.0
    assert [0, 1, 2] == merge.outlier_test()[0]


def test_no_number_is_no_business_of_bands():
    """It is refused for what it is, not measured, and no vote against the others."""
    merge = Merge(3)
    merge.deltas[0][7] = np.nan
    accepted, reasons, outlier_test = merge.outlier_test()
    assert ([1, 2], {0: "tensor 0: NaN or Inf"}) == (accepted, reasons)
    assert [NAMES[1], NAMES[2]] == [each.name for each in outlier_test.measured]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_large_fragments_are_sampled(dtype):
    """Between one and two samples of elements, whatever the dtype; the cosine stays what it is."""
    sizes = (5, 40_001, 300_000, 100_000)
    segments, start, offset = [], 0, 0
    for size in sizes:
        segments.append(TensorSegment(start, start + size, "rda", dtype, offset))
        start, offset = start + size, offset + size * DTYPES[dtype].itemsize + 64
        offset -= offset % DTYPES[dtype].itemsize
    rng = np.random.default_rng(0)
    common = rng.standard_normal(start)
    contributions = []
    for index in range(3):
        delta = common + rng.standard_normal(start)
        raw = np.zeros(offset, np.uint8)
        for each in segments:
            stop = each.offset + (each.stop - each.start) * DTYPES[dtype].itemsize
            raw[each.offset : stop].view(DTYPES[dtype])[:] = -delta[each.start : each.stop]
        contributions.append(WeightedFragment(NAMES[index], 1.0, raw))
    shares = tuple(Share(name, "", 1.0, 0) for name in NAMES[:3])
    work = MergeFragment(1, 1, 0, "", "", shares, {}, {}, ("t", "m", "w"), 32.0)
    theta = np.zeros(start, np.float32)
    outlier_test = OutlierTest(work, theta, theta, segments)
    assert ["", "", ""] == outlier_test(contributions, [1.0, 1.0, 1.0], ["", "", ""])
    assert SAMPLE <= outlier_test.sampled <= 2 * SAMPLE + RUN * len(sizes)
    for each in outlier_test.measured:
        # One and the sum of two others with half the variance in common: 2 / (sqrt(2) sqrt(6)).
        assert abs(each.cosine - 0.577) < 0.03
    moved = outlier_test.moved(common.astype(np.float32))
    assert math.isclose(moved, np.linalg.norm(common), rel_tol=0.05)


def test_the_usual_is_a_median():
    """Of an even number the lower one; of nothing it is nothing."""
    assert [2, 2, 3] == [lower_median(each) for each in ([3, 2, 9, 1], [2], [9, 3, 1])]
    assert 0.0 == usual_norm([], 4)
    assert 6.0 == usual_norm([(2.0, 4), (3.0, 4), (900.0, 4)], 8)


def test_a_state_is_not_tested():
    """Statistics of different data pull apart by nature; parameters beside them are tested."""
    segments = (SEGMENTS[0]._replace(state=True), SEGMENTS[1])
    merge = Merge(4, segments=segments)
    for n, delta in enumerate(merge.deltas):
        delta[:1000] = 1e4 * (-1) ** n
    accepted, reasons, outlier_test = merge.outlier_test(band=2.0, cosine=0.9)

    assert ([0, 1, 2, 3], {}) == (accepted, reasons)
    assert max(each.norm for each in outlier_test.measured) < 1e3
    merge.deltas[2][1000:] *= -1
    assert [0, 1, 3] == merge.outlier_test(cosine=0.9)[0]


@pytest.mark.parametrize("usual", [0.0, 0.9])
def test_a_relays_sum_is_held_against_the_same_band(usual):
    """Nobody here has measured it: the length that the relay says is that of a contribution; what
    is usual is known of earlier merges, or of the contributions of this one."""
    merge = Merge(4)
    merge.usual, merge.moved = [usual] * 4, [0.0, 0.0, 0.0, 100.0]
    _, _, outlier_test = merge.outlier_test()
    usually = lower_median([each.norm for each in outlier_test.measured[:3]])
    most = 32.0 * max(usual, usually)
    assert outlier_test.fault_of_sum(NAMES[:2], 0.99 * most) == ""
    assert "of a relay's sum, this fragment's band ends at" in outlier_test.fault_of_sum(
        NAMES[:2], 1.01 * most
    )
    assert outlier_test.fault_of_sum(NAMES[2:4], 1.01 * most + 32.0 * 99.0) == ""


def test_a_sum_is_believed_while_nothing_is_usual():
    """As a contribution is."""
    _, _, outlier_test = Merge(2).outlier_test()
    assert outlier_test.fault_of_sum(NAMES[:2], 1e9) == ""


@pytest.mark.parametrize(("length", "taken"), [(1.0, True), (40.0, False), (1e29, False)])
def test_a_sum_that_is_too_long_moves_nothing(length, taken):
    """Whatever its direction says."""
    merge = Merge(3)
    merge.usual = [1.0] * 3
    unit = merge.common / np.linalg.norm(merge.common)
    whole = [TensorSegment(0, SIZE, "rda", "float32", 0)]
    shares = [Share(name, "", 1.0, 0, 4, 1.0, 0.0) for name in NAMES[:4]]
    work = MergeFragment(1, 1, 0, "", "", tuple(shares), {}, {}, ("t", "m", "w"), 32.0, None)
    contributions = [
        WeightedFragment(NAMES[i], 1.0, (merge.theta - each).astype(np.float32).view(np.uint8))
        for i, each in enumerate(merge.deltas)
    ]
    result = merge_fragment(
        merge.theta, zero_state(Outer(), merge.theta), contributions, whole, outer=Outer(),
        outlier_test=OutlierTest(work, merge.theta, None, whole, merge.theta),
        sums=[SummedFragment([NAMES[3]], [1.0], unit.view(np.uint8), [length])],
    )  # fmt: skip
    assert (NAMES[3] in result.accepted) is taken
    assert np.linalg.norm(result.theta - merge.theta) < 4.0
