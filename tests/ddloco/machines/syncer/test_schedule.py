"""What is due next, when something came to nothing, and after a restart."""

import pytest

from ddloco.job.protocol.fragment_plan import Leaf, make_plan
from ddloco.machines.syncer.schedule import Schedule, due_at


@pytest.fixture
def planned():
    """Two fragments, due at t mod 4 = 0 and 2, until step 8."""
    leaves = [Leaf(f"{name}/w", (4,), "float32") for name in "ab"]
    return Schedule(), make_plan(leaves, fragments=2, interval=4, strategy="layer")


def through(schedule, plan):
    """Launch whatever comes next until nothing does."""
    steps = []
    while (t := schedule.next(plan, (0, 1), 8)) is not None:
        schedule.launched(t)
        steps.append((t, due_at(plan, t)))
    return steps


def test_every_fragment_in_turn_until_the_last_step(planned):
    """The plan's order, and an end."""
    schedule, plan = planned
    assert through(schedule, plan) == [(2, 1), (4, 0), (6, 1), (8, 0)]
    assert schedule.t == 8


def test_what_came_to_nothing_is_next_and_oldest_first(planned):
    """Tried again before whatever is later."""
    schedule, plan = planned
    for t in (2, 4):
        schedule.launched(t)
    schedule.repeat(4)
    schedule.repeat(2)
    assert through(schedule, plan) == [(2, 1), (4, 0), (6, 1), (8, 0)]


def test_after_a_restart_it_goes_on_behind_what_was_merged(planned):
    """Whatever lay before it is due an interval later."""
    schedule, plan = planned
    schedule.recover(5)
    assert through(schedule, plan) == [(6, 1), (8, 0)]
