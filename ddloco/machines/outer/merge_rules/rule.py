"""What a merge rule consists of. A rule has no state, and knows no learner by name."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ddloco.machines.outer.block_kernel import F32

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
