"""Tapes bounded by snapshots, in virtual time: a bounded sample of `tests.simulation.bounded`."""

import pytest

from ddloco.stage.actors.snapshot_adapter import SnapshotAdapter
from ddloco.workers.simulated.snapshot_sink import SnapshotCapture
from tests.lab.mutations import always, wrap
from tests.simulation import bounded

SEEDS = (0, 1, 2, 6, 7, 8)


def test_what_is_left_of_bounded_tapes_replays_from_its_snapshots():
    """Jobs with random faults, of which several snapshots lie within one step of a slow learner:
    what is left is executed again from snapshots that are left, and is equal to the bit."""
    found = [bounded.run(seed) for seed in SEEDS]

    assert [] == [(each.seed, each.wrong, each.gaps) for each in found if each.wrong or each.gaps]
    assert all(each.within_step >= 2 for each in found)
    assert all(each.starts for each in found)
    assert all(each.identical == len(each.starts) for each in found)
    assert sum(each.faults for each in found) > 20
    assert sum(each.deleted for each in found) > 100
    assert sum(each.events for each in found) > 1000


@pytest.mark.parametrize(
    ("seed", "what"),
    [
        (26, "an absent actor had come back before, and a replay played the former incarnation"),
        (44, "what a later incarnation had merged was held against a snapshot of the former"),
    ],
)
def test_what_was_found_once_holds(seed, what):
    """Seeds that showed a bug, of a replay or of a check."""
    assert [] == bounded.run(seed).wrong, what


def test_a_worker_that_is_written_in_the_middle_of_its_step_is_found(monkeypatch):
    """Planted: the second snapshot within a step differs in a replay from the first one."""

    def begin(old, self, work, contents, state):
        self._running = False
        old(self, work, contents, state)

    wrap(monkeypatch, SnapshotCapture, "begin", begin)
    monkeypatch.setattr(bounded.hostile_world.Watch, "checks", lambda _self: [])
    assert any("DIVERGENCE" in said for said in bounded.run(2).wrong)


def test_what_is_in_flight_and_not_written_is_found(monkeypatch):
    """Planted: a replay names the messages that it cannot have."""
    always(monkeypatch, SnapshotAdapter, "hears", [])
    monkeypatch.setattr(bounded.hostile_world.Watch, "checks", lambda _self: [])
    assert any("is not in the snapshot" in gap for gap in bounded.run(7).gaps)


def test_what_is_deleted_too_early_is_found(monkeypatch):
    """Planted: the newest cut bounds a tape, of whatever snapshot it is; nothing can begin."""
    assert bounded.run(7).starts
    monkeypatch.setattr(bounded, "KEPT", 1)
    monkeypatch.setattr(bounded, "cuts_of", lambda _s, _j, who, begins: sorted(begins)[::-1])
    assert not bounded.run(7).starts
