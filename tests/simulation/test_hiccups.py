"""A step that takes 12 s, a suspended host, a learner that slows down for a while: steps are
counted, so nothing runs on unmerged, and no training is lost.

Before, launches were timed by averages of step times: after one slow batch in a job of 1 ms steps
nothing was merged for 26 s, and the next contribution held 20,520 steps.
"""

from functools import cache

import pytest

from ddloco.job.config import Worker, job_from
from ddloco.job.protocol.fragment_plan import Leaf
from ddloco.job.protocol.messages import Contribution
from ddloco.machines.learner.machine import SPAN_SHARE
from ddloco.replayer.invariants.merged_tokens import MergedTokens
from ddloco.simulation.network import Wire
from ddloco.simulation.node import Costs, Pace
from ddloco.simulation.physics import Physics
from ddloco.simulation.world import World
from ddloco.stage.files.faults import Fault
from transport import MessageArrived

LEARNERS = 3
HICCUP_S = 12.0
INTERVAL = 12


class Hiccup(Pace):
    """One step takes ``HICCUP_S`` longer."""

    def __init__(self, step_s, rng, number):
        super().__init__(step_s, 0.05, rng)
        self._number = number

    def step(self, now, slow, count):
        """The step of this number is the long one."""
        seconds = super().step(now, slow, count)
        return seconds + HICCUP_S if self.steps + 1 == self._number else seconds


class Noted(MergedTokens):
    """Also the steps of every contribution that arrives."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def see(self, stage, role, event, effects):
        """A contribution, as the syncer sees it."""
        super().see(stage, role, event, effects)
        if isinstance(event, MessageArrived) and isinstance(event.body, Contribution):
            self.steps.append(event.body.steps)


def train(step_s, seconds, *, at_step=0, who=(), faults=(), fragments=4):
    """A world in which some learners have a hiccup at a step of theirs, and faults."""
    table = {"task": "simulated:tensors", "steps": 10**7, "learners": LEARNERS}
    sync = {"fragments": fragments, "interval": INTERVAL}
    job = job_from({"job": table, "sync": sync}, "test")
    physics = Physics(
        tuple(Leaf(f"tensor-{at}", (8,), "float32") for at in range(fragments)),
        wire=Wire(step_s / 50, 0.0, 1e9),
        costs=Costs(encode_s=step_s / 50, merge_s=step_s / 20, make_s=step_s, rest_s=step_s),
        pace=lambda name, rng: Hiccup(step_s, rng, at_step if name in who else 0),
    )
    noted = Noted()
    world = World(job, physics, [noted])
    world.begin(faults)
    world.run(seconds)
    return noted, noted.share(fragments)


@cache
def smoothly(step_s, seconds, fragments=4):
    """What reaches a merge in a world without a hiccup."""
    return train(step_s, seconds, fragments=fragments)[1]


def most_steps(step_s):
    """The steps of a contribution: two intervals. Of steps that are taken together there may be a
    quarter more: a copy and a version each wait for the end of a request, an eighth of them."""
    together = 2 * step_s <= Worker().together_s
    return 2 * INTERVAL + (2 * 2 * INTERVAL // SPAN_SHARE if together else 0)


NAMES = tuple(f"learner-{n}" for n in range(LEARNERS))


@pytest.mark.parametrize("fragments", [4, INTERVAL])
@pytest.mark.parametrize("at_step", [2, 40])
@pytest.mark.parametrize("who", [NAMES[:1], NAMES[:2], NAMES], ids=["one", "two", "all"])
@pytest.mark.parametrize("step_s", [pytest.param(0.001, marks=pytest.mark.slow), 0.02, 1.0])
def test_a_long_step_leaves_nothing_unmerged(step_s, who, at_step, fragments):
    """On one learner, on most and on all, at the second step and in the middle: no contribution
    holds more than two intervals, and as many tokens reach a merge as in a job without it."""
    seconds = HICCUP_S + max(200 * step_s, 1.0)
    noted, share = train(step_s, seconds, at_step=at_step, who=who, fragments=fragments)
    smooth = smoothly(step_s, seconds, fragments)
    assert share.merges > 20
    assert max(noted.steps) <= most_steps(step_s)
    assert share.merged >= smooth.merged - 1.0


@pytest.mark.parametrize("step_s", [0.001, 0.02, 1.0])
def test_a_suspended_machine_leaves_nothing_unmerged(step_s):
    """All learners are stopped for 12 s, and the syncer with them, as when a laptop is closed."""
    at_s = 50 * step_s
    stalls = [Fault("stall", name, at_s, HICCUP_S) for name in ("syncer", *NAMES)]
    seconds = HICCUP_S + max(200 * step_s, 1.0)
    noted, share = train(step_s, seconds, faults=stalls)
    smooth = smoothly(step_s, seconds - HICCUP_S)
    assert max(noted.steps) <= most_steps(step_s)
    assert share.merged >= smooth.merged - 1.0


@pytest.mark.parametrize("factor", [4.0, 30.0])
@pytest.mark.parametrize("step_s", [0.02, 1.0])
def test_a_learner_that_slows_down_and_recovers_delays_nobody(step_s, factor):
    """It is in fewer steps of each merge meanwhile; the schedule is that of the others."""
    slow = [Fault("slow", NAMES[1], 100 * step_s, 150 * step_s, factor=factor)]
    noted, share = train(step_s, 400 * step_s, faults=slow)
    smooth = smoothly(step_s, 400 * step_s)
    assert max(noted.steps) <= most_steps(step_s)
    assert share.merges >= 0.95 * smooth.merges
    assert share.merged >= smooth.merged - 1.0
