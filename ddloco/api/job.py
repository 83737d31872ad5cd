"""Jobs in Python: ``ddloco.Job(task=..., learners=3).run(dir="runs/first")``.

A job's actors run in a thread of their own with its own event loop (trio), so that a job can be
started from scripts, notebooks and asyncio alike. What a run leaves is what ``ddloco run`` leaves.
"""

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent import futures
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import trio
from msgspec import Struct
from rich.console import Console

from clocks import actor_of
from ddloco.api.launch import (
    JobActors,
    JobEnd,
    JobError,
    LaunchTerms,
    folder_for,
    open_tracked,
    run_job,
)
from ddloco.api.model import Model, model_of, tensors_at
from ddloco.api.task_source import named
from ddloco.debugger.api import Run
from ddloco.job.config import Job as JobFile
from ddloco.job.config import job_from, load_job, override
from ddloco.job.job_folder import place_of
from ddloco.monitoring.client import UnansweredError, open_observer
from ddloco.monitoring.live_display import Board
from ddloco.monitoring.metrics import Sink
from ddloco.stage.actors.observations import DISCARDED, TAKEN
from ddloco.stage.files.run_folder import SOURCE
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.subprocesses import Processes
from ddloco.stage.process.console import SafeConsole
from ddloco.stage.process.entry_point import pinned_text
from ddloco.stage.process.errors import first_of
from ddloco.stage.process.log_tail import LogTail
from ddloco.workers.executor import MODEL_FILE
from ddloco.workers.task import TaskError
from snapshot import id_of

LOOK_S = 0.1
"""Between two looks at the log while a snapshot is taken, in seconds."""

WAKE_S = 0.5
"""Between two looks for a Ctrl-C while a caller waits for the end, in seconds."""

SNAPSHOT_S = 60.0
"""How long a snapshot may take unless the caller says otherwise, in seconds."""

ENDED = "the job has ended"


class Result(Struct, frozen=True):
    """How a job ended.

    Attributes:
        status: "done"; or "stopped", if its end was requested before. A job whose final model has a
            held-out loss that is not finite raises ``JobError``.
        steps: the global step that was reached.
        merges: how many merges there were.
        held_out_loss: of the final model; None if the task has no ``evaluate``.
        model: the file of the final global parameters.
        failures: actors that failed while the others went on, and why.
        metrics: further numbers of the evaluation, by name.
    """

    status: str
    steps: int
    merges: int
    held_out_loss: float | None
    model: Path
    failures: dict[str, str] = {}
    metrics: dict[str, float | None] = {}


class LearnerMetrics(Struct, frozen=True):
    """A learner, as its newest log lines tell.

    Attributes:
        state: "starting", "linked", "training", or "gone" with a reason.
        step: its last inner step.
        tokens: tokens that it has trained on.
        loss: the mean of its last twenty losses; None before the first.
        tokens_per_s: tokens per second of its life.
        metrics: further numbers of its last step, by name.
    """

    state: str
    step: int
    tokens: int
    loss: float | None
    tokens_per_s: float
    metrics: dict[str, float | None] = {}


class JobMetrics(Struct, frozen=True):
    """A running job, as the newest log lines tell.

    Attributes:
        step: the global step of the newest merge.
        merges: how many merges there were.
        loss: the mean of the learners' losses; None before the first step.
        goodput: share of the learners' time that was spent in steps; None before the first merge.
        learners: every learner by name.
        waits_for: what the job waits for, if nothing has been merged for long; or empty.
    """

    step: int
    merges: int
    loss: float | None
    goodput: float | None
    learners: dict[str, LearnerMetrics]
    waits_for: str


