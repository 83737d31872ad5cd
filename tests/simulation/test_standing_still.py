"""Worlds in which nothing is merged for long say so, and worlds without a fault say nothing."""

import random
from dataclasses import replace

import pytest

from ddloco.machines.syncer.standstill import Standstill
from ddloco.replayer.invariants.base import Violation
from ddloco.simulation.world import World
from tests.lab.hostile_world import EVENTS_MAX, LATEST_S, draw
from tests.lab.standing import STANDING, Standing

NEVER = {"no merge", "disregarded", "message refused", "sync repeated", "starts over", "refused"}
NEVER |= {"apart"}
"""What no world without a fault says, but that an answer came too late."""

AWAY_S = 20_000.0


class Said(Standing):
    """What syncers and learners say, and that they say when they stand."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def observed(self, node, what):
        """One line."""
        super().observed(node, what)
        late = what.fields.get("reason") == "it came after its sync was closed"
        if what.event in NEVER and not late:
            self.lines.append((node.incarnation, what.event, what.fields))


def quiet(seed):
    """A drawn world without its faults."""
    nothing = {
        "faults": (),
        "poisoned": (),
        "wrong": (),
        "frozen": (),
        "dismissed": (),
        "asked": (),
    }
    return replace(draw(seed), **nothing)


def stand(seed):
    """All learners of a world are away for long, from a random time on; what is said then."""
    drawn, said = quiet(seed), Said()
    world = World(drawn.job, drawn.physics, [said])
    world.begin()
    world.run(random.Random(seed).uniform(0.0, 60.0))
    for name in drawn.job.learner_names():
        if not world.over:
            world.kill(name)
    world.run(world.now + AWAY_S, events_max=EVENTS_MAX)
    return None if world.over else said  # It may have been done by then.


@pytest.mark.parametrize("seed", range(0, 80, 4))
def test_a_world_without_a_fault_says_nothing(seed):
    """No warning, and nobody is named."""
    drawn, said = quiet(seed), Said()
    world = World(drawn.job, drawn.physics, [said])
    world.begin()
    world.run(drawn.end_at + LATEST_S, events_max=EVENTS_MAX)
    assert world.over
    assert said.lines == []


@pytest.mark.parametrize("seed", range(1, 61, 3))
def test_a_world_that_stands_says_so(seed):
    """After a minute or a few steps, and again and again."""
    said = stand(seed)
    assert said is None or "no merge" in {event for _, event, _ in said.lines}


def test_silence_is_found(monkeypatch):
    """A syncer that forgets to look again is noticed."""
    monkeypatch.setattr(Standstill, "look", lambda *_: [])
    with pytest.raises(Violation, match=STANDING):
        stand(3)
