"""A syncer that comes back without what it had merged continues from what its learners hold."""

from collections import Counter

import pytest

from ddloco.job.config import job_from
from ddloco.replayer.invariants.base import PerSyncer
from ddloco.replayer.invariants.training import Causal
from ddloco.simulation.node import Pace
from ddloco.simulation.physics import Physics
from ddloco.simulation.world import World
from ddloco.workers.simulated.work import leaves_of
from tests.lab.launches import Launches

FRAGMENTS, STEPS, DIES_AT_S = 4, 120, 50.0


class Log(Causal):
    """What actors observed, and a check of clocks."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def observed(self, role, what):
        """One line."""
        self.lines.append((role.incarnation, what.event, what.fields))

    def of(self, event):
        """Fields of the lines of a kind."""
        return [fields for _, each, fields in self.lines if each == event]


@pytest.fixture
def begin():
    """Starts a world of three learners, and runs it until the syncer is to die."""

    def begun(syncers=1):
        table = {"task": "simulated:tensors", "steps": STEPS, "learners": 3, "syncers": syncers}
        sync = {"fragments": FRAGMENTS, "interval": 8}
        job = job_from({"job": table, "sync": sync, "task": {"tensors": FRAGMENTS}}, "test")
        log = Log()
        physics = Physics(
            leaves_of(FRAGMENTS), arithmetic=True, pace=lambda _, rng: Pace(1.0, 0.1, rng)
        )
        world = World(job, physics, [log, PerSyncer(Launches)])
        world.begin()
        world.run(DIES_AT_S)
        return world, log

    return begun


@pytest.mark.parametrize(("syncers", "who"), [(1, "syncer"), (2, "syncer-1"), (2, "syncer-0")])
def test_newest_versions_win(begin, syncers, who):
    """Its learners' newest versions are merged into a newer one, in one line each; the job ends in
    good order, with every fragment trained, and later than where it had been."""
    world, log = begin(syncers)
    before = Counter({each["fragment"]: each["t"] for each in log.of("merge")})
    world.kill(who)
    world.fragment_memories[who].lose()
    world.run(world.now + 5.0)
    world.start(who)
    world.run(10_000.0)

    assert world.over
    owned = [p for p in range(FRAGMENTS) if job_owner(world.job, p) == who]
    adopted = log.of("goes on from learners")
    assert sorted(owned) == sorted(each["fragment"] for each in adopted)
    after = {each["fragment"]: each["t"] for each in log.of("merge")}
    assert all(after[p] > before[p] > 0 for p in range(FRAGMENTS))
    refusals = [each for each in log.of("refused") if "does not exist yet" in each["reason"]]
    assert [] == refusals
    assert "done" == world.nodes[world.lead].finish.status


def job_owner(job, fragment):
    """The syncer whose fragment it is."""
    return job.syncer_of(fragment)


def test_a_member_of_another_run_comes_too_late(begin):
    """Who outlived a run whose syncer's folder is gone, and comes when the next run has merged
    without it, leaves with a line; started again, it takes part."""
    world, log = begin()
    world.freeze("learner-2")
    world.kill("syncer")
    world.fragment_memories["syncer"].lose()
    for learner in ("learner-0", "learner-1"):
        world.kill(learner)
    for actor in ("syncer", "learner-0", "learner-1"):
        world.start(actor)
    world.run(DIES_AT_S + 40.0)
    assert log.of("merge")
    world.thaw(world.nodes["learner-2"])
    world.run(world.now + 20.0)

    finish = world.nodes["learner-2"].finish
    assert "left" == finish.status
    assert finish.reason == (
        "syncer refuses this learner: it took part in run run-1, and this is run run-2, which has "
        "merged without it; started again, it takes part in this one"
    )
    assert [] == log.of("goes on from learners")
    world.start("learner-2")
    merged = len(log.of("merge"))
    world.run(10_000.0)
    assert any("learner-2.2" in each["learners"] for each in log.of("merge")[merged:])
    assert "done" == world.nodes[world.lead].finish.status


def test_a_learner_that_is_further_than_the_job_can_be_is_refused(begin):
    """Once the syncer has merged a fragment itself, no learner can hold a newer one."""
    world, log = begin()
    learner = world.nodes["learner-0"].actor.machine
    learner.versions[0] += 8
    world.run(10_000.0)
    assert [] == log.of("goes on from learners")
    assert any("which cannot be" in each["reason"] for each in log.of("refused"))
    assert world.over
