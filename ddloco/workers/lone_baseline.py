"""The baseline without messages: one learner alone, on all of the data (``method = "lone"``).

It uses all of the data, because on the share of one learner it would be an unfair comparison. It
records no tape.
"""

from contextlib import AsyncExitStack, closing
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console
from rich.progress import Progress

from clocks import MonotonicTime
from ddloco.job.config import Job
from ddloco.stage.arrays.shared_memory import SharedMemory
from ddloco.stage.files.run_folder import LOG_FILE
from ddloco.stage.process.log import ActorLog
from ddloco.workers import rpc
from ddloco.workers.process import open_worker
from ddloco.workers.task_sources import kept_modules

STEPS_ASKED = 10
"""Steps per request to the worker, small enough for progress reports and Ctrl-C."""


async def run_baseline(job: Job, folder: Path, console: Console) -> float | None:
    """Train ``job.steps`` steps on one learner; returns the held-out loss.

    Raises:
        WorkerRequestError: the task cannot be used.
        WorkerDiedError: the worker process ended.
    """
    time = MonotonicTime()
    async with AsyncExitStack() as stack:
        log = ActorLog(folder / LOG_FILE, job.job.method, time.began)
        stack.enter_context(closing(log))
        arena = stack.enter_context(closing(SharedMemory()))
        kept = kept_modules(folder, job.job.task)
        opened = open_worker(job.job.method, arena, job.worker_of(""), kept=kept)
        process = await stack.enter_async_context(opened)
        await process.expect(replace(rpc.preparation(job), shards=1), rpc.Prepared)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task(job.job.method, total=job.job.steps)
            for done in range(0, job.job.steps, STEPS_ASKED):
                steps = min(STEPS_ASKED, job.job.steps - done)
                together = rpc.TrainTogether((0,), steps)
                trained = await process.expect(together, rpc.Trained)
                bar.update(task, completed=done + steps)
                fields = {"step": done + steps, "loss": trained.loss, "tokens": trained.tokens}
                log.observe("step", time.now(), done + steps, fields)
        scored = await process.expect(rpc.Score(None), rpc.Scored)
        log.observe("result", time.now(), job.job.steps, {"held_out_loss": scored.loss})
    return scored.loss
