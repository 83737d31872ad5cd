"""A directory that holds snapshots: what is there is whole, whatever happened to its writers.

A blob is written under a name of its own, made durable, and renamed; so a file that exists under a
digest was whole when it got its name. The name's durability is the committer's business: it makes
the directories durable, then the manifest.
"""

import errno
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from clocks import open_regular
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

NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
"""What a file system without hard links says."""


class LocalPlace:
    """A directory.

    Args:
        root: the directory; made when something is written.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, name: str) -> str:
        """A file as people find it."""
        return str(self._root / name)

    def exists(self) -> bool:
        """Whether anything was ever written here."""
        return (self._root / BLOBS).is_dir() or (self._root / MANIFESTS).is_dir()

    # Blobs.

    def add(self, views: Sequence[memoryview]) -> Blob:
        """Write a blob, unless it is there: it is hashed first, which costs a third of writing."""
        size, digest = sum(map(len, views)), digest_of(views)
        if self._freshened(digest, size):
            return Blob(digest, size, new=False)
        with self._partial(BLOBS, views) as partial:
            self._name_blob(partial, digest)
        return Blob(digest, size, new=True)

    def _freshened(self, digest: str, size: int) -> bool:
        """Whether a blob is there, whole, and now young; of any other size it is written again."""
        path = self._root / blob_name(digest)
        try:
            if os.stat(path).st_size != size:
                return False
            os.utime(path)
        except OSError:
            return False  # Writing it again needs no more rights than writing it once.
        return True

    def _name_blob(self, partial: Path, digest: str) -> None:
        path = self._root / blob_name(digest)
        with _told(path, "written"):
            self._make(path.parent)
            os.replace(partial, path)

    # Other files.

    def create(self, name: str, data: bytes) -> bool:
        """Write a file that must not be there; durable when it returns True."""
        path = self._root / name
        with self._partial(str(Path(name).parent), [memoryview(data)]) as partial:
            try:
                os.link(partial, path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise cannot(str(path), "written", error) from None
                if path.exists():
                    return False
                with _told(path, "written"):
                    os.rename(partial, path)
        self.settle([name])
        return True

    def put(self, name: str, data: bytes) -> None:
        """Write a file, or replace it."""
        with (
            self._partial(MANIFESTS, [memoryview(data)]) as partial,
            _told(self._root / name, "written"),
        ):
            os.replace(partial, self._root / name)

    def settle(self, names: Sequence[str]) -> None:
        """Make durable the folders in which these files' names stand, and those above."""
        folders = {self._root}
        for name in names:
            folders.update(self._root / above for above in Path(name).parents)
        for folder in sorted(folders, reverse=True):
            _sync_folder(folder)

    def stat(self, name: str) -> File | None:
        """A file's size and time."""
        with _told(self._root / name, "read"):
            try:
                return _file(os.stat(self._root / name))
            except (FileNotFoundError, NotADirectoryError):
                return None

    def now(self) -> float:
        """The time by the file system's own clock, which may be a server's.

        Touching a folder takes no space, so it works on a disk that is full.
        """
        with _told(self._root, "written"):
            os.utime(self._root)
            return os.stat(self._root).st_mtime

    def open(self, name: str) -> AbstractContextManager[Readable]:
        """Read a file, a regular one: what is something else was not written here."""
        try:
            return open_regular(self._root / name)
        except OSError as error:
            if error.errno == errno.EINVAL:
                raise DamagedError(f"{self._root / name}: {error.strerror}") from None
            raise

    def files(self, folder: str) -> Mapping[str, File]:
        """All files below a folder."""
        found: dict[str, File] = {}
        root = self._root / folder
        if not root.is_dir():
            return found
        with _told(root, "read"):
            for above, folders, names in os.walk(root):
                # A folder in place of a file is found, and cannot be read.
                for name in (*names, *(each for each in folders if each.endswith(SUFFIX))):
                    path = Path(above) / name
                    with suppress(FileNotFoundError):  # Somebody's partial file was finished.
                        found[path.relative_to(self._root).as_posix()] = _file(os.stat(path))
        return found

    def remove(self, name: str) -> None:
        """Remove a file that may be gone already."""
        with _told(self._root / name, "removed"), suppress(FileNotFoundError):
            os.unlink(self._root / name)

    def set_aside(self, name: str) -> None:
        """Rename it."""
        with _told(self._root / name, "renamed"), suppress(FileNotFoundError):
            os.replace(self._root / name, self._root / f"{name}{ASIDE}")

    # Below.

    @contextmanager
    def _partial(self, folder: str, views: Sequence[memoryview]) -> Iterator[Path]:
        """A durable file that nobody knows yet; what becomes of it is up to the block."""
        made = self._root / folder
        partial = made / f"{PARTIAL}{os.getpid()}-{secrets.token_hex(8)}"
        try:
            with _told(partial, "written"):
                self._make(made)
                _write(partial, views)
            yield partial
        finally:
            with suppress(OSError):
                os.unlink(partial)

    def _make(self, folder: Path) -> None:
        """Make a folder; those above the root are made durable now, the others at commit."""
        missing = [each for each in (folder, *folder.parents) if not each.is_dir()]
        for each in reversed(missing):
            with suppress(FileExistsError):
                os.mkdir(each)
            if not each.is_relative_to(self._root / BLOBS):
                ours = each.parent.is_relative_to(self._root)
                with suppress(*(() if ours else (StorageError,))):  # What is above is not ours.
                    _sync_folder(each.parent)


def _file(stat: os.stat_result) -> File:
    return File(stat.st_size, stat.st_mtime)


def _write(path: Path, views: Sequence[memoryview]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        for chunk in chunks(views):
            rest = chunk
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    with _told(folder, "made durable"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # Nothing was written there.
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _told(path: Path, what: str) -> Iterator[None]:
    """The system's errors as one line that names the file."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise cannot(str(path), what, error) from None
