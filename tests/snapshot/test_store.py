"""A store: what is written comes back, once, and stands only when it is whole."""

import dataclasses
import subprocess
import sys
import threading
import tracemalloc

import ml_dtypes
import msgspec
import numpy as np
import pytest

from snapshot import Entry, Manifest, SnapshotError, Store
from snapshot.record import Part
from snapshot.storage import blob_name

HUGE = 3 * 2**20
"""More than what is hashed before it is written, and more than one request."""


@pytest.fixture(params=["local", "memory"])
def either(request):
    """Give a store of each kind."""
    return request.getfixturevalue("store" if request.param == "local" else "memory")


def test_importing_the_room_imports_no_extra():
    """Local places work without fsspec, which is imported for URLs only."""
    code = "import sys, snapshot; snapshot.Store('x').exists(); print('fsspec' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"


@pytest.mark.parametrize("count", [3, HUGE])
def test_arrays_come_back(either, count):
    """Values, types and shapes, small and large, bfloat16, empty and without dimensions."""
    arrays = {
        "w": np.arange(count, dtype=np.float32),
        "b": np.ones(5, ml_dtypes.bfloat16),
        "none": np.zeros((0, 3), np.int32),
        "n": np.array(7),
    }

    blob = either.write_tensors(arrays)
    back = either.read_tensors(blob.digest)

    assert blob.new
    assert list(back) == sorted(arrays)
    for name, array in arrays.items():
        assert (array.dtype, array.shape) == (back[name].dtype, back[name].shape)
        assert array.tobytes() == back[name].tobytes()
        assert back[name].flags.aligned


@pytest.mark.parametrize("name", ["w", "layer/kernel", "x" * 50])
def test_arrays_lie_where_jax_takes_them_as_they_are(either, name):
    """At a multiple of 64, however long the header in front of them is."""
    arrays = {f"{name}{n}": np.full((48, 16), n, np.float32) for n in range(3)}
    found = either.read_tensors(either.write_tensors(arrays).digest)
    assert {0} == {array.ctypes.data % 64 for array in found.values()}
    assert all((found[key] == arrays[key]).all() for key in arrays)


@pytest.mark.parametrize("data", [b"", b"x", bytes(11 * 2**20)])
def test_bytes_come_back(either, data):
    """Any bytes, none at all included; empty ones are a blob like any other."""
    blob = either.write_bytes(data)

    assert (len(data), True) == (blob.size, blob.new)
    assert bytes(either.read_bytes(blob.digest)) == data


@pytest.mark.parametrize("count", [3, HUGE])
def test_what_is_there_is_not_written_again(either, count):
    """The second time nothing is new, and no second file appears."""
    arrays = {"x": np.arange(count, dtype=np.float32)}
    first = either.write_tensors(arrays)
    again = either.write_tensors({"x": arrays["x"].copy()})
    other = either.write_tensors({"y": arrays["x"]})

    assert again == dataclasses.replace(first, new=False)
    assert other.new
    assert 2 == len(either._place.files("blobs"))


@pytest.mark.parametrize("count", [3, HUGE])
def test_a_blob_of_another_size_is_written_again(store, root, count):
    """A blob that was cut by whatever is not taken for whole."""
    arrays = {"x": np.arange(count, dtype=np.float32)}
    blob = store.write_tensors(arrays)
    (root / blob_name(blob.digest)).write_bytes(b"cut")

    assert store.write_tensors(arrays).new
    assert store.read_tensors(blob.digest)["x"].tobytes() == arrays["x"].tobytes()


def test_equal_snapshots_are_equal_files(tmp_path, take):
    """Two stores that are told the same hold the same bytes under the same names."""
    files = []
    for name in "ab":
        take(Store(tmp_path / name), 3)
        root = tmp_path / name
        files.append({p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()})

    assert files[0] == files[1]
    assert 9 == len(files[0])


def test_a_large_array_is_not_copied(store):
    """Writing takes chunks of memory; only reading takes as much as there is to read."""
    array = np.zeros(16 * 2**20, np.float32)
    tracemalloc.start()
    store.write_tensors({"x": array})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < array.nbytes / 8


def test_many_threads_write_the_same_blobs(store):
    """Whichever writer comes first, there is one whole blob of each, and nothing is left over."""
    problems = []

    def write():
        try:
            for each in range(20):
                store.write_bytes(b"%d" % each * 1000)
            store.write_tensors({"x": np.ones(HUGE, np.uint8)})
        except BaseException as error:  # noqa: BLE001, it is looked at below
            problems.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert problems == []
    assert 21 == len(store._place.files("blobs"))


def test_a_committed_snapshot_is_found(either, take):
    """It is listed, loaded by name, by id and as the latest, and verified."""
    committed = take(either, 4)

    assert [committed] == [each.manifest for each in either.snapshots()]
    assert committed == either.load("syncer.1:40") == either.load("syncer.1-40") == either.load()
    assert either.verify("syncer.1:40") == []
    assert either.exists()
    assert committed.nbytes == sum(each.size for each in either._place.files("blobs").values())


