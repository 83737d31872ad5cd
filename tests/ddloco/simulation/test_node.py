"""What work costs, and the pace of a learner's steps."""

import random
import statistics

import pytest

from ddloco.job.protocol.work import (
    EncodeFragment,
    Evaluate,
    MakeParameters,
    MergeFragment,
    Recover,
    SaveModel,
)
from ddloco.simulation.node import Costs, Pace

COSTS = Costs(encode_s=1.0, merge_s=2.0, make_s=3.0, rest_s=4.0)


@pytest.mark.parametrize(
    ("work", "seconds"),
    [
        (EncodeFragment(1, 0, "a", "b"), 1.0),
        (MergeFragment(1, 2, 0, "t", "", (), {}, {}, ("a", "b", "c")), 2.0),
        (MakeParameters(1, (0,)), 3.0),
        (Recover(1), 4.0),
        (Evaluate(1, ()), 4.0),
        (SaveModel(1, (), done=True), 4.0),
    ],
)
def test_work_costs_what_its_kind_costs(work, seconds):
    """Each kind has its own time, or the time of the rest."""
    assert seconds == COSTS.of(work)


def test_an_even_pace_is_a_second_a_step():
    """Whatever the stream; a slow learner takes as many times longer."""
    pace = Pace.even("learner-0", random.Random(1))
    assert [1.0, 1.0, 2.5] == [pace.step(0.0, slow) for slow in (1.0, 1.0, 2.5)]


def test_variance_is_a_share_of_the_step():
    """Mean and deviation are those asked for; no step is shorter than a tenth."""
    pace = Pace(3.0, 0.2, random.Random(1))
    times = [pace.step(0.0, 1.0) for _ in range(4000)]
    # Four standard errors: of the mean 0.6 / sqrt(4000), of the deviation 0.6 / sqrt(8000).
    assert 3.0 == pytest.approx(statistics.mean(times), abs=4 * 0.6 / 4000**0.5)
    assert 0.6 == pytest.approx(statistics.stdev(times), abs=4 * 0.6 / 8000**0.5)
    wild = Pace(3.0, 5.0, random.Random(1))
    assert 0.3 == pytest.approx(min(wild.step(0.0, 1.0) for _ in range(100)))


def test_the_same_stream_gives_the_same_steps():
    """A pace draws from its own stream and from nothing else."""
    one, other = (Pace(1.0, 0.3, random.Random(5)) for _ in range(2))
    assert [one.step(0.0, 1.0) for _ in range(9)] == [other.step(7.0, 1.0) for _ in range(9)]


def test_only_finished_steps_are_useful():
    """The time of a step that was lost with its learner does not count."""
    pace = Pace(2.0, 0.0, random.Random(1))
    pace.step(0.0, 1.0)
    pace.done(2.0)
    pace.step(2.0, 3.0)
    pace.away(4.0)
    assert (1, 2.0) == (pace.steps, pace.useful_s)
    pace.step(9.0, 3.0)
    pace.done(15.0)
    assert (2, 8.0) == (pace.steps, pace.useful_s)


def test_names_and_presence(World, make_job):
    """An incarnation knows its actor and number, and is there until it dies or finishes."""
    world = World(make_job())
    world.run(3.0)
    world.kill("learner-1")
    dead, alive = world.nodes["learner-1"], world.start("learner-1")
    assert ("learner-1", 2) == (alive.actor_name, alive.number)
    assert ([False, True], None) == ([dead.present, alive.present], dead.finish)
    assert world.nodes["learner-1"] is alive
    world.run(99.0)
    assert [False] * 3 == [node.present for node in world.nodes.values()]
