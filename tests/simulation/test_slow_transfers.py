"""Fragments of 2 GB over links of 0.1, 1 and 10 Gbit/s: slow is neither dead nor in vain."""

from collections import Counter

import pytest

from ddloco.job.config import job_from
from ddloco.job.protocol.fragment_plan import Leaf
from ddloco.replayer.invariants.merged_tokens import MergedTokens
from ddloco.simulation.network import Wire
from ddloco.simulation.node import Costs, Pace
from ddloco.simulation.physics import Physics
from ddloco.simulation.world import World

FRAGMENTS, LEARNERS = 24, 3
FRAGMENT_BYTES = 2e9
HOUR_S = 3600.0


class Noted(MergedTokens):
    """Also counts what actors observe."""

    def __init__(self):
        super().__init__()
        self.events = Counter()

    def observed(self, role, what):
        """One line of a log."""
        self.events[what.event] += 1


def train(gbit, step_s, hours):
    """What came of some hours."""
    table = {"task": "simulated:tensors", "steps": 10**6, "learners": LEARNERS}
    job = job_from({"job": table, "sync": {"fragments": FRAGMENTS, "interval": 24}}, "test")
    physics = Physics(
        tuple(Leaf(f"tensor-{at:02}", (8,), "float32") for at in range(FRAGMENTS)),
        wire=Wire(0.02, 0.0, gbit * 1e9 / 8),
        costs=Costs(encode_s=0.5, merge_s=1.0),
        fragment_bytes=FRAGMENT_BYTES,
        pace=lambda _, rng: Pace(step_s, 0.1, rng),
    )
    noted = Noted()
    world = World(job, physics, [noted])
    world.begin()
    world.run(hours * HOUR_S)
    return noted


@pytest.mark.parametrize(
    ("gbit", "step_s", "hours"),
    [
        pytest.param(0.1, 1.0, 6, marks=pytest.mark.slow),
        (0.1, 30.0, 3),
        (0.1, 200.0, 6),
        (1.0, 30.0, 2),
        (10.0, 30.0, 2),
    ],
)
def test_large_fragments_are_merged_over_any_link(gbit, step_s, hours):
    """No link is given up; each learner is in nearly every merge; few deadlines pass without an
    answer."""
    noted = train(gbit, step_s, hours)
    assert noted.events["joined"] == LEARNERS
    assert noted.events["lost"] == 0
    assert noted.events["sync repeated"] <= 8, "deadlines learn"
    transfer_s = FRAGMENT_BYTES * 8 / (gbit * 1e9)
    # The initial parameters come first; then two syncs are under way, each there and back.
    training_s = hours * HOUR_S - FRAGMENTS * transfer_s
    at_most = training_s / max(step_s, transfer_s)
    share = noted.share(FRAGMENTS)
    assert share.merges >= 0.5 * at_most
    assert min(share.took_part.values()) >= 0.9 * share.merges
    assert share.merged >= 95.0
