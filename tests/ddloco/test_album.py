"""Where snapshots go: in order, the newest few; what is old and damaged does not undo a new one."""

import pytest

from ddloco.album import Digested, Stored, place_of
from ddloco.config import job_from
from snapshot import Entry, Part, Store


def job(**table):
    """A job with such a table of snapshots."""
    plain = {"job": {"task": "tests.tasks:regression", "name": "small"}, "snapshot": table}
    return job_from(plain, "test")


def commit(album, number):
    """A snapshot of one participant."""
    blob = album.write_bytes(b"state %d" % number)
    piece = album.write_piece([Entry("state", "frozen", blob.sha256, blob.size)])
    part = Part("syncer.1", number, {"syncer.1": number}, (), {}, (piece,))
    album.commit(f"syncer.1:{number}", [part], {})
    return piece


@pytest.fixture
def store(tmp_path):
    """A place."""
    return Store(tmp_path / "snapshots")


def test_where_a_run_has_its_snapshots(tmp_path):
    """In the run folder, unless the job says otherwise."""
    assert tmp_path / "snapshots" == place_of(job(), tmp_path)
    assert "s3://bucket/run" == place_of(job(place="s3://bucket/run"), tmp_path)


def test_the_newest_stay(store):
    """Each comes after all that are there; the oldest go."""
    album = Stored(job(keep=2), store)
    for number in (5, 9, 12):
        commit(album, number)
    there = [each.manifest for each in store.snapshots()]

    assert [("syncer.1:12", 3), ("syncer.1:9", 2)] == [(m.snapshot, m.order) for m in there]
    assert "small" == there[0].facts["name"]


def test_old_damage_does_not_undo_a_new_snapshot(store, tmp_path):
    """Retention stops at a manifest that cannot be read; what was committed stands all the same."""
    album = Stored(job(keep=1), store)
    commit(album, 5)
    (tmp_path / "snapshots" / "snapshots" / "syncer.1-5.json").write_text("{}")
    commit(album, 9)

    assert "syncer.1:9" == store.load().snapshot
    assert ["syncer.1-5"] == [each.id for each in store.snapshots() if each.manifest is None]


def test_a_replay_takes_the_same_digests_and_keeps_nothing(store):
    """What it names is what was written."""
    assert commit(Stored(job(), store), 5) == commit(Digested(), 5)
