"""``ddloco run`` from a loaded job to its end, and the exit codes that it ends with."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import trio
from rich.progress import Progress

from ddloco.api.launch import JobActors, JobEnd, LaunchTerms, folder_for, open_tracked, run_job
from ddloco.cli.ask import complain, with_source
from ddloco.debugger.wording import listed
from ddloco.job.config import Job, load_job
from ddloco.job.protocol.status import Numbers
from ddloco.machines.syncer.shutdown import DIVERGED
from ddloco.monitoring.metrics import Sink, metrics_in_words
from ddloco.monitoring.status_view import interval_in_words
from ddloco.stage.actors.observations import DISREGARDED, NOT_EVALUATED, SNAPSHOTS_FAILED, UNUSED
from ddloco.stage.files.run_folder import JOB_FILE, LOSS_FILE, SNAPSHOTS, SOURCE, TAPES
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.files.trust import is_ours
from ddloco.stage.nodes.exit_codes import AGAIN, FOUND, HELD
from ddloco.stage.nodes.subprocesses import Processes
from ddloco.stage.process.console import SafeConsole
from ddloco.stage.process.entry_point import pinned_text
from ddloco.stage.process.run_identity import apart
from ddloco.stage.process.signals import end_with_parent, stop_on_signal
from ddloco.stage.process.terminal import one_line, quoted
from ddloco.workers.executor import MODEL_FILE, WorkerRequestError
from ddloco.workers.process import WorkerDiedError
from ddloco.workers.task import TaskError
from replay import TapeError
from replay.tape import SUFFIX
from snapshot import SnapshotError, StorageError


def run_loaded(given: argparse.Namespace, job: Job) -> int:
    if given.with_parent:
        end_with_parent()
    try:
        module = pinned_text(given.job.parent / SOURCE, job.job.task)
        folder = folder_for(job, given.folder, module)
        if given.schedule is not None:
            return _drive(given, job, folder)
        _check_options(given)
        terms = LaunchTerms(
            processes=given.processes,
            snapshot=given.snapshot,
            fresh_learners=given.fresh_learners,
            trust=given.trust,
            overwrite=given.overwrite,
            module=module,
            asked=f"--chaos {given.chaos}" if given.chaos else f"{given.job}: chaos",
            fault=f"{given.chaos}: " if given.chaos else f"{given.job}: chaos.",
        )
        cluster, sinks = open_tracked(job, folder, terms, given.track)
    except (ConfigError, TaskError, SnapshotError, StorageError) as error:
        return complain(error)
    return _run_job(given, cluster, sinks)


def _check_options(given: argparse.Namespace) -> None:
    if given.without or given.since is not None:
        option = "--without" if given.without else "--since"
        raise ConfigError(f"{option}: changes the merges of a recorded run; add --schedule RUN")
    if given.chaos is not None and not given.processes:
        raise ConfigError(f"--chaos {given.chaos}: applies to processes; add --processes")


def _drive(given: argparse.Namespace, job: Job, folder: Path) -> int:
    from ddloco.replayer.scheduled_replay import ScheduledRun, settings_in_words  # noqa: PLC0415, only here

    if given.track:
        raise ConfigError("--track: not with --schedule; use ddloco track RUN afterwards")
    if given.chaos is not None:
        raise ConfigError(f"--chaos {given.chaos}: with --schedule faults are those of the tapes")
    console = SafeConsole()
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("training along the schedule", total=None)
            update = partial(bar.update, task)
            driven = ScheduledRun(
                given.schedule,
                job,
                folder,
                lambda events: update(completed=events),
                without=given.without,
                since=given.since,
                asked=given.overrides,
                overwrite=given.overwrite,
            )
            if driven.overridden:
                said = settings_in_words(driven.overridden)
                console.print(f"the schedule decides: {said}", soft_wrap=True)
            update(total=driven.total)
            trio.run(driven.run)
    except (TapeError, WorkerRequestError) as error:
        return complain(error)
    except WorkerDiedError as error:
        return complain(error, FOUND)
    if driven.result is None:
        return complain(f"{folder}: the job ended without a result", FOUND)
    say_result(folder, job, driven.result, console.print)
    return HELD


def _run_job(given: argparse.Namespace, cluster: JobActors, sinks: list[Sink]) -> int:

    console, program = SafeConsole(), cluster.program
    for who, line in apart({name: program.flags(name) for name in program.followers}):
        console.print(f"{listed(who)}: {line}", soft_wrap=True, highlight=False)
    terminated: list[str] = []

    def terminate(reason: str) -> None:
        terminated.append(reason)
        cluster.request_stop(reason)

    signals = partial(stop_on_signal, cluster.request_stop, terminate)
    try:
        ended = trio.run(run_job, cluster, console, signals, sinks)
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        console.print("ended at once; the tapes hold everything up to here")
        return FOUND
    if ended.outcome.bad_input is not None:
        return complain(with_source(given, ended.outcome.bad_input))
    if terminated and ended.left:
        folder, snapshot = ended.cluster.folder, ended.cluster.program.snapshot
        console.print("all actors have left in good order, before the job's end", soft_wrap=True)
        if snapshot.place or (folder / SNAPSHOTS).is_dir():
            again = quoted(["ddloco", "run", given.job, "--from", folder])
            console.print(f"go on from its newest snapshot with: {again}", soft_wrap=True)
        return AGAIN
    code = _conclude(ended, partial(console.print, soft_wrap=True))
    return AGAIN if terminated and code == HELD else code


def _conclude(ended: JobEnd, say: Callable[[str], None]) -> int:
    if isinstance(ended.cluster, Processes) and ended.cluster.chaos is not None:
        say(ended.cluster.chaos.summary())
    for name, reason in ended.outcome.failures.items():
        say(f"{name} failed: {reason}")
    for name in ended.idle if ended.result is not None else ():
        say(f"{name} has finished no step")
    if ended.result is not None:
        say_result(ended.cluster.folder, ended.cluster.program.job, ended.result, say)
    if ended.problem is not None:
        return complain(ended.problem, FOUND)
    unused = ended.result.get(UNUSED, ()) if ended.result is not None else ()
    return complain(f"of no use to the model: {', '.join(unused)}", FOUND) if unused else HELD


def say_result(folder: Path, job: Job, result: dict[str, Any], say: Callable[[str], None]) -> None:
    """Say what a job came to, and how to go on with it."""
    loss = result["held_out_loss"]
    scored = f"held-out loss {loss:.4f}" if loss is not None else "held-out loss unknown"
    if reason := result.get(NOT_EVALUATED):
        say(f"the model could not be evaluated: {one_line(reason)}")
    if result["status"] == DIVERGED:
        scored = "held-out loss not finite"
    more = metrics_in_words(result.get("metrics") or {})
    say(f"{scored}{more} at global step {result['t']}, {result['merges']:,} merges")
    for learner, said in result.get(DISREGARDED, {}).items():
        say(f"{learner} {said}")
    if failures := result.get(SNAPSHOTS_FAILED):
        say(failures)
    if result["status"] == "stopped":
        say("the job was stopped before its end")
    if result["status"] == "done" and not result["merges"]:
        say(
            "nothing was merged: the job was done before the first fragment was due; set more "
            "job.steps, or a smaller sync.interval"
        )
    numbers = Numbers(interval_steps=result.get("interval_steps"))
    if interval := interval_in_words(numbers, job.sync.interval):
        say(interval)
    say(f"model {folder / MODEL_FILE}")
    if (folder / LOSS_FILE).is_file():
        say(f"losses {folder / LOSS_FILE}")
    if not any((folder / TAPES).glob(f"*{SUFFIX}")):
        return  # Without tapes there is nothing to replay or to ask.
    own = is_ours(folder, load_job(folder / JOB_FILE).as_plain())
    trust = [] if own else ["--trust"]  # The user's key to know their runs by could not be kept.
    say(f"replay it with: {quoted(['ddloco', 'replay', folder, *trust])}")
    say(f"look at it with: {quoted(['ddloco', 'report', folder, *trust])}")
    say(f"see what stands out with: {quoted(['ddloco', 'why', folder, *trust])}")
