"""When snapshots are due: every so often, one at a time, and one more at the end."""

import pytest

from ddloco.job.protocol.timers import LastSnapshotDeadline, SnapshotDue
from ddloco.machines.syncer.snapshot_policy import LAST_S, SnapshotPolicy
from ddloco.stage.actors.effects import TakeSnapshot
from ddloco.stage.actors.events import SnapshotRequested, SnapshotSettled
from ddloco.stage.files.settings import SnapshotTable
from transport import CancelTimer, SetTimer

SETTLED = SnapshotSettled("syncer.1:7", "")


class Policy:
    """A policy and its table."""

    def __init__(self, table):
        self.machine, self.table = SnapshotPolicy(), table
        self.heard, self.late = self.machine.heard, self.machine.late

    @property
    def over(self):
        return self.machine.over(self.table)

    def __getattr__(self, name):
        return lambda *more: getattr(self.machine, name)(*more, self.table)


def test_every_so_many_seconds():
    """A timer that sets itself again; while one is under way the next is left out."""
    policy = Policy(SnapshotTable(every_s=5.0))
    assert [SetTimer(SnapshotDue(), 6.0)] == policy.begin(1.0)
    assert [TakeSnapshot(), SetTimer(SnapshotDue(), 11.0)] == policy.periodic(6.0, 2)
    assert [SetTimer(SnapshotDue(), 16.0)] == policy.periodic(11.0, 2)
    assert [] == policy.heard(SETTLED)
    assert [TakeSnapshot(), SetTimer(SnapshotDue(), 21.0)] == policy.periodic(16.0, 2)


def test_every_so_many_steps():
    """The first merge at or after each multiple; the merges between take none."""
    policy = Policy(SnapshotTable(every_steps=10))
    assert [] == policy.begin(1.0)
    taken = []
    for t in range(0, 40, 3):
        if policy.merged(t):
            taken.append(t)
            policy.heard(SETTLED)
    assert [12, 21, 30] == taken


def test_the_last_one_is_taken_at_the_end():
    """The job waits for it, and for no longer than it must."""
    policy = Policy(SnapshotTable(every_s=5.0))
    assert [SetTimer(LastSnapshotDeadline(), 9.0 + LAST_S), TakeSnapshot()] == policy.end(9.0, 2)
    assert [] == policy.end(9.1, 2)
    assert not policy.over
    assert [SetTimer(SnapshotDue(), 15.0)] == policy.periodic(10.0, 2)
    assert [CancelTimer(LastSnapshotDeadline())] == policy.heard(SETTLED)
    assert policy.over


@pytest.mark.parametrize("asked", [False, True])
def test_one_that_is_under_way_at_the_end_is_not_the_last(asked):
    """It comes first: it was begun before the end, and does not hold it."""
    policy = Policy(SnapshotTable(every_steps=10))
    assert [] == policy.heard(SnapshotRequested()) if asked else policy.merged(10)
    assert [SetTimer(LastSnapshotDeadline(), 9.0 + LAST_S)] == policy.end(9.0, 2)
    assert [TakeSnapshot()] == policy.heard(SETTLED)
    assert not policy.over
    assert [CancelTimer(LastSnapshotDeadline())] == policy.heard(SETTLED)
    assert policy.over


def test_no_wait_is_for_ever():
    """A place that hangs costs the job's end so long and no longer."""
    policy = Policy(SnapshotTable(every_s=5.0))
    policy.end(9.0, 2)
    policy.late()
    assert policy.over
    assert [] == policy.heard(SETTLED)


def test_a_job_without_snapshots_does_not_wait():
    """One that was asked for is not waited for at the end."""
    policy = Policy(SnapshotTable())
    policy.heard(SnapshotRequested())
    assert policy.over
    assert [] == policy.end(9.0, 2)


def test_one_that_was_asked_for_counts():
    """It is under way without us; what became of it is heard like of our own."""
    policy = Policy(SnapshotTable(every_s=3.0))
    assert [] == policy.heard(SnapshotRequested())
    assert [SetTimer(SnapshotDue(), 6.0)] == policy.periodic(3.0, 2)
    policy.heard(SnapshotSettled("syncer.1:3", "a disk is full"))
    assert [TakeSnapshot()] == policy.periodic(6.0, 2)[:1]


@pytest.mark.parametrize("refused", [False, True])
def test_where_too_many_are_under_way_at_the_end_none_is_owed(refused):
    """The one that is due at the last merge was refused at once, as its successor would be."""
    policy = Policy(SnapshotTable(every_steps=10))
    assert [TakeSnapshot()] == policy.merged(10)
    policy.end(9.0, 2)
    effects = policy.heard(SnapshotSettled("syncer.1:9", "4 are under way", refused))
    assert effects == ([CancelTimer(LastSnapshotDeadline())] if refused else [TakeSnapshot()])
    assert policy.over == refused


def test_a_job_that_goes_on_from_its_end_has_another():
    """Its last snapshot was taken while it waited for that; of then nothing is waited for now."""
    policy = Policy(SnapshotTable(every_s=5.0, every_steps=10))
    policy.end(9.0, 2)
    assert [CancelTimer(LastSnapshotDeadline()), SetTimer(SnapshotDue(), 14.0)] == policy.go_on(
        9.0, 40
    )
    policy.heard(SETTLED)  # Whatever was under way comes to nothing, and is said to.
    assert [[], [TakeSnapshot()]] == [policy.merged(t) for t in (48, 50)]
    policy.heard(SETTLED)
    assert [SetTimer(LastSnapshotDeadline(), 60.0 + LAST_S), TakeSnapshot()] == policy.end(60.0, 2)


def test_a_syncer_alone_takes_none_unless_it_has_merged():
    """When all learners have left, scheduled snapshots would hold nothing new, and no learner."""
    policy = Policy(SnapshotTable(every_s=5.0))
    assert [SetTimer(SnapshotDue(), 11.0)] == policy.periodic(6.0, 0)
    policy.merged(4)
    assert [TakeSnapshot(), SetTimer(SnapshotDue(), 16.0)] == policy.periodic(11.0, 0)
    policy.heard(SETTLED)
    assert [SetTimer(SnapshotDue(), 21.0)] == policy.periodic(16.0, 0)
    assert TakeSnapshot() in policy.periodic(21.0, 1)


def test_the_end_of_a_syncer_alone_waits_for_no_snapshot():
    """Nothing new, nobody there: the job ends at once, and the older snapshots stay."""
    policy = Policy(SnapshotTable(every_s=5.0))
    assert [] == policy.end(9.0, 0)
    assert policy.over


def test_what_failed_is_counted_and_owed_again():
    """What a failed snapshot would have held is in none yet, so the next one is worth taking."""
    policy = Policy(SnapshotTable(every_s=5.0))
    assert "" == policy.machine.failures
    policy.merged(3)
    for _ in range(2):
        assert TakeSnapshot() in policy.periodic(6.0, 0)
        policy.heard(SnapshotSettled("syncer.1:7", "no space"))
    assert "2 of 2 snapshots failed; the last: no space" == policy.machine.failures
    assert TakeSnapshot() in policy.periodic(9.0, 0)
    policy.heard(SETTLED)
    assert TakeSnapshot() not in policy.periodic(12.0, 0)
