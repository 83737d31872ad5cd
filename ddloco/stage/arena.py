"""Memory shared with a worker process: the host copies and the fragments that overwrite them.

One unnamed file, in memory where the system has such a place, handed to the worker as a descriptor;
it is gone with the last process that has it, also after a SIGKILL. Regions are mapped one by one,
so the file can grow; freed ones are used again for the same size.
"""

import mmap
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from transport import Bytes

PAGE = mmap.ALLOCATIONGRANULARITY
MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108, a place that tempfile may use, not a file name


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of the arena: where it lies, and its bytes (uint8)."""

    offset: int
    data: Bytes


class Arena:
    """The owner's side: allocates and frees."""

    def __init__(self) -> None:
        folder = MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK) else None
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115, lives as long as this
        self._end = 0
        self._free: dict[int, list[Region]] = {}
        self._by_address: dict[int, Region] = {}

    def fileno(self) -> int:
        """The descriptor that a worker process inherits."""
        return self._file.fileno()

    def allocate(self, nbytes: int) -> Region:
        """A region of ``nbytes``, whose content is whatever was there before."""
        pool = self._free.get(nbytes)
        if pool:
            return pool.pop()
        offset, span = self._end, _span(nbytes)
        self._end += span
        os.ftruncate(self._file.fileno(), self._end)
        region = Region(offset, _map(self._file.fileno(), offset, nbytes))
        self._by_address[_address(region.data)] = region
        return region

    def find(self, data: Bytes) -> Region | None:
        """The region that these bytes are, if they lie here."""
        region = self._by_address.get(_address(data))
        return region if region is not None and len(region.data) == len(data) else None

    def free(self, region: Region) -> None:
        """Give a region back; nobody reads it any more."""
        self._free.setdefault(len(region.data), []).append(region)

    def close(self) -> None:
        """Let go of the file; mappings live on with their arrays."""
        self._file.close()


class ArenaView:
    """The worker's side: looks at regions that the owner names."""

    def __init__(self, fileno: int) -> None:
        self._fileno = fileno
        self._regions: dict[tuple[int, int], Bytes] = {}

    def region(self, offset: int, nbytes: int) -> Bytes:
        """The bytes of a region (uint8), writable."""
        key = (offset, nbytes)
        if key not in self._regions:
            self._regions[key] = _map(self._fileno, offset, nbytes)
        return self._regions[key]


def _address(data: Bytes) -> int:
    return data.__array_interface__["data"][0]


def _span(nbytes: int) -> int:
    return -(-max(nbytes, 1) // PAGE) * PAGE


def _map(fileno: int, offset: int, nbytes: int) -> Bytes:
    mapped = mmap.mmap(fileno, _span(nbytes), offset=offset)
    return np.frombuffer(mapped, np.uint8, nbytes)
