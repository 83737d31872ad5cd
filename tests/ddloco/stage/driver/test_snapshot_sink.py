"""Where parts go: a store, or their digests alone, which are the same."""

import numpy as np
import pytest

from ddloco.stage.driver.snapshot_sink import DigestSink, StoreSink
from snapshot import Entry, Part, Store

ARRAYS = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.arange(3, dtype=np.int64)}
NAME = "syncer.1:{}"
FACTS = {"job": "small-1"}


@pytest.fixture
def store(tmp_path):
    """A place of its own."""
    return Store(tmp_path / "place")


def part(sink, number):
    """A part that an actor wrote."""
    blob = sink.write_bytes(b"state %d" % number)
    piece = sink.write_piece([Entry("state", "frozen", blob.digest, blob.size)])
    return Part("syncer.1", number, {"syncer.1": number}, (), {}, (piece,))


def test_both_take_the_same_digests(store):
    """Of bytes, of named arrays, and of a piece: so a replay can say what was written."""
    stored, digested = StoreSink(store, FACTS), DigestSink()
    entries = []
    for write, what in (("write_bytes", b"some bytes"), ("write_tensors", ARRAYS)):
        one, other = (getattr(sink, write)(what) for sink in (stored, digested))
        assert (one.digest, one.size) == (other.digest, other.size)
        assert not other.new
        entries.append(Entry("array", write, one.digest, one.size))
    assert stored.write_piece(entries) == digested.write_piece(entries)
    assert stored.write_piece(entries[:1]) != digested.write_piece(entries)
    read = store.read_tensors(entries[1].digest)
    assert all((read[name] == array).all() for name, array in ARRAYS.items())


def test_snapshots_stand_in_order_of_their_commits(store):
    """It names the actors whose parts it has, their job, and the absent actors."""
    sink = StoreSink(store, FACTS)
    for number in (7, 3):
        sink.commit(NAME.format(number), [part(sink, number)], {"learner-0.1": "it is gone"})
    orders = {each.manifest.snapshot: each.manifest.order for each in store.snapshots()}
    assert {NAME.format(7): 1, NAME.format(3): 2} == orders
    newest = store.load()
    assert NAME.format(3) == newest.snapshot
    assert newest.facts == FACTS
    assert {"learner-0.1": "it is gone"} == newest.absent


def test_as_many_stay_as_the_job_says(store):
    """The newest."""
    sink = StoreSink(store, FACTS, keep=2)
    for number in range(1, 6):
        sink.commit(NAME.format(number), [part(sink, number)], {})
    assert {NAME.format(4), NAME.format(5)} == {
        each.manifest.snapshot for each in store.snapshots()
    }


def test_a_replay_keeps_nothing():
    """There it stood."""
    assert DigestSink().commit("syncer.1:7", [], {}) is None


def test_old_damage_does_not_undo_a_new_snapshot(store, tmp_path):
    """A manifest that cannot be read is named and set aside; what was committed stands."""
    told = []
    sink = StoreSink(store, FACTS, keep=1, warn=told.append)
    sink.commit(NAME.format(5), [part(sink, 5)], {})
    (tmp_path / "place" / "snapshots" / "syncer.1-5.json").write_text("{}")
    sink.commit(NAME.format(9), [part(sink, 9)], {})

    assert NAME.format(9) == store.load().snapshot
    [line] = told
    assert "syncer.1-5.json" in line
    assert line.endswith("it was set aside")
    assert [] == [each.id for each in store.snapshots() if each.manifest is None]
