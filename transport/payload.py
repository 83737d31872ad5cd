"""Payloads: named tensors in immutable bytes.

Each tensor starts at a multiple of ``ALIGNMENT`` bytes, in memory and on the wire alike, so that a
payload is sent, received and merged without being taken apart. A payload that arrived may still be
in the pieces in which it was received. Digests are xxh3-128 (32 GB/s; with blake2b a round took
three times as long).
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import ml_dtypes
import numpy as np
import xxhash
from numpy.typing import NDArray

from transport.message import TENSORS_MAX, TensorMeta

ALIGNMENT = 64
"""Bytes: a cache line, which also suits the vector loads of current CPUs."""

CACHED_BYTES = 256 * 1024
"""What is copied and then read again stays in a processor's second-level cache."""

PAYLOAD_BYTES_MAX = 8 * 2**30
"""Use more fragments if a single one would exceed 8 GiB."""

Bytes = NDArray[np.uint8]

DTYPES: dict[str, np.dtype[Any]] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
"""The allowed types of parameters: a fixed list, never a pickle."""

SENDABLE = {**DTYPES, "uint8": np.dtype(np.uint8)}
"""The types of tensors on the wire; ``uint8`` is for bytes whose meaning both ends know."""


def aligned(nbytes: int) -> int:
    """``nbytes`` rounded up to a multiple of ``ALIGNMENT``."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def tensor_bytes(meta: TensorMeta) -> int:
    """The bytes of a tensor as sent, from its shape and element width."""
    return -(-math.prod(meta.shape) * meta.bits // 8)


def payload_bytes(tensors: Iterable[TensorMeta]) -> int:
    """The bytes of a whole payload, including padding."""
    return sum(aligned(tensor_bytes(meta)) for meta in tensors)


class Pieces:
    """Bytes that lie in one or several arrays (uint8), and are read as if they lay in one.

    Args:
        parts: the arrays in order; they must not change any more.
    """

    __slots__ = ("_parts", "_starts", "size")

    def __init__(self, parts: Sequence[Bytes]) -> None:
        self.size = sum(map(len, parts))
        self._parts = tuple(parts) or (np.empty(0, np.uint8),)
        self._starts = [0, *accumulate(map(len, parts[:-1]))]

    def __getitem__(self, span: slice) -> Bytes:
        """The bytes of a span, which has a start and a stop; they are copied only if they lie in
        more than one array."""
        first = bisect_right(self._starts, span.start) - 1
        found: list[Bytes] = []
        for start, part in zip(self._starts[first:], self._parts[first:], strict=True):
            if start >= span.stop and found:
                break
            found.append(part[span.start - start if not found else 0 : span.stop - start])
        return found[0] if len(found) == 1 else np.concatenate(found)

    def __iter__(self) -> Iterator[Bytes]:
        return iter(self._parts)


class Payload:
    """Tensors and their bytes, together ``payload_bytes(tensors)``.

    Args:
        tensors: describe the tensors, in order.
        parts: the bytes (uint8) in order, in one or several arrays, which must not change any more.
    """

    __slots__ = ("pieces", "tensors")

    def __init__(self, tensors: tuple[TensorMeta, ...], *parts: Bytes) -> None:
        self.tensors = tensors
        self.pieces = Pieces(parts)

    @property
    def data(self) -> Bytes:
        """All bytes in one array; a copy if they lie in several."""
        return self.pieces[0 : self.pieces.size]

    @property
    def digest(self) -> bytes:
        """One digest over the names, shapes, types and digests of all tensors."""
        whole = xxhash.xxh3_128()
        for meta in self.tensors:
            whole.update(f"{meta.name}|{meta.shape}|{meta.dtype}|{meta.bits}|".encode())
            whole.update(meta.digest)
        return whole.digest()


def payload_of(tensors: Mapping[str, NDArray[Any]]) -> Payload:
    """A payload with copies of named arrays, in their order.

    Raises:
        ValueError: too many tensors for a message, or a dtype that is not in ``SENDABLE``.
    """
    if len(tensors) > TENSORS_MAX:
        raise ValueError(f"{len(tensors)} tensors; a message has at most {TENSORS_MAX}")
    data = np.zeros(sum(aligned(array.nbytes) for array in tensors.values()), np.uint8)
    at = 0
    for name, array in tensors.items():
        if array.dtype.name not in SENDABLE:
            sendable = ", ".join(SENDABLE)
            raise ValueError(f"tensor {name!r} is of {array.dtype.name}; sent are {sendable}")
        data[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        at += aligned(array.nbytes)
    layout = [(name, array.shape, array.dtype.name) for name, array in tensors.items()]
    return Payload(describe(data, layout), data)


def tensors_of(payload: Payload) -> dict[str, NDArray[Any]]:
    """The tensors of a payload by name, read-only; copied if they lie in several pieces."""
    tensors: dict[str, NDArray[Any]] = {}
    at = 0
    for meta in payload.tensors:
        size = tensor_bytes(meta)
        view = payload.pieces[at : at + size].view(SENDABLE[meta.dtype]).reshape(meta.shape)
        view.flags.writeable = False
        tensors[meta.name] = view
        at += aligned(size)
    return tensors


def describe(
    data: Bytes, tensors: Sequence[tuple[str, tuple[int, ...], str]]
) -> tuple[TensorMeta, ...]:
    """Describe the tensors (name, shape, dtype) stored in ``data``, and compute their digests."""
    metas: list[TensorMeta] = []
    start = 0
    for name, shape, dtype in tensors:
        bits = SENDABLE[dtype].itemsize * 8
        size = math.prod(shape) * bits // 8
        digest = xxhash.xxh3_128_digest(data[start : start + size].data)
        metas.append(TensorMeta(name, shape, dtype, bits, digest))
        start += aligned(size)
    return tuple(metas)


def copy_payload(source: Bytes, tensors: Sequence[tuple[str, tuple[int, ...], str]]) -> Payload:
    """A payload with a copy of ``source``, which has tensors (name, shape, dtype) as a payload has
    them; each piece is copied and goes into its tensor's digest while it is in the cache."""
    data = np.empty_like(source)
    metas: list[TensorMeta] = []
    start = 0
    for name, shape, dtype in tensors:
        bits = SENDABLE[dtype].itemsize * 8
        size = math.prod(shape) * bits // 8
        digest = xxhash.xxh3_128()
        for at in range(start, start + size, CACHED_BYTES):
            stop = min(at + CACHED_BYTES, start + size)
            data[at:stop] = source[at:stop]
            digest.update(data[at:stop].data)
        data[start + size : start + aligned(size)] = 0
        metas.append(TensorMeta(name, shape, dtype, bits, digest.digest()))
        start += aligned(size)
    return Payload(tuple(metas), data)


