"""Wherever a writer fails, dies or loses power: what stood stands, what is new is whole."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from snapshot import StorageError, Store

KILLED = Path(__file__).with_name("killed.py")


def leftovers(root):
    """Files that a dead writer left behind."""
    return list(root.rglob(".partial-*"))


def check(root, *, done=False):
    """The first snapshot is intact, the second one, too, or absent; give whether it is there."""
    store = Store(root)
    assert store.verify("syncer.1:10") == []
    listed = store.snapshots()
    assert all(each.manifest is not None for each in listed)
    there = len(listed) == 2
    if there:
        assert store.verify("syncer.1:20") == []
    assert there or not done
    assert (2 if there else 1) == store.load().order
    return there


def test_a_writer_killed_anywhere_leaves_whole_snapshots(tmp_path, draft):
    """Killed at every call in turn, writes half done; a retry succeeds, and cleans up."""
    store = Store(tmp_path / "before")
    store.commit(draft(store, 1))

    command = [sys.executable, str(KILLED), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    died = int(done.stdout)
    assert died > 40
    stood = []
    for k in range(1, died + 2):
        root = tmp_path / str(k)
        stood.append(check(root, done=k > died))
        again = Store(root)
        again.commit(draft(again, 2))
        assert check(root, done=True)
        again.retain(grace_s=0)
        assert check(root, done=True)
        assert leftovers(root) == []
    assert stood == sorted(stood), "once it stands it stands"
    assert {True, False} == set(stood)


def failing(watch, k, number):
    """Let the k-th call fail; give the list of the calls that were made."""
    calls = []

    def before(name, args):
        calls.append(name)
        if len(calls) == k:
            raise OSError(number, os.strerror(number))

    watch(before)
    return calls


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_any_call_may_fail(tmp_path, draft, watch, number):
    """A full disk, a broken one, one that is not ours: an error of one line, and nothing half."""
    errors = []
    calls, k = [None], 0
    while len(calls) >= k:
        k += 1
        root = tmp_path / str(k)
        store = Store(root)
        watch(lambda name, args: None)
        store.commit(draft(store, 1))
        calls = failing(watch, k, number)
        try:
            store.commit(draft(store, 2))
            done = True
        except StorageError as error:
            errors.append(error)
            done = False
        watch(lambda name, args: None)
        check(root, done=done)
        store.commit(draft(store, 2))
        assert check(root, done=True)
    assert 25 < len(errors) < k, "some failures, as of unlinking what is gone, are no loss"
    for error in errors:
        assert str(tmp_path) in str(error)
        assert "\n" not in str(error)
        assert number == error.errno


class Power:
    """What a disk would hold if the power went now: what was made durable, and nothing else.

    A file's bytes are durable as they were at its last fsync, a name as it was at the last fsync
    of its folder. Where ``eager`` says so, names become durable at once: a file system may write
    them early, just not the bytes.
    """

    def __init__(self, base, eager):
        self._base = base
        self._eager = eager
        self._bytes = {}
        self._names = {}
        self.sync_folder(base)

    def before(self, name, args):
        """Before a call: an fsync makes durable what is there before it, and no less."""
        if name == "fsync":
            path = Path(f"/proc/self/fd/{args[0]}").resolve()
            if path.is_dir():
                self.sync_folder(path)
            else:
                self._bytes[os.fstat(args[0]).st_ino] = path.read_bytes()
        if name == "write":
            self._bytes.pop(os.fstat(args[0]).st_ino, None)

    def sync_folder(self, path):
        """The names in a folder are durable."""
        self._names[path] = {
            each.name: (each.inode(), each.is_dir(follow_symlinks=False))
            for each in os.scandir(path)
        }

    def lose(self, target):
        """Write down what is left, in another folder."""
        self._write(self._base, target)

    def _write(self, folder, target):
        target.mkdir()
        if folder.is_dir() and any(part in self._eager for part in (*folder.parts, "everywhere")):
            self.sync_folder(folder)
        for name, (inode, is_folder) in self._names.get(folder, {}).items():
            if is_folder:
                self._write(folder / name, target / name)
            else:
                (target / name).write_bytes(self._bytes.get(inode, b""))


@pytest.mark.parametrize("eager", [(), ("snapshots",), ("blobs",), ("everywhere",)], ids=str)
def test_losing_power_at_any_call_leaves_whole_snapshots(tmp_path, draft, watch, eager):
    """Nothing but what was made durable is left, early names without bytes at worst."""
    base = tmp_path / "disk"
    base.mkdir()
    power = Power(base, eager)
    store = Store(base / "runs" / "place")
    committed = []
    pictures = []

    def before(name, args):
        power.before(name, args)
        target = tmp_path / f"after-{len(pictures)}"
        power.lose(target)
        pictures.append((target, len(committed)))

    watch(before)
    for order in (1, 2):
        store.commit(draft(store, order))
        committed.append(order)
    store.retain(1, grace_s=0)
    watch(lambda name, args: None)
    power.lose(tmp_path / "end")
    pictures.append((tmp_path / "end", 2))

    assert len(pictures) > 90
    for target, done in pictures:
        left = Store(target / "runs" / "place")
        listed = left.snapshots()
        assert all(left.verify(each.id) == [] for each in listed)
        newest = max((each.manifest.order for each in listed), default=0)
        assert newest >= done, "what was committed stands"


def test_names_stay_within_their_place(store, root, take):
    """Files are readable as the user's mask says, and no partial file is left."""
    take(store, 1)

    assert leftovers(root) == []
    mask = os.umask(0o022)
    os.umask(mask)
    for path in root.rglob("*"):
        if path.is_file():
            assert 0o666 & ~mask == stat.S_IMODE(path.stat().st_mode)
