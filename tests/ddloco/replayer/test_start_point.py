"""Which snapshot a replay begins with, from tapes and manifests alone."""

from dataclasses import dataclass

import pytest

from ddloco.replayer import start_point
from ddloco.replayer.start_point import (
    choose_start_point,
    cut_of,
    final_clock,
    mismatch,
    usable_snapshots,
)
from ddloco.stage.driver.resume import RESTORED, RESTORED_PLACE
from ddloco.stage.driver.snapshot_sink import StoreSink
from replay import Recorder, TapeHeader, TapeWriter, files_of, open_tapes
from snapshot import Entry, Part, SnapshotError, Store

JOB = "small-1"
A, B, S = "learner-0.1", "learner-1.1", "syncer.1"


class Run:
    """A folder with tapes, and a place with snapshots."""

    def __init__(self, root):
        self.folder, self.place, self.job = root / "tapes", root / "place", JOB

    def record(self, who, last, *, begins=0, cuts=(), heard=None, **header):
        """A tape of events to ``last``, whose files before event ``begins`` are gone."""
        made = TapeHeader(who, self.job, {}, "0", {}, **header)
        recorder = Recorder(TapeWriter(self.folder / f"{who}.tape", made))
        clock = {}
        for n in range(made.after + 1, last + 1):
            learned = (heard or {}).get(n, {})
            clock.update(learned)
            recorder.event(n, 0.0, learned, "x")
            recorder.effects(n, [])
            if n in (begins, *cuts):
                recorder.go_on(n, {**clock, who: n})
        recorder.close(last, None)
        for after, path in files_of(self.folder, who):
            if after < begins:
                path.unlink()

    def take(self, at, absent=(), of=None, **cuts):
        """A snapshot with the cut of each actor; their clocks are those of the tapes."""
        sink = StoreSink(Store(self.place), {"job": of or self.job})
        blob = sink.write_bytes(b"state")
        piece = sink.write_piece([Entry("state", "frozen", blob.digest, blob.size)])
        names = {"a": A, "b": B, "s": S, "b2": "learner-1.2", "a2": "learner-0.2"}
        clock = {names[key]: number for key, number in cuts.items() if number}
        parts = [
            Part(who, number, clock, (), {}, (piece,))
            for who, number in clock.items()
            if who not in absent
        ]
        sink.commit(f"{S}:{at}", parts, {})

    def usable_snapshots(self):
        """The ids of what would be tried, in that order."""
        return [each.id for each in usable_snapshots(open_tapes(self.folder), self.place)]


@pytest.fixture
def run(tmp_path):
    """Two learners and a syncer, with three snapshots that contain all of them."""
    made = Run(tmp_path)
    made.take(10, a=4, b=4, s=10)
    made.take(20, a=8, b=8, s=20)
    made.take(30, a=12, b=12, s=30)
    return made


def test_the_first_that_no_tape_begins_behind(run):
    """Who has dropped most decides; one that begins where the cut is will do."""
    run.record(A, 16, cuts=(4, 8, 12))
    run.record(B, 16, begins=8, cuts=(4, 12))
    run.record(S, 40, begins=10, cuts=(20, 30))
    assert ["syncer.1-20", "syncer.1-30"] == run.usable_snapshots()

    run.record("learner-2.1", 9, begins=5)
    assert (
        [] == run.usable_snapshots()
    )  # No actor in them had received from it, and its beginning is gone.


def test_tapes_that_begin_can_begin_anywhere(run):
    """Also one of an actor that joined behind all snapshots."""
    for who, last in ((A, 16), (B, 16), (S, 40), ("learner-2.1", 9)):
        run.record(who, last)
    assert ["syncer.1-10", "syncer.1-20", "syncer.1-30"] == run.usable_snapshots()


def test_another_jobs_snapshots_are_not_looked_at(run):
    """Several jobs may have their snapshots in one place."""
    run.take(15, of="other-1", a=4, b=4, s=15)
    run.record(A, 16, begins=4)
    run.record(B, 16)
    run.record(S, 40)
    assert ["syncer.1-10", "syncer.1-20", "syncer.1-30"] == run.usable_snapshots()


def test_a_snapshot_without_an_actor_that_continues_comes_last(tmp_path):
    """As one of which a tape is gone: either replay has a gap. Who had ended is not missing."""
    run = Run(tmp_path)
    run.take(10, absent=(B,), a=4, b=3, s=10)
    run.take(20, a=8, b=8, s=20)
    run.record(A, 16)
    run.record(S, 40)

    run.record(B, 16, heard={14: {S: 11}})
    assert ["syncer.1-20", "syncer.1-10"] == run.usable_snapshots()
    (run.folder / f"{B}.tape").unlink()
    run.record(B, 16, heard={14: {S: 10}})
    assert ["syncer.1-10", "syncer.1-20"] == run.usable_snapshots()
    *_, other, _ = open_tapes(run.folder)
    assert (B, {S: 10}) == (other.incarnation, final_clock(other))
    (run.folder / f"{A}.tape").unlink()
    (run.folder / f"{B}.tape").unlink()
    run.record(B, 16, heard={14: {S: 11}})
    run.take(30, absent=(A,), a=12, b=12, s=30)
    assert ["syncer.1-30", "syncer.1-10", "syncer.1-20"] == run.usable_snapshots()


