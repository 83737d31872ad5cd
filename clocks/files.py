"""The doors to files: what is read is a regular file and never blocks, what is appended to is no
link, and what is written is replaced whole. ``tests/test_tidy.py`` names who opens files otherwise.

This has nothing to do with clocks; it is here because every package reads files and may import this
one. Opening a FIFO for reading blocks until a process writes to it, and reading a device may never
end, so a process that can create files in a folder could block a command for ever.
"""

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import IO

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
"""Error numbers of file systems that do not tell when something is on the disk."""


def make_durable(descriptor: int) -> None:
    """Have a file, or the names in a folder, be on the disk; where the file system cannot tell
    whether they are, go on.

    Raises:
        OSError: they are not, for there is no room or the disk has failed.
    """
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise


def replace_file(
    path: Path,
    contents: Iterable[bytes | memoryview],
    *,
    durable: bool = False,
    mode: int | None = None,
    suffix: str = "",
) -> None:
    """Create or replace a file atomically: its contents are written beside it, if ``durable`` to
    the disk, and renamed. Several processes may do this at once.

    Args:
        path: the file.
        contents: its bytes, in pieces.
        durable: whether they are on the disk before the file has its name.
        mode: its mode, if not that of new files.
        suffix: of the name under which it is written. By default nobody else has that; with a
            fixed one, for a large file of a single writer, what a writer that died has left is
            replaced.

    Raises:
        OSError: it cannot be written; an existing file at ``path`` is unchanged.
    """
    partial = path.with_name(f".{path.name}.{suffix or secrets.token_hex(8)}")
    partial.unlink(missing_ok=True)  # A writer that died left it.
    try:
        with partial.open("xb") as file:
            file.writelines(contents)
            if durable:
                file.flush()
                make_durable(file.fileno())
        if mode is not None:
            partial.chmod(mode)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def open_regular(path: str | Path, *, links: bool = True) -> FileIO:
    """Open a regular file for reading, unbuffered. Without ``links`` a link is refused, as where
    the folder may be a stranger's and what is read goes to others.

    Raises:
        OSError: it cannot be opened, or is a folder, a FIFO, a socket, a device, or a refused link.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "a path has no NUL byte", str(path).replace("\0", "\\0"))
    return _opened(path, "rb", os.O_RDONLY, links=links)


def open_to_append(path: Path) -> FileIO:
    """Open a file of this process's own for appending, unbuffered, and create it if it is not
    there. A link is refused: whoever may make one here would choose what is written to.

    Raises:
        OSError: as for ``open_regular``.
    """
    return _opened(path, "ab", os.O_WRONLY | os.O_CREAT | os.O_APPEND, links=False)


def _opened(path: str | Path, mode: str, flags: int, *, links: bool) -> FileIO:
    # O_NONBLOCK, because opening a FIFO would wait for who is at its other end.
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and not links and Path(path).is_symlink():
            raise OSError(errno.ELOOP, "is a link, not a regular file", str(path)) from None
        raise
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        said = f"is {_KINDS.get(kind, 'something else')}, not a regular file"
        raise OSError(errno.EINVAL, said, str(path))
    return FileIO(path, mode, opener=lambda *_: descriptor)


def read_regular(path: str | Path, most: int = -1) -> bytes:
    """The bytes of a regular file: all of them, or the first ``most`` if that is not negative.

    Raises:
        OSError: as for ``open_regular``.
    """
    with open_regular(path) as file:
        if most < 0:
            return file.readall()
        data = bytearray()
        while len(data) < most and (piece := file.read(most - len(data))):
            data += piece
        return bytes(data)


def read_text(path: str | Path, most: int = -1) -> str:
    """The text of a regular file in UTF-8, as Python reads text: all line ends are newlines, and a
    byte-order mark is left out. For the rest as ``read_regular``.

    Raises:
        OSError: as for ``open_regular``.
        UnicodeDecodeError: the file is not text.
    """
    return read_regular(path, most).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")


def mark_in_use(file: IO[bytes]) -> None:
    """Mark an open file as in use until it is closed or its process ends; see ``is_in_use``."""
    with suppress(OSError):  # Some network file systems have no locks.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def is_in_use(path: Path) -> bool:
    """Whether a process has the file open and marked; False if it does not exist."""
    try:
        with open_regular(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
