"""What goes of a bounded tape, when, and what stays: by files and manifests alone."""

import pytest
import trio

from ddloco.job.config import job_from
from ddloco.roles.job_program import program_of
from ddloco.stage.nodes.node import sink_of
from ddloco.stage.tapes import retention
from ddloco.stage.tapes.retention import TapeRetention
from replay import Recorder, TapeHeader, TapeWriter, files_of, open_tapes
from snapshot import Entry, Part, Store

ME, OTHER = "learner-0.1", "syncer.1"


class Stand:
    """A folder with tapes and snapshots, and who drops what of one of them."""

    def __init__(self, root, keep="2 snapshots", me=ME):
        plain = {
            "job": {"task": "none:none"},
            "tape": {"keep": keep, "ship": False},
            "snapshot": {"every_s": 60.0, "keep": 3},
        }
        self.job, self.folder, self.me = job_from(plain, "test"), root / "tapes", me
        self.store = Store(root / "place")
        self.notes = []
        self.folder.mkdir(exist_ok=True)
        self.retention = TapeRetention(
            self.folder,
            me,
            root / "place",
            lambda *said: self.notes.append(said),
            count=self.job.tape.bound,
            program=self.job.id,
        )

    def record(self, *cuts, last, me=ME):
        """A tape with these cuts; it begins before all that there is."""
        header = TapeHeader(me, self.job.id, {}, "0", {})
        recorder = Recorder(TapeWriter(self.folder / f"{me}.tape", header))
        for n in range(1, last + 1):
            recorder.event(n, 0.0, {}, "x")
            recorder.effects(n, [])
            if n in cuts:
                recorder.go_on(n, {me: n})
        recorder.close(last, None)

    def take(self, number, *who, absent=None, job=None):
        """A snapshot in which the named are, at their event ``number``."""
        sink = sink_of(program_of(job or self.job), self.store.name)
        blob = sink.write_bytes(b"state")
        piece = sink.write_piece([Entry("state", "frozen", blob.digest, blob.size)])
        parts = [Part(each, number, {each: number}, (), {}, (piece,)) for each in who]
        sink.commit(f"{OTHER}:{number}", parts, absent or {})

    def begins(self, me=ME):
        """Behind which events the files begin that are there."""
        return [after for after, _ in files_of(self.folder, me)]


def test_what_lies_before_the_oldest_of_so_many_goes(tmp_path):
    """Two snapshots: with the second one the first part goes, with the third the next; what is
    left is a tape; a further look finds nothing to do."""
    stand = Stand(tmp_path)
    stand.record(3, 6, 9, last=11)
    stand.take(3, ME, OTHER)
    stand.retention.drop()
    assert [0, 3, 6, 9] == stand.begins()
    stand.take(6, ME, OTHER)
    stand.retention.drop()
    assert [3, 6, 9] == stand.begins()
    stand.take(9, ME, OTHER)
    assert ["learner-0.1@3.tape"] == [path.name for path in stand.retention.drop()]
    assert [] == stand.retention.drop()
    [left] = open_tapes(stand.folder)
    assert (6, 11) == (left.header.after, left.events)


def test_one_snapshot_may_be_enough(tmp_path):
    """With "1 snapshot" all before the newest one goes, also of several files at once."""
    stand = Stand(tmp_path, "1 snapshot")
    stand.record(3, 6, last=8)
    stand.take(6, ME, OTHER)
    stand.retention.drop()

    assert [6] == stand.begins()


OTHER_JOB = job_from({"job": {"task": "none:none", "seed": 1}}, "test")


