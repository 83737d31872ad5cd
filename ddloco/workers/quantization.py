"""Compresses differences of parameters into a few bits an element, and back (paper section 5).

A block of 256 elements shares one float32 scale. The formats differ in their levels:

* ``int8`` and ``int4``: 255 and 15 equally spaced levels between plus and minus the block's largest
  magnitude.
* ``e3m0``: a sign and three bits of exponent: 0 and plus or minus 2**-6 to 1 times the largest
  magnitude (Streaming DiLoCo, arXiv 2501.18512).
* ``int2``: four levels, a half and three halves of the block's root mean square on either side.
* ``int1``: a sign, times the block's mean magnitude.
* ``bfloat16``: the upper half of each float32; it has no scales.

The bits are the same on every CPU of one architecture and with any number of threads: every step is
an elementwise operation, a maximum, or a sum in a fixed order, and none calls BLAS. A block with
NaN or Inf decodes to values that are not finite, so that the merge refuses it.

There are two implementations, which give the same bytes: numpy's, here, and a compiled one, which
is several times as fast (``workers.quantization_kernel``). Here all arrays of a chunk fit into the
second-level cache; adjacent codes are packed as one wider integer, and unpacked by a table with an
entry for each byte.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ddloco.job.protocol.compression import (
    BITS,
    BLOCK,
    SCALE_BYTES,
    Format,
    blocks_of,
    encoded_bytes,
)

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

CHUNK_BLOCKS = 128
"""Blocks that are compressed together."""

SCALE_MIN = np.float32(1e-30)
"""A block whose levels are closer is sent as zeros: the reciprocal would leave float32's range."""

_SIGN, _MANTISSA_BITS, _BIAS = 8, 23, 127
_E3M0_LEVELS = 8
_E3M0_LEAST = np.float32(2.0 ** (2 - _E3M0_LEVELS))
"""The smallest magnitude of ``e3m0`` besides 0, as a share of the largest."""


class _Levels(NamedTuple):
    """Equally spaced levels: code c stands for (c - offset) times the block's scale."""

    highest: int
    offset: float


_LEVELS: dict[Format, _Levels] = {
    "int8": _Levels(254, 127.0),
    "int4": _Levels(14, 7.0),
    "int2": _Levels(3, 1.5),
    "int1": _Levels(1, 0.5),
}
_MIDDLE = frozenset({"int8", "int4"})
"""Formats whose levels reach from minus to plus the largest magnitude."""

_ROUND = np.float32(1.5 * 2**_MANTISSA_BITS)
"""Adding it rounds to the nearest integer, or the even one, and leaves that in the lowest bits."""


class Quantizer(Protocol):
    """Compresses differences and adds them up again; all arrays but bytes are flat float32."""

    def encode(
        self,
        values: F32,
        form: Format,
        out: U8,
        *,
        base: F32 | None = None,
        error: F32 | None = None,
        noise_seed: int | None = None,
        lost: F32 | None = None,
    ) -> None:
        """Compress ``values - base + error`` into ``out``. Without ``base`` the values are a
        difference; ``error`` is what earlier compressions lost. With ``noise_seed`` it rounds
        stochastically, else to nearest. ``lost`` is filled with what this compression loses, 0
        where that is not finite."""
        ...

    def decode(self, data: U8, form: Format, out: F32, *, base: F32 | None = None) -> None:
        """Write ``base`` plus the differences that compressed bytes stand for to ``out``."""
        ...


class NumpyQuantizer:
    """``Quantizer`` in numpy."""

    def encode(
        self,
        values: F32,
        form: Format,
        out: U8,
        *,
        base: F32 | None = None,
        error: F32 | None = None,
        noise_seed: int | None = None,
        lost: F32 | None = None,
    ) -> None:
        with np.errstate(all="ignore"):
            difference = values if base is None else values - base
            if error is not None:
                difference = difference + error
            encode(difference, form, out, noise_seed)
            if lost is not None:
                np.subtract(difference, decode(out, form, values.size), out=lost)
                np.nan_to_num(lost, copy=False, nan=0.0, posinf=0.0, neginf=0.0)

    def decode(self, data: U8, form: Format, out: F32, *, base: F32 | None = None) -> None:
        difference = decode(data, form, out.size)
        with np.errstate(all="ignore"):
            out[:] = difference if base is None else base + difference


NUMPY = NumpyQuantizer()


class _Scratch:
    """Arrays that are used again for every chunk; new ones would cost more than the arithmetic."""

    def __init__(self) -> None:
        shape = (CHUNK_BLOCKS, BLOCK)
        self.floats = np.empty(shape, np.float32)
        self.words = np.empty(shape, np.uint32)
        self.codes = np.empty(shape, np.uint8)
        self.signs = np.empty(shape, np.uint8)


