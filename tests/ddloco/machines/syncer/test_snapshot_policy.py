"""When snapshots are due: every so often, one at a time, and one more at the end."""

import pytest

from ddloco.actors.effects import TakeSnapshot
from ddloco.actors.events import SnapshotRequested, SnapshotSettled
from ddloco.config.job import SnapshotTable
from ddloco.machines.syncer.snapshot_policy import LAST, LAST_S, SNAPSHOT, Occasions
from transport import CancelTimer, SetTimer

SETTLED = SnapshotSettled("syncer.1:7", "")


def test_every_so_many_seconds():
    """A timer that sets itself again; while one is under way the next is left out."""
    occasions = Occasions(SnapshotTable(every_s=5.0))
    assert [SetTimer(SNAPSHOT, 6.0)] == occasions.begin(1.0)
    assert [TakeSnapshot(), SetTimer(SNAPSHOT, 11.0)] == occasions.timer(6.0, SNAPSHOT)
    assert [SetTimer(SNAPSHOT, 16.0)] == occasions.timer(11.0, SNAPSHOT)
    assert [] == occasions.heard(SETTLED)
    assert [TakeSnapshot(), SetTimer(SNAPSHOT, 21.0)] == occasions.timer(16.0, SNAPSHOT)


def test_every_so_many_steps():
    """The first merge at or after each multiple; the merges between take none."""
    occasions = Occasions(SnapshotTable(every_steps=10))
    assert [] == occasions.begin(1.0)
    taken = []
    for t in range(0, 40, 3):
        if occasions.merged(t):
            taken.append(t)
            occasions.heard(SETTLED)
    assert [12, 21, 30] == taken


def test_the_last_one_is_taken_at_the_end():
    """The job waits for it, and for no longer than it must."""
    occasions = Occasions(SnapshotTable(every_s=5.0))
    assert [SetTimer(LAST, 9.0 + LAST_S), TakeSnapshot()] == occasions.end(9.0)
    assert [] == occasions.end(9.1)
    assert not occasions.over
    assert [SetTimer(SNAPSHOT, 15.0)] == occasions.timer(10.0, SNAPSHOT)
    assert [CancelTimer(LAST)] == occasions.heard(SETTLED)
    assert occasions.over


@pytest.mark.parametrize("asked", [False, True])
def test_one_that_is_under_way_at_the_end_is_not_the_last(asked):
    """It comes first: it was begun before the end, and does not hold it."""
    occasions = Occasions(SnapshotTable(every_steps=10))
    assert [] == occasions.heard(SnapshotRequested()) if asked else occasions.merged(10)
    assert [SetTimer(LAST, 9.0 + LAST_S)] == occasions.end(9.0)
    assert [TakeSnapshot()] == occasions.heard(SETTLED)
    assert not occasions.over
    assert [CancelTimer(LAST)] == occasions.heard(SETTLED)
    assert occasions.over


def test_nobody_waits_for_ever():
    """A place that hangs costs the job's end so long and no longer."""
    occasions = Occasions(SnapshotTable(every_s=5.0))
    occasions.end(9.0)
    assert [] == occasions.timer(9.0 + LAST_S, LAST)
    assert occasions.over
    assert [] == occasions.heard(SETTLED)


def test_a_job_without_snapshots_does_not_wait():
    """One that was asked for is not waited for at the end."""
    occasions = Occasions(SnapshotTable())
    occasions.heard(SnapshotRequested())
    assert occasions.over
    assert [] == occasions.end(9.0)


def test_one_that_somebody_asked_for_counts():
    """It is under way without us; what became of it is heard like of our own."""
    occasions = Occasions(SnapshotTable(every_s=3.0))
    assert [] == occasions.heard(SnapshotRequested())
    assert [SetTimer(SNAPSHOT, 6.0)] == occasions.timer(3.0, SNAPSHOT)
    occasions.heard(SnapshotSettled("syncer.1:3", "a disk is full"))
    assert [TakeSnapshot()] == occasions.timer(6.0, SNAPSHOT)[:1]


def test_a_job_that_goes_on_from_its_end_has_another():
    """Its last snapshot was taken while it waited for that; of then nothing is waited for now."""
    occasions = Occasions(SnapshotTable(every_s=5.0, every_steps=10))
    occasions.end(9.0)
    assert [CancelTimer(LAST), SetTimer(SNAPSHOT, 14.0)] == occasions.go_on(9.0, 40)
    occasions.heard(SETTLED)  # Whatever was under way comes to nothing, and is said to.
    assert [[], [TakeSnapshot()]] == [occasions.merged(t) for t in (48, 50)]
    occasions.heard(SETTLED)
    assert [SetTimer(LAST, 60.0 + LAST_S), TakeSnapshot()] == occasions.end(60.0)
