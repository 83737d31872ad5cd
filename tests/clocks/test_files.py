"""Only regular files are read, opening anything else does not block; files are replaced whole."""

import errno
import os
import socket

import pytest

from clocks import make_durable, open_regular, open_to_append, read_regular, read_text, replace_file


def test_a_file_is_read(tmp_path):
    """All of it, or its beginning."""
    (tmp_path / "a").write_bytes(b"abcdef")

    assert read_regular(tmp_path / "a") == b"abcdef"
    assert read_regular(tmp_path / "a", 3) == b"abc"
    with open_regular(tmp_path / "a") as file:
        assert file.read(2) == b"ab"


def test_what_is_no_file_is_refused_at_once(tmp_path):
    """A folder, a FIFO without a writer, a socket, a device."""
    os.mkfifo(tmp_path / "fifo")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))

    for path in (tmp_path, tmp_path / "fifo", tmp_path / "socket", "/dev/zero", "/dev/null"):
        with pytest.raises(OSError) as raised:
            read_regular(path)
        assert raised.value.strerror
    listener.close()


def test_a_path_with_a_nul_byte(tmp_path):
    """Is an OSError like any other."""
    with pytest.raises(OSError, match="no NUL byte"):
        read_regular(f"{tmp_path}/a\0b")


def failing(number):
    """A call of the system that fails."""

    def call(*_, **__):
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_that_cannot_sync_will_do(monkeypatch, number):
    """It does not tell when something is on the disk, and loses nothing by itself."""
    monkeypatch.setattr(os, "fsync", failing(number))
    make_durable(0)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_what_is_not_on_the_disk_is_an_error(monkeypatch, number):
    """A disk that fails or is full has not kept it."""
    monkeypatch.setattr(os, "fsync", failing(number))
    with pytest.raises(OSError, match=os.strerror(number)):
        make_durable(0)


def test_a_file_is_replaced_whole(tmp_path):
    """What a writer that died has left is written again, and nothing is left beside it."""
    path = tmp_path / "a"
    (tmp_path / ".a.partial").write_bytes(b"half")

    replace_file(path, [b"one ", memoryview(b"two")], durable=True, mode=0o640, suffix="partial")

    assert [path] == list(tmp_path.iterdir())
    assert path.read_bytes() == b"one two"
    assert path.stat().st_mode & 0o777 == 0o640


def test_what_cannot_be_written_changes_nothing(tmp_path, monkeypatch):
    """Contents that end with an error, or a disk that is full."""
    path = tmp_path / "a"
    path.write_bytes(b"old")

    with pytest.raises(ZeroDivisionError):
        replace_file(path, (b"%d" % (1 // number) for number in (1, 0)))
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        replace_file(path, [b"new"], durable=True)

    assert [path] == list(tmp_path.iterdir())
    assert path.read_bytes() == b"old"


def test_several_may_replace_a_file_at_once(tmp_path):
    """As processes that share a folder do when they start: each writes all of it, and the last one
    that is done wins."""
    path = tmp_path / "address"

    def slowly():
        yield b"first"
        replace_file(path, [b"second"])
        assert path.read_bytes() == b"second"

    replace_file(path, slowly())
    assert path.read_bytes() == b"first"
    assert [path] == list(tmp_path.iterdir())


def test_text_is_read_as_python_reads_it(tmp_path):
    """With line ends and a byte-order mark of other systems; what is no text is an error."""
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n")
    (tmp_path / "b").write_bytes(b"\xff")

    assert read_text(tmp_path / "a") == "a\nb\nc\n"
    with pytest.raises(UnicodeDecodeError):
        read_text(tmp_path / "b")


def test_no_link_is_appended_to(tmp_path):
    """Whoever made it in a folder that others may write to would choose the file."""
    (tmp_path / "theirs").write_text("kept")
    (tmp_path / "log").symlink_to(tmp_path / "theirs")
    os.mkfifo(tmp_path / "fifo")

    for path in (tmp_path / "log", tmp_path / "fifo", tmp_path):
        with pytest.raises(OSError, match=r"link|FIFO|address|directory|folder"):
            open_to_append(path)
    with open_to_append(tmp_path / "own") as file:
        file.write(b"1")
    with open_to_append(tmp_path / "own") as file:
        file.write(b"2")

    assert (tmp_path / "theirs").read_text() == "kept"
    assert (tmp_path / "own").read_text() == "12"


def test_a_link_is_followed_unless_it_may_be_a_strangers(tmp_path):
    """A user's own job file may be one."""
    (tmp_path / "a").write_text("a")
    (tmp_path / "link").symlink_to(tmp_path / "a")

    assert read_text(tmp_path / "link") == "a"
    with pytest.raises(OSError, match="is a link, not a regular file"):
        open_regular(tmp_path / "link", links=False)
