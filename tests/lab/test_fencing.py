"""Syncers of a world that are stopped, succeeded, and wake up."""

import pytest

from ddloco.job.config import job_from
from ddloco.simulation.node import Pace
from ddloco.simulation.physics import Physics
from ddloco.simulation.world import World
from ddloco.stage.actors.effects import Finish
from ddloco.stage.nodes.lease import BEAT_S, LOOK_S, SILENT_S
from ddloco.workers.simulated.work import leaves_of
from tests.lab.fencing import Fences


def world(for_s, fences):
    """A world whose syncer is stopped at 20 s for so long; returns both incarnations."""
    plain = {
        "job": {"task": "simulated:tensors", "steps": 80, "learners": 2},
        "sync": {"fragments": 2, "interval": 4},
        "task": {"tensors": 2},
    }
    physics = Physics(leaves_of(2), pace=lambda _, rng: Pace(1.0, 0.1, rng))
    found = World(job_from(plain, "test"), physics, (), [fences], fences.may_act)
    found.begin()
    first = found.nodes["syncer"]
    found.call(20.0, fences.freeze, found, "syncer", for_s)
    found.run(400.0)
    return first, found


@pytest.mark.parametrize("for_s", [1.0, 7.0])
def test_one_that_wakes_up_in_time_goes_on(for_s):
    """Also after its lease has run out: nobody has taken its place."""
    fences = Fences()
    first, ended = world(for_s, fences)
    assert ended.nodes["syncer"] is first
    assert fences.woken == 0
    assert first.finish.status == "done"


@pytest.mark.parametrize("for_s", [SILENT_S + BEAT_S + LOOK_S, 60.0])
def test_one_that_wakes_up_too_late_does_nothing_more(for_s):
    """Its successor ends the job; it has handled no event since it was stopped."""
    fences = Fences()
    first, ended = world(for_s, fences)
    second = ended.nodes["syncer"]
    assert (first.number, second.number, fences.woken) == (1, 2, 1)
    assert first.at <= 20.0
    assert isinstance(first.finish, Finish)
    assert first.finish.status == "left"
    assert "syncer.2 on " in first.finish.reason
    assert second.finish.status == "done"
