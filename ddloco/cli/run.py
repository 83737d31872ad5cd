"""What each command does, and the exit codes that it ends with."""

import argparse
import math
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import trio
from rich.console import Console
from rich.progress import Progress

from ddloco.actors.effects import Finish
from ddloco.api.launch import Ended, LaunchTerms, folder_for, open_tracked, pinned_text, run_job
from ddloco.cli.ask import complain, look, timeout_of
from ddloco.cli.completion import completion
from ddloco.cli.debug import bundle, diff, report, status_at, why
from ddloco.cli.doctor import doctor
from ddloco.cli.examples import EXAMPLES, put_template
from ddloco.cli.perform import perform
from ddloco.cli.replay import replay
from ddloco.cli.snapshot import snapshot_export, snapshot_list, snapshot_take, snapshot_verify
from ddloco.cli.tape_show import Wanted
from ddloco.cli.tape_show import show as show_tapes
from ddloco.cli.tape_verify import verify_folder
from ddloco.cli.track import track
from ddloco.config.job import Job, load_job
from ddloco.config.run_folder import LOSS_FILE, TAPES, check_place, holds_job, open_folder
from ddloco.config.toml import ConfigError
from ddloco.debugger.exports import FORMATS
from ddloco.monitoring.metrics import Lines, Metrics, Prometheus, Sink, TensorBoard, in_words
from ddloco.monitoring.trackers import tracker
from ddloco.monitoring.watch import follow, say, show_status, stop_job
from ddloco.network.keys import handed_out, make_keys, names_for, with_keys
from ddloco.nodes.exit_codes import AGAIN, FOUND, HELD
from ddloco.nodes.serve import Terms, serve_learner, serve_syncer
from ddloco.nodes.single_process import Cluster
from ddloco.nodes.subprocesses import Processes
from ddloco.replayer.scheduled_replay import ScheduledRun
from ddloco.runtime.malloc import keep_freed_memory
from ddloco.runtime.signals import stop_on_signal
from ddloco.simulation.bandwidth.table import bandwidth
from ddloco.simulation.report import hostile_worlds, scenario_table
from ddloco.workers.executor import MODEL_FILE, WorkerRequestError
from ddloco.workers.lone_baseline import run_baseline
from ddloco.workers.process import WorkerDiedError
from ddloco.workers.task import TaskError, check_task_name, task_digest
from replay import TapeError, open_tapes
from replay.tape import SUFFIX
from snapshot import SnapshotError, StorageError

PORT_MAX = 65535

ELSEWHERE = (
    *(bundle, completion, diff, doctor, perform, replay, report, why),
    *(snapshot_export, snapshot_list, snapshot_take, snapshot_verify),
    track,
)
"""Commands defined in other modules; the parser finds all commands here by name."""


def show_version(_: argparse.Namespace) -> int:
    """Print the version."""
    print(f"ddloco {version('ddloco')}")
    return HELD


def init(given: argparse.Namespace) -> int:
    """``ddloco init``: write a project, or the examples, that the user can change and run."""
    try:
        made, left = put_template(given.folder, given.template)
    except ConfigError as error:
        return complain(error)
    if given.template == EXAMPLES:
        where = given.folder / EXAMPLES
        print(f"{where}: {len(made)} files copied, {len(left)} existed and were not changed")
        return HELD
    for path in made:
        print(f"wrote {path}")
    for path in left:
        print(f"{path} exists and was not changed")
    there = given.folder != Path()
    print("run it with: " + (f"cd {given.folder} && " if there else "") + "ddloco run job.toml")
    return HELD


def _job(given: argparse.Namespace) -> Job:

    return load_job(given.job, given.overrides)


def run(given: argparse.Namespace) -> int:
    """``ddloco run``: run a whole job on this machine."""
    try:
        job = load_job(given.job, given.overrides, given.chaos)
        module = pinned_text(job, given.job.parent)
        folder = folder_for(job, given.folder, module)
        if given.schedule is not None:
            return _drive(given, job, folder)
        _check_options(given, job)
        terms = LaunchTerms(
            processes=given.processes,
            snapshot=given.snapshot,
            overwrite=given.overwrite,
            module=module,
            asked=f"--chaos {given.chaos}" if given.chaos else f"{given.job}: chaos",
            fault=f"{given.chaos}: " if given.chaos else f"{given.job}: chaos.",
        )
        cluster, sinks = open_tracked(job, folder, terms, given.track)
    except (ConfigError, TaskError, SnapshotError, StorageError) as error:
        return complain(error)
    if job.job.method == "lone":
        return _run_baseline(job, folder)
    return _run_job(cluster, sinks)


