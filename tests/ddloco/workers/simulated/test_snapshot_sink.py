"""What simulated actors write: parts by digest, the worker as it is when its step is done."""

import pytest

from ddloco.job.protocol.work import RunStep
from ddloco.stage.actors.effects import CaptureFlight, CaptureState, CommitSnapshot
from ddloco.stage.actors.events import Captured, Committed
from ddloco.stage.actors.work_table import doers
from ddloco.workers.simulated.snapshot_sink import CapturedPart, SnapshotCapture, SnapshotMemory
from ddloco.workers.simulated.work import Content

THETA = Content((0, 3, 0, 0))
NAME = "syncer.1:7"


@pytest.fixture
def taken():
    """The capture of one actor, with a memory of its own."""
    return SnapshotCapture(SnapshotMemory())


def capture(work=-1, handles=()):
    """A part of a state is asked for."""
    return CaptureState(work, NAME, b"frozen", handles)


def test_a_picture_is_named_by_all_of_it():
    """Bytes, contents, handles and worker each make it another; the same is the same."""
    parts = [
        CapturedPart(b"frozen", {"theta/0/3": THETA}, (1,)),
        CapturedPart(b"other", {"theta/0/3": THETA}, (1,)),
        CapturedPart(b"frozen", {"theta/0/4": THETA}, (1,)),
        CapturedPart(b"frozen", {"theta/0/3": Content((0, 4, 0, 0))}, (1,)),
        CapturedPart(b"frozen", {"theta/0/3": THETA}, (2,)),
        CapturedPart(b"frozen", {"theta/0/3": THETA}),
    ]
    assert len(parts) == len({each.name for each in parts})
    assert parts[0].name == CapturedPart(b"frozen", {"theta/0/3": THETA}, (1,)).name


def test_a_state_is_written_with_what_it_holds(taken):
    """As it is now, where no step runs."""
    work = capture(handles=("theta/0/3",))
    taken.begin(work, {"theta/0/3": THETA, "other": THETA}, lambda: (5,))
    assert taken.ready(work)
    done = doers(taken)[type(work)](work, {})
    part = taken.snapshots.parts[done.content]
    assert CapturedPart(b"frozen", {"theta/0/3": THETA}, (5,)) == part
    assert Captured(-1, part.name) == done


def test_a_step_that_runs_is_waited_for(taken):
    """The state is the one after it, and before the next."""
    taken.begin(RunStep(1, 1, (), "host/1"), {}, lambda: (0,))
    work = capture()
    taken.begin(work, {}, lambda: (0,))
    assert not taken.ready(work)
    taken.stepped((1,))
    taken.begin(RunStep(2, 2, (), "host/2"), {}, lambda: (1,))
    taken.stepped((2,))
    assert taken.ready(work)
    content = doers(taken)[type(work)](work, {}).content
    assert (1,) == taken.snapshots.parts[content].worker


def test_what_was_in_flight_has_no_worker(taken):
    """It is ready at once, without waiting for the running step."""
    work = CaptureFlight(-2, NAME, b"messages", ("in/4",))
    taken.begin(RunStep(1, 1, (), "host/1"), {}, lambda: (0,))
    taken.begin(work, {"in/4": THETA}, lambda: (0,))
    assert taken.ready(work)
    content = doers(taken)[type(work)](work, {}).content
    part = taken.snapshots.parts[content]
    assert (b"messages", {"in/4": THETA}, None) == (part.frozen, part.contents, part.worker)


def test_a_snapshot_that_is_committed_stands(taken):
    """By its name."""
    work = CommitSnapshot(-3, NAME, (), {})
    taken.begin(work, {}, tuple)
    assert Committed(-3) == doers(taken)[type(work)](work, {})
    assert {NAME: work} == taken.snapshots.committed


def test_what_is_released_meanwhile_is_written(taken):
    """Arrays are looked up when the work is asked for, not when the step before it is done."""
    contents = {"in/4": THETA}
    work = capture(handles=("in/4",))
    taken.begin(RunStep(1, 1, (), "host/1"), contents, lambda: (0,))
    taken.begin(work, contents, lambda: (0,))
    contents.clear()
    taken.stepped((1,))
    assert {"in/4": THETA} == taken.snapshots.parts[
        doers(taken)[type(work)](work, {}).content
    ].contents
