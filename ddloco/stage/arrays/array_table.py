"""The arrays of an actor by handle, stored and freed as its machine requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from ddloco.stage.arrays.shared_memory import Region, SharedMemory
from transport import Bytes, Payload

F32 = NDArray[np.float32]


def _written() -> trio.Event:
    event = trio.Event()
    event.set()
    return event


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A learner's parameters after a step, in the layout of the fragment plan.

    Attributes:
        start: where the region begins in the layout of all parameters, in bytes.
        written: set once the worker has written the region.
    """

    region: Region
    start: int = 0
    written: trio.Event = field(default_factory=_written)

    def part(self, start: int, stop: int) -> Bytes:
        """The bytes from ``start`` to ``stop`` in the layout of all parameters."""
        return self.region.data[start - self.start : stop - self.start]

    def borrowed(self, arena: SharedMemory, start: int, stop: int) -> Bytes:
        """Return the same bytes, for longer than the copy is needed; see
        ``SharedMemory.borrow``."""
        return arena.borrow(self.region, start - self.start, stop - self.start)


Stored = HostCopy | Payload | F32 | Mapping[str, NDArray[Any]]
"""What a handle may stand for; the last are several arrays by name."""


class ArrayTable:
    """Arrays by handle. ``None`` stands for an array that a replay could not compute."""

    def __init__(self, arena: SharedMemory | None = None) -> None:
        self.arena = arena
        self._stored: dict[str, Stored | None] = {}

    def __len__(self) -> int:
        return len(self._stored)

    @property
    def shared(self) -> SharedMemory:
        assert self.arena is not None, "workers share memory"
        return self.arena

    def allocate(self, nbytes: int) -> Bytes:
        """Allocate bytes in the arena for an arriving payload; freed with its handle."""
        return self.shared.allocate(nbytes, arrived=True).data

    def lend(self, data: Bytes) -> Region:
        """A copy that the worker process can read; the caller must free it."""
        region = self.shared.allocate(len(data))
        region.data[:] = data
        return region

    def share(self, data: Bytes, lent: list[Region]) -> Region:
        """The region that consists of these bytes; if they are not in the arena, a copy, which is
        added to ``lent`` and must be freed."""
        region = self.shared.find(data)
        if region is None:
            region = self.lend(data)
            lent.append(region)
        return region

    def discard(self, data: Bytes) -> None:
        """Free bytes that ``allocate`` returned; others, borrowed ones too, are left to Python."""
        region = self.arena.find(data) if self.arena is not None else None
        if region is not None and region.data is data and self.arena is not None:
            self.arena.free(region)

    def put(self, handle: str, stored: Stored | None) -> None:
        assert handle not in self._stored, f"{handle} is named twice"
        self._stored[handle] = stored
        if self.arena is not None and isinstance(stored, Payload):
            for part in stored.pieces:
                self.arena.rest(part)

    def get(self, handle: str) -> Any:
        return self._stored[handle]

    def handles(self) -> list[str]:
        return list(self._stored)

    def known(self, *handles: str) -> bool:
        """Whether all of these exist and were computed; an empty handle stands for zeros."""
        return all(not handle or self._stored.get(handle) is not None for handle in handles)

    def free(self, handle: str) -> None:
        """Forget an array; its memory in the arena is reused."""
        stored = self._stored.pop(handle, None)
        if isinstance(stored, HostCopy) and self.arena is not None:
            self.arena.free(stored.region)
        elif isinstance(stored, Payload):
            for part in stored.pieces:
                self.discard(part)
