"""An object store that holds snapshots: anything that fsspec has a URL for.

A store has no rename: moving means copying on the server, which is slow and, for big objects, not
one step. So a blob is hashed before it is sent, and nothing is sent that is there already. An
upload appears when it is finished, whole; one that fails is taken back. Where a torn one may appear
all the same it is shorter than it should be, so it is neither taken for whole nor committed.

fsspec is enough: pathlib's manners (universal_pathlib) would add nothing to what is asked here.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from snapshot.storage import (
    ASIDE,
    BLOBS,
    GRACE_S,
    MANIFESTS,
    Blob,
    File,
    Readable,
    SnapshotError,
    StorageError,
    blob_name,
    cannot,
    chunks,
    digest_of,
)

ONE_REQUEST_BYTES = 8 * 2**20
"""Up to here a blob is sent by one request; beyond it goes in parts, straight from the arrays."""

TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")
"""What the file systems of fsspec call the time of the last write."""


class RemotePlace:
    """A URL.

    Args:
        url: such as ``s3://bucket/snapshots`` or ``memory://snapshots``.

    Raises:
        SnapshotError: fsspec, or what it needs for such a URL, is not installed.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        try:
            fsspec = importlib.import_module("fsspec")
            self._files, root = fsspec.url_to_fs(url, use_listings_cache=False)
        except ImportError as error:
            more = " ".join(str(error).split())
            raise SnapshotError(f"{url}: needs pip install 'ddloco[remote]' ({more})") from None
        except ValueError as error:
            raise SnapshotError(f"{url}: {' '.join(str(error).split())}") from None
        self._root: str = root.rstrip("/")

    def path(self, name: str) -> str:
        """A file as people find it."""
        return f"{self._url}/{name}"

    def exists(self) -> bool:
        """Whether anything was ever written here."""
        with self._told("", "read"):
            return any(self._files.exists(self._at(each)) for each in (MANIFESTS, BLOBS))

    def add(self, views: Sequence[memoryview]) -> Blob:
        """Send a blob, unless it is there; one that is there and no longer young is sent again.

        There is no other way to make it young. Ages are by this host's clock, which stores want
        right within minutes anyway; where a store tells no times, retention removes nothing young
        or old.
        """
        size = sum(map(len, views))
        digest = digest_of(views)
        name = blob_name(digest)
        with self._told(name, "written"):
            there = self._info(name)
            if there is not None and there.size == size and self._is_young(there):
                return Blob(digest, size, new=False)
            if size <= ONE_REQUEST_BYTES:
                self._pipe(name, b"".join(views))
            else:
                self._upload(name, views, size)
        return Blob(digest, size, new=True)

    def _is_young(self, file: File) -> bool:
        return file.written_at is None or self.now() - file.written_at < GRACE_S / 2

    def _upload(self, name: str, views: Sequence[memoryview], size: int) -> None:
        file = self._files.open(self._at(name), "wb")
        try:
            for chunk in chunks(views):
                file.write(chunk)
            file.close()
        except BaseException:
            # Closing it, as ``with`` and the garbage collector do, would finish the upload.
            with suppress(Exception):
                file.discard()
            with suppress(Exception):
                file.closed = True
            with suppress(Exception):
                self._remove_torn(name, size)
            raise

    def _remove_torn(self, name: str, size: int) -> None:
        """Some file systems show what was sent so far; somebody else's whole blob is let be."""
        there = self._info(name)
        if there is not None and there.size != size:
            self._files.rm_file(self._at(name))

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that must not be there: one request, which the store itself refuses."""
        with self._told(name, "written"):
            try:
                self._pipe(name, data, mode="create")
            except FileExistsError:
                return False
            except (NotImplementedError, TypeError, ValueError):
                # A store that cannot refuse: names of snapshots are their initiators' own.
                if self._info(name) is not None:
                    return False
                self._pipe(name, data)
            except Exception:
                # Not every store's refusal is one by its name; and whoever asked again, since the
                # first answer was lost, is refused for his own. Whose it is can be read there.
                if self._info(name) is not None:
                    return False
                raise
        return True

    def put(self, name: str, data: bytes) -> None:
        """Write a file, or replace it."""
        with self._told(name, "written"):
            self._pipe(name, data)

    def settle(self, names: Sequence[str]) -> None:
        """What a store has accepted is durable."""

    def stat(self, name: str) -> File | None:
        """A file's size and time."""
        with self._told(name, "read"):
            return self._info(name)

    def now(self) -> float:
        """The time by this host's clock."""
        return datetime.now(UTC).timestamp()

    def open(self, name: str) -> AbstractContextManager[Readable]:
        """Read a file."""
        try:
            return self._files.open(self._at(name), "rb")
        except FileNotFoundError:
            raise
        except Exception as error:  # noqa: BLE001, stores raise what they like
            raise cannot(self.path(name), "read", error) from None

    def files(self, folder: str) -> Mapping[str, File]:
        """All files below a folder."""
        with self._told(folder, "read"):
            found = self._files.find(self._at(folder), detail=True)
        start = len(self._at(""))
        return {name[start:]: _file(found[name]) for name in sorted(found)}

    def remove(self, name: str) -> None:
        """Remove a file that may be gone already."""
        with self._told(name, "removed"), suppress(FileNotFoundError):
            self._files.rm_file(self._at(name))

    def set_aside(self, name: str) -> None:
        """Copy it, then remove it: object stores do not rename."""
        with self._told(name, "renamed"), suppress(FileNotFoundError):
            self._files.mv(self._at(name), self._at(f"{name}{ASIDE}"))

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _pipe(self, name: str, data: bytes, **more: str) -> None:
        self._files.pipe_file(self._at(name), data, **more)

    def _info(self, name: str) -> File | None:
        try:
            return _file(self._files.info(self._at(name)))
        except FileNotFoundError:
            return None

    @contextmanager
    def _told(self, name: str, what: str) -> Iterator[None]:
        """Whatever a store's library raises, as one line that names the file."""
        try:
            yield
        except (StorageError, SnapshotError):
            raise
        except Exception as error:  # noqa: BLE001, stores raise what they like
            raise cannot(self.path(name), what, error) from None


def _file(info: Mapping[str, Any]) -> File:
    return File(int(info["size"]), _written_at(info))


def _written_at(info: Mapping[str, Any]) -> float | None:
    for key in TIMES:
        at = info.get(key)
        if isinstance(at, datetime):
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        if isinstance(at, int | float):
            return float(at)
    return None
