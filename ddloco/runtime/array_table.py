"""What handles point to: an actor's arrays, put and freed as its machine asks."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddloco.runtime.shared_memory import Arena, Region
from transport import Bytes, Payload

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A learner's whole parameters after a step, laid out as the plan says."""

    region: Region


Stored = HostCopy | Payload | F32


class Arrays:
    """Handles and what they point to. ``None`` stands for what a replay could not compute."""

    def __init__(self, arena: Arena | None = None) -> None:
        self.arena = arena
        self._stored: dict[str, Stored | None] = {}

    def __len__(self) -> int:
        return len(self._stored)

    @property
    def shared(self) -> Arena:
        """The arena; only actors with a worker process have one."""
        assert self.arena is not None, "workers share memory"
        return self.arena

    def allocate(self, nbytes: int) -> Bytes:
        """Bytes in the arena, for a payload that is arriving; freed with its handle."""
        return self.shared.allocate(nbytes).data

    def lend(self, data: Bytes) -> Region:
        """A copy that the worker process can see, to be freed when it has looked."""
        region = self.shared.allocate(len(data))
        region.data[:] = data
        return region

    def discard(self, data: Bytes) -> None:
        """Give back bytes that were allocated here; others are left to Python."""
        region = self.arena.find(data) if self.arena is not None else None
        if region is not None and self.arena is not None:
            self.arena.free(region)

    def put(self, handle: str, stored: Stored | None) -> None:
        """Name an array; a handle is named once."""
        assert handle not in self._stored, f"{handle} is named twice"
        self._stored[handle] = stored

    def get(self, handle: str) -> Any:
        """The array."""
        return self._stored[handle]

    def known(self, *handles: str) -> bool:
        """Whether all of these are there and were computed; an empty handle stands for zeros."""
        return all(not handle or self._stored.get(handle) is not None for handle in handles)

    def free(self, handle: str) -> None:
        """Forget an array; what lies in the arena is used again."""
        stored = self._stored.pop(handle, None)
        if isinstance(stored, HostCopy) and self.arena is not None:
            self.arena.free(stored.region)
        elif isinstance(stored, Payload):
            self.discard(stored.data)
