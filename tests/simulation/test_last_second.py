"""Actors that are lost in the last second of a job, at each of its events, and started again."""

from functools import cache

import pytest

from ddloco.job.config import job_from
from ddloco.job.protocol.work import ModelSaved
from ddloco.simulation.node import Pace
from ddloco.simulation.physics import Physics
from ddloco.simulation.world import World
from ddloco.workers.simulated.work import leaves_of

AGAIN_S = 1.0
"""After so many seconds an engine starts a process again."""

LAST_S = 3.0
"""The last second, in a world whose steps take one second."""

ENDS_S = 150.0
"""Within so many seconds after the loss everyone has ended."""

JOBS = {
    "plain": {},
    "blocking": {"job": {"method": "diloco"}, "sync": {"interval": 8}},
    "shards": {"job": {"syncers": 2}},
    "relay": {"relay": {"relay-0": {"learners": ["learner-0", "learner-1"]}}},
    "last merges": {"sync": {"final_merges": True}},
    "tokens": {"job": {"tokens": 600}},
}
"""Not data-parallel ones, which end with their coordinator, as documented."""


def world_of(kind, check):
    """A small world of a kind of jobs."""
    more = JOBS[kind]
    table = {"task": "simulated:tensors", "steps": 24, "learners": 3, **more.get("job", {})}
    if "tokens" in table:
        del table["steps"]
    tables = {"job": table, "task": {"tensors": 4}, "relay": more.get("relay", {})}
    if "method" not in table:
        tables["sync"] = {"fragments": 4, "interval": 8}
    if "sync" in more:
        tables["sync"] = {**tables.get("sync", {}), **more["sync"]}
    physics = Physics(leaves_of(4), pace=lambda _, rng: Pace(1.0, 0.1, rng))
    return World(job_from(tables, "test"), physics, [check])


class Engine:
    """Kills an actor at one of its events, before or after what this leads to, and starts again
    whatever has not ended for good."""

    def __init__(self, victim="", number=0, performs=True, forgets=False):
        self.victim, self.number, self.performs = f"{victim}.1", number, performs
        self.forgets = forgets
        self.saved, self.starts, self.killed_at, self.seen = 0, 0, None, []

    def see(self, world, node, event, effects):
        """Some event happens."""
        self.saved += isinstance(event, ModelSaved)
        self.seen.append((world.now, node.incarnation, node.actor.number))
        if (node.incarnation, node.actor.number) == (self.victim, self.number):
            self.killed_at = world.now
            if not self.performs:
                effects.clear()
            if self.forgets and not self.saved:
                world.fragment_memories[node.actor_name].kept.clear()
            world.call(world.now, world.kill, node.actor_name)

    def started(self, world, node):
        """Nothing is to be done."""

    def observed(self, node, what):
        """Nothing is to be done."""

    def died(self, world, node):
        """A process that ended for good is left alone."""
        finish = node.finish
        if finish is None or finish.status == "left" or finish.again:
            self.starts += 1
            world.call(world.now + AGAIN_S, self.start, world, node)

    def start(self, world, node):
        """It asks for a number, or hears from a lead that has ended that the job has."""
        lead = world.nodes[world.lead]
        if lead.finish is None:
            world.start(node.actor_name)
        elif node.actor_name in lead.actor.machine.untold:
            node.finish = lead.finish


@cache
def last_events(kind):
    """The events of the last seconds, as actors and numbers, of a run without a loss."""
    seen = Engine()
    world = world_of(kind, seen)
    world.begin()
    world.run(10_000.0)
    assert world.over
    assert (seen.saved, seen.starts) == (1, 0)
    return [(who, n) for at, who, n in seen.seen if at >= world.now - LAST_S]


def ended(kind, *loss):
    """How everyone has ended after a loss, and the engine."""
    engine = Engine(*loss)
    world = world_of(kind, engine)
    world.begin()
    world.run(10_000.0, until=lambda: engine.killed_at is not None)
    world.run(world.now + ENDS_S)
    for node in [each for each in world.nodes.values() if each.finish is None]:
        assert world.over or node.present, "it is to be started again, which nobody has done"
        engine.start(world, node)
    return {name: node.finish for name, node in world.nodes.items()}, engine


def losses(kind):
    """Each actor at each event of its last seconds, before or after what this leads to."""
    victims = [(who.rpartition(".")[0], n) for who, n in last_events(kind)]
    assert len(victims) > 15
    return [(*each, performs) for each in victims for performs in (False, True)]


def all_end_well(kind, loss):
    """What a lost actor has done is done, or is done by the next one; all others end, too."""
    finishes, engine = ended(kind, *loss)
    case = loss, finishes
    assert engine.saved >= 1, case
    assert engine.starts <= 4, case
    assert {"done"} == {each.status if each else "" for each in finishes.values()}, case


@pytest.mark.parametrize("kind", JOBS)
def test_whoever_is_lost_ends_with_all_others_and_the_model(kind):
    """A third of the cases."""
    for loss in losses(kind)[::3]:
        all_end_well(kind, loss)


@pytest.mark.parametrize("kind", [each for each in JOBS if each != "blocking"])
def test_what_is_lost_with_a_host_is_taken_from_learners(kind):
    """The place of the lease has not got the last merges yet; the model is that of the learners."""
    for loss in [each for each in losses(kind) if each[0] in ("syncer", "syncer-0")][::3]:
        all_end_well(kind, (*loss, True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", JOBS)
def test_whoever_is_lost_ends_with_all_others_and_the_model_each_time(kind):
    """All cases."""
    for loss in losses(kind):
        all_end_well(kind, loss)
