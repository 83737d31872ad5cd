"""Snapshots in a directory; a crash of a writer never leaves an incomplete blob.

A blob is written under a temporary name, synced to disk, and renamed. So a file that exists under a
digest was complete when it got that name. The commit makes the names themselves durable: it syncs
the directories before it writes the manifest.
"""

import errno
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from clocks import make_durable, open_regular
from snapshot.storage import (
    ASIDE,
    BLOBS,
    MANIFESTS,
    PARTIAL,
    SUFFIX,
    Blob,
    DamagedError,
    File,
    Readable,
    StorageError,
    blob_name,
    cannot,
    chunks,
    digest_of,
)


class LocalStorage:
    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, name: str) -> str:
        return str(self._root / name)

    def exists(self) -> bool:
        return (self._root / BLOBS).is_dir() or (self._root / MANIFESTS).is_dir()

    # Blobs.

    def add(self, views: Sequence[memoryview]) -> Blob:
        """Write a blob unless it exists. It is hashed first, at a third of the cost of writing."""
        size, digest = sum(map(len, views)), digest_of(views)
        if self._freshened(digest, size):
            return Blob(digest, size, new=False)
        with self._partial(BLOBS, views) as partial:
            self._name_blob(partial, digest)
        return Blob(digest, size, new=True)

    def _freshened(self, digest: str, size: int) -> bool:
        """Whether a blob exists with the right size; if so, its age is reset. A blob of another
        size is written again."""
        path = self._root / blob_name(digest)
        try:
            if os.stat(path).st_size != size:
                return False
            os.utime(path)
        except OSError:
            return False  # Writing the blob again needs no more permissions than the first time.
        return True

    def _name_blob(self, partial: Path, digest: str) -> None:
        path = self._root / blob_name(digest)
        with _told(path, "written"):
            self._make(path.parent)
            os.replace(partial, path)

    # Other files.

    def create(self, name: str, data: bytes, *, exclusive: bool = False) -> bool:
        """Write a file that must not exist; it is durable when this returns True."""
        path = self._root / name
        with self._partial(str(Path(name).parent), [memoryview(data)]) as partial:
            try:
                os.link(partial, path)
            except FileExistsError:
                return False
            except OSError:  # File systems without links say so with errors of many kinds.
                if path.exists():
                    return False
                if exclusive:
                    return self._create_at(path, data)
                with _told(path, "written"):
                    os.rename(partial, path)
        self.settle([name])
        return True

    def _create_at(self, path: Path, data: bytes) -> bool:
        """Without links: whoever reads the file at this moment may find it incomplete."""
        with _told(path, "written"):
            try:
                with path.open("xb") as file:
                    file.write(data)
                    file.flush()
                    make_durable(file.fileno())
            except FileExistsError:
                return False
        return True

    def put(self, name: str, data: bytes) -> None:
        """Write or replace a file; after a crash of the host it may be the previous one."""
        above = str(Path(name).parent) if "/" in name else MANIFESTS
        with (
            self._partial(above, [memoryview(data)], durable=False) as partial,
            _told(self._root / name, "written"),
        ):
            os.replace(partial, self._root / name)

    def settle(self, names: Sequence[str]) -> None:
        """Sync the folders that contain these files, and their parents."""
        folders = {self._root}
        for name in names:
            folders.update(self._root / above for above in Path(name).parents)
        for folder in sorted(folders, reverse=True):
            _sync_folder(folder)

    def stat(self, name: str) -> File | None:
        with _told(self._root / name, "read"):
            try:
                return _file(os.stat(self._root / name))
            except (FileNotFoundError, NotADirectoryError):
                return None

    def now(self) -> float:
        """The time of the file system's clock, which may be a server's.

        Setting a folder's time takes no space, so it works on a full disk.
        """
        with _told(self._root, "written"):
            os.utime(self._root)
            return os.stat(self._root).st_mtime

    def open(self, name: str) -> AbstractContextManager[Readable]:
        """Open a file for reading; raises DamagedError if it is not a regular file."""
        try:
            return open_regular(self._root / name)
        except OSError as error:
            if error.errno == errno.EINVAL:
                raise DamagedError(f"{self._root / name}: {error.strerror}") from None
            raise

    def files(self, folder: str) -> Mapping[str, File]:
        found: dict[str, File] = {}
        root = self._root / folder
        if not root.is_dir():
            return found
        with _told(root, "read"):
            for above, folders, names in os.walk(root):
                # A folder in the place of a manifest is listed, and reported as unreadable later.
                for name in (*names, *(each for each in folders if each.endswith(SUFFIX))):
                    path = Path(above) / name
                    with suppress(FileNotFoundError):  # Another writer finished its partial file.
                        found[path.relative_to(self._root).as_posix()] = _file(os.stat(path))
        return found

    def remove(self, name: str) -> None:
        """Remove a file; one that does not exist is no error."""
        with _told(self._root / name, "removed"), suppress(FileNotFoundError):
            os.unlink(self._root / name)

    def set_aside(self, name: str) -> None:
        with _told(self._root / name, "renamed"), suppress(FileNotFoundError):
            os.replace(self._root / name, self._root / f"{name}{ASIDE}")

    # Internal helpers.

    @contextmanager
    def _partial(
        self, folder: str, views: Sequence[memoryview], *, durable: bool = True
    ) -> Iterator[Path]:
        """Write a temporary file, yield it to be renamed or linked, then remove it."""
        made = self._root / folder
        partial = made / f"{PARTIAL}{os.getpid()}-{secrets.token_hex(8)}"
        try:
            with _told(partial, "written"):
                self._make(made)
                write_file(partial, views, durable=durable)
            yield partial
        finally:
            with suppress(OSError):
                os.unlink(partial)

    def _make(self, folder: Path) -> None:
        """Create a folder. Folders outside the blobs are synced now, those of blobs at commit."""
        missing = [each for each in (folder, *folder.parents) if not each.is_dir()]
        for each in reversed(missing):
            with suppress(FileExistsError):
                os.mkdir(each)
            if not each.is_relative_to(self._root / BLOBS):
                ours = each.parent.is_relative_to(self._root)
                with suppress(*(() if ours else (StorageError,))):  # May be read-only for us.
                    _sync_folder(each.parent)


def _file(stat: os.stat_result) -> File:
    return File(stat.st_size, stat.st_mtime)


def write_file(path: Path, views: Sequence[memoryview], *, durable: bool = True) -> None:
    """Write a file that must not exist; with ``durable`` it is on the disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        for chunk in chunks(views):
            rest = chunk
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        if durable:
            make_durable(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    with _told(folder, "made durable"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # Nothing was written there.
        try:
            make_durable(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _told(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise cannot(str(path), what, error) from None