@pytest.mark.parametrize(
    ("number", "who", "more"),
    [
        (6, [OTHER], {}),
        (6, [ME, OTHER], {"absent": {"learner-1.1": "its channel broke"}}),
        (6, [ME, OTHER], {"job": OTHER_JOB}),
        (5, [ME, OTHER], {}),
    ],
    ids=["not in it", "an actor is absent", "another job", "another run of the same name"],
)
def test_snapshots_that_do_not_count(tmp_path, number, who, more):
    """Beside one that does they are none: nothing goes, until there is another one that does."""
    stand = Stand(tmp_path)
    stand.record(3, 6, 9, last=11)
    stand.take(3, ME, OTHER)
    stand.take(number, *who, **more)
    stand.retention.drop()
    assert [0, 3, 6, 9] == stand.begins()
    stand.take(9, ME, OTHER)
    stand.retention.drop()
    assert [3, 6, 9] == stand.begins()


def test_former_incarnations_go_when_they_are_not_needed(tmp_path):
    """They stay until their successor is in as many snapshots; other actors' files always stay."""
    stand = Stand(tmp_path, me="learner-0.3")
    stand.record(3, last=5)
    stand.record(2, last=4, me="learner-0.2")
    stand.record(4, 8, last=9, me="learner-0.3")
    stand.record(3, last=5, me="learner-00.1")
    stand.record(3, last=5, me="learner-0.4")
    stand.record(3, last=5, me="learner-0.5.1")
    stand.take(4, "learner-0.3", OTHER)
    stand.retention.drop()
    assert [[0, 3], [0, 2], [0, 4, 8]] == [stand.begins(f"learner-0.{n}") for n in (1, 2, 3)]
    stand.take(8, "learner-0.3", OTHER)
    stand.retention.drop()

    assert [[], [], [4, 8]] == [stand.begins(f"learner-0.{n}") for n in (1, 2, 3)]
    others = ("learner-00.1", "learner-0.4", "learner-0.5.1")
    assert [[0, 3]] * 3 == [stand.begins(who) for who in others]


def test_killed_while_dropping(tmp_path, monkeypatch):
    """After each file that is dropped the rest is a chain; the next pass drops the others."""
    stand = Stand(tmp_path, "1 snapshot", me="learner-0.2")
    stand.record(2, last=3)
    stand.record(3, 6, 9, last=11, me="learner-0.2")
    stand.take(9, "learner-0.2", OTHER)
    unlink = retention.Path.unlink

    class KilledError(Exception):
        """The process ends here."""

    def once(path, **more):
        unlink(path, **more)
        raise KilledError

    looks = 0
    while True:
        with monkeypatch.context() as patch:
            patch.setattr(retention.Path, "unlink", once)
            try:
                stand.retention.drop()
                break
            except KilledError:
                looks += 1
        assert open_tapes(stand.folder)[-1].events == 11
    assert (5, [9], []) == (looks, stand.begins("learner-0.2"), stand.begins())


def test_a_place_that_cannot_be_read_costs_room_only(tmp_path, monkeypatch):
    """It is said once, nothing goes, and once it can be read again the rest goes; at the end there
    is one more look."""
    stand = Stand(tmp_path, "1 snapshot")
    stand.record(3, last=5)
    stand.take(3, ME, OTHER)
    away = True

    looks = 0

    def snapshots(self):
        nonlocal looks
        looks += 1
        if away:
            raise OSError(5, "it is away")
        return listed(self)

    listed = Store.snapshots
    monkeypatch.setattr(Store, "snapshots", snapshots)

    async def main():
        nonlocal away
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stand.retention.run)
            with trio.fail_after(60):
                while looks < 3 or not stand.notes:  # noqa: ASYNC110, it is looked in a thread
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        assert [0, 3] == stand.begins()
        away = False
        await stand.retention.finish(60.0)

    monkeypatch.setattr(retention, "LOOK_S", 0.01)
    trio.run(main)
    assert [("tape not dropped", {"reason": "[Errno 5] it is away"})] == stand.notes
    assert [3] == stand.begins()


def test_no_snapshot_is_read_where_nothing_can_go(tmp_path, monkeypatch):
    """As long as there are no more files than snapshots, a place is not looked at."""
    stand = Stand(tmp_path)
    stand.record(3, last=5)
    monkeypatch.setattr(Store, "snapshots", None)

    assert [] == stand.retention.drop()