def encode(values: F32, form: Format, out: U8, noise_seed: int | None = None) -> None:
    """Compress a flat float32 array of differences; see ``Quantizer.encode``."""
    assert out.size == encoded_bytes(values.size, form), "the format's size"
    noise = None if noise_seed is None else np.random.SFC64(noise_seed)
    if form == "float32":
        out.view("<f4")[:] = values
        return
    with np.errstate(all="ignore"):
        if form == "bfloat16":
            _encode_bfloat16(values, out.view("<u2"), noise)
            return
        blocks, scratch = blocks_of(values.size), _Scratch()
        scales = out[: blocks * SCALE_BYTES].view("<f4")
        codes = out[blocks * SCALE_BYTES :].reshape(blocks, -1)
        for part, rows, count in _chunks(values):
            scale = _scale(rows, form, count, scratch)
            scale[np.isnan(scale)] = np.nan  # One NaN of many, whose signs no version promises.
            scales[part] = scale
            _pack(_codes(rows, form, scale, noise, scratch), form, codes[part])


def decode(data: U8, form: Format, elements: int) -> F32:
    """Return the differences that compressed bytes stand for, flat float32."""
    assert data.size == encoded_bytes(elements, form), "the format's size"
    if form == "float32":
        return data.view("<f4").copy()
    if form == "bfloat16":
        bits = data.view("<u2").astype(np.uint32)
        np.left_shift(bits, 16, out=bits)
        return bits.view(np.float32)
    blocks = blocks_of(elements)
    scales = data[: blocks * SCALE_BYTES].view("<f4")
    codes = data[blocks * SCALE_BYTES :].reshape(blocks, -1)
    out = np.empty((blocks, BLOCK), np.float32)
    table = _TABLES[form]
    with np.errstate(all="ignore"):
        for start in range(0, blocks, CHUNK_BLOCKS):
            part = slice(start, start + CHUNK_BLOCKS)
            np.take(table, codes[part], out=out[part].view(table.dtype), mode="clip")
            np.multiply(out[part], scales[part, None], out=out[part])
    return out.reshape(-1)[:elements]


def _chunks(values: F32) -> Iterator[tuple[slice, F32, int]]:
    """Yield runs of blocks: their numbers, their elements as rows, and the elements in each row.
    The last block is a run of its own if it had to be filled up with zeros."""
    whole = values.size // BLOCK
    rows = values[: whole * BLOCK].reshape(whole, BLOCK)
    for start in range(0, whole, CHUNK_BLOCKS):
        part = slice(start, min(start + CHUNK_BLOCKS, whole))
        yield part, rows[part], BLOCK
    rest = values.size - whole * BLOCK
    if rest:
        last = np.zeros((1, BLOCK), np.float32)
        last[0, :rest] = values[whole * BLOCK :]
        yield slice(whole, whole + 1), last, rest


def _scale(rows: F32, form: Format, count: int, scratch: _Scratch) -> F32:
    """Return the scale of each block: the spacing of its levels, or for e3m0 its largest magnitude.
    The sums are plain ``einsum`` loops, whose order does not depend on the processor."""
    if form == "int2":
        return np.sqrt(np.einsum("ki,ki->k", rows, rows) / np.float32(count))
    if form == "int1":
        magnitudes = np.abs(rows, out=scratch.floats[: len(rows)])
        return np.float32(2.0) * (np.einsum("ki->k", magnitudes) / np.float32(count))
    # Without their signs, the bits of float32 are in the order of the numbers.
    bits = np.bitwise_and(rows.view(np.uint32), 0x7FFFFFFF, out=scratch.words[: len(rows)])
    largest = bits.view(np.int32).max(axis=1).view(np.float32)
    return largest if form == "e3m0" else largest / np.float32(_LEVELS[form].offset)


def _codes(
    rows: F32, form: Format, scale: F32, noise: np.random.SFC64 | None, scratch: _Scratch
) -> U8:
    factor = np.where(scale >= SCALE_MIN, np.float32(1.0) / scale, np.float32(0.0))
    scaled = np.multiply(rows, factor[:, None], out=scratch.floats[: len(rows)])
    if not np.isfinite(scale).all():
        scaled[~np.isfinite(scale)] = 0.0  # Its scale alone makes the block's values not finite.
    if form == "e3m0":
        return _codes_e3m0(scaled, noise, scratch)
    levels, codes = _LEVELS[form], scratch.codes[: len(rows)]
    if noise is None and form in _MIDDLE:
        np.add(scaled, _ROUND + np.float32(levels.offset), out=scaled)
    else:
        below = np.float32(0.0) if noise is None else _uniform(noise, rows.shape) - np.float32(0.5)
        np.add(scaled, np.float32(levels.offset), out=scaled)
        np.add(scaled, below, out=scaled)
        np.maximum(scaled, np.float32(0.0), out=scaled)
        np.minimum(scaled, np.float32(levels.highest), out=scaled)
        np.add(scaled, _ROUND, out=scaled)
    np.copyto(codes, scaled.view(np.uint32), casting="unsafe")
    return codes


