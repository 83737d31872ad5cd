"""Whose work reaches a merge: a slow learner's, too, at an undiminished pace of global steps."""

import pytest

from ddloco.job.config import job_from
from ddloco.job.protocol.fragment_plan import Leaf
from ddloco.replayer.invariants.merged_tokens import MergedTokens
from ddloco.simulation.node import Pace
from ddloco.simulation.physics import Physics
from ddloco.simulation.world import World
from ddloco.stage.actors.effects import Observe
from tests.lab.launches import Launches

FRAGMENTS, STEPS, LEARNERS = 24, 144, 4
SLOW = f"learner-{LEARNERS - 1}"
FIRST_STEP = 12
"""Global steps within which the slowest has finished its first step and holds every fragment."""


class Merges(MergedTokens):
    """Also notes every merge as it is told."""

    def __init__(self):
        super().__init__()
        self.told = []

    def observed(self, role, what: Observe):
        """One line of a syncer's log."""
        if what.event == "merge":
            self.told.append((what.fields["t"], what.fields["fragment"], what.fields["learners"]))


def trained(factor, pull="unmerged"):
    """A job whose last learner is slower than the others; its merges and when it was over."""
    sync = {"fragments": FRAGMENTS, "interval": FRAGMENTS, "pull": pull}
    table = {"task": "simulated:tensors", "steps": STEPS, "learners": LEARNERS}
    job = job_from({"job": table, "sync": sync}, "test")
    leaves = tuple(Leaf(f"tensor-{at:02}", (8,), "float32") for at in range(FRAGMENTS))

    def pace(name, rng):
        return Pace(factor if name == SLOW else 1.0, 0.0, rng)

    merges = Merges()
    world = World(job, Physics(leaves, pace=pace), [Launches(), merges])
    world.begin()
    world.run(10.0 * STEPS)
    assert world.over
    return merges, world.now


@pytest.mark.parametrize("factor", [1.5, 2.0, 4.0, 10.0])
def test_a_slow_learner_is_in_all_merges_of_all_fragments(factor):
    """Once it has finished a first step, and at the pace of a job without any slow learner."""
    merges, seconds = trained(factor)
    left_out = [(t, p) for t, p, who in merges.told if f"{SLOW}.1" not in who and t > FIRST_STEP]
    assert [] == left_out
    assert set(range(FRAGMENTS)) == {p for t, p, _ in merges.told if t > FIRST_STEP}
    _, alike = trained(1.0)
    assert abs(seconds - alike) <= 2 * factor, "but for the last step, which is waited for"
    share, fresh = merges.share(FRAGMENTS), trained(factor, pull="fresh")[0].share(FRAGMENTS)
    assert share.merged >= 99.5
    assert share.in_fragments > fresh.in_fragments


def test_pulling_only_who_finished_a_step_leaves_fragments_of_the_slow_out():
    """The paper's reading: a learner four times slower is in a quarter of the merges, and in steady
    phase some fragments never see its data; this is what the count above can show."""
    merges, _ = trained(4.0, pull="fresh")
    seen = {p for _, p, who in merges.told if f"{SLOW}.1" in who}
    assert seen < set(range(FRAGMENTS))
    share = merges.share(FRAGMENTS)
    assert share.took_part[f"{SLOW}.1"] <= STEPS / 3


def test_what_was_merged_is_said_in_a_line():
    """Percent of the tokens, and of tokens by fragment."""
    merges, _ = trained(2.0)
    assert "100.00 % of" in merges.share(FRAGMENTS).line()
    assert {"in a merge", "by fragment"} == set(merges.results(FRAGMENTS))
    assert {} == MergedTokens().results(FRAGMENTS)