def test_who_was_left_out_and_goes_on():
    """Its tape knows an event after the cut; a former incarnation has a successor."""

    class Taped:
        dropped = False

        def __init__(self, who, after=0, **clock):
            self.incarnation = who
            self.header = TapeHeader(who, "job-1", {}, "0", {}, after=after, clock=clock)
            self.heard = {}

        def records(self):
            return iter(())

    clock = {"a.1": 3, "b.1": 5, "c.1": 2}
    cut = cut_of([Part(who, clock[who], clock, (), {}) for who in ("a.1", "b.1")])
    assert cut.leaves_out(Taped("c.1", after=1, **{"a.1": 4}))
    assert not cut.leaves_out(Taped("c.1", after=1, **{"a.1": 3, "b.1": 5}))
    assert not cut.leaves_out(Taped("a.0", after=1, **{"b.1": 9}))
    assert not cut.leaves_out(Taped("a.1", after=1, **{"b.1": 9}))
    assert not cut.leaves_out(Taped("d.1", after=1, **{"b.1": 9}))
    assert [False, False, True] == [cut.precedes(Taped("a.1", after)) for after in (0, 3, 4)]
    assert [False, False] == [cut.precedes(Taped("c.1", after)) for after in (0, 9)]
    former = Taped(
        "c.0", after=9, **{"b.1": 9}
    )  # Of an absent actor that others had received from.
    assert not cut.precedes(former)
    assert not cut.leaves_out(former)
    assert [False, True] == [cut.precedes(Taped("d.1", after)) for after in (0, 1)]


@pytest.fixture
def of_these(monkeypatch):
    """Clocks are not compared: these tapes have none."""
    monkeypatch.setattr(start_point, "mismatch", lambda _parts, _tapes: None)


@dataclass
class Begun:
    """A snapshot that a replay begins with."""

    snapshot: str
    parts: tuple = ()


@pytest.mark.usefixtures("of_these")
def test_what_is_begun_with(run):
    """The first of those that will do; the next where it is damaged; what a run itself went on
    from where nothing was dropped; nothing where tapes begin."""
    asked, permitted = [], []
    damaged = {"syncer.1-20"}

    def read(place, snapshot):
        asked.append((str(place), snapshot))
        if snapshot in damaged:
            raise SnapshotError(f"{snapshot} is damaged")
        return Begun(snapshot)

    def permit(place):
        permitted.append(str(place))

    went_on = {"after": 2, "clock": {B: 2}, "facts": {RESTORED: "x-1", RESTORED_PLACE: "there"}}

    def begun():
        return choose_start_point(open_tapes(run.folder), run.place, read, "", permit)

    run.record(A, 16)
    assert begun() is None
    run.record(B, 16, **went_on)
    assert "x-1" == begun().snapshot
    assert [("there", "x-1")] == asked
    assert ["there"] == permitted, "what a header names is opened with permission"
    run.record(S, 40, begins=20)
    assert "syncer.1-30" == begun().snapshot
    assert ["syncer.1-20", "syncer.1-30"] == [snapshot for _, snapshot in asked[1:]]
    assert ["there", str(run.place)] == permitted
    damaged.add("syncer.1-30")
    with pytest.raises(
        SnapshotError, match=r"@20\.tape has lost its beginning, and .*-20 is damaged"
    ):
        begun()


@pytest.mark.usefixtures("of_these")
def test_what_is_asked_for_must_do(run):
    """One before a tape's beginning is refused in one line, with the first usable one."""
    parts = {each.id: each.manifest.parts for each in Store(run.place).snapshots()}

    run.record(A, 16, begins=8)
    run.record(B, 16)
    run.record(S, 40)

    def begun(snapshot):
        read = lambda _, id_: Begun(id_, parts[id_])  # noqa: E731
        return choose_start_point(open_tapes(run.folder), run.place, read, snapshot, lambda _: None)

    assert ["syncer.1-20", "syncer.1-30"] == [
        begun(each).snapshot for each in ("syncer.1-20", "syncer.1-30")
    ]
    with pytest.raises(SnapshotError) as refused:
        begun("syncer.1-10")
    assert (
        "--from syncer.1-10: learner-0.1@8.tape begins after event 8, after that snapshot; "
        "the first usable one is syncer.1-20"
    ) == str(refused.value)


def test_a_snapshot_of_another_run_is_refused(tmp_path):
    """Its actors knew other events, or more than the tape has; or none of them has a tape here.
    A tape whose end was lost may be too short."""
    run = Run(tmp_path)
    run.record(A, 16, heard={3: {S: 5}})
    tapes = open_tapes(run.folder)
    part = lambda who, number, **clock: Part(who, number, {who: number, **clock}, (), {})  # noqa: E731

    assert mismatch((part(A, 4, **{S: 5}),), tapes) is None
    assert mismatch((part(A, 2), part(B, 9)), tapes) is None
    assert mismatch((part(A, 40, **{S: 30}),), tapes) is None
    assert f"{A} had heard of {S}:6" in mismatch((part(A, 4, **{S: 6}),), tapes)
    assert f"its tape says {B}:0" in mismatch((part(A, 4, **{S: 5, B: 1}),), tapes)
    assert "none of its actors" in mismatch((part(B, 4),), tapes)
    tapes[0].closed = "done"
    assert "whose tape ends with 16" in mismatch((part(A, 40),), tapes)
