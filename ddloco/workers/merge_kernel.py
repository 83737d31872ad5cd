"""The arithmetic of merges, compiled: each loop reads and writes memory once.

``merge_kernel.c`` is compiled when ddloco is installed, by ``hatch_build.py``, on a machine that
has a C compiler. Without it merges are computed by numpy, more slowly, with the same bits: this
module compares the two on a sample before it takes the compiled one.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddloco.machines.outer.block_kernel import F32, LANES, NUMPY, BlockKernel, rest_sum, subtract
from ddloco.workers.compiled import compiled

LIBRARY = "_merge_kernel.so"
"""See ``compiled``."""

_COMPILED = {np.dtype(np.float32): 0, np.dtype(np.uint16): 1}
"""The wire dtypes that the compiled loops read, with how they are told."""

_SAMPLE_ROWS, _SAMPLE_COUNT = 5, 11
"""More rows than are summed at a time, and two groups of contributions that are read together,
with some that are read one by one."""


@cache
def merge_kernel() -> BlockKernel:
    """The fastest arithmetic that this installation has."""
    return compiled(LIBRARY, CompiledKernel, NUMPY, _sampled)


class CompiledKernel:
    """``BlockKernel`` in C; what is not a whole row of float32 or bfloat16 is left to numpy.

    Args:
        library: ``merge_kernel.c``, compiled. Its functions run without the GIL.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self._change_squares = library.ddloco_change_squares
        self._change_squares.argtypes = [pointer, pointer, ctypes.c_int, size, size, pointer]
        self._change_squares.restype = None
        self._weighted_change = library.ddloco_weighted_change
        self._weighted_change.argtypes = [
            *(pointer, pointer, ctypes.c_int, pointer, size, size, pointer)
        ]
        self._weighted_change.restype = ctypes.c_double
        self._nesterov = library.ddloco_nesterov
        self._nesterov.argtypes = [pointer] * 4 + [ctypes.c_float] * 3 + [size]
        self._nesterov.restype = None

    def change_squares(self, anchor: F32, raws: Sequence[NDArray[Any]]) -> list[float]:
        """See ``BlockKernel.change_squares``."""
        kind = _kind(raws)
        if kind is None:
            return NUMPY.change_squares(anchor, raws)
        squares, rows = (ctypes.c_double * len(raws))(), anchor.size // LANES
        self._change_squares(_at(anchor), _places(raws), kind, len(raws), rows, squares)
        whole = rows * LANES
        rest = anchor[whole:]
        if not rest.size:
            return list(squares)
        change = np.empty_like(rest)
        found: list[float] = []
        with np.errstate(over="ignore", invalid="ignore"):
            for square, raw in zip(squares, raws, strict=True):
                subtract(rest, raw[whole:], change)
                found.append(square + rest_sum(change))
        return found

    def weighted_change(
        self, anchor: F32, raws: Sequence[NDArray[Any]], factors: Sequence[float], out: F32
    ) -> float:
        """See ``BlockKernel.weighted_change``."""
        kind = _kind(raws)
        if kind is None:
            return NUMPY.weighted_change(anchor, raws, factors, out)
        rows = anchor.size // LANES
        told, count = (ctypes.c_float * len(raws))(*factors), len(raws)
        square = float(
            self._weighted_change(_at(anchor), _places(raws), kind, told, count, rows, _at(out))
        )
        whole = rows * LANES
        if whole == anchor.size:
            return square
        rests = [raw[whole:] for raw in raws]
        return square + NUMPY.weighted_change(anchor[whole:], rests, factors, out[whole:])

    def nesterov(
        self, theta: F32, momentum: F32, rates: tuple[float, float, float], out: tuple[F32, F32]
    ) -> None:
        """See ``BlockKernel.nesterov``."""
        places = (_at(theta), _at(momentum), _at(out[0]), _at(out[1]))
        self._nesterov(*places, *rates, theta.size)


def _at(array: NDArray[Any]) -> int:
    return array.ctypes.data


def _places(arrays: Sequence[NDArray[Any]]) -> "ctypes.Array[ctypes.c_void_p]":
    return (ctypes.c_void_p * len(arrays))(*map(_at, arrays))


def _kind(raws: Sequence[NDArray[Any]]) -> int | None:
    """How the dtype that all of them have is told; None if they are to be left to numpy."""
    dtypes = {raw.dtype for raw in raws}
    return _COMPILED.get(dtypes.pop()) if len(dtypes) == 1 else None


def _sampled(kernel: BlockKernel) -> list[Any]:
    """What a kernel computes from a sample with a row that is not whole."""
    rng = np.random.default_rng(0)
    theta, momentum, *values = rng.standard_normal(
        (2 + _SAMPLE_COUNT, _SAMPLE_ROWS * LANES + 7), np.float32
    )
    halves = [(value.view(np.uint32) >> 16).astype(np.uint16) for value in values]
    return [_results(kernel, theta, momentum, raws) for raws in (values, halves)]


def _results(
    kernel: BlockKernel, theta: F32, momentum: F32, raws: Sequence[NDArray[Any]]
) -> tuple[Any, ...]:
    out, momentum_out = np.empty_like(theta), np.empty_like(theta)
    squares = kernel.change_squares(theta, raws)
    factors = [0.3 + 0.1 * number for number in range(len(raws))]
    square = kernel.weighted_change(theta, raws, factors, out)
    kernel.nesterov(theta, momentum, (1.7, 0.7, 0.9), (out, momentum_out))
    return squares, square, out.tobytes(), momentum_out.tobytes()
