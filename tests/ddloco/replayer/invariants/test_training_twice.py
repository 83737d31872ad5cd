"""What only two runs can show: no learner waits for another, order and recording change nothing."""

from dataclasses import replace
from itertools import permutations

import pytest
import trio

from ddloco.cli.tape_verify import verify_folder
from ddloco.job.protocol.messages import Contribution
from ddloco.job.protocol.work import FragmentMerged, StepFinished
from ddloco.replayer.invariants.base import InvariantCheck
from ddloco.replayer.replay_of import replay_of
from ddloco.simulation.world import World
from ddloco.stage.files.faults import SYNCER, Fault
from ddloco.stage.files.run_folder import open_folder
from tests.lab import hostile_world
from transport import MessageArrived

SEVERAL = [
    seed
    for seed in range(40)
    if hostile_world.draw(seed).job.job.learners > 1
    and seed % hostile_world.TOGETHER_EVERY != hostile_world.TOGETHER
][:10]
"""Hostile worlds of two learners or more; here without their faults. How many steps a learner takes
together depends on the versions that have come, so in those worlds only the pace is the same."""

UNTIL_S = 200.0
STEP_S_MAX = 8.0
"""The slowest learner that is drawn needs three seconds, give or take."""


class Steps(InvariantCheck):
    """When each learner finished its steps, and when it was gone; it objects to nothing."""

    def __init__(self):
        self.steps, self.ended = {}, {}

    def died(self, world, node):
        """Note it."""
        self.ended[node.incarnation] = world.now

    def see(self, world, node, event, effects):
        """Note it."""
        if isinstance(event, StepFinished):
            self.steps.setdefault(node.incarnation, []).append(world.now)


def steps_of(seed, *faults):
    """How the steps of a hostile world go without its own faults."""
    drawn, learning = hostile_world.draw(seed), Steps()
    world = World(drawn.job, drawn.physics, [learning])
    world.begin(faults)
    world.run(UNTIL_S)
    return learning


@pytest.mark.parametrize("what", ["stall", "crash", "cut", "slow"])
@pytest.mark.parametrize("seed", SEVERAL)
def test_no_learner_waits_on_learner(seed, what):
    """Stopping, killing, cutting off or slowing one changes no other's step times: not by a bit."""
    plain = steps_of(seed).steps
    after = steps_of(seed, Fault(what, "learner-0", 3.3, None, factor=50.0))
    for name in set(plain) - {"learner-0.1"}:
        both = list(zip(plain[name], after.steps[name], strict=False))
        assert [one for one, _ in both] == [other for _, other in both]
        assert after.steps[name][-1] > after.ended.get(name, UNTIL_S) - STEP_S_MAX


def test_what_is_compared_would_differ():
    """A slow learner takes other steps; and so do all learners in a world of another seed."""
    one, other = SEVERAL[:2]
    after = steps_of(one, Fault("slow", "learner-0", 1.1, None, factor=50.0)).steps
    assert steps_of(one).steps["learner-0.1"] != after["learner-0.1"]
    assert after["learner-1.1"][:3] != steps_of(other).steps["learner-1.1"][:3]


def test_steps_go_on_without_a_syncer(World, make_job):
    """While the syncer is dead every learner does as many steps as the time has room for."""
    world = World(make_job(learners=3, steps=9000, overlap=2), {"learner-1": 0.5, "learner-2": 2.0})
    world.run(7.2)
    before = {name: len(steps) for name, steps in world.learning.steps.items()}
    world.kill(SYNCER)
    world.run(107.2)
    done = {name: len(steps) - before[name] for name, steps in world.learning.steps.items()}
    assert {"learner-0.1": 100, "learner-1.1": 200, "learner-2.1": 50} == done


DELAYS = {"learner-0": 0.001, "learner-1": 0.002, "learner-2": 0.003}


def test_the_order_of_arrival_changes_no_byte(World, make_job):
    """Contributions of one window, in every order: the merged bytes are the same."""
    orders, merged = set(), []
    for delays in permutations(DELAYS.values()):
        job = make_job(learners=3, steps=12, overlap=2, quorum=3)
        world = World(job, arithmetic=True)
        for name, delay in zip(DELAYS, delays, strict=True):
            world.delay(name, delay)
        world.run(99.0)
        events = [event for _, _, event, _ in world.traced.lines]
        came = [e.peer for e in events if isinstance(e, MessageArrived)
                and isinstance(e.body, Contribution) and e.body.t == 6]  # fmt: skip
        orders.add(tuple(came))
        merged.append([(e.accepted, e.theta, e.state) for e in events
                       if isinstance(e, FragmentMerged)])  # fmt: skip
    assert 6 == len(orders)
    assert 12 == len(merged[0])
    assert all(each == merged[0] for each in merged)


@pytest.mark.parametrize("seed", [3, 16, 23])
def test_recording_changes_nothing(seed, tmp_path):
    """The same world with tapes and without: event by event the same."""
    assert hostile_world.run_seed(seed).trail == hostile_world.run_seed(seed, tmp_path).trail


@pytest.mark.parametrize(
    ("seed", "what"),
    [(38, "the syncer came back twice"), (0, "learners crashed"), (13, "connections broke")],
)
def test_hostile_worlds_replay(seed, what, tmp_path):
    """Their tapes verify, and executed again every event, payload and result is the same."""
    drawn = hostile_world.draw(seed, tmp_path)
    kinds = {(fault.what, fault.who == SYNCER) for fault in drawn.faults}
    expected = {38: ("crash", True), 0: ("crash", False), 13: ("reset", False)}[seed]
    assert expected in kinds, f"{what}: the seed draws another world now"
    open_folder(tmp_path, drawn.job)
    outcome = hostile_world.happen(drawn)
    assert outcome.violation is None
    report = trio.run(replay_of(tmp_path).run)
    assert report.identical, report.divergence and report.divergence.report()
    assert (outcome.events, outcome.merges) == (report.events, report.counts["merges"])
    held, _ = verify_folder(tmp_path, as_json=False)
    assert held


def test_a_world_can_be_changed_by_hand():
    """A drawn world is data: with other faults it is another world."""
    drawn = hostile_world.draw(3)
    calm = hostile_world.happen(replace(drawn, faults=()))
    assert calm.violation is None
    assert calm.trail != hostile_world.happen(drawn).trail
