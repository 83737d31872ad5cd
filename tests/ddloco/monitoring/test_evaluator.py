"""Global models are put together from fragments and scored: one at a time, the newest wins."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing

from ddloco.job.protocol.fragment_plan import wire_layout
from ddloco.monitoring.evaluator import Evaluator
from ddloco.stage.arrays.shared_memory import SharedMemory
from ddloco.stage.files.toml import ConfigError
from ddloco.workers import rpc
from snapshot import load_metadata, load_tensors
from transport import Payload, describe


class Scoring:
    """A scorer whose scores take a while: a score lists the versions in the model."""

    def __init__(self, plan, arena, takes_s=10.0):
        self.plan, self.takes_s = plan, takes_s
        self.scored, self.at_once = [], 0
        self.scorer = Evaluator(Path("job.toml"), plan, arena, self.score, self.note)
        self.region = self.scorer._region

    async def score(self, span):
        """The first number of each fragment."""
        assert (span.offset, span.nbytes) == (self.region.offset, self.plan.total_bytes)
        self.at_once += 1
        assert 1 == self.at_once
        starts = [self.plan.fragment_slice(p)[0] for p in range(len(self.plan.fragments))]
        loss = [float(self.region.data[s : s + 4].view(np.float32)[0]) for s in starts]
        await trio.sleep(self.takes_s)
        self.at_once -= 1
        return rpc.Scored(loss, {"accuracy": 0.5})

    def note(self, t, loss, metrics):
        """A score."""
        assert {"accuracy": 0.5} == metrics
        self.scored.append((t, loss))

    def give(self, p, t):
        """A fragment full of its version."""
        start, stop = self.plan.fragment_slice(p)
        data = np.full((stop - start) // 4, t, np.float32).view(np.uint8)
        self.scorer.take(p, t, Payload(describe(data, wire_layout(self.plan, p)), data))


@pytest.fixture
def plan(make_job, leaves):
    """A plan of three fragments."""
    return make_job().plan(leaves)


@pytest.fixture
def arena():
    """Shared memory."""
    with closing(SharedMemory()) as opened:
        yield opened


async def test_the_newest_wins(autojump_clock, nursery, plan, arena):
    """What comes while a model is scored waits, and only the last of it is scored."""
    scoring = Scoring(plan, arena)
    nursery.start_soon(scoring.scorer.run)
    scoring.give(0, 0)
    scoring.give(1, 0)
    await trio.sleep(50)
    assert [] == scoring.scored
    scoring.give(2, 0)
    for t in range(1, 6):
        await trio.sleep(1)
        scoring.give(t % 3, t)
    await trio.sleep(50)

    assert [(0, [0.0, 0.0, 0.0]), (5, [3.0, 4.0, 5.0])] == scoring.scored


async def test_an_older_step_that_is_merged_later_makes_a_new_model(
    autojump_clock, nursery, plan, arena
):
    """Syncs overlap: a model is new when any fragment is, whatever its global step."""
    scoring = Scoring(plan, arena, takes_s=0.1)
    nursery.start_soon(scoring.scorer.run)
    for p, t in ((0, 0), (1, 0), (2, 6)):
        scoring.give(p, t)
    await trio.sleep(1)
    scoring.give(1, 5)
    await trio.sleep(1)

    assert [(6, [0.0, 0.0, 6.0]), (6, [0.0, 5.0, 6.0])] == scoring.scored


async def test_at_the_end_the_last_model_is_scored(autojump_clock, plan, arena):
    """Nothing newer will come: what is there is finished, then it ends."""
    scoring = Scoring(plan, arena)
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scoring.scorer.run)
            for p in range(3):
                scoring.give(p, 1)
            await trio.sleep(1)
            scoring.give(0, 2)
            scoring.scorer.finish()

    assert [1, 2] == [t for t, _ in scoring.scored]


async def test_without_a_whole_model_it_just_ends(autojump_clock, plan, arena):
    """A job that ended before it had begun has no model to score."""
    scoring = Scoring(plan, arena)
    scoring.give(0, 1)
    scoring.scorer.finish()
    with trio.fail_after(1):
        await scoring.scorer.run()
    assert [] == scoring.scored


def test_another_model_is_refused(plan, arena):
    """A fragment that the job file does not describe is bad input, with what to give instead."""
    scoring = Scoring(plan, arena)
    data = np.zeros(64, np.uint8)
    for p, layout in ((0, [("w", (16,), "float32")]), (3, wire_layout(plan, 0))):
        with pytest.raises(ConfigError, match=r"job.toml: fragment . of the running job differs"):
            scoring.scorer.take(p, 0, Payload(describe(data, layout), data))


async def test_a_task_without_a_held_out_loss_is_named(autojump_clock, plan, arena):
    """A task that cannot be scored is bad input."""
    scoring = Scoring(plan, arena)

    async def cannot(span):
        return rpc.Scored(None)

    scoring.scorer._score = cannot
    for p in range(3):
        scoring.give(p, 1)
    with pytest.raises(ConfigError, match=r"job.toml: its task has no evaluate"):
        await scoring.scorer.run()


async def test_the_best_model_is_kept(autojump_clock, plan, arena, tmp_path, nursery, monkeypatch):
    """That with the lowest loss, whole, with its global step; a worse one does not replace it."""
    scoring = Scoring(plan, arena, takes_s=1.0)
    scoring.scorer._best = tmp_path / "best.safetensors"
    losses = iter([0.5, 0.25, 0.75, float("nan")])

    async def at_once(work, *given):
        work(*given)  # A thread would take no virtual time.

    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)

    async def score(span):
        await trio.sleep(1.0)
        return rpc.Scored(next(losses), {"accuracy": 0.5})

    scoring.scorer._score = score
    nursery.start_soon(scoring.scorer.run)
    for t in (1, 2, 3, 4):
        for p in range(3):
            scoring.give(p, t)
        await trio.sleep(5.0)
    tensors = load_tensors(tmp_path / "best.safetensors")
    said = load_metadata(tmp_path / "best.safetensors")
    nursery.cancel_scope.cancel()

    assert {"global_step": "2", "held_out_loss": "0.25"} == said
    assert {leaf.name for leaves in plan.fragments for leaf in leaves} == set(tensors)
    assert all((each == 2.0).all() for each in tensors.values())