class ArrivingDigests:
    def __init__(self, tensors: Sequence[TensorMeta]) -> None:
        self.broken: str | None = None
        """The name of the first complete tensor whose bytes do not match its digest."""
        self._tensors = iter(tensors)
        self._meta: TensorMeta | None = None
        self._digest = xxhash.xxh3_128()
        self._missing = self._padding = 0
        self._next()

    def update(self, piece: memoryview) -> None:
        while self._meta is not None:
            taken = min(len(piece), self._missing)
            self._digest.update(piece[:taken])
            self._missing -= taken
            piece = piece[taken:]
            if self._missing:
                return
            skipped = min(len(piece), self._padding)
            self._padding -= skipped
            piece = piece[skipped:]
            if self._padding:
                return
            if self.broken is None and self._digest.digest() != self._meta.digest:
                self.broken = self._meta.name
            self._next()

    def _next(self) -> None:
        self._meta = next(self._tensors, None)
        if self._meta is not None:
            self._digest.reset()
            self._missing = tensor_bytes(self._meta)
            self._padding = aligned(self._missing) - self._missing


def broken_tensor(payload: Payload) -> str | None:
    """The name of the first tensor whose bytes do not match its digest; None if all match."""
    digests = ArrivingDigests(payload.tensors)
    for part in payload.pieces:
        digests.update(part.data)
    return digests.broken