class FinishedRun(Run):
    """A run that has just ended; all that ``ddloco.open`` tells of it, and its model.

    Attributes:
        path: the run folder.
        result: how it ended.
    """

    def __init__(self, path: Path, result: Result, job: JobFile, task: Any) -> None:
        # Unlike the base class this reads no tape: they may be long, or switched off.
        self.path = path
        self.result = result
        self._salvage = self._trust = False
        self._job = job
        self._task = task

    def __repr__(self) -> str:
        loss = self.result.held_out_loss
        scored = f", held-out loss {loss:.4f}" if loss is not None else ""
        return f"<run {self.path}: {self.result.status} at step {self.result.steps}{scored}>"

    @property
    def params(self) -> Any:
        """The final global parameters, as the pytree that the task's ``init`` returns.

        Raises:
            ConfigError: there is no model, or the task has changed since.
        """
        return self._final.params

    @property
    def state(self) -> Any:
        """The task's state beside the parameters, with the merged averages; None if it has none.

        Raises:
            ConfigError: there is no model, or the task has changed since.
        """
        return self._final.state

    @cached_property
    def _final(self) -> Model:
        job = self._job
        return model_of(tensors_at(self.path), self._task, job.task, job.job.seed, str(self.path))


class Job:
    """A job: what is trained, by how many learners, with which settings.

    Args:
        task: the function that makes the task, or its name as ``module:function``. A function of
            a script or a notebook is written to a module in the run folder.
        learners: how many learners.
        steps: global steps until the job is done.
        settings: any other keys of a job file, such as ``{"sync.quorum": 2, "task.size": "tiny"}``.

    Attributes:
        config: all settings, as in a job file.

    Raises:
        ConfigError: a setting is unknown or invalid, or the task cannot be taken to the workers.
    """

    def __init__(
        self,
        task: Callable[..., Any] | str,
        *,
        learners: int | None = None,
        steps: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        spec, self._module = named(task)
        self._task: Any = task
        plain: dict[str, Any] = {"job": {"task": spec}}
        given = {"job.learners": learners, "job.steps": steps}
        for key, value in {**given, **(settings or {})}.items():
            if not isinstance(key, str):
                raise ConfigError(f"settings: {key!r}: want a key as text, such as 'sync.quorum'")
            if value is not None:
                override(plain, key, value, source=f"settings: {key}")
        self.config: JobFile = job_from(plain, "settings")

    @classmethod
    def read(cls, path: Path | str, *settings: str) -> "Job":
        """Read a job file.

        Args:
            path: the file; that of a run folder starts the same job again.
            settings: keys to override, as for ``ddloco run --set``: ``"sync.quorum=2"``.

        Raises:
            ConfigError: it cannot be read, or a setting is unknown or invalid.
        """
        job = cls.__new__(cls)
        job.config = load_job(Path(path), settings)
        job._task = job.config.job.task
        job._module = pinned_text(Path(path).parent / SOURCE, job.config.job.task)
        return job

    def __repr__(self) -> str:
        job = self.config.job
        return f"<job {job.name}: {job.task}, {job.learners} learners, {job.steps} steps>"

    def run(
        self,
        dir: Path | str | None = None,  # noqa: A002, as --dir of the command
        *,
        processes: bool = False,
        snapshot: str = "",
        trust: bool = False,
        overwrite: bool = False,
        quiet: bool = False,
        track: Sequence[str] = (),
    ) -> FinishedRun:
        """Run the job to its end, and show its progress.

        Ctrl-C ends the job in good order, so that it has a model and can be replayed, and then
        raises KeyboardInterrupt. A second Ctrl-C ends it at once; the tapes can still be replayed.

        Args:
            dir: the run folder; by default ``runs/NAME-NUMBER``.
            processes: whether every actor is a process of its own, over tcp.
            snapshot: a snapshot to continue from, such as ``runs/first/snapshots/latest``.
            trust: whether to continue from a snapshot that another user may have written.
            overwrite: whether a run in this folder is replaced.
            quiet: whether to show nothing.
            track: trackers that get the metrics, as for ``ddloco run --track``, such as
                ``["tensorboard:curves"]``.

        Raises:
            ConfigError: a setting, the snapshot or the folder cannot be used.
            TaskError: the task cannot be used.
            JobError: the job did not end well.
        """
        handle = self.start(
            dir,
            processes=processes,
            snapshot=snapshot,
            trust=trust,
            overwrite=overwrite,
            quiet=quiet,
            track=track,
        )
        try:
            return handle.wait()
        except KeyboardInterrupt:
            handle.end()
            raise

    def start(
        self,
        dir: Path | str | None = None,  # noqa: A002, as --dir of the command
        *,
        processes: bool = False,
        snapshot: str = "",
        trust: bool = False,
        overwrite: bool = False,
        quiet: bool = True,
        track: Sequence[str] = (),
    ) -> "Handle":
        """Start the job, and return at once; the arguments are those of ``run``.

        Raises:
            ConfigError, TaskError, SnapshotError: the job cannot be started; what its actors find
                later is raised by the handle.
        """
        for name, value in {
            "processes": processes,
            "trust": trust,
            "overwrite": overwrite,
            "quiet": quiet,
        }.items():
            if not isinstance(value, bool):
                raise ConfigError(f"{name}={value!r}: want True or False")
        if isinstance(track, str):
            raise ConfigError(f"track={track!r}: want a list, such as [{track!r}]")
        folder = folder_for(self.config, Path(dir) if dir is not None else None, self._module)
        terms = LaunchTerms(processes, snapshot, overwrite, self._module, trust)
        cluster, sinks = open_tracked(self.config, folder, terms, track)
        return Handle(cluster, self._task, _console(quiet=quiet), sinks)


class Handle:
    """A job that runs in the background; ``await handle`` waits for it under asyncio.

    Attributes:
        path: the run folder.
    """

    def __init__(self, cluster: JobActors, task: Any, console: Console, sinks: list[Sink]) -> None:
        self.path = cluster.folder
        self._sinks = sinks
        self._cluster = cluster
        self._task = task
        self._console = console
        self._board = Board(cluster.program.job)
        self._tail = LogTail(cluster.folder)
        self._reading = threading.Lock()
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None
        self._begun = threading.Event()
        self._future: futures.Future[FinishedRun] = futures.Future()
        threading.Thread(target=self._work, name=f"ddloco {self.path}").start()
        self._begun.wait()

    def __repr__(self) -> str:
        return f"<job in {self.path}: {'ended' if self.done else 'running'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Wait for the end of the job; after an exception, end it in good order first."""
        if error is not None:
            self.end("the program has failed")
        else:
            self.wait()

    def __await__(self) -> Generator[Any, None, FinishedRun]:
        """Wait for the end of the job under asyncio; see ``wait``."""
        return asyncio.wrap_future(self._future).__await__()

    @property
    def done(self) -> bool:
        """Whether the job has ended."""
        return self._future.done()

    @property
    def metrics(self) -> JobMetrics:
        """The newest numbers of the job, from its log."""
        with self._reading:
            for line in self._tail.new_lines():
                self._board.take(line)
            board = self._board
            views = {
                name: LearnerMetrics(v.state, v.step, v.tokens, v.loss, v.tokens_per_s, v.metrics)
                for name, v in board.learners.items()
            }
            losses = [view.loss for view in views.values() if view.loss is not None]
            loss = sum(losses) / len(losses) if losses else None
            return JobMetrics(board.t, board.merges, loss, board.goodput, views, board.standstill)

    def wait(self, timeout: float | None = None) -> FinishedRun:
        """Wait for the end of the job.

        Args:
            timeout: how long, in seconds; without one, as long as it takes.

        Raises:
            TimeoutError: the job still runs; it is not stopped.
            ConfigError: the timeout is no number of seconds.
            TaskError: the task cannot be used.
            JobError: the job did not end well.
        """
        if timeout is not None:
            _check_timeout(timeout)
        self._wait_for_end(math.inf if timeout is None else timeout)
        return self._future.result(0)

    def stop(self, reason: str = "asked to stop by Handle.stop") -> None:
        """Ask the job to end in good order: the model is scored and saved. Returns at once."""
        self._soon(partial(self._cluster.request_stop, reason))

    def end(self, reason: str = "asked to stop by Ctrl-C") -> None:
        """End the job in good order and wait for it; a Ctrl-C meanwhile ends it at once.

        How it ended is not raised; ``wait`` tells.
        """
        self.stop(reason)
        try:
            self._wait_for_end()
        except KeyboardInterrupt:
            self._soon(self._scope.cancel)
            self._wait_for_end()
            raise

    def _wait_for_end(self, timeout: float = math.inf) -> None:
        """Wait until the job has ended, and wake up every ``WAKE_S`` seconds: the system may
        deliver the signal of a Ctrl-C to any thread, but Python raises KeyboardInterrupt in the
        main thread, and only when that runs."""
        while not self.done and timeout > 0.0:
            futures.wait([self._future], min(timeout, WAKE_S))
            timeout -= WAKE_S

    def snapshot(self, timeout: float = SNAPSHOT_S) -> str:
        """Take a snapshot of the job, which continues meanwhile; returns its path.

        The path is for ``ddloco.load``, and for ``Job.run(snapshot=...)``.

        Raises:
            JobError: it was discarded, or not complete in ``timeout`` seconds; or the job has
                ended.
            ConfigError: the timeout is no number of seconds.
        """
        _check_timeout(timeout)
        assert self._token is not None, "begun"
        try:
            taken = trio.from_thread.run(self._snapshot, timeout, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise JobError(f"{self.path}: no snapshot: {ENDED}", self.path) from None
        except (UnansweredError, BaseExceptionGroup) as error:
            said = f"{self.path}: no snapshot: {first_of(error)}"
            raise JobError(said, self.path) from None
        return f"{place_of(self._cluster.program.job, self.path)}/{id_of(taken)}"

    async def _snapshot(self, timeout_s: float) -> str:
        cluster, tail, said = self._cluster, LogTail(self.path), dict[str, Any]()
        with trio.move_on_after(timeout_s):
            # Before the first step there are no parameters that a snapshot could hold.
            await self._logged(tail, "step", "result")
            if isinstance(cluster, Processes):
                keys = cluster.program.job.transport.keys
                keyed = Path(keys) if keys else None
                asking = open_observer(cluster.address, timeout_s, keyed, owner=True)
                async with asking as observer:
                    news = await observer.snapshot()
                said = {"event": news.event, **news.fields}
            else:
                cluster.request_snapshot()
                said = await self._logged(tail, TAKEN, DISCARDED, "result")
        if said.get("event") != TAKEN:
            late = f"it was not complete in {timeout_s:g} s"
            reason = said.get("reason", ENDED if said else late)
            raise JobError(f"{self.path}: no snapshot: {reason}", self.path)
        return said["snapshot"]

    async def _logged(self, tail: LogTail, *events: str) -> dict[str, Any]:
        while True:
            for line in tail.new_lines(until=events):
                if line["event"] in events:
                    return line
            await trio.sleep(LOOK_S)

    def _soon(self, what: Callable[[], object]) -> None:
        assert self._token is not None, "begun"
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(what)

    def _work(self) -> None:
        try:
            self._future.set_result(self._finished(trio.run(self._main)))
        except BaseException as error:  # noqa: BLE001, raised in the caller that waits
            self._future.set_exception(first_of(error))
        finally:
            self._begun.set()

    async def _main(self) -> JobEnd | None:
        self._token = trio.lowlevel.current_trio_token()
        self._begun.set()
        with self._scope:
            return await run_job(self._cluster, self._console, None, self._sinks)
        return None

    def _finished(self, ended: JobEnd | None) -> FinishedRun:
        if ended is None:
            raise JobError(f"{self.path}: the job was ended at once", self.path)
        if ended.outcome.bad_input is not None:
            raise TaskError(ended.outcome.bad_input)
        said = ended.result
        if said is None or ended.problem is not None:
            raise JobError(str(ended.problem), self.path)
        failures = {actor_of(name): why for name, why in ended.outcome.failures.items()}
        result = Result(
            said["status"],
            said["t"],
            said["merges"],
            said["held_out_loss"],
            self.path / MODEL_FILE,
            failures,
            said.get("metrics") or {},
        )
        return FinishedRun(self.path, result, self._cluster.program.job, self._task)


def _check_timeout(timeout: Any) -> None:
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not number or math.isnan(timeout) or timeout < 0:
        raise ConfigError(f"timeout={timeout!r}: want seconds, 0 or more")


def _console(*, quiet: bool) -> Console:
    return SafeConsole(quiet=True, force_terminal=False) if quiet else SafeConsole()
