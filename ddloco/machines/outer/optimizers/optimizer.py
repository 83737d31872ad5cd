"""What an outer optimizer consists of, and the state that it keeps between merges: one value, under
one handle, of arrays by name. The number of steps is one of its arrays, so whatever restores,
forgets or restarts a state does so with its count, and digests cover both."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from ddloco.job.config import Outer
from ddloco.machines.outer.block_kernel import F32, BlockKernel

State = Mapping[str, NDArray[Any]]
"""The state of one fragment: flat float32 arrays as long as the fragment under the names that the
optimizer declares, and under ``STEPS`` one int64."""

STEPS = "steps"
"""The number of outer steps since the state was zero."""


class OuterStep(NamedTuple):
    """What a step is given besides arrays. ``number`` counts from 1 since the state was zero; the
    direction has to be multiplied by ``scale``."""

    outer: Outer
    number: int
    scale: float
    kernel: BlockKernel


Take = Callable[[OuterStep, F32, Sequence[F32], F32, Sequence[F32]], None]


class OuterOptimizer(NamedTuple):
    """How a fragment's parameters follow the merged change.

    Attributes:
        state: the names of its arrays, sorted; they have no "/".
        take: given the step, the parameters, the arrays of the state, ``out`` and the arrays of the
            new state, all of one block: ``out`` has the direction, and becomes the new parameters.
            Nothing else is written. It runs in threads, and its bits must not depend on the
            processor: elements are computed in float32, one rounded operation after the other.
        usual: the array that has the usual direction of changes, by which the outlier test tells
            which of two opposed contributions is wrong; empty if there is none.
    """

    state: tuple[str, ...]
    take: Take
    usual: str = ""


def state_digest(state: State) -> bytes:
    """xxh3-128 of all arrays with their names, in the order of the names."""
    digest = xxhash.xxh3_128()
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(state[name]).data)
    return digest.digest()


def scale_direction(out: F32, scale: float) -> None:
    """Multiply a direction; by 1 nothing is rounded."""
    if scale != 1.0:
        np.multiply(out, scale, out=out)
