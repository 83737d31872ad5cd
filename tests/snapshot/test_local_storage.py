"""A directory as a place: real disks that are full or read-only, and odd file systems."""

import errno
import os
import subprocess

import numpy as np
import pytest

from snapshot import StorageError, Store
from snapshot.local_storage import LocalStorage

MIB = 2**20


@pytest.fixture
def mounted(tmp_path):
    """Mount file systems of a few MiB; unmounted afterwards."""
    folders = []

    def mount(*how):
        folder = tmp_path / f"mounted-{len(folders)}"
        folder.mkdir()
        command = ["mount", *how, str(folder)]
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip("there is no mount command")
        if done.returncode:
            pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
        folders.append(folder)
        return folder

    yield mount
    for folder in reversed(folders):
        subprocess.run(["umount", str(folder)], check=True)


def write_until_full(store, size):
    """Two blobs, which do not both fit."""
    for each in range(2):
        store.write_tensors({"x": np.full(size, each, np.uint8)})


def test_a_full_disk_is_an_error_and_no_more(mounted, take):
    """A blob that does not fit is named, leaves nothing, and takes nothing with it."""
    root = mounted("-t", "tmpfs", "-o", "size=2m", "tmpfs")
    store = Store(root)
    first = take(store, 1)
    before = sorted(root.rglob("*"))

    for size in (4 * MIB, MIB):
        with pytest.raises(StorageError, match="cannot be written: No space left") as caught:
            write_until_full(store, size)
        assert errno.ENOSPC == caught.value.errno
    assert not list(root.rglob(".partial-*"))
    assert set(before) <= set(root.rglob("*"))
    assert first == store.load()


def test_a_disk_that_fills_up_anywhere_keeps_what_stands(mounted, take, draft):
    """With less and less room a snapshot is written whole or not at all, and retention helps."""
    root = mounted("-t", "tmpfs", "-o", "size=1m", "tmpfs")
    store = Store(root)
    first = take(store, 1)
    page = os.sysconf("SC_PAGE_SIZE")
    stuffed = root / "stuffing"
    outcomes = set()
    for pages in range(24):
        stuffed.write_bytes(b"")
        room = os.statvfs(root)
        stuffed.write_bytes(bytes(room.f_bavail * page - pages * page))
        try:
            store.commit(draft(store, 2 + pages))
            outcomes.add("whole")
            assert 2 + pages == store.load().order
        except StorageError:
            outcomes.add("absent")
            assert first == store.load()
        store.retain(1, every=1, grace_s=0)
        if store.load() != first:
            (root / "snapshots" / f"{store.load().id}.json").unlink()
            store.retain(1, grace_s=0)
    assert {"whole", "absent"} == outcomes


def test_a_read_only_place_can_be_looked_at(mounted, tmp_path, take):
    """Nothing is written for reading; writing and removing are errors that name the place."""
    store = Store(tmp_path / "place")
    first = take(store, 1)
    root = mounted("--bind", str(tmp_path / "place"))
    subprocess.run(["mount", "-o", "remount,ro,bind", str(root)], check=True)
    store = Store(root)

    assert first == store.load()
    assert 1 == len(store.snapshots())
    for write in (lambda: store.write_bytes(b"new"), lambda: store.retain(grace_s=0)):
        with pytest.raises(StorageError, match=f"{root}.*Read-only file system"):
            write()


def test_where_nothing_may_be_written_is_named(tmp_path):
    """A file where a folder should be is one line."""
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match=f"{tmp_path}/file.*cannot be written: Not a directory"):
        Store(tmp_path / "file").write_bytes(b"x")


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.EIO])
def test_a_file_system_without_links_will_do(store, root, take, watch, number):
    """Where there are no hard links, a manifest is renamed into its place."""

    def before(name, args):
        if name == "link":
            raise OSError(number, os.strerror(number))

    watch(before)
    first = take(store, 1)

    assert first == store.load()
    place = LocalStorage(root)
    assert not place.create("snapshots/syncer.1-10.json", b"other")
    assert first == take(store, 1)


def test_a_short_write_is_gone_on_with(store, monkeypatch):
    """The system may take less than it was given."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:100_000]))
    array = np.arange(MIB, dtype=np.float32)
    blob = store.write_tensors({"x": array})

    assert array.tobytes() == store.read_tensors(blob.digest)["x"].tobytes()


def test_a_file_url_is_a_folder(tmp_path, take):
    """``file://`` is a local place as well."""
    first = take(Store(f"file://{tmp_path}/place"), 1)

    assert first == Store(tmp_path / "place").load()
