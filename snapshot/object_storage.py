"""Snapshots in an object store: any store for which fsspec has a URL.

Object stores have no rename: moving means copying on the server, which is slow and, for large
objects, not atomic. So a blob is hashed before it is uploaded, and not uploaded if it exists. An
object appears when its upload has finished; a failed upload is aborted. If a store shows a partial
object all the same, it is shorter than expected, so it is neither used nor committed.

Plain fsspec is enough: a pathlib interface (universal_pathlib) would add nothing needed here.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from snapshot.storage import (
    ASIDE,
    BLOBS,
    CANNOT_EXCLUDE,
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
"""Blobs up to this size are sent in one request; larger ones in parts, directly from the arrays."""

TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")
"""The names under which fsspec's file systems report the time of the last write."""


class ObjectStorage:
    """A URL, such as ``s3://bucket/snapshots``; raises SnapshotError if its packages are
    missing."""

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
        return f"{self._url}/{name}"

    def exists(self) -> bool:
        with self._told("", "read"):
            return any(self._files.exists(self._at(each)) for each in (MANIFESTS, BLOBS))

    def add(self, views: Sequence[memoryview]) -> Blob:
        """Upload a blob unless it exists; an existing blob that is no longer young is sent again.

        There is no other way to reset its age. Ages are measured by this host's clock, which most
        stores require to be right within minutes anyway. If a store reports no times, retention
        removes no blobs.
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
            # Closing the file, as ``with`` and the garbage collector do, would finish the upload.
            with suppress(Exception):
                file.discard()
            with suppress(Exception):
                file.closed = True
            with suppress(Exception):
                self._remove_torn(name, size)
            raise

    def _remove_torn(self, name: str, size: int) -> None:
        """Remove a partial object, which some file systems show; keep a complete one of another
        writer."""
        there = self._info(name)
        if there is not None and there.size != size:
            self._files.rm_file(self._at(name))

    def create(self, name: str, data: bytes, *, exclusive: bool = False) -> bool:
        """Write a file that must not exist, in one request that the store itself rejects if so."""
        with self._told(name, "written"):
            try:
                self._pipe(name, data, mode="create")
            except FileExistsError:
                return False
            except (NotImplementedError, TypeError, ValueError):
                # The store cannot reject it. Only the initiator writes under its snapshot's name.
                if self._info(name) is not None:
                    return False
                if exclusive:
                    raise StorageError(f"{self.path(name)}: {CANNOT_EXCLUDE}") from None
                self._pipe(name, data)
            except Exception:
                # Some stores reject with other errors. A request that was repeated because its
                # first reply was lost is rejected too; the caller compares the contents.
                if self._info(name) is not None:
                    return False
                raise
        return True

    def put(self, name: str, data: bytes) -> None:
        with self._told(name, "written"):
            self._pipe(name, data)

    def settle(self, names: Sequence[str]) -> None:
        """Do nothing: what a store has accepted is durable."""

    def stat(self, name: str) -> File | None:
        with self._told(name, "read"):
            return self._info(name)

    def now(self) -> float:
        return datetime.now(UTC).timestamp()

    def open(self, name: str) -> AbstractContextManager[Readable]:
        try:
            return self._files.open(self._at(name), "rb")
        except FileNotFoundError:
            raise
        except Exception as error:  # noqa: BLE001, stores raise what they like
            raise cannot(self.path(name), "read", error) from None

    def files(self, folder: str) -> Mapping[str, File]:
        with self._told(folder, "read"):
            found = self._files.find(self._at(folder), detail=True)
        start = len(self._at(""))
        return {name[start:]: _file(found[name]) for name in sorted(found)}

    def remove(self, name: str) -> None:
        """Remove a file; one that does not exist is no error."""
        with self._told(name, "removed"), suppress(FileNotFoundError):
            self._files.rm_file(self._at(name))

    def set_aside(self, name: str) -> None:
        """Copy a file to another name and remove it, since object stores cannot rename."""
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