def _check_options(given: argparse.Namespace, job: Job) -> None:
    if given.without or given.since is not None:
        option = "--without" if given.without else "--since"
        raise ConfigError(f"{option}: changes the merges of a recorded run; add --schedule RUN")
    if given.chaos is not None and not given.processes:
        raise ConfigError(f"--chaos {given.chaos}: applies to processes; add --processes")
    if given.track and job.job.method == "lone":
        raise ConfigError("--track: a lone learner has no merges to be tracked by")


def _drive(given: argparse.Namespace, job: Job, folder: Path) -> int:
    """Train along the tapes of a simulation."""
    if given.track:
        raise ConfigError("--track: not with --schedule; use ddloco track RUN afterwards")
    if given.chaos is not None:
        raise ConfigError(f"--chaos {given.chaos}: with --schedule faults are those of the tapes")
    console = Console()
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
            )
            update(total=driven.total)
            trio.run(driven.run)
    except (TapeError, WorkerRequestError) as error:
        return complain(error)
    except WorkerDiedError as error:
        return complain(error, FOUND)
    return _conclude_with(folder, driven.result, console.print)


def _run_job(cluster: Cluster | Processes, sinks: list[Sink]) -> int:

    console = Console()
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
    code = _conclude(ended, partial(console.print, soft_wrap=True))
    return AGAIN if terminated and code == HELD else code


def _conclude(ended: Ended, say: Callable[[str], None]) -> int:

    if ended.outcome.bad_input is not None:
        return complain(ended.outcome.bad_input)
    if isinstance(ended.cluster, Processes) and ended.cluster.chaos is not None:
        say(ended.cluster.chaos.summary())
    for name, reason in ended.outcome.failures.items():
        say(f"{name} failed: {reason}")
    if ended.result is not None:
        _conclude_with(ended.cluster.folder, ended.result, say)
    return complain(ended.problem, FOUND) if ended.problem is not None else HELD


def _conclude_with(folder: Path, result: dict[str, Any] | None, say: Callable[[str], None]) -> int:
    if result is None:
        return complain(f"{folder}: the job ended without a result", FOUND)
    loss = result["held_out_loss"]
    scored = f"held-out loss {loss:.4f}" if loss is not None else "held-out loss unknown"
    more = in_words(result.get("metrics") or {})
    say(f"{scored}{more} at global step {result['t']}, {result['merges']} merges")
    say(f"model {folder / MODEL_FILE}")
    if (folder / LOSS_FILE).is_file():
        say(f"losses {folder / LOSS_FILE}")
    if not any((folder / TAPES).glob(f"*{SUFFIX}")):
        return HELD  # Without tapes there is nothing to replay or to ask.
    say(f"replay it with: ddloco replay {folder}")
    say(f"look at it with: ddloco report {folder}")
    if result["merges"]:
        say(f"ask about a merge with: ddloco why {folder} merge {result['t']}")
    return HELD


def _run_baseline(job: Job, folder: Path) -> int:

    console = Console()
    try:
        loss = trio.run(run_baseline, job, folder, console)
    except WorkerRequestError as error:
        return complain(error)
    except WorkerDiedError as error:
        return complain(error, FOUND)
    scored = f"{loss:.4f}" if loss is not None else "unknown"
    console.print(f"{job.job.method}: held-out loss {scored} after {job.job.steps} steps")
    return HELD


def _serve(given: argparse.Namespace, serve: Callable[[Job], Any]) -> int:
    keep_freed_memory()  # Before any thread starts, in particular libzmq's.
    try:
        job = with_keys(_job(given), given.keys)
        task_digest(job.job.task, given.folder)
        check_task_name(job.job.task)
        check_place(job)
        again = holds_job(given.folder, job)  # The same command was given before.
        open_folder(given.folder, job, join=given.join or again)
        finish: Finish = trio.run(serve, job)
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        return complain("ended at once; the tape holds everything up to here", FOUND)
    except (ConfigError, TaskError, SnapshotError, StorageError) as error:
        return complain(error)
    if finish.status == "bad-input":
        return complain(finish.reason)
    if finish.status == "failed":
        return complain(finish.reason, FOUND)
    print(f"{finish.status}: {finish.reason}")
    if given.run == "syncer" and (given.folder / LOSS_FILE).is_file():
        print(f"losses {given.folder / LOSS_FILE}")
    return AGAIN if finish.status == "left" else HELD


def _patience(given: argparse.Namespace) -> float:
    """How long an actor waits for others, in seconds.

    Raises:
        ConfigError: the value is invalid.
    """
    if not 0 <= given.patience < math.inf:
        raise ConfigError(f"--patience {given.patience}: want seconds, or 0 for ever")
    return given.patience or math.inf


def syncer(given: argparse.Namespace) -> int:
    """``ddloco syncer``: run a syncer or a shard."""

    async def serve(job: Job) -> Finish:
        shard = given.name, given.connect
        terms = Terms(
            with_parent=given.with_parent,
            snapshot=given.snapshot,
            patience_s=_patience(given),
            advertise=given.advertise,
        )
        return await serve_syncer(job, given.folder, given.bind, shard, terms)

    return _serve(given, serve)


