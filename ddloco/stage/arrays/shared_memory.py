"""Memory shared with a worker process, in two unnamed files whose descriptors it inherits: one in
memory, and one in the folder for temporary files, used when the first is full. They vanish with the
last process that has them open, even after SIGKILL. Space is reserved before it is mapped: writing
to a page for which a full file system has no room kills a process with SIGBUS."""

import errno
import mmap
import os
import tempfile
import weakref
from bisect import bisect_right, insort
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import IO, Any

import numpy as np

from transport import Bytes
from transport.endpoint import Frame

PAGE = mmap.ALLOCATIONGRANULARITY
MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108, a place that tempfile may use, not a file name

FILE_OFFSETS = 2**48
"""An offset also identifies its file: those of the second file begin here, beyond any file's
size."""

KEPT_FREE = 4
"""Freed regions of one size that keep their memory, for the fragments that are usually on their way
in a learner at a time: memory that was given back costs page faults when it is used again."""

GIVEN_BACK_BYTES_MIN = 2**20
"""Smaller regions keep their memory."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM})


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of the arena: its offset, and its bytes (uint8)."""

    offset: int
    data: Bytes


class SharedMemory:
    """The owner's side: allocates and frees. Freed regions are reused for the same size, once
    nothing that was borrowed from them is read any more; the memory of those that are not needed
    soon is given back: a whole model, or a donor's state, passes through only once. Of what has
    arrived from others, at most ``arrived_max`` bytes are in the first file; the system takes
    memory back from the second. ``OSError`` if no file can be created."""

    def __init__(
        self, folders: Sequence[Path] | None = None, arrived_max: float | None = None
    ) -> None:
        self._arrived_max = inf if arrived_max is None else arrived_max
        self._arrived: dict[int, int] = {}
        """The sizes of regions in the first file for what has arrived, by offset."""
        self._folders = folders or (MEMORY_FOLDER, Path(tempfile.gettempdir()))
        self._files = [_open(folder) for folder in self._folders]
        if not any(self._files):
            raise self._no_room(0)
        self._ends = [0 for _ in self._files]
        self._free: dict[tuple[int, int], list[Region]] = {}
        """By file and size; the one that was freed last is the last."""
        self._given_back: dict[tuple[int, int], list[Region]] = {}
        """The same of free regions without memory."""
        self._by_address: dict[int, Region] = {}
        self._addresses: list[int] = []
        """Where regions begin, in ascending order."""
        self._borrowed: Counter[int] = Counter()
        """By offset of a region, the arrays that were borrowed from it and still exist."""
        self._returned: deque[int] = deque()
        """Offsets of regions whose borrowed arrays are gone, appended by any thread."""
        self._freed_while_borrowed: dict[int, Region] = {}

    def filenos(self) -> tuple[int, ...]:
        """The descriptors that a worker inherits; -1 for a file that does not exist."""
        return tuple(-1 if file is None or file.closed else file.fileno() for file in self._files)

    def allocate(self, nbytes: int, *, arrived: bool = False) -> Region:
        """Return a region with arbitrary contents, ``arrived`` if for bytes from another actor, of
        which there may be many. ``OSError`` without room says what helps."""
        region = self._allocated(nbytes, range(len(self._files)), arrived=arrived)
        if region is None:
            raise self._no_room(nbytes)
        return region

    def _allocated(
        self, nbytes: int, files: Sequence[int], *, arrived: bool = False
    ) -> Region | None:
        """Return a region that was freed, or a new one, in one of these files; None without
        room."""
        self._take_back()
        if arrived and sum(self._arrived.values()) + nbytes > self._arrived_max:
            files = files[::-1]
        region = next(filter(None, (self._in_file(index, nbytes) for index in files)), None)
        if region is not None and arrived and region.offset < FILE_OFFSETS:
            self._arrived[region.offset] = nbytes
        return region

    def _in_file(self, index: int, nbytes: int) -> Region | None:
        pool = self._free.get((index, nbytes))
        if pool:
            return pool.pop()
        for region in self._given_back.get((index, nbytes), ()):
            if self._take_again(region):
                return region
        region = self._reserve(index, nbytes)
        if region is not None:
            address = _address(region.data)
            self._by_address[address] = region
            insort(self._addresses, address)
        return region

    def _reserve(self, index: int, nbytes: int) -> Region | None:
        file, offset, span = self._files[index], self._ends[index], _span(nbytes)
        if file is None:
            return None
        try:
            os.posix_fallocate(file.fileno(), offset, span)
            data = _map(file.fileno(), offset, nbytes)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            os.ftruncate(file.fileno(), offset)  # Return what was reserved in part.
            return None
        self._ends[index] += span
        return Region(index * FILE_OFFSETS + offset, data)

    def _take_again(self, region: Region) -> bool:
        """Reserve the memory of a region that was given back; False if the file system is full."""
        index, offset = divmod(region.offset, FILE_OFFSETS)
        file, nbytes = self._files[index], len(region.data)
        assert file is not None, "the region lies in it"
        try:
            os.posix_fallocate(file.fileno(), offset, _span(nbytes))
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return False
        self._given_back[index, nbytes].remove(region)
        return True

    def _no_room(self, nbytes: int) -> OSError:
        first, second = map(str, self._folders)
        said = f"no room to share {nbytes:,} bytes with the worker, nor in {second}"
        helps = "enlarge it (docker run --shm-size=2g) or set TMPDIR to a folder with room"
        return OSError(errno.ENOSPC, f"{said}; {helps}", first)

    def find(self, data: Bytes) -> Region | None:
        """The region that consists of these bytes; None if they are not in the arena."""
        region = self._by_address.get(_address(data))
        return region if region is not None and len(region.data) == len(data) else None

    def array(self, nbytes: int) -> Bytes:
        """Bytes in memory that others may read, which is reused once nothing refers to them; in
        memory of this process if there is no room."""
        region = self._allocated(_rounded(nbytes), files=(0,))
        if region is None:
            return np.empty(nbytes, np.uint8)
        data = self._lent(region, 0, nbytes)
        self.free(region)
        return data

    def rest(self, data: Bytes) -> None:
        """Say that a region will be read later: what lies in the second file need not stay in
        memory."""
        region = self.find(data) if any(self._ends[1:]) else None
        if region is not None and region.offset >= FILE_OFFSETS:
            _mapping(region).madvise(mmap.MADV_DONTNEED)  # The file keeps what was written.

    def place_of(self, part: Frame) -> tuple[int, int] | None:
        """The number of the file and the offset in it of bytes that lie in one region; None if
        they lie elsewhere."""
        data = np.frombuffer(part, np.uint8)
        address = _address(data)
        at = bisect_right(self._addresses, address) - 1
        if at < 0:
            return None
        region = self._by_address[self._addresses[at]]
        start = address - self._addresses[at]
        if start + len(data) > len(region.data):
            return None
        number, offset = divmod(region.offset, FILE_OFFSETS)
        return number, offset + start

    def borrow(self, region: Region, start: int, stop: int) -> Bytes:
        """Bytes of a region, read-only, that may be read for longer than the region is needed: a
        region that is freed meanwhile is reused once the array that this returns is gone, and all
        arrays and buffers made of it, whatever thread drops the last one. ZeroMQ reads what it
        sends in a thread of its own, and keeps the buffer until it has been sent."""
        borrowed = self._lent(region, start, stop)
        borrowed.flags.writeable = False
        return borrowed

    def _lent(self, region: Region, start: int, stop: int) -> Bytes:
        # Slices of this array keep it alive: it is their base in numpy, since its own is no array.
        borrowed = np.frombuffer(region.data.data, np.uint8, stop - start, start)
        self._borrowed[region.offset] += 1
        weakref.finalize(borrowed, self._returned.append, region.offset).atexit = False
        return borrowed

    def _take_back(self) -> None:
        """Make freed regions available of which nothing is borrowed any more."""
        while self._returned:
            offset = self._returned.popleft()
            self._borrowed[offset] -= 1
            if not self._borrowed[offset]:
                del self._borrowed[offset]
                region = self._freed_while_borrowed.pop(offset, None)
                if region is not None:
                    self._reuse(region)

    def free(self, region: Region) -> None:
        """Make a region available for reuse; only what was borrowed from it may still be read."""
        self._take_back()
        if region.offset in self._borrowed:
            self._freed_while_borrowed[region.offset] = region
        else:
            self._reuse(region)

    def _reuse(self, region: Region) -> None:
        key = region.offset // FILE_OFFSETS, len(region.data)
        self._arrived.pop(region.offset, None)
        pool = self._free.setdefault(key, [])
        pool.append(region)
        if len(pool) > KEPT_FREE and key[1] >= GIVEN_BACK_BYTES_MIN and _give_back(pool[0]):
            self._given_back.setdefault(key, []).append(pool.pop(0))

    def close(self) -> None:
        """Close the files; mappings stay valid as long as their arrays."""
        for file in self._files:
            if file is not None:
                file.close()


