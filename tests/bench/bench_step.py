"""A learner's step inside a job against the bare JAX loop.

Divided: the bare loop's seconds for a step, by the job's. Both run the task and optimizer of the
quickstart on the same batches, at NPROC=1, each in a process of its own, with the allocator's
setting that workers have (huge pages, ``ddloco.workers.environment``): without it the bare loop
takes 2.6 times as long at 100 MB.

* The job is a real one: a syncer and one learner in one process with their two worker processes,
  tapes on, pulls and merges as in the quickstart. Its time is wall time from the result of one step
  to the result of the one ``block`` steps later, so it holds everything between steps: the host
  copies, the batch's digest, the tape, the reports, merges.
* The bare loop is what one would write without ddloco: next batch, jitted update with donation, no
  host copy, and the loss is looked at once in a block, so that JAX may run ahead. That is the
  fastest loop that trains the same model, hence the floor.

The two take turns, one block each, so that a noisy machine is noisy for both; a pair of
neighbouring blocks gives one ratio, and the median of all is printed with its 95 % interval
(bootstrap). Only one of them runs at a time: at the end of a block a gate behind the learner's
worker holds the last result back, and the actors' time stands still meanwhile, so that neither step
times nor pacing see the gap. Syncs in flight finish in the gap, at most one in a block of twelve.
A block of 24 steps is one interval of the quickstart: every fragment is synchronised once in it.
Steps of 1 MB are asked for several at a time (``worker.together_s``), as users have it; a block of
them is of 480 steps, with some 40 requests, and ends with the request that comes to so many.
Beside it, in every round, a block of the same bare loop with all cores (NPROC unset).

The same ratio follows for parameters of 1, 100 and 1,000 MB in a task whose step is bound by memory
(``large_task``), so that every copy of a parameter shows: the hardest case for a learner.
Aim: 0.99 for the quickstart, 0.6 for 1 MB, 0.97 for the larger ones. Beside it the resident memory
of the learner's worker and of the bare loop, its peak and what is left at the end: the worker's
first step runs twice, and host copies are in memory that it shares with the actor. And what a step
needs on its device, also with the parameters divided on a mesh of four.
"""

import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

from tools import ROOT, median, median_interval, say, servant

from ddloco.workers.environment import ALLOCATOR, HUGE_PAGES
from tests.children import children_of

BEYOND = """\
Of a step of the quickstart, 20.5 ms on the device, a worker spends 1.8 ms more: 0.55 until its \
actor asks for the next step, 0.3 to begin the program, 0.25 for the sums of tensors, 0.2 to \
install a fragment, 0.2 to read the loss, 0.1 each for the positions of data and for the copy of \
a fragment (medians of 600 steps). At 100 MB there is a merge for every step of 50 ms. Of the \
time of two cores XLA takes 37 ms of it, merging and storing 20, the worker beside XLA 16, and \
the thread of the actors 11 (by perf). The aim would need other cores, with memory of their own, \
for merging. At 1 MB there is a sync for every seven steps."""

JOB = ROOT / "examples" / "quickstart.toml"
WARM_STEPS = 12
ONE = {"NPROC": "1", ALLOCATOR: HUGE_PAGES}

AIMS = {1: 0.6, 100: 0.97, 1000: 0.97}
"""Of parameters in MB: users begin with small models."""

SIZES_MB = tuple(AIMS)
LARGE_JOB = """
[job]
name = "large"
task = "tests.bench.large_task:task"
learners = 1

[task]
megabytes = {megabytes}

[sync]
fragments = 12
interval = 12

[inner]
optimizer = "sgd"
lr = 1e-3
b1 = 0.0
clip = 0.0
"""
MESH = """
[worker]
mesh = { fsdp = 4 }

[worker.env]
JAX_NUM_CPU_DEVICES = "4"
"""
LARGE_BLOCK, SMALL_BLOCK = 12, 480
"""Steps of a block: one interval, in which every fragment is synchronised once; and of 1 MB."""