def learner(given: argparse.Namespace) -> int:
    """``ddloco learner``: run one learner."""

    async def serve(job: Job) -> Finish:
        folder, connect, name = given.folder, given.connect, given.name
        terms = Terms(
            with_parent=given.with_parent,
            snapshot=given.snapshot,
            patience_s=_patience(given),
            alone=given.alone,
        )
        return await serve_learner(job, folder, connect, name, terms)

    return _serve(given, serve)


def stop(given: argparse.Namespace) -> int:
    """``ddloco stop``: end a job for all actors."""

    async def ask() -> None:
        await stop_job(
            given.address, timeout_s=timeout_of(given), keys=given.keys, as_json=given.json
        )

    return look(ask)


def keys(given: argparse.Namespace) -> int:
    """``ddloco keys``: make the key pairs of a job's actors."""
    try:
        learners = given.learners if given.job is None else load_job(given.job).job.learners
        names = names_for(learners, given.names)
        made = make_keys(given.folder, names)
    except ConfigError as error:
        return complain(error)
    for line in handed_out(given.folder, names):
        print(line)
    print(f"{len(made)} keys made; {len(names) - len(made)} existed and were not changed")
    return HELD


def status(given: argparse.Namespace) -> int:
    """``ddloco status``: show running syncers, or a recorded job at one of its events."""
    if given.at:
        if len(given.addresses) != 1:
            return complain(f"--at {given.at}: want one run folder, not {len(given.addresses)}")
        return status_at(given)

    async def ask() -> None:
        await show_status(
            given.addresses,
            timeout_s=timeout_of(given),
            keys=given.keys,
            as_json=given.json,
            watch=given.watch,
        )

    return look(ask)


def observe(given: argparse.Namespace) -> int:
    """``ddloco observe``: follow a running job."""

    async def watch() -> None:
        scored = given.evaluate
        if given.best is not None and scored is None:
            raise ConfigError(f"--best {given.best}: nothing is evaluated; add --evaluate JOB.toml")
        with closing(Metrics(_sinks(given))) as metrics:
            wanted = given.prometheus is not None or given.tensorboard is not None or given.track
            prints = given.json or not wanted
            await follow(
                given.address,
                timeout_s=timeout_of(given),
                keys=given.keys,
                metrics=metrics,
                lines=Lines(say, as_json=given.json) if prints else None,
                evaluate=(load_job(scored), scored, given.best) if scored is not None else None,
            )

    return look(watch)


def _sinks(given: argparse.Namespace) -> list[Sink]:
    sinks: list[Sink] = []
    if given.tensorboard is not None:
        sinks.append(TensorBoard(given.tensorboard))
    if given.prometheus is not None:
        if not 0 <= given.prometheus <= PORT_MAX:
            raise ConfigError(f"--prometheus {given.prometheus}: want a port, 0 to {PORT_MAX}")
        served = Prometheus(given.prometheus)
        print(f"metrics at http://127.0.0.1:{served.port}/metrics", file=sys.stderr)
        sinks.append(served)
    return [*sinks, *(tracker(said, f"job at {given.address}", {}) for said in given.track)]


def simulate(given: argparse.Namespace) -> int:
    """``ddloco simulate``: run machines in virtual time."""
    try:
        if given.scenario == "bandwidth":
            return bandwidth(given)
        if given.scenario == "hostile":
            return hostile_worlds(given)
        return scenario_table(given)
    except (TapeError, ConfigError, SnapshotError, StorageError) as error:
        return complain(error)


def tape_show(given: argparse.Namespace) -> int:
    """``ddloco tape show``: print one line per event."""
    try:
        wanted = Wanted(given.actor, given.type, given.merge, given.around)
        shown = show_tapes(
            given.folder, wanted, as_json=given.json, full=given.full, salvage=given.salvage
        )
        for line in shown:
            print(line)
    except (TapeError, ConfigError) as error:
        return complain(error)
    return HELD


def tape_export(given: argparse.Namespace) -> int:
    """``ddloco tape export``: a run in the format of another tool."""
    try:
        lines = FORMATS[given.format](open_tapes(given.folder, salvage=given.salvage))
        if given.to is None:
            for line in lines:
                print(line)
            return HELD
        with given.to.open("x") as file:
            file.writelines(f"{line}\n" for line in lines)
    except TapeError as error:
        return complain(error)
    except OSError as error:
        return complain(f"--to {given.to}: {error.strerror}")
    return HELD


def tape_verify(given: argparse.Namespace) -> int:
    """``ddloco tape verify``: check records, clocks and invariants."""
    try:
        held, lines = verify_folder(given.folder, salvage=given.salvage, as_json=given.json)
    except (TapeError, ConfigError) as error:
        return complain(error)
    for line in lines:
        print(line)
    return HELD if held else FOUND
