"""The storage interface for snapshots: a directory, or anything that fsspec can reach by a URL.

    blobs/HH/DIGEST     bytes, named by their BLAKE3 digest; never changed
    snapshots/ID.json   the manifest of a committed snapshot; written last, and only if absent
    LATEST              for users; never read by the program

Files that end with ``.damaged`` were set aside. Files that begin with ``.partial-`` are being
written, or were when their writer died. The program reads neither.
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
"""Bytes hashed, written and read at a time: large enough that the cost per call is negligible."""

GRACE_S = 900.0
"""How long, in seconds, a blob that no manifest names is kept: it may belong to a snapshot in
progress. Writing a blob that exists resets its age. A snapshot is settled at most three minutes
after its beginning (GATHERING_S); this is five times as long."""

CANNOT_EXCLUDE = (
    "of several writers more than one might succeed, since this store cannot create an object only "
    "if it is absent"
)

DIGEST = re.compile(r"[0-9a-f]{64}")


class SnapshotError(ValueError):
    """A snapshot, or a part of it, is missing or not as it was written; names the file."""


class DamagedError(SnapshotError):
    """A file was read and is not what was written: reading it again cannot help."""


class StorageError(OSError):
    """The storage cannot be read or written; names the file."""


def cannot(file: str, what: str, error: BaseException) -> StorageError:
    """An error of the system or an object store as one line, with the error number kept."""
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    found = StorageError(f"{file}: cannot be {what}: {' '.join(str(said).split())}")
    found.errno = getattr(error, "errno", None)
    return found


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes in storage.

    Attributes:
        digest: of the bytes; their name.
        size: in bytes.
        new: whether they were written now; False if they existed already.
    """

    digest: str
    size: int
    new: bool


@dataclass(frozen=True, slots=True)
class File:
    """A file in a listing; some stores do not report when it was written."""

    size: int
    written_at: float | None


class Readable(Protocol):
    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the buffer as far as possible; returns the number of bytes, 0 at the end."""
        ...


class Place(Protocol):
    """What a store needs of a directory or an object store. Names are relative, with slashes."""

    def path(self, name: str) -> str:
        """The path or URL of a file, for users."""
        ...

    def exists(self) -> bool:
        """Whether anything was ever written here."""
        ...

    def add(self, views: Sequence[memoryview]) -> Blob:
        """Write a blob unless it exists; atomically."""
        ...

    def create(self, name: str, data: bytes, *, exclusive: bool = False) -> bool:
        """Write a file that must not exist, atomically; returns False if it exists.

        With ``exclusive``, of several writers at most one gets True; raises StorageError if the
        place cannot promise that.
        """
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write or replace a file."""
        ...

    def settle(self, names: Sequence[str]) -> None:
        """Make the names of these files durable: they survive a crash once this returns."""
        ...

    def stat(self, name: str) -> File | None:
        """A file's size and modification time; None if it does not exist."""
        ...

    def now(self) -> float:
        """The time of the clock that sets the files' modification times."""
        ...

    def open(self, name: str) -> AbstractContextManager[Readable]:
        """Open a file for reading; raises FileNotFoundError if it does not exist."""
        ...

    def files(self, folder: str) -> Mapping[str, File]:
        """All files below a folder, by name, including partial ones."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; one that does not exist is no error."""
        ...

    def set_aside(self, name: str) -> None:
        """Rename a file so that it is no longer read but can be inspected."""
        ...


def blob_name(digest: str) -> str:
    """The name of a blob's file; raises SnapshotError for no digest, which may come from the
    network."""
    if not DIGEST.fullmatch(digest):
        raise SnapshotError(f"{digest!r}: want a digest in hexadecimal, 64 characters")
    return f"{BLOBS}/{digest[:2]}/{digest}"


def digest_of(views: Sequence[memoryview]) -> str:
    """The digest of the concatenated views, in hexadecimal; releases the GIL meanwhile.

    BLAKE3 with 256 bits: ten times as fast as sha256 on processors without sha256 instructions.
    """
    summed = blake3()
    for chunk in chunks(views):
        summed.update(chunk)
    return summed.hexdigest()


def chunks(views: Sequence[memoryview]) -> Iterator[memoryview]:
    """The bytes in chunks, without copying."""
    for view in views:
        for at in range(0, len(view), CHUNK_BYTES):
            yield view[at : at + CHUNK_BYTES]


def is_url(place: str | Path) -> bool:
    return isinstance(place, str) and "://" in place


def open_place(place: str | Path) -> Place:
    """Open a path, a ``file://`` URL, or any other URL that fsspec supports; creates nothing yet.

    Raises:
        SnapshotError: there is no support for it; says what is missing.
    """
    from snapshot.local_storage import LocalStorage  # noqa: PLC0415, it imports this

    if not is_url(place):
        return LocalStorage(Path(place))
    if str(place).startswith("file://"):
        return LocalStorage(Path(urlsplit(str(place)).path))
    from snapshot.object_storage import ObjectStorage  # noqa: PLC0415, fsspec is an extra

    return ObjectStorage(str(place))
