"""Learners come and go: 2, then 16, then 3, and all of the data is drawn in order."""

from collections import Counter

import pytest

from ddloco.job.config import job_from
from ddloco.job.protocol.work import StepFinished
from ddloco.replayer.invariants.training import Causal, Learning
from ddloco.simulation.node import Pace
from ddloco.simulation.physics import Physics
from ddloco.simulation.world import World
from ddloco.stage.files.faults import Fault
from ddloco.workers.simulated.work import leaves_of, shard_and_number
from tests.lab.data_order import DataOrder
from tests.lab.truth import Contents

LEARNERS, SHARDS, GONE_S = 16, 24, 20.0
ALL = {f"learner-{n}" for n in range(LEARNERS)}


class Draws(DataOrder):
    """Who drew which batch of which shard, in the order of time."""

    def __init__(self):
        super().__init__()
        self.draws, self.events = [], Counter()

    def observed(self, role, what):
        """Count what is logged."""
        super().observed(role, what)
        self.events[what.event] += 1

    def see(self, stage, role, event, effects):
        """Note a step."""
        super().see(stage, role, event, effects)
        if isinstance(event, StepFinished):
            self.draws.append((stage.now, role.actor_name, *shard_and_number(event.batch)))

    def between(self, begin, end):
        """The draws of a time."""
        return [each for each in self.draws if begin <= each[0] < end]


def world(faults, end_s, shards=SHARDS):
    """A world of so many learners, until a time."""
    plain = {
        "job": {
            "task": "simulated:tensors",
            "steps": 10**6,
            "learners": LEARNERS,
            "shards": shards,
        },
        "sync": {"fragments": 4, "interval": 8},
        "elastic": {"gone_s": GONE_S},
        "task": {"tensors": 4},
    }
    physics = Physics(leaves_of(4), pace=lambda _, rng: Pace(1.0, 0.2, rng))
    draws = Draws()
    found = World(job_from(plain, "test"), physics, [draws, Contents(), Learning(), Causal()])
    found.begin(faults)
    found.run(end_s)
    return draws


@pytest.fixture(scope="module")
def come_and_gone():
    """Learners 2 to 15 come at 100 s, learners 3 to 15 die for good at 300 s."""
    come = [Fault("join", f"learner-{n}", 100.0 + 0.1 * n) for n in range(2, LEARNERS)]
    go = [Fault("crash", f"learner-{n}", 300.0 + 0.1 * n, 10**6) for n in range(3, LEARNERS)]
    return world([*come, *go], 600.0)


def test_all_shards_are_drawn_by_whoever_is_there(come_and_gone):
    """By two, once the others are known to be away; by sixteen; by three."""
    times = (60, 99), (200, 299), (400, 600)
    early, full, late = (come_and_gone.between(*each) for each in times)
    assert {who for _, who, _, _ in early} == {"learner-0", "learner-1"}
    assert {who for _, who, _, _ in full} == ALL
    assert {who for _, who, _, _ in late} == {"learner-0", "learner-1", "learner-2"}
    for draws in (early, full, late):
        assert {shard for _, _, shard, _ in draws} == set(range(SHARDS))


def test_the_shards_are_in_balance(come_and_gone):
    """Each of sixteen draws from one or two, each of three from eight, all about as often."""
    for begin, end, each in ((200, 299, {1, 2}), (400, 600, {8})):
        draws = come_and_gone.between(begin, end)
        by_learner = {who: {s for _, name, s, _ in draws if name == who} for _, who, _, _ in draws}
        assert {len(shards) for shards in by_learner.values()} == each
    late = Counter(shard for _, _, shard, _ in come_and_gone.between(400, 600))
    assert max(late.values()) - min(late.values()) <= 4


def test_every_batch_is_drawn_in_order_and_few_twice(come_and_gone):
    """None is left out; what is drawn twice is what the dead had drawn since their last reports: at
    most two of each, the step that ran and the one whose report was on its way."""
    for shard in range(SHARDS):
        numbers = [number for _, _, s, number in come_and_gone.draws if s == shard]
        assert set(numbers) == set(range(1, max(numbers) + 1))
    twice = len(come_and_gone.draws) - len({draw[2:] for draw in come_and_gone.draws})
    assert twice == come_and_gone.twice <= 2 * (LEARNERS - 3)
    assert come_and_gone.events["gone for good"] >= LEARNERS - 3


def test_when_all_live_no_batch_is_drawn_twice():
    """However often shards move between the living."""
    come = [Fault("join", f"learner-{n}", 30.0 + 7.0 * n) for n in range(2, LEARNERS)]
    draws = world(come, 300.0)
    assert draws.events["data shards moved"] >= LEARNERS - 2
    assert draws.twice == 0
    assert len(draws.draws) == len({draw[2:] for draw in draws.draws})


def test_with_a_shard_for_each_learner_nothing_moves():
    """Each draws from the shard of its number, as without ``job.shards``."""
    draws = world([], 60.0, shards=LEARNERS)
    assert {(who, f"learner-{shard}") for _, who, shard, _ in draws.draws} == {(n, n) for n in ALL}
    assert not draws.events["data shards moved"]
