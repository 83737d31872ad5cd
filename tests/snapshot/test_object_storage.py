"""Object stores: one that lives in memory, one that fails, and a server that speaks S3."""

import importlib
import re
import threading

import numpy as np
import pytest

from snapshot import SnapshotError, StorageError, Store
from tests.bucket import LOST, found_by_fsspec

BIG = 9 * 2**20
"""More than goes by one request."""

WRITES = ("pipe_file", "open")

URL = "s3://bucket/run"


def failing(store, monkeypatch, k):
    """Let the k-th write of an object store fail; give the list of those that were made."""
    files = store._place._files
    made = []
    for name in WRITES:
        real = getattr(files, name)

        def write(path, *args, real=real, name=name, **more):
            if name == "pipe_file" or (args and args[0] == "wb"):
                made.append(path)
                if len(made) == k:
                    raise RuntimeError("503\n  slow down")
            return real(path, *args, **more)

        monkeypatch.setattr(files, name, write)
    return made


def test_any_write_may_fail(memory, take, draft, monkeypatch):
    """Whichever write fails, with whatever error: one line, nothing half, and a retry succeeds."""
    first = take(memory, 1)
    k, failed = 0, 0
    while True:
        k += 1
        with monkeypatch.context() as patched:
            made = failing(memory, patched, k)
            try:
                memory.commit(draft(memory, 1 + k))
            except StorageError as error:
                said = str(error)
                failed += 1
            else:
                said = ""
        if len(made) < k:
            break
        if said:
            assert re.fullmatch(
                r"memory://bucket/place/\S+: cannot be written: 503 slow down", said
            )
            assert first == memory.load()
            memory.commit(draft(memory, 1 + k))
        first = memory.load()
        assert 1 + k == first.order
    assert failed == 6, "a fragment, a state, three pieces, the manifest; LATEST is no loss"
    assert all(memory.verify(each.id) == [] for each in memory.snapshots())


@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_upload_that_fails_leaves_nothing(memory, monkeypatch, at):
    """A large blob appears when all of it is there, or not at all."""
    fsspec = importlib.import_module("fsspec")
    kind = importlib.import_module("fsspec.implementations.memory").MemoryFile
    array = np.arange(BIG // 4, dtype=np.float32)
    written = []
    with monkeypatch.context() as patched:

        def write(self, data, real=kind.write):
            if len(written) == at:
                raise ConnectionError("reset by peer")
            written.append(len(data))
            return real(self, data)

        patched.setattr(kind, "write", write)
        with pytest.raises(StorageError, match="cannot be written: reset by peer"):
            memory.write_tensors({"x": array})
    assert not fsspec.filesystem("memory").find("/bucket")

    blob = memory.write_tensors({"x": array})
    assert blob.new
    assert array.tobytes() == memory.read_tensors(blob.digest)["x"].tobytes()


def test_a_store_that_fails_while_reading_is_named(memory, take, monkeypatch):
    """An error of a store's library is one line that names the object, not a damaged snapshot."""
    take(memory, 1)
    blob = memory.write_bytes(b"x")

    def away(*_args, **_more):
        raise RuntimeError("no route\nto host")

    monkeypatch.setattr(memory._place._files, "open", away)
    with pytest.raises(StorageError, match=f"{blob.digest}: cannot be read: no route to host"):
        memory.read_bytes(blob.digest)
    assert [
        "memory://bucket/place/snapshots/syncer.1-10.json: cannot be read: no route to host"
    ] == (memory.verify("syncer.1:10"))


def test_a_store_without_conditions_will_do(memory, take, monkeypatch):
    """Where a store cannot refuse to overwrite, it is asked first."""
    files = memory._place._files
    real = files.pipe_file

    def plain(path, value, mode="overwrite"):
        if mode != "overwrite":
            raise NotImplementedError
        real(path, value)

    monkeypatch.setattr(files, "pipe_file", plain)
    first = take(memory, 1)
    with pytest.raises(SnapshotError, match="another snapshot of this name"):
        take(memory, 1, note="other")
    assert first == memory.load()
    with pytest.raises(StorageError, match="of several writers more than one might succeed"):
        memory._place.create("lease/syncer/00000001.json", b"me", exclusive=True)


def test_without_fsspec_a_url_says_what_to_install(monkeypatch):
    """The extra is named where it is missing."""
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)

    with pytest.raises(SnapshotError, match=r"s3://b/x: needs pip install 'ddloco\[remote\]'"):
        Store("s3://b/x")


