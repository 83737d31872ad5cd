"""Memory shared with a worker process: the host copies and the fragments that overwrite them.

Two unnamed files, handed to the worker as descriptors: one in memory where the system has such a
place, and one in the folder for temporary files, for what has no room there. Both are gone with the
last process that has them, also after a SIGKILL. Regions are mapped one by one, so the files can
grow; freed ones are used again for the same size.

What is mapped is reserved first: a write to a page that a full file system cannot give ends a
process by SIGBUS, without a word.
"""

import errno
import mmap
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from transport import Bytes

PAGE = mmap.ALLOCATIONGRANULARITY
MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108, a place that tempfile may use, not a file name

FILE_OFFSETS = 2**48
"""An offset names its file, too: those of the second one begin here, beyond any file's size."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM})


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of the arena: where it lies, and its bytes (uint8)."""

    offset: int
    data: Bytes


class Arena:
    """The owner's side: allocates and frees.

    Args:
        folders: where its files lie, the first one with room before the second; by default in
            memory, and in the folder for temporary files (``TMPDIR``).

    Raises:
        OSError: no file can be made in either.
    """

    def __init__(self, folders: Sequence[Path] | None = None) -> None:
        self._folders = folders or (MEMORY_FOLDER, Path(tempfile.gettempdir()))
        self._files = [_open(folder) for folder in self._folders]
        if not any(self._files):
            raise self._no_room(0)
        self._ends = [0 for _ in self._files]
        self._free: dict[int, list[Region]] = {}
        self._by_address: dict[int, Region] = {}

    def filenos(self) -> tuple[int, ...]:
        """The descriptors that a worker process inherits; -1 for a file that could not be made."""
        return tuple(-1 if file is None else file.fileno() for file in self._files)

    def allocate(self, nbytes: int) -> Region:
        """A region of ``nbytes``, whose content is whatever was there before.

        Raises:
            OSError: there is no room for it anywhere; says what helps.
        """
        pool = self._free.get(nbytes)
        if pool:
            return pool.pop()
        for index in range(len(self._files)):
            region = self._reserve(index, nbytes)
            if region is not None:
                self._by_address[_address(region.data)] = region
                return region
        raise self._no_room(nbytes)

    def _reserve(self, index: int, nbytes: int) -> Region | None:
        """A region of one file; None where that has no room."""
        file, offset, span = self._files[index], self._ends[index], _span(nbytes)
        if file is None:
            return None
        try:
            os.posix_fallocate(file.fileno(), offset, span)
            data = _map(file.fileno(), offset, nbytes)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            os.ftruncate(file.fileno(), offset)  # What there was of it is given back.
            return None
        self._ends[index] += span
        return Region(index * FILE_OFFSETS + offset, data)

    def _no_room(self, nbytes: int) -> OSError:
        first, second = map(str, self._folders)
        said = f"no room to share {nbytes:,} bytes with the worker, in {second} neither"
        helps = "enlarge it (docker run --shm-size=2g) or set TMPDIR to a folder with room"
        return OSError(errno.ENOSPC, f"{said}; {helps}", first)

    def find(self, data: Bytes) -> Region | None:
        """The region that these bytes are, if they lie here."""
        region = self._by_address.get(_address(data))
        return region if region is not None and len(region.data) == len(data) else None

    def free(self, region: Region) -> None:
        """Give a region back; nobody reads it any more."""
        self._free.setdefault(len(region.data), []).append(region)

    def close(self) -> None:
        """Let go of the files; mappings live on with their arrays."""
        for file in self._files:
            if file is not None:
                file.close()


class ArenaView:
    """The worker's side: looks at regions that the owner names."""

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
    """An unnamed file in a folder; None where none can be made."""
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError:
        return None


def _address(data: Bytes) -> int:
    return data.__array_interface__["data"][0]


def _span(nbytes: int) -> int:
    return -(-max(nbytes, 1) // PAGE) * PAGE


def _map(fileno: int, offset: int, nbytes: int) -> Bytes:
    mapped = mmap.mmap(fileno, _span(nbytes), offset=offset)
    return np.frombuffer(mapped, np.uint8, nbytes)