class ArenaView:
    """The worker's side: maps regions that the owner names."""

    def __init__(self, filenos: Sequence[int]) -> None:
        self._filenos = filenos
        self._regions: dict[tuple[int, int], Bytes] = {}

    def region(self, offset: int, nbytes: int) -> Bytes:
        """The bytes of a region (uint8), writable."""
        key = (offset, nbytes)
        if key not in self._regions:
            index, within = divmod(offset, FILE_OFFSETS)
            self._regions[key] = _map(self._filenos[index], within, nbytes)
        return self._regions[key]


def _open(folder: Path) -> IO[bytes] | None:
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError:
        return None


def _address(data: Bytes) -> int:
    return data.__array_interface__["data"][0]


def _rounded(nbytes: int) -> int:
    """The size of a region for so many bytes: larger ones have few sizes, at most an eighth more
    than is asked for, so that arrays of about one size use each other's memory."""
    step = max(2 ** (nbytes.bit_length() - 4), 1) if nbytes >= GIVEN_BACK_BYTES_MIN else 1
    return -(-nbytes // step) * step


def _span(nbytes: int) -> int:
    return -(-max(nbytes, 1) // PAGE) * PAGE


def _map(fileno: int, offset: int, nbytes: int) -> Bytes:
    mapped = mmap.mmap(fileno, _span(nbytes), offset=offset)
    return np.frombuffer(mapped, np.uint8, nbytes)


def _mapping(region: Region) -> mmap.mmap:
    view: Any = region.data.base  # A memoryview of the mapping.
    return view.obj


def _give_back(region: Region) -> bool:
    """Give a region's memory back, for all processes that map it; False if that is not possible."""
    try:
        _mapping(region).madvise(mmap.MADV_REMOVE)
    except OSError:
        return False  # Not every file system can have holes in a file.
    return True