def measure(quick: bool) -> dict[str, Any]:
    """Seconds for a step in each block of each loop, and the ratios of the pairs."""
    pairs, block = (3, 4) if quick else (12, 24)
    alls: list[float] = []
    with servant(serve_bare, JOB, env={**ONE, "NPROC": None}) as every:
        every.request(WARM_STEPS)
        figures = pairs_of(JOB, pairs, block, lambda: alls.append(every.request(block) / block))
    figures["all_cores_s"] = median(alls)
    large: dict[str, Any] = {}
    for megabytes in SIZES_MB[:1] if quick else SIZES_MB:
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "job.toml"
            path.write_text(LARGE_JOB.format(megabytes=megabytes))
            pairs = 2 if quick else 4 if megabytes > 100 else 8
            block = SMALL_BLOCK if megabytes == 1 and not quick else LARGE_BLOCK
            large[str(megabytes)] = pairs_of(path, pairs, block)
    return {**figures, "large": large, "mesh": on_mesh(1 if quick else 100)}


def pairs_of(
    path: Path, pairs: int, block: int, beside: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Measure a job's learner and the bare loop in turns; ``beside`` is called after each pair."""
    jobs: list[float] = []
    bares: list[float] = []
    with servant(serve_job, path, block) as job, servant(serve_bare, path, env=ONE) as bare:
        job.answer()  # At the gate after its warm-up.
        bare.request(WARM_STEPS)
        for pair in range(pairs):
            bares.append(bare.request(block) / block)
            took_s, steps = job.request(True)
            jobs.append(took_s / steps)
            beside()
            if pair % 4 == 3:
                say(f"pair {pair + 1} of {pairs}: {1e3 * jobs[-1]:.1f} ms, {1e3 * bares[-1]:.1f}")
        devices = job.request("devices")
        processes = worker_of(job.process.pid, "learner-0"), bare.process.pid
        (peak, end), (bare_peak, bare_end) = map(resident_mb, processes)
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
        "ratios": ratios,
        "peak_mb": peak,
        "end_mb": end,
        "bare_peak_mb": bare_peak,
        "bare_end_mb": bare_end,
        "device_mb": devices["step_bytes"] / 2**20,
    }


