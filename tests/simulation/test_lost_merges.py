"""A syncer that comes back without what it had merged goes on from what its learners hold."""

from collections import Counter

import pytest

from ddloco.config import job_from
from ddloco.simulation.books import PerSyncer
from ddloco.simulation.checks import Causal
from ddloco.simulation.labour import leaves_of
from ddloco.simulation.launches import Launches
from ddloco.simulation.node import Pace
from ddloco.simulation.physics import Physics
from ddloco.simulation.world import World

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
    world.vaults[who].kept.clear()
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


def test_a_learner_that_is_further_than_the_job_can_be_is_refused(begin):
    """Once the syncer has merged a fragment itself, nobody can hold a newer one."""
    world, log = begin()
    learner = world.nodes["learner-0"].actor.machine
    learner._versions[0] += 8
    world.run(10_000.0)
    assert [] == log.of("goes on from learners")
    assert any("does not exist yet" in each["reason"] for each in log.of("refused"))
    assert world.over
