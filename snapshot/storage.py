"""Where snapshots lie: a directory, or anything that fsspec can reach by a URL.

    blobs/HH/DIGEST     bytes, named by their BLAKE3 digest; never changed
    snapshots/ID.json   the manifest of a committed snapshot; written last, and only if absent
    LATEST              for people; nobody trusts it

Whatever ends with ``.damaged`` was set aside. Whatever begins with ``.partial-`` is being written,
or was when its writer died. Nobody reads either.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from blake3 import blake3

BLOBS, MANIFESTS, LATEST = "blobs", "snapshots", "LATEST"
PARTIAL = ".partial-"
ASIDE = ".damaged"
SUFFIX = ".json"

CHUNK_BYTES = 4 * 2**20
"""What is hashed, written and read at once: long enough that calls cost nothing beside it."""

GRACE_S = 900.0
"""How long a blob that no manifest names is left alone: it may belong to a snapshot under way.
Whoever writes a blob that is there already makes it young again. A snapshot is settled three
minutes after its beginning, see GATHERING_S; this is five times as long."""

DIGEST = re.compile(r"[0-9a-f]{64}")


class SnapshotError(ValueError):
    """A snapshot, or a part of it, is not there or not as it was written; names the file."""


class DamagedError(SnapshotError):
    """A file was read, and is not what was written: no later look will find it whole."""


class StorageError(OSError):
    """The place cannot be written or read; names the file."""


def cannot(file: str, what: str, error: BaseException) -> StorageError:
    """One line for what the system or an object store said; it keeps the number."""
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    found = StorageError(f"{file}: cannot be {what}: {' '.join(str(said).split())}")
    found.errno = getattr(error, "errno", None)
    return found


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes in a place.

    Attributes:
        digest: of the bytes; their name.
        size: in bytes.
        new: whether they were written; they are not when they were there already.
    """

    digest: str
    size: int
    new: bool


@dataclass(frozen=True, slots=True)
class File:
    """A file as a listing shows it; some places do not tell when it was written."""

    size: int
    written_at: float | None


class Readable(Protocol):
    """A file that is open to be read, by whatever library."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill as much as there is; how much, 0 at the end."""
        ...


class Place(Protocol):
    """What a store asks of a directory or an object store. Names are relative, with slashes."""

    def path(self, name: str) -> str:
        """A file as people find it."""
        ...

    def exists(self) -> bool:
        """Whether anything was ever written here."""
        ...

    def add(self, views: Sequence[memoryview]) -> Blob:
        """Write a blob, unless it is there; whole or not at all."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that must not be there, whole or not at all; False when it is there."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write a file, or replace it."""
        ...

    def settle(self, names: Sequence[str]) -> None:
        """Return once no crash can take these files' names away."""
        ...

    def stat(self, name: str) -> File | None:
        """A file's size and time; None when it is not there."""
        ...

    def now(self) -> float:
        """The time, by the clock that says when files were written."""
        ...

    def open(self, name: str) -> AbstractContextManager[Readable]:
        """Read a file; FileNotFoundError when it is not there."""
        ...

    def files(self, folder: str) -> Mapping[str, File]:
        """All files below a folder, by name, those that are being written included."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file that may be gone already."""
        ...

    def set_aside(self, name: str) -> None:
        """Give a file a name under which nobody reads it, for people to look at."""
        ...


def blob_name(digest: str) -> str:
    """Where a blob lies.

    Raises:
        SnapshotError: it is no digest; names come over the network.
    """
    if not DIGEST.fullmatch(digest):
        raise SnapshotError(f"{digest!r}: want a digest in hexadecimal, 64 characters")
    return f"{BLOBS}/{digest[:2]}/{digest}"


def digest_of(views: Sequence[memoryview]) -> str:
    """The digest of bytes that lie in several runs, in hexadecimal; other threads go on meanwhile.

    BLAKE3, 256 bits: ten times as fast as sha256 on a processor that has no instructions for that.
    """
    summed = blake3()
    for chunk in chunks(views):
        summed.update(chunk)
    return summed.hexdigest()


def chunks(views: Sequence[memoryview]) -> Iterator[memoryview]:
    """The bytes in chunks, without a copy."""
    for view in views:
        for at in range(0, len(view), CHUNK_BYTES):
            yield view[at : at + CHUNK_BYTES]


def is_url(place: str | Path) -> bool:
    """Whether it is a URL, not a path."""
    return isinstance(place, str) and "://" in place


def open_place(place: str | Path) -> Place:
    """A path, ``file://`` or any other URL that fsspec knows; nothing is made yet.

    Raises:
        SnapshotError: nothing here can open it; says what is missing.
    """
    from snapshot.local_storage import LocalPlace  # noqa: PLC0415, it imports this

    if not is_url(place):
        return LocalPlace(Path(place))
    if str(place).startswith("file://"):
        return LocalPlace(Path(urlsplit(str(place)).path))
    from snapshot.object_storage import RemotePlace  # noqa: PLC0415, fsspec is an extra

    return RemotePlace(str(place))
