"""Old snapshots are deleted, and with them only blobs that no other snapshot needs."""

import os
from contextlib import suppress

import msgspec
import pytest

from snapshot import Removed, SnapshotError, StorageError, Store
from snapshot.storage import blob_name


@pytest.fixture(params=["local", "memory"])
def either(request):
    """Give a store of each kind."""
    return request.getfixturevalue("store" if request.param == "local" else "memory")


def orders(store):
    """The snapshots that are there, newest first; all of them intact."""
    assert [[]] * len(store.snapshots()) == [store.verify(each.id) for each in store.snapshots()]
    return [each.manifest.order for each in store.snapshots()]


def blobs(store):
    """The blobs that are there."""
    return {name.rpartition("/")[2] for name in store._place.files("blobs")}


def needed(store):
    """The blobs that some snapshot names."""
    return {digest for each in store.snapshots() for digest in store.sizes(each.manifest)}


def make_older(root, seconds=10_000):
    """Let all files be older."""
    for path in root.rglob("*"):
        if path.is_file():
            at = path.stat().st_mtime - seconds
            os.utime(path, (at, at))


def test_the_newest_stay(either, take):
    """Of many the newest five stay, and exactly the blobs that they name."""
    for order in range(1, 9):
        take(either, order)

    removed = either.retain(grace_s=0)

    assert [8, 7, 6, 5, 4] == orders(either)
    assert ("syncer.1:10", "syncer.1:20", "syncer.1:30") == removed.snapshots
    assert needed(either) == blobs(either)
    assert 3 * 5 == removed.files, "three pieces, a state and a fragment of each"
    assert removed.nbytes > 0


def test_every_nth_stays_for_ever(either, take):
    """Which ones does not depend on what was removed before."""
    for order in range(1, 13):
        take(either, order)
        either.retain(2, every=4, grace_s=0)

    assert [12, 11, 8, 4] == orders(either)
    assert needed(either) == blobs(either)


def test_shared_blobs_stay(either, take):
    """What a removed snapshot shares with one that stays is not removed."""
    shared = either.write_bytes(b"what never changes").digest
    for order in (1, 2):
        take(either, order)

    either.retain(1, grace_s=0)

    assert [2] == orders(either)
    assert shared in blobs(either)


def test_what_is_young_may_be_under_way(either, take, draft):
    """Blobs of a snapshot that is not committed yet stay, and it is committed afterwards."""
    for order in (1, 2):
        take(either, order)
    under_way = draft(either, 3)

    removed = either.retain(1)

    assert (("syncer.1:10",), 0) == (removed.snapshots, removed.files)
    either.commit(under_way)
    assert [3, 2] == orders(either)


def test_what_is_old_and_unused_goes(store, root, take, draft):
    """Blobs of a snapshot that never came to be, and partial files, go once they are old."""
    take(store, 1)
    draft(store, 2)
    for folder in ("blobs", "snapshots"):
        (root / folder / ".partial-1-dead").write_bytes(b"half")
    make_older(root)
    young = root / "blobs" / ".partial-2-alive"
    young.write_bytes(b"half")

    removed = store.retain()

    assert 2 + 5 == removed.files
    assert needed(store) == blobs(store) - {".partial-2-alive"}
    assert young.exists()
    assert [1] == orders(store)


def test_an_old_blob_that_is_written_again_is_young(store, root, take, draft):
    """A snapshot under way may name what only a removed one had."""
    for order in (1, 2):
        take(store, order)
    make_older(root)
    under_way = draft(store, 1)

    store.retain(1)

    assert ["syncer.1-20"] == [each.id for each in store.snapshots()]
    store.commit(under_way)
    assert [2, 1] == orders(store)


def test_an_old_object_is_sent_again(memory, monkeypatch):
    """An object store has no other way to make a blob young."""
    blob = memory.write_bytes(b"x")
    assert not memory.write_bytes(b"x").new
    place = memory._place
    real = place.now()
    monkeypatch.setattr(place, "now", lambda: real + 500.0)

    assert memory.write_bytes(b"x").new
    assert blob.digest in blobs(memory)


def test_what_was_made_young_while_retention_looked_stays(store, root, take, draft, monkeypatch):
    """Between listing files and removing them, a blob may be taken by a snapshot under way."""
    for order in (1, 2):
        take(store, order)
    make_older(root)
    place = store._place
    real = place.settle
    began = []

    def settle(names):
        if not began:
            began.append(1)
            began.append(draft(Store(root), 1))
        real(names)

    monkeypatch.setattr(place, "settle", settle)
    store.retain(1)

    assert store.commit(began[1]).order == 1
    assert [2, 1] == orders(store)


def test_a_damaged_snapshot_is_no_reason_for_another_to_go(store, root, take):
    """Whole snapshots are counted; one that lacks a blob is kept beside them."""
    for order in (1, 2, 3):
        take(store, order)
    lost = store.write_tensors({})
    theta = store.read_piece(store.manifest("syncer.1:30").parts[0].contents[1])[0].digest
    (root / blob_name(theta)).unlink()
    assert lost.new

    store.retain(1, grace_s=0)

    assert [3, 2] == [each.manifest.order for each in store.snapshots()]
    assert 2 == store.load().order


