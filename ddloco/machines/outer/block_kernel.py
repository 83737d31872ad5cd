"""The arithmetic of a merge on one block of a tensor, by numpy or compiled
(``workers.merge_kernel``), with the same bits: float32, one rounded operation after the other, no
fused multiply-add; sums of squares per lane by ``einsum``, then in float64, never by BLAS, whose
results may depend on threads."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

LANES = 1024
"""Parallel running sums: 1.5 times as fast as a single sum, and more accurate."""


class LazyElements(Protocol):
    """Elements of a contribution that are computed where they are read."""

    def read(self, start: int = 0) -> F32:
        """Elements from ``start`` on, a multiple of ``LANES``."""
        ...


Raw: TypeAlias = NDArray[Any] | LazyElements
"""Elements of a contribution: in its wire dtype, where uint16 stands for bfloat16, or lazy."""


def elements_of(raw: Raw, start: int = 0) -> NDArray[Any]:
    return raw[start:] if isinstance(raw, np.ndarray) else raw.read(start)


class BlockKernel(Protocol):
    """What a merge computes on a block; all arrays are flat and of one length."""

    def change_squares(self, anchor: F32, raws: Sequence[Raw]) -> list[float]:
        """The sum of squares of ``anchor - raw`` for each contribution."""
        ...

    def weighted_change(
        self, anchor: F32, raws: Sequence[Raw], factors: Sequence[float], out: F32
    ) -> float:
        """Write the sum of ``factor * (anchor - raw)`` to ``out``; returns its sum of squares.
        Factors are rounded to float32. Summed in the order given, from zero."""
        ...

    def nesterov(
        self, theta: F32, momentum: F32, rates: tuple[float, float, float], out: tuple[F32, F32]
    ) -> None:
        """Take one Nesterov step (paper 3.6): b = mu*b + D, theta -= lr*(D + mu*b), without
        changing the inputs. ``rates`` are (scale, lr, mu), D is ``scale`` times ``out[0]``, which
        becomes the new theta; ``out[1]`` becomes b."""
        ...


class NumpyKernel:
    """``BlockKernel`` in numpy: an array operation at a time, for every wire dtype."""

    def change_squares(self, anchor: F32, raws: Sequence[Raw]) -> list[float]:
        change = np.empty_like(anchor)
        found: list[float] = []
        with np.errstate(over="ignore", invalid="ignore"):
            for raw in raws:
                subtract(anchor, elements_of(raw), change)
                found.append(square_sum(change))
        return found

    def weighted_change(
        self, anchor: F32, raws: Sequence[Raw], factors: Sequence[float], out: F32
    ) -> float:
        change = np.empty_like(anchor)
        out.fill(0.0)
        for raw, factor in zip(raws, factors, strict=True):
            subtract(anchor, elements_of(raw), change)
            np.multiply(change, np.float32(factor), out=change)
            np.add(out, change, out=out)
        return square_sum(out)

    def nesterov(
        self, theta: F32, momentum: F32, rates: tuple[float, float, float], out: tuple[F32, F32]
    ) -> None:
        (scale, lr, mu), (delta, momentum_out), scratch = rates, out, np.empty_like(theta)
        if scale != 1.0:
            np.multiply(delta, scale, out=delta)
        np.multiply(momentum, mu, out=momentum_out)
        np.add(delta, momentum_out, out=momentum_out)
        np.multiply(momentum_out, mu, out=scratch)
        np.add(delta, scratch, out=scratch)
        np.multiply(scratch, lr, out=scratch)
        np.subtract(theta, scratch, out=delta)


NUMPY = NumpyKernel()


def subtract(anchor: F32, raw: NDArray[Any], out: F32) -> None:
    """Write anchor - raw in float32; raw may have any wire dtype."""
    if raw.dtype == np.float32:
        np.subtract(anchor, raw, out=out)
        return
    if raw.dtype == np.uint16:  # bfloat16 is the upper half of a float32: shifting is exact.
        bits = out.view(np.uint32)
        np.copyto(bits, raw)
        np.left_shift(bits, 16, out=bits)
    else:
        np.copyto(out, raw, casting="same_kind")
    np.subtract(anchor, out, out=out)


def square_sum(values: NDArray[Any]) -> float:
    """The sum of squares: per lane over the rows in the array's own precision, then in float64."""
    whole = values.size // LANES * LANES
    rows = values[:whole].reshape(-1, LANES)
    lanes = np.einsum("ki,ki->i", rows, rows)
    return float(lanes.sum(dtype=np.float64)) + rest_sum(values[whole:])


def rest_sum(values: NDArray[Any]) -> float:
    return float(np.einsum("i,i->", values, values))