@pytest.fixture
def bucket(tmp_path):
    """A server that speaks S3, which fsspec finds by itself."""
    with found_by_fsspec(tmp_path / "bucket") as served:
        yield served


@pytest.mark.filterwarnings("ignore")
def test_a_real_server_keeps_snapshots(bucket, take, draft):
    """Over S3: written, found, refused twice, damaged, retained; a large blob goes in parts."""
    store = Store(URL)
    for order in (1, 2, 3):
        take(store, order)
    with pytest.raises(SnapshotError, match="another snapshot of this name"):
        take(store, 3, note="other")
    array = np.arange(60 * 2**18, dtype=np.float32)
    blob = store.write_tensors({"x": array})
    assert not store.write_tensors({"x": array}).new
    assert array.tobytes() == store.read_tensors(blob.digest)["x"].tobytes()

    assert 3 == store.load().order
    removed = store.retain(2, grace_s=0)
    assert (("syncer.1:10",), 6) == (removed.snapshots, removed.files)
    assert [[], []] == [store.verify(each.id) for each in store.snapshots()]
    name = next(name for name in store._place.files("blobs"))
    store._place.put(name, b"other")
    assert any(name in line for each in store.snapshots() for line in store.verify(each.id))
    threads = [threading.Thread(target=draft, args=(Store(URL), 9)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 9 == store.commit(draft(store, 9)).order
    with pytest.raises(StorageError, match="cannot be written"):
        Store("s3://no-such-bucket/x").write_bytes(b"x")


@pytest.mark.filterwarnings("ignore")
def test_a_real_server_takes_failed_uploads_back(bucket, monkeypatch):
    """An upload of several parts that fails leaves no object, and no parts that cost money."""
    core = importlib.import_module("s3fs.core")
    store = Store(URL)
    array = np.arange(60 * 2**18, dtype=np.float32)
    with monkeypatch.context() as patched:

        def write(self, data, real=core.S3File.write):
            if self.tell() > 55 * 2**20:
                raise ConnectionError("reset by peer")
            return real(self, data)

        patched.setattr(core.S3File, "write", write)
        with pytest.raises(StorageError, match="cannot be written: reset by peer"):
            store.write_tensors({"x": array})
    assert [] == bucket.objects() == bucket.uploads()

    assert store.write_tensors({"x": array}).new


@pytest.mark.filterwarnings("ignore")
def test_a_manifest_whose_answer_is_lost_stands(bucket, draft):
    """A repeated request is answered that the object exists: it is its own, so the snapshot is
    committed."""
    store = Store(URL)
    asked = []

    def judge(_who, name):
        asked.append(name)
        return LOST if name.startswith("run/snapshots/") and asked.count(name) == 1 else None

    bucket.judge = judge
    whole = store.commit(draft(store, 1))
    assert asked.count("run/snapshots/syncer.1-10.json") == 2
    assert [whole] == [each.manifest for each in store.snapshots()]
    with pytest.raises(SnapshotError, match="another snapshot of this name"):
        store.commit(draft(store, 1, note="other"))


@pytest.mark.filterwarnings("ignore")
def test_a_store_that_is_busy_is_asked_again(bucket, take):
    """A refusal that asks to retry costs no snapshot; one that forbids is one line."""
    store = Store(URL)
    asked = []

    def judge(_who, name):
        asked.append(name)
        busy = len(asked) == 1 or name.startswith("run/snapshots/")
        return 503 if busy and asked.count(name) == 1 else None

    bucket.judge = judge
    take(store, 1)
    assert 2 == sum(asked.count(name) == 2 for name in set(asked))
    bucket.judge = lambda _who, _name: 403
    with pytest.raises(
        StorageError, match=r"^s3://bucket/run/\S+: cannot be written: Access Denied$"
    ):
        take(store, 2)
    assert 1 == store.load().order
