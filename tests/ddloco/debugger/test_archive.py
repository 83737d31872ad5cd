"""Archives whose every byte is known before it is read."""

import io
import tarfile

import pytest

from ddloco.debugger.archive import (
    SIZE_MAX,
    ArchiveError,
    ArchiveReader,
    ArchiveWriter,
    archive_header,
)

FILES = {"first": b"1" * 700, "a/b": b"", "c": b"x" * 512}


def written():
    """An archive of three files, open for reading."""
    file = io.BytesIO()
    archive = ArchiveWriter(file)
    for name, data in FILES.items():
        archive.add(name, len(data), iter([data[:3], data[3:]]))
    archive.close()
    return io.BytesIO(file.getvalue())


def test_what_was_written_is_read():
    """In the order in which it was written, to the end."""
    archive = ArchiveReader(written())
    assert FILES["first"] == archive.first("first", 1000)
    for name in ("a/b", "c"):
        assert FILES[name] == b"".join(archive.next(name, len(FILES[name])))
    archive.end()


def test_it_is_a_tar_file():
    """Which tar opens, too."""
    with tarfile.open(fileobj=written()) as archive:
        assert [*FILES] == archive.getnames()
        assert FILES["c"] == archive.extractfile("c").read()


def test_what_is_not_expected_is_refused():
    """Another first file, a larger one, another name or size, and an end that comes early."""
    with pytest.raises(ArchiveError, match="does not begin with second"):
        ArchiveReader(written()).first("second", 1000)
    with pytest.raises(ArchiveError, match="first has 700 bytes; want at most 699"):
        ArchiveReader(written()).first("first", 699)
    for name, size in (("a/c", 0), ("a/b", 1)):
        archive = ArchiveReader(written())
        archive.first("first", 1000)
        with pytest.raises(ArchiveError, match=f"{name} of {size} bytes does not come"):
            [*archive.next(name, size)]
    archive = ArchiveReader(written())
    archive.first("first", 1000)
    with pytest.raises(ArchiveError, match="something follows the last file"):
        archive.end()


def test_what_a_plain_header_cannot_say_is_not_written():
    """Sizes and names that need an extension of tar; files that shrink while they are read."""
    for name, size in (("a", -1), ("a", SIZE_MAX + 1), ("a" * 101, 1)):
        with pytest.raises(ValueError, match="a"):
            archive_header(name, size)
    with pytest.raises(ValueError, match="a: changed while it was read"):
        ArchiveWriter(io.BytesIO()).add("a", 3, iter([b"xx"]))
