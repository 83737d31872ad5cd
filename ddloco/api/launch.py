"""A job on this machine, from its settings to its result; the command line does the same."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio
from rich.console import Console

from clocks import actor_of, replace_file
from ddloco.job.config import Job
from ddloco.job.job_folder import check_place
from ddloco.job.keys import keys_of
from ddloco.monitoring.live_display import Board, show_live
from ddloco.monitoring.log_metrics import track_run
from ddloco.monitoring.metrics import Sink
from ddloco.monitoring.trackers import close_all, open_trackers
from ddloco.roles.job_program import JobProgram, program_of
from ddloco.stage.driver.resume import continuing
from ddloco.stage.files.run_folder import LOSS_FILE, next_folder, open_folder
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.fault_injector import live_schedule
from ddloco.stage.nodes.single_process import Cluster, Outcome
from ddloco.stage.nodes.subprocesses import Processes
from ddloco.stage.process.best_effort import BestEffort
from ddloco.stage.process.console import SafeConsole
from ddloco.stage.process.log_tail import LogTail
from ddloco.workers.task import check_task_name, task_digests
from ddloco.workers.task_sources import keep_sources

RUNS = Path("runs")


class JobError(RuntimeError):
    """A job did not end well, or an actor of it did not answer; one line says why.

    Attributes:
        folder: the run folder, which holds everything up to the end.
    """

    def __init__(self, said: str, folder: Path) -> None:
        super().__init__(said)
        self.folder = folder


JobActors = Cluster[JobProgram] | Processes[JobProgram]


@dataclass(frozen=True)
class LaunchTerms:
    """How a job is started.

    Attributes:
        snapshot: what the job continues from; empty for a new one.
        fresh_learners: whether it may continue from a snapshot without learners.
        overwrite: whether the run in its folder is replaced.
        module: the text of the task's module, if that is a pinned one.
        trust: whether the user trusts who writes where the snapshot is.
        asked: where faults were asked for, for messages.
        fault: what precedes the name of an impossible fault in messages.
    """

    processes: bool = False
    snapshot: str = ""
    overwrite: bool = False
    module: str = ""
    trust: bool = False
    asked: str = "chaos"
    fault: str = "chaos."
    fresh_learners: bool = False


def folder_for(job: Job, folder: Path | None, module: str = "") -> Path:
    """Check what can be checked before there is a run folder; returns its path."""
    if not module:
        task_digests(job.job.task)
        check_task_name(job.job.task)
    check_place(job)
    return folder or next_folder(RUNS, job.job.name)


def check_faults(job: Job, terms: LaunchTerms) -> None:
    if not (job.chaos.fault or job.chaos.storm):
        return
    if not terms.processes:
        raise ConfigError(f"{terms.asked}: applies to processes; add --processes")
    try:
        live_schedule(program_of(job))
    except ConfigError as error:
        raise ConfigError(f"{terms.fault}{error}") from None


def prepare_job(job: Job, folder: Path, terms: LaunchTerms) -> JobActors:
    """Prepare the run folder; returns the job's actors, which ``run_job`` runs."""
    check_faults(job, terms)
    keys_of(job, "tcp" if terms.processes else job.transport.kind)
    program = JobProgram(job, fresh_learners=terms.fresh_learners)
    start_point = program.whole_start_point(terms.snapshot, folder, trust=terms.trust)
    for said in start_point.notes if start_point is not None else ():
        SafeConsole(stderr=True).print(said, soft_wrap=True, highlight=False)
    open_folder(folder, job, overwrite=terms.overwrite)
    if terms.module:
        keep_sources(folder, {f"{job.job.task.partition(':')[0]}.py": terms.module})
        task_digests(job.job.task, folder)
    program = continuing(JobProgram(job), start_point)
    if terms.processes:
        return Processes(program, folder)
    return Cluster(program, folder, start_point, kind=job.transport.kind)


def open_tracked(
    job: Job, folder: Path, terms: LaunchTerms, track: Sequence[str]
) -> tuple[JobActors, list[Sink]]:
    """``prepare_job``, and the trackers that are named; no tracker stays open if the job cannot
    be."""
    sinks = open_trackers(track, folder.name, job)
    try:
        return prepare_job(job, folder, terms), sinks
    except BaseException:
        close_all(sinks)
        raise


@dataclass(frozen=True)
class JobEnd:
    """How a job ended.

    Attributes:
        result: what the syncer observed of the final model; None without one.
        idle: learners that have finished no step.
    """

    cluster: JobActors
    outcome: Outcome
    result: dict[str, Any] | None
    idle: Sequence[str] = ()

    @property
    def left(self) -> bool:
        """Whether the leading syncer left in good order before the job's end, as after a SIGTERM to
        all processes."""
        lead, finishes = self.cluster.program.lead, self.outcome.finishes.items()
        said = [each.status for name, each in finishes if actor_of(name) == lead]
        return said == ["left"] and self.result is None

    @property
    def problem(self) -> str | None:
        """Why it is no success, although it could be run; None if it is one."""
        job = self.cluster.program.job
        if self.result is None:
            return f"{self.cluster.folder}: the job ended without a result"
        if self.result["status"] == "stopped" and not self.cluster.asked:
            t = self.result["t"]
            table = job.job
            end = f"of {table.steps}" if table.tokens is None else f"and not after {table.length}"
            left = {*job.learner_names()} - {actor_of(name) for name in self.outcome.failures}
            why = (left and job.too_few(len(left))) or "no learner is left"
            return f"the job ended at global step {t} {end}: {why}"
        lead = self.cluster.program.lead
        for name, reason in self.outcome.failures.items():
            if actor_of(name) == lead:
                return f"{name} failed: {reason}"
        return None


async def run_job(
    cluster: JobActors,
    console: Console,
    beside: Callable[[], Awaitable[None]] | None = None,
    sinks: list[Sink] | None = None,
) -> JobEnd:
    """Run a job to its end, with its live display on ``console``, and ``beside`` for as long, such
    as waiting for signals; draws its losses and closes ``sinks`` at the end."""
    done, job = trio.Event(), cluster.program.job
    board = Board(job)
    say = partial(console.print, soft_wrap=True)
    best = BestEffort(lambda name, why: say(f"{name} has ended, the job continues: {why}"))

    async def watch() -> None:
        await best.run(
            "the display", lambda: show_live(LogTail(cluster.folder), board, console, done)
        )
        figure = cluster.folder / LOSS_FILE
        best.do("the figure", lambda: replace_file(figure, [board.losses().encode()]), 0)

    async with trio.open_nursery() as outer:
        if beside is not None:
            outer.start_soon(beside)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            if sinks:
                nursery.start_soon(track_run, cluster.folder, job, sinks, done, say)
            outcome = await cluster.run()
            done.set()
        outer.cancel_scope.cancel()
    result = cluster.result
    steps = board.learners.items() if board.result is not None else ()  # Else it is not known.
    return JobEnd(cluster, outcome, result, [name for name, view in steps if not view.step])
