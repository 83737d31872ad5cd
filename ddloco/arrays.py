"""What handles point to: an actor's arrays, put and freed as its machine asks."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddloco.arena import Arena, Region
from transport import Payload

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
        if self.arena is None:
            return
        if isinstance(stored, HostCopy):
            self.arena.free(stored.region)
        elif isinstance(stored, Payload):
            region = self.arena.find(stored.data)
            if region is not None:
                self.arena.free(region)