def test_snapshots_are_in_the_order_of_the_committer(either, take):
    """Not the number of the event, nor the time of writing, but the committer's count."""
    for order in (10, 2, 9):
        take(either, order)

    assert [10, 9, 2] == [each.manifest.order for each in either.snapshots()]
    assert 10 == either.load().order
    assert "syncer.1-100" == either.find("latest")
    assert "syncer.1-20" == either.find("syncer.1:20")


def test_the_pointer_is_for_people_only(store, root, take):
    """LATEST names what was committed last, and wrong contents of it do no harm."""
    take(store, 1)
    take(store, 2)
    assert "syncer.1-20\n" == (root / "LATEST").read_text()

    (root / "LATEST").write_text("syncer.1-10\n")
    assert 2 == store.load().order
    (root / "LATEST").unlink()
    (root / "LATEST").mkdir()
    take(store, 3)
    assert 3 == store.load().order


def test_nothing_is_there_before_something_is_written(either, tmp_path):
    """Looking at a place makes nothing, and says that nothing is there."""
    assert not either.exists()
    assert either.snapshots() == []
    with pytest.raises(SnapshotError, match="holds no intact snapshot"):
        either.load()
    with pytest.raises(SnapshotError, match=r"no snapshot a.1-1; there is none"):
        either.find("a.1:1")
    assert not (tmp_path / "runs").exists()


def test_to_commit_twice_is_to_commit_once(either, draft):
    """A committer that does not know whether it was done does it again."""
    manifest = draft(either, 1)

    assert either.commit(manifest) == either.commit(manifest)
    assert 1 == len(either.snapshots())


def test_a_name_is_given_once(either, take):
    """A snapshot that stands is never replaced by another one."""
    first = take(either, 1)

    with pytest.raises(SnapshotError, match=r"syncer.1-10.json: another snapshot of this name"):
        take(either, 1, note="another")
    assert first == either.load()


@pytest.mark.parametrize("which", ["piece", "blob"])
def test_what_lacks_a_blob_is_not_committed(either, draft, which):
    """The manifest is last: a snapshot of which something is missing, or cut, does not stand."""
    manifest = draft(either, 1)
    piece = manifest.parts[0].contents[1]
    digest = piece if which == "piece" else either.read_piece(piece)[0].digest
    either._place.remove(blob_name(digest))

    with pytest.raises(SnapshotError, match=f"is not committed: .*{digest}: is missing"):
        either.commit(manifest)
    assert either.snapshots() == []

    either._place.put(blob_name(digest), b"cut")
    with pytest.raises(SnapshotError, match=f"is not committed: .*{digest}: (has 3 bytes|is not)"):
        either.commit(manifest)
    assert either.snapshots() == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"parts": ()}, "no parts"),
        ({"parts": (Part("a.1", 1, {"a.1": 1, "b.1": 2}, (), {}),) * 2}, "of one participant"),
        ({"parts": (Part("a.1", 1, {}, (), {}),)}, "the clock of a.1 lacks its own entry"),
        ({"parts": (Part("a.1", 1, {"a.1": -1}, (), {}),)}, "a.1"),
        ({"parts": (Part("a.1", 1, {"a.1": 1}, (), {}, (), "full"),)}, "not written: full"),
        ({"parts": (Part("a.1", 1, {"a.1": 1}, (), {}),), "absent": {"a.1": "x"}}, "absent"),
        ({"parts": (Part("a.1", 1, {"a.1": 1}, (), {}, ("../x",)),)}, "want a digest"),
        (
            {
                "parts": (
                    Part("a.1", 1, {"a.1": 1, "b.1": 3}, (), {}),
                    Part("b.1", 2, {"b.1": 2}, (), {}),
                )
            },
            "a.1 has heard of b.1:3, b.1 is recorded at 2",
        ),
    ],
)
def test_what_is_no_consistent_cut_is_not_committed(either, change, said):
    """Clocks that cannot be those of one cut, and parts that are none, are refused by name."""
    manifest = msgspec.structs.replace(Manifest("a.1:1", 1, {}, (), {}), **change)

    with pytest.raises(SnapshotError, match=said):
        either.commit(manifest)
    assert either.snapshots() == []


def test_a_digest_is_no_path(either):
    """Digests come over the network, and no path is made of one that is none."""
    for name in ("", "..", "../../x", "ab" * 31 + "xy", "AB" * 32):
        with pytest.raises(SnapshotError, match="want a digest"):
            either.read_bytes(name)
    piece = either.write_piece([Entry("state", "x", "../../etc", 1)])
    with pytest.raises(SnapshotError, match="want a digest"):
        either.read_piece(piece)


def test_bytes_are_no_arrays(either):
    """A blob of another kind is refused by its file."""
    blob = either.write_bytes(b"nothing of that kind")

    with pytest.raises(SnapshotError, match=f"{blob.digest}: a header of"):
        either.read_tensors(blob.digest)


def test_an_unknown_url_is_one_line():
    """An unknown kind of URL, and one whose package is missing, say what would be right."""
    with pytest.raises(SnapshotError, match=r"^nothing://x: "):
        Store("nothing://x")
