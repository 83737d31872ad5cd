"""Hostile worlds: all of them from one seed, healed at the end, and kept when they found a bug."""

import pytest

from ddloco.machines.syncer.rounds import Rounds
from ddloco.simulation.world import World
from ddloco.stage.files.faults import SYNCER, Fault
from ddloco.workers.simulated.work import SimulatedWork
from tests.lab import hostile_world
from tests.lab.hostile_world import LEARNER_KINDS, draw, happen, run_checked, run_seed

SEEDS = range(300)


@pytest.mark.parametrize(
    ("seed", "found"),
    [
        (45, "a learner alone whose parameters were no numbers was refused for ever"),
        (141, "a syncer that had come back kept the one before in its clock"),
        (24, "a former self spoke after its successor had joined"),
        (3, "a syncer that had come back remembered dead incarnations"),
        (702, "factors that multiply made a step that outlasted the world"),
        (36, "a new session was asked for tokens that were merged"),
        (27, "a late Welcome of a lost session was taken for one that teaches a clock"),
        (128, "the same, of a syncer that had not started again"),
        (249, "the same, with other faults"),
        (9853, "what was sent over a new link was compared with what was sent over the one before"),
        (1938, "a message of a session that was given up was taken for one that a cut had missed"),
        (7783, "the same, of a learner"),
        (8310, "the same, of a shard to a learner"),
        (9614, "the same, of the leading syncer to a learner"),
        (1735, "the residual of a corrupted contribution was taken for a correct one"),
        (3751, "the same, with three fragments"),
        (4788, "a learner was to take part while its reports of a narrow link still arrived"),
        (6500, "the same, with one syncer"),
        (6906, "a learner was to take part by steps after the last merge"),
        (593, "who had a shard twice was not believed about the first time"),
        (1069, "the same, of the first step"),
        (4461, "a fragment was to be merged whose shard came back after the last global step"),
    ],
)
def test_what_was_found_once_holds(seed, found):
    """Seeds that showed a bug, of a machine or of a check."""
    assert run_seed(seed).violation is None, found


def test_a_seed_is_a_world():
    """The same every time, with tapes or without; another for another seed."""
    for seed in range(5):
        one, again = draw(seed), draw(seed)
        assert (one.job, one.faults, one.poisoned) == (again.job, again.faults, again.poisoned)
        assert (one.heal_at, one.end_at) == (again.heal_at, again.end_at)
    assert run_seed(7) == run_seed(7)
    assert draw(1).job != draw(2).job


def test_tapes_change_nothing_that_is_drawn(tmp_path):
    """Run again with tapes, the world is the same, and each incarnation has a tape."""
    plain, taped = draw(2), draw(2, tmp_path)
    assert (plain.job, plain.faults, plain.physics.wire) == (
        taped.job,
        taped.faults,
        taped.physics.wire,
    )
    happen(taped)
    names = {path.stem for path in tmp_path.rglob("*.tape")}
    assert {f"{plain.job.syncer_names()[0]}.1", "learner-0.1"} <= names


def test_worlds_are_far_apart():
    """Each kind of fault, one learner and many, one fragment and many, numbers that are none."""
    drawn = [draw(seed) for seed in SEEDS]
    kinds = {fault.what for each in drawn for fault in each.faults}
    assert {*LEARNER_KINDS, "join"} == kinds
    assert {fault.what for each in drawn for fault in each.faults if fault.who == SYNCER} == {
        "crash",
        "stall",
    }
    assert {1, 2, 3, 4, 5} == {each.job.job.learners for each in drawn}
    assert {0, 1, 2, 3} == {each.job.sync.overlap for each in drawn}
    assert {1, 2, 3} == {each.job.job.syncers for each in drawn}
    assert any(each.poisoned for each in drawn)
    assert any(not each.faults for each in drawn)
    for each in drawn:
        kinds = {fault.what for fault in each.faults}
        assert len(kinds) < len(LEARNER_KINDS) or len(each.faults) > 10


def test_everything_is_healed_in_the_end():
    """No fault lasts, and nothing is poisoned, when the quiet phase begins; it has an end."""
    for drawn in map(draw, SEEDS):
        for fault in drawn.faults:
            assert fault.at_s <= drawn.heal_at
            assert fault.what in {"join", "reset"} or fault.for_s is not None
            assert fault.at_s + (fault.for_s or 0.0) <= drawn.heal_at + 1e-9
        assert all(begin <= end <= drawn.heal_at for _, begin, end in drawn.poisoned)
        assert drawn.end_at > drawn.heal_at


def test_an_outcome_counts():
    """Events, seconds, steps, merges and faults of a world that held."""
    outcome = run_seed(16)
    assert (None, "") == (outcome.violation, outcome.invariant)
    assert len(draw(16).faults) == outcome.faults
    job = draw(16).job
    assert 0 < outcome.merges <= job.job.steps
    assert outcome.steps >= outcome.merges
    assert outcome.events > outcome.steps
    assert outcome.seconds > 0


def test_a_machine_that_raises_is_a_finding(monkeypatch):
    """Named as such, with what it raised."""

    def close(self, at, sync, shared):
        raise KeyError("theta/0/7")

    monkeypatch.setattr(Rounds, "_close", close)
    outcome = run_seed(0)
    assert "raised" == outcome.invariant
    assert "raised: KeyError: 'theta/0/7'" == outcome.violation


def test_a_world_that_never_ends_is_a_finding(monkeypatch):
    """It is stopped after so many events, or at its end of time."""
    monkeypatch.setattr(hostile_world, "EVENTS_MAX", 50)
    outcome = run_seed(0)
    assert "heal-progress" == outcome.invariant
    assert "more than 50 events" in outcome.violation


def test_poison_is_in_and_out(monkeypatch):
    """Between its two times a learner's chip computes NaN; an absent learner is not affected."""
    seen, step = set(), SimulatedWork._run_step

    def look(self, work, contents):
        if self.poisoned:
            seen.add(self._name)
        return step(self, work, contents)

    monkeypatch.setattr(SimulatedWork, "_run_step", look)
    seed = next(seed for seed in SEEDS if draw(seed).poisoned)
    assert run_seed(seed).violation is None
    assert seen <= {f"{name}.{n}" for name, *_ in draw(seed).poisoned for n in range(9)}
    drawn = draw(seed)
    world = World(drawn.job, drawn.physics)
    hostile_world._poison(world, "learner-0", True)


def test_one_seed_in_twenty_runs_again(monkeypatch):
    """Plainly, and with tapes; what is found otherwise is not looked at twice."""
    seen, once = [], hostile_world.run_seed

    def run(seed, tapes=None, *, lying=False):
        seen.append(tapes)
        return once(seed, tapes, lying=lying)

    monkeypatch.setattr(hostile_world, "run_seed", run)
    run_checked(3)
    assert [None] == seen
    run_checked(20)
    assert [None, None, None] == seen[:3]
    assert seen[3] is not None


def test_what_overlaps_heals(World, make_job):
    """Faults of one kind one over the other: the job ends as it does without them."""
    world = World(make_job(learners=2, steps=60, overlap=2))
    for what in ("cut", "delay", "bandwidth", "slow", "stall"):
        for at_s, for_s in ((5.0, 6.0), (7.0, 2.0), (8.0, 9.0)):
            fault = Fault(what, "learner-1", at_s, for_s, delay_s=1.0, mbit=0.1)
            world.call(at_s, world._befall, fault)
    world.run(999.0)
    assert {"done"} == {node.finish.status for node in world.nodes.values()}