def test_a_damaged_manifest_is_set_aside(store, root, take):
    """It is named and renamed, so that it can be looked at; retention continues."""
    for order in (1, 2, 3):
        take(store, order)
    (root / "snapshots" / "syncer.1-30.json").write_bytes(b"{}")
    (root / "snapshots" / "syncer.1-40.json").mkdir()
    os.mkfifo(root / "snapshots" / "syncer.1-50.json")

    removed = store.retain(1, grace_s=0)
    assert [2] == orders(store)
    assert needed(store) == blobs(store)
    assert [30, 40, 50] == sorted(int(each.split(".json")[0][-2:]) for each in removed.aside)
    assert "is not a manifest" in " ".join(removed.aside)
    assert "a FIFO, not a regular file" in " ".join(removed.aside)
    assert (root / "snapshots" / "syncer.1-30.json.damaged").read_bytes() == b"{}"
    assert () == store.retain(1, grace_s=0).aside


def test_a_manifest_of_another_version_stops_retention(store, root, take, monkeypatch):
    """Its blobs may be wanted by a program that can read it, so nothing goes."""
    for order in (1, 2, 3):
        take(store, order)
    before = blobs(store)
    monkeypatch.setattr("snapshot.manifest.FORMAT", 3)

    with pytest.raises(SnapshotError, match=r"syncer.1-\d0.json: cannot be read.*move it away"):
        store.retain(1, grace_s=0)
    monkeypatch.undo()
    assert before == blobs(store)
    assert 3 == len(store.snapshots())


def test_runs_that_share_a_place(store, root, draft):
    """Each sees and removes its own; equal names do not collide, shared blobs stay."""
    one, other = Store(root, "a1"), Store(root, "b2")
    for order in (1, 2, 3):
        one.commit(draft(one, order, run="a1"))
    other.commit(draft(other, 1, run="b2"))

    assert ["b2_syncer.1-10"] == [each.id for each in other.snapshots()]
    assert ("syncer.1:10", "syncer.1:20") == one.retain(1, grace_s=0).snapshots
    assert [3] == orders(one)
    assert [1] == orders(other)
    assert needed(store) == blobs(store)
    assert "b2_syncer.1-10" == other.load("latest").id == other.find("latest")
    assert "a1_syncer.1-30" == store.find("syncer.1-30")
    for look in (store.load, store.find):
        with pytest.raises(SnapshotError, match="snapshots of 2 runs: a1; b2"):
            look("latest")


def test_what_a_run_began_from_stays(store, take):
    """Its tapes replay from there, however many snapshots follow."""
    for order in (1, 2, 3):
        take(store, order)
    for order in (4, 5, 6):
        take(store, order, **{"from": "syncer.1-20"})

    store.retain(1, grace_s=0)
    assert [6, 2] == orders(store)
    assert needed(store) == blobs(store)


def test_a_disk_that_is_away_stops_retention(store, root, take, monkeypatch):
    """An error of the system says nothing about a snapshot, so nothing is removed."""
    for order in (1, 2):
        take(store, order)
    before = blobs(store)
    real = store._place.open

    def away(name):
        if name.startswith("blobs"):
            raise OSError(5, "Input/output error")
        return real(name)

    monkeypatch.setattr(store._place, "open", away)
    with pytest.raises(StorageError, match=r"Input/output error; nothing was removed"):
        store.retain(1, grace_s=0)
    monkeypatch.undo()
    assert before == blobs(store)
    assert [2, 1] == orders(store)


def test_retention_that_dies_anywhere_leaves_whole_snapshots(tmp_path, take, watch):
    """Manifests go first: a blob too many may be left, never one too few."""

    class DiedError(BaseException):
        pass

    k, calls = 0, [0]
    while calls[0] >= k:
        k += 1
        watch(lambda name, args: None)
        store = Store(tmp_path / str(k))
        for order in (1, 2, 3):
            take(store, order)
        calls = [0]

        def before(name, args, calls=calls, k=k):
            calls[0] += 1
            if calls[0] == k:
                raise DiedError

        watch(before)
        with suppress(DiedError):
            store.retain(1, grace_s=0)
        watch(lambda name, args: None)
        assert orders(store)[0] == 3
        store.retain(1, grace_s=0)
        assert needed(store) == blobs(store)
    assert k > 12


def test_no_snapshot_at_all_is_never_asked_for(store):
    """To keep none is a mistake of the caller."""
    for keep, every in ((0, 0), (1, -1)):
        with pytest.raises(ValueError, match="want at least 1"):
            store.retain(keep, every=every)


def test_an_empty_place_has_nothing_to_remove(store, take):
    """Nothing is there, or one snapshot only: nothing goes."""
    assert Removed((), 0, 0) == store.retain()
    take(store, 1)
    assert Removed((), 0, 0) == store.retain()


def alone(draft, store, order):
    """A snapshot of the syncer without its learner."""
    whole = draft(store, order)
    syncer = (each for each in whole.parts if each.who.startswith("syncer"))
    store.commit(msgspec.structs.replace(whole, parts=tuple(syncer)))


def test_snapshots_without_learners_drive_out_none_with_them(either, take, draft):
    """Learners were preempted, and the syncer went on taking snapshots of itself: those from which
    the learners can continue stay, however many there are; of the others the newest stay."""
    for order in (1, 2, 3):
        take(either, order)
    for order in range(4, 12):
        alone(draft, either, order)
        either.retain(2, grace_s=0)
    assert [11, 10, 3, 2] == orders(either)
    for order in (12, 13):
        take(either, order)
    either.retain(2, grace_s=0)
    assert [13, 12] == orders(either), "whole ones do drive out the others"
