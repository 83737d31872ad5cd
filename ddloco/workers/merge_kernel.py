"""The arithmetic of merges, compiled: each loop reads and writes memory once. ``merge_kernel.c`` is
compiled when ddloco is installed, by ``hatch_build.py``. Without it numpy computes the same bits,
more slowly: the two are compared on a sample before the compiled one is taken."""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ddloco.job.protocol.compression import Format, encoded_bytes
from ddloco.machines.outer.block_kernel import (
    F32,
    LANES,
    NUMPY,
    BlockKernel,
    Raw,
    elements_of,
    rest_sum,
    subtract,
)
from ddloco.workers.compiled import address, compiled
from ddloco.workers.compressed_elements import CompressedElements, compressed_elements, row_bytes
from ddloco.workers.quantization import NUMPY as NUMPY_QUANTIZER
from ddloco.workers.quantization_kernel import FORMS, CompiledQuantizer, quantizer

LIBRARY = "_merge_kernel.so"

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
    """``BlockKernel`` in C, without the GIL; what is not a whole row of float32 or bfloat16 is left
    to numpy."""

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
        self._compressed_squares = library.ddloco_compressed_squares
        self._compressed_squares.argtypes = [*[pointer] * 3, size, size, pointer]
        self._compressed_squares.restype = None
        self._compressed_change = library.ddloco_compressed_change
        self._compressed_change.argtypes = [*[pointer] * 4, size, size, pointer]
        self._compressed_change.restype = ctypes.c_double
        self._nesterov = library.ddloco_nesterov
        self._nesterov.argtypes = [pointer] * 4 + [ctypes.c_float] * 3 + [size]
        self._nesterov.restype = None

    def change_squares(self, anchor: F32, raws: Sequence[Raw]) -> list[float]:
        squares, rows = (ctypes.c_double * len(raws))(), anchor.size // LANES
        if (lazy := _compressed(raws)) is not None:
            self._compressed_squares(address(anchor), *lazy, len(raws), rows, squares)
        elif (plain := _plain(raws)) is not None:
            self._change_squares(address(anchor), *plain, len(raws), rows, squares)
        else:
            return NUMPY.change_squares(anchor, raws)
        whole = rows * LANES
        rest = anchor[whole:]
        if not rest.size:
            return list(squares)
        change = np.empty_like(rest)
        found: list[float] = []
        with np.errstate(over="ignore", invalid="ignore"):
            for square, raw in zip(squares, raws, strict=True):
                subtract(rest, elements_of(raw, whole), change)
                found.append(square + rest_sum(change))
        return found

    def weighted_change(
        self, anchor: F32, raws: Sequence[Raw], factors: Sequence[float], out: F32
    ) -> float:
        rows, told = anchor.size // LANES, (ctypes.c_float * len(raws))(*factors)
        more = told, len(raws), rows, address(out)
        if (lazy := _compressed(raws)) is not None:
            square = float(self._compressed_change(address(anchor), *lazy, *more))
        elif (plain := _plain(raws)) is not None:
            square = float(self._weighted_change(address(anchor), *plain, *more))
        else:
            return NUMPY.weighted_change(anchor, raws, factors, out)
        whole = rows * LANES
        if whole == anchor.size:
            return square
        rests = [elements_of(raw, whole) for raw in raws]
        return square + NUMPY.weighted_change(anchor[whole:], rests, factors, out[whole:])

    def nesterov(
        self, theta: F32, momentum: F32, rates: tuple[float, float, float], out: tuple[F32, F32]
    ) -> None:
        places = (address(theta), address(momentum), address(out[0]), address(out[1]))
        self._nesterov(*places, *rates, theta.size)


def _plain(raws: Sequence[Raw]) -> tuple[Any, int] | None:
    """How C is told of arrays of one dtype that it reads; None if they are to be left to numpy."""
    kinds = {_COMPILED.get(raw.dtype) if isinstance(raw, np.ndarray) else None for raw in raws}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None:
        return None
    arrays: Any = raws
    return (ctypes.c_void_p * len(raws))(*map(address, arrays)), kind


class _Compressed(ctypes.Structure):
    _fields_ = (("scales", ctypes.c_void_p), ("codes", ctypes.c_void_p), ("base", ctypes.c_void_p))


class _Format(ctypes.Structure):
    _fields_ = (
        ("decode", ctypes.c_void_p),
        ("form", ctypes.c_size_t),
        ("scale_bytes", ctypes.c_size_t),
        ("code_bytes", ctypes.c_size_t),
    )


def _compressed(raws: Sequence[Raw]) -> tuple[Any, Any] | None:
    """How C is told of compressed elements of one format; None if there are others among them, or
    compression is not compiled."""
    forms = {raw.form if isinstance(raw, CompressedElements) else None for raw in raws}
    form, by = forms.pop() if len(forms) == 1 else None, quantizer()
    if form not in FORMS or not isinstance(by, CompiledQuantizer):
        return None
    lazy: Any = raws
    places = [tuple(map(address, (each.scales, each.codes, each.base))) for each in lazy]
    told = _Format(by.decoder, FORMS[form], *row_bytes(form, LANES))
    return (_Compressed * len(raws))(*places), ctypes.byref(told)


def _sampled(kernel: BlockKernel) -> list[Any]:
    """What a kernel computes from a sample with a row that is not whole."""
    rng = np.random.default_rng(0)
    theta, momentum, *values = rng.standard_normal(
        (2 + _SAMPLE_COUNT, _SAMPLE_ROWS * LANES + 7), np.float32
    )
    halves = [(value.view(np.uint32) >> 16).astype(np.uint16) for value in values]
    lazy: list[Sequence[Raw]] = [_lazy(values, theta, form) for form in FORMS]
    return [_results(kernel, theta, momentum, raws) for raws in (values, halves, *lazy)]


def _lazy(values: Sequence[F32], base: F32, form: Format) -> list[Raw]:
    """The values, compressed; every second one as it is, the others as differences to the base."""
    found: list[Raw] = []
    for number, value in enumerate(values):
        data = np.zeros(encoded_bytes(value.size, form), np.uint8)
        own = base if number % 2 else None
        NUMPY_QUANTIZER.encode(value, form, data, base=own)
        found.append(compressed_elements(data, form, value.size, own))
    return found


def _results(
    kernel: BlockKernel, theta: F32, momentum: F32, raws: Sequence[Raw]
) -> tuple[Any, ...]:
    out, momentum_out = np.empty_like(theta), np.empty_like(theta)
    squares = kernel.change_squares(theta, raws)
    factors = [0.3 + 0.1 * number for number in range(len(raws))]
    square = kernel.weighted_change(theta, raws, factors, out)
    kernel.nesterov(theta, momentum, (1.7, 0.7, 0.9), (out, momentum_out))
    return squares, square, out.tobytes(), momentum_out.tobytes()
