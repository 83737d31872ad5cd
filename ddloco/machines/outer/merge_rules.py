"""How the changes of a tensor become one change: the values of ``outer.merge``. A rule has no
state, and knows no learner by name. A new one is its ``MergeRule``, its line in ``MERGE_RULES`` and
its name in ``job.config``."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddloco.job.config import MergeRuleName, Outer
from ddloco.machines.outer.block_kernel import F32, square_sum, subtract

Factor = Callable[[float, float], float]
Combine = Callable[[F32, Sequence[NDArray[Any]], F32], float]
Scale = Callable[[Sequence[float], Sequence[float], float], float | None]


class MergeRule(NamedTuple):
    """How the changes of a tensor, ``anchor - raw`` of each contribution, become one change.

    The merged change is the scale times what is combined. The steps that a rule leaves out are
    those of the weighted average.

    Attributes:
        merges_values: whether values can be merged as changes are, with the same result from any
            anchor. Otherwise task state is averaged, as are parameters that replace lost ones.
        factor: for each tensor of a contribution, from its weight (all add up to 1) and the norm of
            its change, what the change is multiplied by before the sum; one with factor 0 is left
            out. By default the weight.
        combine: given the anchor, contributions in their wire dtypes, and ``out``, all of one
            block: writes the direction to ``out`` and returns its sum of squares. It runs in
            threads, and its bits must not depend on the processor, as the sign of a zero from a
            sort does. By default the sum of factor times change.
        scale: from weights, norms and the direction's sum of squares, all of a whole tensor, what
            the direction is multiplied by; None if the tensor is to be averaged. By default 1.
    """

    merges_values: bool
    factor: Factor | None = None
    combine: Combine | None = None
    scale: Scale | None = None


AVERAGE = MergeRule(merges_values=True)
"""The weighted average of the changes, as in federated averaging (arXiv 1602.05629)."""


# Radial-directional averaging: directions and lengths are averaged apart (paper 3.5, App. D.2).

DIRECTION_NORM_MIN = 1e-6
"""Below this the mean of unit vectors has no direction. The paper's 1e-12 is never reached in
float32: v and -3v leave a rounding error of 1e-8, which would be scaled to full length."""

NORM_MIN = 1e-30
"""A tensor's change below this counts as zero: weights divided by its norm would leave float32's
range."""


def _factor(weight: float, norm: float) -> float:
    """The weight of the change that makes it the weight of a unit vector."""
    return weight / norm if norm > NORM_MIN else 0.0


def _scale(weights: Sequence[float], norms: Sequence[float], square: float) -> float | None:
    """The average length over that of the sum; None if the directions cancelled."""
    length = sqrt(square)
    if length < DIRECTION_NORM_MIN:
        return None
    return sum(weight * norm for weight, norm in zip(weights, norms, strict=True)) / length


RDA = MergeRule(merges_values=False, factor=_factor, scale=_scale)


# The coordinate-wise median of the changes, for robust merging (Yin et al., arXiv 1803.01498). It
# has no weights, which follow from what learners report: so each element stays within the range of
# the sound contributions while these are more than half, whatever the others send.
#
# A contribution of weight 0 does not count. Of an even number it is the mean of the two middle
# changes, which favours no sign; three are the fewest of which one may be wrong. An element that
# fewer than half of the learners change does not move, such as the rows of rare tokens in an
# embedding.

SCRATCH_ELEMENTS = 4 * 1024 * 1024
"""Changes that are sorted at a time, 16 MiB: a whole block of 1,024 learners would be 512 MiB."""


def _combine(anchor: F32, raws: Sequence[NDArray[Any]], out: F32) -> float:
    step = max(SCRATCH_ELEMENTS // len(raws), 1)
    for start in range(0, anchor.size, step):
        part = slice(start, start + step)
        _write_medians(anchor[part], [raw[part] for raw in raws], out[part])
    return square_sum(out)


def _write_medians(anchor: F32, raws: Sequence[NDArray[Any]], out: F32) -> None:
    changes = np.empty((len(raws), anchor.size), np.float32)
    for raw, change in zip(raws, changes, strict=True):
        subtract(anchor, raw, change)
    lower, upper = (len(raws) - 1) // 2, len(raws) // 2
    changes.partition((lower, upper), axis=0)
    np.add(changes[lower], changes[upper], out=out)
    np.multiply(out, 0.5, out=out)
    # Which of -0.0 and 0.0 comes first may depend on the processor; the sum is 0.0 for both.
    np.add(out, 0.0, out=out)


MEDIAN = MergeRule(merges_values=True, combine=_combine)


MERGE_RULES: dict[MergeRuleName, MergeRule] = {"rda": RDA, "average": AVERAGE, "median": MEDIAN}


def tensor_rule(outer: Outer, name: str) -> MergeRuleName:
    averaged = any(fnmatchcase(name, pattern) for pattern in outer.average)
    return "average" if averaged else outer.merge


def value_rule(rule: MergeRuleName) -> MergeRuleName:
    """The rule by which a tensor's values are merged if its changes are merged by ``rule``."""
    return rule if MERGE_RULES[rule].merges_values else "average"