def on_mesh(megabytes: int) -> dict[str, Any]:
    """What a step needs on each of the devices of a mesh, in MB, and the worker's memory."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "job.toml"
        path.write_text(LARGE_JOB.format(megabytes=megabytes) + MESH)
        with servant(serve_job, path, LARGE_BLOCK) as job:
            job.answer()
            devices = job.request("devices")
            peak, end = resident_mb(worker_of(job.process.pid, "learner-0"))
    needs = devices["step_bytes"] / 2**20
    return {"devices": devices["count"], "device_mb": needs, "peak_mb": peak, "end_mb": end}


def worker_of(parent: int, actor: str) -> int:
    """The process id of an actor's worker, a child of a child of ``parent``: the fork server's."""
    for server in children_of(parent):
        for child in children_of(server):
            if Path(f"/proc/{child}/cmdline").read_text().startswith(f"ddloco worker of {actor}"):
                return child
    raise RuntimeError(f"{actor} has no worker")


def resident_mb(pid: int) -> tuple[float, float]:
    """A process's resident memory in MB: its peak so far, and now."""
    status = Path(f"/proc/{pid}/status").read_text()
    peak, now = (int(status.split(f"{key}:")[1].split()[0]) / 1024 for key in ("VmHWM", "VmRSS"))
    return peak, now


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    return [
        "{ratio:.4f} of the bare JAX loop's speed at NPROC=1, 95 % {low:.4f} to {high:.4f} "
        "(aim 0.99): {0:.2f} ms a step in the job, {1:.2f} ms bare, {2:.2f} ms bare with all cores;"
        " {pairs} pairs of {block} steps; at most {peak_mb:,.0f} "
        "and {bare_peak_mb:,.0f} MB, {end_mb:,.0f} and {bare_end_mb:,.0f} at the end".format(
            *(1e3 * figures[key] for key in ("job_s", "bare_s", "all_cores_s")), **figures
        ),
        *(
            "{0:,} MB, bound by memory: {ratio:.3f}, 95 % {low:.3f} to {high:.3f} (aim {aim}): "
            "{1:.1f} ms a step in the job, {2:.1f} ms bare; {pairs} pairs of {block} steps; "
            "at most {peak_mb:,.0f} and {bare_peak_mb:,.0f} MB, {end_mb:,.0f} and "
            "{bare_end_mb:,.0f} at the end, {device_mb:,.0f} MB on the device in a step".format(
                int(size), 1e3 * each["job_s"], 1e3 * each["bare_s"], aim=AIMS[int(size)], **each
            )
            for size, each in figures["large"].items()
        ),
        "{device_mb:,.0f} MB on each of {devices} devices in a step of the second of these if it "
        "is divided; at most {peak_mb:,.0f} MB on the host, {end_mb:,.0f} at the end".format(
            **figures["mesh"]
        ),
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


def serve_job(connection: Connection, path: Path, block: int) -> None:
    """The job; says how long each block took and how many steps it had, and continues when told.

    A block ends with the first request that comes to ``block`` steps.
    """
    import trio
    from msgspec.structs import asdict

    from ddloco.job.config import load_job
    from ddloco.job.protocol.work import RunStep
    from ddloco.roles import job_program
    from ddloco.stage.files.run_folder import open_folder
    from ddloco.stage.nodes import node
    from ddloco.stage.nodes.single_process import Cluster
    from ddloco.workers import rpc

    job = load_job(path, ["job.learners=1", "job.steps=1000000"])
    since, warm_steps = 0.0, max(WARM_STEPS, block)

    class Gate:
        """A learner's worker, and a gate behind every block."""

        def __init__(self, executor: Any) -> None:
            self._executor = executor
            self._last = 0

        def do(self, work: Any) -> Any:
            coming = self._executor.do(work)
            if not isinstance(work, RunStep):
                return coming
            steps = work.last - self._last
            full = steps >= (block if self._last else warm_steps)
            if not full:
                return coming
            self._last = work.last
            return self._held(coming, steps)

        async def _held(self, coming: Any, steps: int) -> Any:
            result = await coming
            await self._hold(steps)
            return result

        async def _hold(self, steps: int) -> None:
            nonlocal since
            now = GatedTime.held_since = perf_counter()
            connection.send((now - since, steps))
            asked = await trio.to_thread.run_sync(connection.recv)
            if asked == "devices":
                process = self._executor.capture._process
                connection.send(asdict(await process.expect(rpc.MeasureDevices(), rpc.Devices)))
                asked = await trio.to_thread.run_sync(connection.recv)
            if not asked:
                cluster.request_stop("measured")
            since = perf_counter()
            GatedTime.held_s += since - now
            GatedTime.held_since = None

    node.MonotonicTime = GatedTime
    job_program.slowed = lambda executor, _: Gate(executor)
    with tempfile.TemporaryDirectory() as scratch:
        folder = open_folder(Path(scratch) / "run", job)
        cluster = Cluster(job_program.program_of(job), folder, kind=job.transport.kind)
        outcome = trio.run(cluster.run)
    for finish in outcome.finishes.values():
        if finish.status not in {"done", "stopped"}:
            raise RuntimeError(f"the job failed: {finish.reason}")


def serve_bare(connection: Connection, path: Path) -> None:
    """The bare loop; runs as many steps as it is told, says how long that took."""
    import jax
    import optax

    from ddloco.job.config import load_job
    from ddloco.workers.inner_optimizer import inner_optimizer
    from ddloco.workers.task import load_task

    job = load_job(path)
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
