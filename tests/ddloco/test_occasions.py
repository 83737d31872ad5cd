"""When snapshots are due: every so often, every so many steps, one at a time, and at the end."""

import pytest

from ddloco.config import SnapshotTable
from ddloco.effects import TakeSnapshot
from ddloco.events import SnapshotRequested, SnapshotSettled
from ddloco.occasions import LAST, LAST_S, SNAPSHOT, Occasions
from transport import CancelTimer, SetTimer

TAKE = [TakeSnapshot()]
SETTLED = SnapshotSettled("syncer.1:7")


@pytest.fixture
def often():
    """Every three seconds."""
    return Occasions(SnapshotTable(every_s=3.0))


@pytest.fixture
def stepwise():
    """Every four global steps."""
    return Occasions(SnapshotTable(every_steps=4))


def test_every_so_often(often):
    """From the start on; the next one is due so long after the timer has come."""
    assert [SetTimer(SNAPSHOT, 5.0)] == often.begin(2.0)
    assert [*TAKE, SetTimer(SNAPSHOT, 8.5)] == often.timer(5.5, SNAPSHOT)
    assert [] == often.merged(99)


def test_one_at_a_time(often):
    """While one is under way no other is begun, and the timer goes on."""
    often.timer(3.0, SNAPSHOT)
    assert [SetTimer(SNAPSHOT, 9.0)] == often.timer(6.0, SNAPSHOT)
    assert [] == often.heard(SETTLED)
    assert [*TAKE, SetTimer(SNAPSHOT, 12.0)] == often.timer(9.0, SNAPSHOT)


def test_one_that_somebody_asked_for_counts(often):
    """It is under way without us; what became of it is heard like of our own."""
    assert [] == often.heard(SnapshotRequested())
    assert [SetTimer(SNAPSHOT, 6.0)] == often.timer(3.0, SNAPSHOT)
    often.heard(SnapshotSettled("syncer.1:3", "a disk is full"))
    assert TAKE == often.timer(6.0, SNAPSHOT)[:1]


def test_every_so_many_steps(stepwise):
    """At the first merge at or after each multiple; nothing is due by the clock."""
    assert [] == stepwise.begin(0.0)
    taken = []
    for t in (1, 3, 4, 5, 7, 9, 10, 11, 12, 21):
        if stepwise.merged(t) == TAKE:
            taken.append(t)
            stepwise.heard(SETTLED)
    assert [4, 9, 12, 21] == taken


def test_without_a_table_there_are_none():
    """Neither on the way nor at the end, and nobody waits; whoever asks gets one all the same."""
    none = Occasions(SnapshotTable())
    assert none.over
    assert [[], [], []] == [none.begin(0.0), none.merged(8), none.end(9.0)]
    assert [] == none.heard(SnapshotRequested())


def test_once_more_at_the_end(often):
    """The end waits until it is there, and looks again after a while."""
    assert [SetTimer(LAST, 10.0 + LAST_S), *TAKE] == often.end(10.0)
    assert not often.over
    assert [] == often.end(11.0)
    assert [SetTimer(SNAPSHOT, 15.0)] == often.timer(12.0, SNAPSHOT)
    assert [CancelTimer(LAST)] == often.heard(SETTLED)
    assert often.over
    assert [] == often.end(12.0)


def test_one_that_is_under_way_at_the_end_is_the_last(often):
    """No other is begun; with two of them it is over when both are."""
    often.timer(3.0, SNAPSHOT)
    often.heard(SnapshotRequested())
    assert [SetTimer(LAST, 4.0 + LAST_S)] == often.end(4.0)
    assert [] == often.heard(SETTLED)
    assert not often.over
    assert [CancelTimer(LAST)] == often.heard(SETTLED)
    assert often.over


def test_nobody_waits_for_ever(often):
    """The last one may still be written when the job ends."""
    often.end(10.0)
    assert [] == often.timer(10.0 + LAST_S, LAST)
    assert often.over
    assert [] == often.heard(SETTLED)
