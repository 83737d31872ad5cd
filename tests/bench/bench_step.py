"""A learner's step inside a job against the bare JAX loop.

Divided: the bare loop's seconds for a step, by the job's. Both run the task and optimizer of the
quickstart on the same batches, at NPROC=1, each in a process of its own.

* The job is a real one: a syncer and one learner in one process with their two worker processes,
  tapes on, pulls and merges as in the quickstart. Its time is wall time from the moment at which
  the driver asks for a step to the moment at which it asks for the one ``block`` steps later, so it
  holds everything between steps: the host copy, the batch's digest, the tape, the reports, merges.
* The bare loop is what one would write without ddloco: next batch, jitted update with donation, no
  host copy, and the loss is looked at once in a block, so that JAX may run ahead. That is the
  fastest loop that trains the same model, hence the floor.

The two take turns, one block each, so that a noisy machine is noisy for both; a pair of
neighbouring blocks gives one ratio, and the median of all is printed with its 95 % interval
(bootstrap). Only one of them runs at a time: at the end of a block a gate in front of the learner's
worker holds the next step back, and the actors' time stands still meanwhile, so that neither step
times nor pacing see the gap. Syncs in flight finish in the gap, at most one in a block of twelve.
A block of 24 steps is one interval of the quickstart: every fragment is synchronised once in it.
Beside it, in every round, a block of the same bare loop with all cores (NPROC unset).
Aim: 0.99 or more.
"""

import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

from tools import ROOT, median, median_interval, say, servant

JOB = ROOT / "examples" / "quickstart.toml"
WARM_STEPS = 12


def measure(quick: bool) -> dict[str, Any]:
    """Seconds for a step in each block of each loop, and the ratios of the pairs."""
    pairs, block = (3, 4) if quick else (24, 24)
    jobs: list[float] = []
    bares: list[float] = []
    alls: list[float] = []
    with (
        servant(serve_job, block) as job,
        servant(serve_bare, env={"NPROC": "1"}) as bare,
        servant(serve_bare, env={"NPROC": None}) as every,
    ):
        job.answer()  # At the gate after its warm-up.
        for loop in (bare, every):
            loop.request(WARM_STEPS)
        for pair in range(pairs):
            bares.append(bare.request(block) / block)
            jobs.append(job.request(True) / block)
            alls.append(every.request(block) / block)
            if pair % 4 == 3:
                say(f"pair {pair + 1} of {pairs}: {1e3 * jobs[-1]:.1f} ms, {1e3 * bares[-1]:.1f}")
    ratios = [b / j for b, j in zip(bares, jobs, strict=True)]
    low, high = median_interval(ratios)
    return {
        "ratio": median(ratios),
        "low": low,
        "high": high,
        "pairs": pairs,
        "block": block,
        "job_s": median(jobs),
        "bare_s": median(bares),
        "all_cores_s": median(alls),
        "ratios": ratios,
    }


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    return [
        "{ratio:.4f} of the bare JAX loop's speed at NPROC=1, 95 % {low:.4f} to {high:.4f} "
        "(aim 0.99): {0:.2f} ms a step in the job, {1:.2f} ms bare, {2:.2f} ms bare with all cores;"
        " {pairs} pairs of {block} steps".format(
            *(1e3 * figures[key] for key in ("job_s", "bare_s", "all_cores_s")), **figures
        )
    ]


class GatedTime:
    """Seconds since an actor's start, less those that the job was held back for."""

    began = None
    held_s = 0.0
    held_since: float | None = None

    def __init__(self, start: float = 0.0) -> None:
        self._start = self._running() - start

    @classmethod
    def _running(cls) -> float:
        now = perf_counter() if cls.held_since is None else cls.held_since
        return now - cls.held_s

    def now(self) -> float:
        """Seconds, monotonic."""
        return self._running() - self._start


def serve_job(connection: Connection, block: int) -> None:
    """The job; says how long each block took, and goes on when told."""
    import trio

    from ddloco.config.job import load_job
    from ddloco.config.run_folder import open_folder
    from ddloco.nodes import node
    from ddloco.nodes.single_process import Cluster
    from ddloco.protocol.effects import RunStep

    job = load_job(JOB, ["job.learners=1", "job.steps=1000000"])
    since = 0.0

    class Gate:
        """A learner's worker, and a gate before every ``block``-th step."""

        def __init__(self, workers: Any) -> None:
            self._workers = workers

        async def do(self, work: Any) -> Any:
            warm = isinstance(work, RunStep) and work.step > WARM_STEPS
            if warm and (work.step - WARM_STEPS - 1) % block == 0:
                await self._hold()
            return await self._workers.do(work)

        async def _hold(self) -> None:
            nonlocal since
            now = GatedTime.held_since = perf_counter()
            connection.send(now - since)
            if not await trio.to_thread.run_sync(connection.recv):
                cluster.request_stop("measured")
            since = perf_counter()
            GatedTime.held_s += since - now
            GatedTime.held_since = None

    node.MonotonicTime = GatedTime
    node.slowed = lambda workers, _: Gate(workers)
    with tempfile.TemporaryDirectory() as scratch:
        cluster = Cluster(job, open_folder(Path(scratch) / "run", job))
        outcome = trio.run(cluster.run)
    for finish in outcome.finishes.values():
        if finish.status not in {"done", "stopped"}:
            raise RuntimeError(f"the job failed: {finish.reason}")


def serve_bare(connection: Connection) -> None:
    """The bare loop; runs as many steps as it is told, says how long that took."""
    import jax
    import optax

    from ddloco.config.job import load_job
    from ddloco.workers.server import inner_optimizer
    from ddloco.workers.task import load_task

    job = load_job(JOB)
    task = load_task(job.job.task, job.task)
    optimizer = inner_optimizer(job.inner)

    def step(params: Any, state: Any, batch: Any) -> tuple[Any, Any, Any]:
        loss, gradients = jax.value_and_grad(task.loss)(params, batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    update = jax.jit(step, donate_argnums=(0, 1))
    params = task.init(jax.random.key(job.job.seed))
    state = optimizer.init(params)
    batches = task.batches(shard=0, shards=1, seed=job.job.seed)
    while steps := connection.recv():
        begun = perf_counter()
        for _ in range(steps):
            params, state, loss = update(params, state, batches.next())
        jax.block_until_ready((params, loss))
        connection.send(perf_counter() - begun)