def _codes_e3m0(scaled: F32, noise: np.random.SFC64 | None, scratch: _Scratch) -> U8:
    """The exponents of float32 are the levels: adding to the mantissa rounds them up."""
    bits, words = scaled.view(np.uint32), scratch.words[: len(scaled)]
    levels, signs = scratch.codes[: len(scaled)], scratch.signs[: len(scaled)]
    np.copyto(signs, np.right_shift(bits, 28, out=words), casting="unsafe")
    np.bitwise_and(signs, _SIGN, out=signs)
    np.bitwise_and(bits, 0x7FFFFFFF, out=bits)
    if noise is None:
        small = scaled >= np.float32(0.5) * _E3M0_LEAST
        np.add(bits, np.uint32(1 << (_MANTISSA_BITS - 1)), out=bits)
    else:
        random = _uniform(noise, scaled.shape)
        small = scaled * (1 / _E3M0_LEAST) + random >= np.float32(1.0)
        random *= np.float32(1 << _MANTISSA_BITS)
        np.add(bits, random.astype(np.uint32), out=bits)
    np.right_shift(bits, _MANTISSA_BITS, out=bits)
    least = np.uint32(_BIAS - _E3M0_LEVELS + 1)
    np.maximum(bits, least, out=bits)
    np.copyto(levels, np.subtract(bits, least, out=bits), casting="unsafe")
    # Below the smallest magnitude the levels are 0 and 1, and no longer powers of two.
    np.maximum(levels, small.view(np.uint8), out=levels)
    np.minimum(levels, np.uint8(_E3M0_LEVELS - 1), out=levels)
    return np.bitwise_or(levels, signs, out=levels)


def _uniform(noise: np.random.SFC64, shape: tuple[int, ...]) -> F32:
    """Random numbers in [0, 1) in steps of 2**-16: the generator's raw output is the same with
    every version of numpy."""
    raw = _raw(noise, shape[0] * shape[1]).reshape(shape)
    return np.multiply(raw, np.float32(2.0**-16), dtype=np.float32)


def _raw(noise: np.random.SFC64, count: int) -> NDArray[np.uint16]:
    return np.asarray(noise.random_raw(-(-count // 4)), "<u8").view("<u2")[:count]


def _encode_bfloat16(values: F32, out: NDArray[np.uint16], noise: np.random.SFC64 | None) -> None:
    """Round to the nearest bfloat16, to even where two are as near; or up with random bits."""
    if noise is None:
        out[:] = values.astype(ml_dtypes.bfloat16).view(np.uint16)
        return
    step = CHUNK_BLOCKS * BLOCK
    for start in range(0, values.size, step):
        part = values[start : start + step]
        bits = part.view(np.uint32)
        upper = (bits + _raw(noise, part.size)) >> 16
        sound = np.isfinite(part)
        if not sound.all():  # A carry must not turn NaN into a number.
            upper[~sound] = (bits[~sound] >> 16) | np.uint32(0x40)
        out[start : start + step] = upper


def _pack(codes: U8, form: Format, out: U8) -> None:
    """Pack codes of less than a byte: the first element is in the lowest bits."""
    bits = BITS[form]
    if bits == 8:
        out[:] = codes
    elif bits == 4:
        pairs = codes.view("<u2")
        np.copyto(out, pairs | (pairs >> 4), casting="unsafe")
    elif bits == 2:
        fours = codes.view("<u4")
        np.copyto(out, fours | (fours >> 6) | (fours >> 12) | (fours >> 18), casting="unsafe")
    else:
        out[:] = np.packbits(codes, axis=1, bitorder="little")


def _table(form: Format) -> NDArray[Any]:
    """For every byte the values of its codes, before scaling, as one item."""
    bits = BITS[form]
    each = 8 // bits
    codes = (np.arange(256)[:, None] >> (bits * np.arange(each))) & ((1 << bits) - 1)
    if form == "e3m0":
        levels = codes & (_SIGN - 1)
        signs = np.where(codes & _SIGN, -1.0, 1.0)
        values = np.where(levels > 0, signs * 2.0 ** (levels - (_E3M0_LEVELS - 1)), 0.0)
    else:
        values = codes - _LEVELS[form].offset
    items = np.ascontiguousarray(values, np.float32)
    return items.view(f"V{4 * each}")[:, 0] if each > 1 else items[:, 0]


_TABLES: dict[Format, NDArray[Any]] = {
    form: _table(form) for form in ("int8", "int4", "e3m0", "int2", "int1")
}
