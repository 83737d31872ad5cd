"""What a world is made of: defaults that make a world, and streams of their own."""

from dataclasses import replace

from ddloco.simulation.node import Pace
from ddloco.simulation.physics import Physics
from ddloco.simulation.world import World
from ddloco.workers.simulated.work import leaves_of


def test_the_defaults_make_a_world(make_job):
    """No tapes, no log, no numbers; a second a step."""
    physics = Physics(leaves_of(6))
    assert (None, None) == (physics.recorder("learner-0.1"), physics.log("learner-0.1"))
    world = World(make_job(), physics)
    world.begin()
    world.run(99.0)
    assert world.over


def test_each_learner_has_a_stream_of_its_own(make_job):
    """What one draws changes nothing for the other; a seed changes all of them."""
    drawn = {}

    def pace(name, stream):
        drawn[name] = stream.random()
        return Pace.even(name, stream)

    physics = Physics(leaves_of(6), pace=pace)
    World(make_job(learners=2), physics).begin()
    two = dict(drawn)
    World(make_job(learners=3), physics).begin()
    assert two == {name: drawn[name] for name in two}
    World(make_job(learners=2), replace(physics, seed=1)).begin()
    assert all(drawn[name] != two[name] for name in two)
