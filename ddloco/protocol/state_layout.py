"""A learner's whole state as bytes: parameters as the plan lays them out, then the optimizer's.

What a peer gives to a learner that comes back. Every tensor starts aligned; padding is zero.
"""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from transport import Bytes, aligned

PIECE_BYTES = 16 * 2**20
"""A state travels in pieces of 16 MiB: long enough that asking for one costs nothing beside it,
short enough that a fragment never waits long behind one."""

TENSOR = "state"
"""The name of a piece's one tensor."""


class Moments:
    """Where the optimizer's leaves lie, behind the parameters.

    Args:
        leaves: shapes and dtypes, in order; anything with both.
        start: bytes of the parameters.

    Raises:
        TypeError: a leaf is no plain numbers, such as a random key.
    """

    def __init__(self, leaves: Iterable[Any], start: int) -> None:
        self._leaves: list[tuple[int, tuple[int, ...], np.dtype[Any]]] = []
        self.stop = start
        for leaf in leaves:
            dtype = np.dtype(leaf.dtype)
            self._leaves.append((self.stop, tuple(leaf.shape), dtype))
            self.stop += aligned(_nbytes(leaf.shape, dtype))

    def write(self, leaves: Sequence[Any], state: Bytes) -> None:
        """Copy the leaves to where they belong; what lies between them may be memory used before,
        and becomes zero."""
        for leaf, view in zip(leaves, self._views(state), strict=True):
            np.copyto(view, np.asarray(leaf))
        stops = [start for start, _, _ in self._leaves[1:]] + [self.stop]
        for (start, shape, dtype), stop in zip(self._leaves, stops, strict=True):
            state[start + _nbytes(shape, dtype) : stop] = 0

    def read(self, state: Bytes) -> list[Any]:
        """The leaves, as copies."""
        return [view.copy() for view in self._views(state)]

    def _views(self, state: Bytes) -> list[Any]:
        views: list[Any] = []
        for start, shape, dtype in self._leaves:
            size = _nbytes(shape, dtype)
            views.append(state[start : start + size].view(dtype).reshape(shape))
        return views


def _nbytes(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    return prod(shape) * dtype.itemsize


def pieces_of(nbytes: int, piece_bytes: int = PIECE_BYTES) -> int:
    """How many pieces a state has."""
    return -(-nbytes // piece_bytes)


def piece_slice(piece: int, nbytes: int, piece_bytes: int = PIECE_BYTES) -> slice:
    """Where a piece lies in a state of ``nbytes``."""
    return slice(piece * piece_bytes, min((piece + 1) * piece_bytes, nbytes))


def piece_layout(
    piece: int, pieces: int, nbytes: int
) -> tuple[tuple[str, tuple[int, ...], str], ...] | None:
    """(name, shape, dtype) of a piece's tensor; None for a piece that a state does not have."""
    if pieces != pieces_of(nbytes) or piece >= pieces:
        return None
    part = piece_slice(piece, nbytes)
    return ((TENSOR, (part.stop - part.start,), "uint8"),)
