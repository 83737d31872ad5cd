"""The baseline that needs no messages: one learner alone, on all of the data (``method = "lone"``).

On a third of the data, as a learner of three would see it, it would be crippled. It leaves no tape.
"""

from contextlib import AsyncExitStack, closing
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from clocks import MonotonicTime
from ddloco.config.job import Job
from ddloco.config.run_folder import LOG_FILE
from ddloco.runtime.log import ActorLog
from ddloco.runtime.shared_memory import Arena
from ddloco.workers import rpc
from ddloco.workers.process import open_worker

STEPS_ASKED = 10
"""Steps in one request, so that progress shows and Ctrl-C is heard."""


async def run_baseline(job: Job, folder: Path, console: Console) -> float | None:
    """Train ``job.steps`` steps alone; the held-out loss.

    Raises:
        ChoreError: the task cannot be used.
        WorkerDiedError: the worker process ended.
    """
    time = MonotonicTime()
    log = ActorLog(folder / LOG_FILE, job.job.method)
    async with AsyncExitStack() as stack:
        arena = stack.enter_context(closing(Arena()))
        process = await stack.enter_async_context(open_worker(job.job.method, arena, job.worker))
        request = rpc.Prepare(job.job.task, job.task, job.inner, job.job.seed, 0, 1)
        await process.expect(request, rpc.Prepared)
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
    log.close()
    return scored.loss
