"""Compressed tar files whose every byte is known before it is read. A tar reader that understands
all extensions reads names, sizes and tables of any length before it says what they are. Here the
header of a member must be, to the byte, the one that is written for its name and size, which the
first member lists."""

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from typing import IO, Any

BLOCK = tarfile.BLOCKSIZE
RECORD = tarfile.RECORDSIZE
"""The file is filled with zeros to a multiple of this."""

SIZE_MAX = 8**11 - 1
"""The largest size that a plain header can say."""

PIECE = 2**20


class ArchiveError(ValueError):
    """The bytes are not those of an archive, or end early."""


def archive_header(name: str, size: int) -> bytes:
    """Return the header of a regular file without owner and time."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    if not 0 <= size <= SIZE_MAX:
        raise ValueError(f"{name}: {size} bytes; want at most {SIZE_MAX}")
    return entry.tobuf(tarfile.USTAR_FORMAT, "ascii")


class ArchiveWriter:
    def __init__(self, file: IO[bytes]) -> None:
        self._packed = gzip.GzipFile("", "wb", fileobj=file, mtime=0)
        self._written = 0

    def add(self, name: str, size: int, pieces: Iterator[bytes]) -> None:
        """Add a file; ``ValueError`` if a plain header cannot name it, or ``pieces`` are not
        ``size`` bytes."""
        self._write(archive_header(name, size))
        left = size
        for piece in pieces:
            left -= len(piece)
            self._write(piece)
        if left:
            raise ValueError(f"{name}: changed while it was read")
        self._write(bytes(-size % BLOCK))

    def close(self) -> None:
        self._write(bytes(2 * BLOCK))
        self._write(bytes(-self._written % RECORD))
        self._packed.close()

    def _write(self, data: bytes) -> None:
        self._written += self._packed.write(data)


class ArchiveReader:
    def __init__(self, file: IO[bytes]) -> None:
        self._packed: Any = gzip.GzipFile("", "rb", fileobj=file)

    def first(self, name: str, most: int) -> bytes:
        header = self._read(BLOCK)
        digits = header[124:135]
        size = int(digits, 8) if digits.isdigit() and not digits.strip(b"01234567") else -1
        if header != archive_header(name, max(size, 0)):
            raise ArchiveError(f"does not begin with {name}")
        if size > most:
            raise ArchiveError(f"{name} has {size} bytes; want at most {most}")
        return b"".join(self._content(size))

    def next(self, name: str, size: int) -> Iterator[bytes]:
        """Check that a file follows, and yield its content."""
        if self._read(BLOCK) != archive_header(name, size):
            raise ArchiveError(f"{name} of {size} bytes does not come where it is listed")
        yield from self._content(size)

    def end(self) -> None:
        """Read the rest: zeros, and the checksum of everything."""
        rest = self._some(2 * BLOCK + RECORD + 1)
        if len(rest) < 2 * BLOCK or len(rest) > 2 * BLOCK + RECORD or rest.strip(b"\0"):
            raise ArchiveError("something follows the last file that is listed")

    def _content(self, size: int) -> Iterator[bytes]:
        left = size
        while left:
            piece = self._some(min(left, PIECE))
            if not piece:
                raise ArchiveError("ends early")
            left -= len(piece)
            yield piece
        if self._read(-size % BLOCK).strip(b"\0"):
            raise ArchiveError("has more than its files")

    def _read(self, size: int) -> bytes:
        data = self._some(size)
        if len(data) < size:
            raise ArchiveError("ends early")
        return data

    def _some(self, size: int) -> bytes:
        """So many bytes, or all that there are; at the end the checksum has been compared."""
        found = bytearray()
        try:
            while len(found) < size and (piece := self._packed.read(size - len(found))):
                found += piece
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ArchiveError(" ".join(str(error).split())) from None
        return bytes(found)
