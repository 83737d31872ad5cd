"""The coordinate-wise median of the changes, for robust merging (Yin et al., arXiv 1803.01498). It
has no weights, which follow from what learners report: so each element stays within the range of
the sound contributions while these are more than half, whatever the others send.

A contribution of weight 0 does not count. Of an even number it is the mean of the two middle
changes, which favours no sign; three are the fewest of which one may be wrong. An element that
fewer than half of the learners change does not move, such as the rows of rare tokens in an
embedding.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddloco.machines.outer.block_kernel import F32, square_sum, subtract
from ddloco.machines.outer.merge_rules.rule import MergeRule

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
