"""The layout of a learner's whole state: parameters in the plan's layout, then the optimizer's.

A peer sends it to a learner that returns. Every tensor's start is aligned; padding is zero.
"""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from transport import Bytes, Pieces, aligned

PIECE_BYTES = 16 * 2**20
"""A state is sent in pieces of 16 MiB: large enough that the cost of a request is negligible, small
enough that a fragment never waits long behind one."""

TENSOR = "state"


class Moments:
    """The positions of the optimizer's leaves, after ``start`` bytes of parameters. Raises
    TypeError for a leaf that is not numeric, such as a random key."""

    def __init__(self, leaves: Iterable[Any], start: int) -> None:
        self._leaves: list[tuple[int, tuple[int, ...], np.dtype[Any]]] = []
        self.stop = start
        for leaf in leaves:
            dtype = np.dtype(leaf.dtype)
            self._leaves.append((self.stop, tuple(leaf.shape), dtype))
            self.stop += aligned(_nbytes(leaf.shape, dtype))

    def clear_padding(self, state: Bytes) -> None:
        """Set what lies between the leaves to zero, since the memory may have been used before."""
        stops = [start for start, _, _ in self._leaves[1:]] + [self.stop] * bool(self._leaves)
        for (start, shape, dtype), stop in zip(self._leaves, stops, strict=True):
            state[start + _nbytes(shape, dtype) : stop] = 0

    def read(self, state: Bytes | Pieces) -> list[Any]:
        """The leaves, as views of ``state`` except for those that lie in several pieces of it."""
        views: list[Any] = []
        for start, shape, dtype in self._leaves:
            size = _nbytes(shape, dtype)
            views.append(state[start : start + size].view(dtype).reshape(shape))
        return views


def _nbytes(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    return prod(shape) * dtype.itemsize


def pieces_of(nbytes: int, piece_bytes: int = PIECE_BYTES) -> int:
    return -(-nbytes // piece_bytes)


def piece_slice(piece: int, nbytes: int, piece_bytes: int = PIECE_BYTES) -> slice:
    return slice(piece * piece_bytes, min((piece + 1) * piece_bytes, nbytes))


def piece_layout(
    piece: int, pieces: int, nbytes: int
) -> tuple[tuple[str, tuple[int, ...], str], ...] | None:
    """(name, shape, dtype) of a piece's tensor; None for a piece that does not exist."""
    if pieces != pieces_of(nbytes) or piece >= pieces:
        return None
    part = piece_slice(piece, nbytes)
    return ((TENSOR, (part.stop - part.start,), "uint8"),)
