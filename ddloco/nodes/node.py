"""Hosts one actor: opens everything that it needs, in order, and closes it in reverse.

This is the same for an actor that shares its process with others and for one that has its own. The
worker process is started first and describes the task; its fingerprint is written to the tape's
header; then the actor starts.
"""

import errno
import math
import platform
import traceback
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import trio

from clocks import MonotonicTime, actor_of
from ddloco.actors.actor import Actor
from ddloco.actors.effects import Finish, Work
from ddloco.actors.events import Restored, WorkResult
from ddloco.config.job import DATA_PARALLEL, Job
from ddloco.config.run_folder import (
    KEPT,
    LOG_FILE,
    TAPES,
    TRACEBACKS,
    place_of,
    run_of,
    run_of_place,
)
from ddloco.machines.registry import machine_for
from ddloco.nodes.resume import OWN_STATE, JobBeginning, JobStart
from ddloco.protocol.effects import RunStep
from ddloco.protocol.events import OwnState, Started
from ddloco.protocol.messages import Said
from ddloco.protocol.tape_facts import SEMANTICS, TASK
from ddloco.protocol.validation import admission
from ddloco.runtime.array_table import Arrays
from ddloco.runtime.driver import Arrived, Driver
from ddloco.runtime.driver import Worker as Doer
from ddloco.runtime.entry_point import pinned_file
from ddloco.runtime.errors import first_of, said_of
from ddloco.runtime.log import ActorLog
from ddloco.runtime.resume import RESTORED, RESTORED_PLACE
from ddloco.runtime.shared_memory import Arena
from ddloco.runtime.snapshot_sink import StoreSink
from ddloco.tapes.code_version import code_version
from ddloco.tapes.retention import TapeRetention
from ddloco.tapes.segments import ChainRecorder
from ddloco.tapes.side_channel import SideChannel
from ddloco.workers import rpc
from ddloco.workers.executor import Workers
from ddloco.workers.fragment_store import FragmentFolder
from ddloco.workers.process import WorkerDiedError, WorkerRequestError, open_worker
from ddloco.workers.task import TaskError, task_digest
from ddloco.workers.task_sources import SOURCE, keep_sources
from replay import Header, Recorder, TapeError, TapeWriter, bytes_of
from snapshot import BEGAN_FROM, RUN, Store
from transport import Endpoint, Event

LEAVE_FINISH_S = 1.5
"""How long, in seconds, the rest of a tape may take to be shipped when the process must end soon;
its successor in the same folder ships what is missing."""

EARLY_NOTES_MAX = 64
"""How many log lines are kept while an actor is being prepared, which takes a few seconds."""

RESOURCES = frozenset({
    *(errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
    *(errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.ENOENT),
})  # fmt: skip
"""Errors because the machine lacks or forbids something: reported in the system's words, since
they are not bugs."""


class Beside(Protocol):
    """A task beside an actor, below its driver; an error in it does not affect the actor."""

    async def run(self) -> None:
        """Run while the actor runs."""
        ...

    async def finish(self, within_s: float) -> None:
        """Finish after the actor has ended, within a limit of its own and ``within_s`` seconds."""
        ...


@dataclass
class Hosted:
    """An actor on this host, with the means to control it from outside."""

    job: Job
    incarnation: str
    folder: Path
    endpoint: Endpoint
    beside: "Beside | None" = None
    driver: Driver | None = None
    stop_reason: str | None = None
    leave_reason: str | None = None
    finish: Finish | None = None
    beginning: JobBeginning | None = None
    """The snapshot that the actor continues from, if any."""
    own: JobBeginning | None = None
    """The snapshot from which a returning learner takes its own state, if any."""

    early_notes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    traceback: Path | None = None
    """The file with the last traceback of user code."""
    opening: trio.CancelScope = field(default_factory=trio.CancelScope)
    """The scope of the preparation before the actor starts; cancelling it loses nothing."""

    def request_leave(self, reason: str) -> None:
        """Ask the actor to leave: its process must end, and will be started again."""
        if self.driver is not None:
            self.driver.request_leave(reason)
        else:
            self.leave_reason = self.leave_reason or reason
            self.opening.cancel()

    def request_stop(self, reason: str) -> None:
        """Ask the actor to end in good order, also before it has started."""
        self.stop_reason = self.stop_reason or reason
        if self.driver is not None:
            self.driver.request_stop(reason)

    async def run(self) -> Finish:
        """Open everything, run the actor to its end, and close; returns how it finished."""
        try:
            self.finish = await self._run()
        except Exception as error:  # noqa: BLE001, whatever ends one actor ends one actor
            self.finish = self._failure(first_of(error))
        if self.finish.status in ("bad-input", "failed"):
            self.finish = Finish(self.finish.status, self._with_advice(self.finish.reason))
        return self.finish

    def _with_advice(self, reason: str) -> str:
        """A reason with advice for users; tapes have it without."""
        if reason.startswith("StopIteration"):
            reason += "; batches must be endless: begin again where the data ends"
        return f"{reason}; traceback in {self.traceback}" if self.traceback else reason

    def _failure(self, error: BaseException) -> Finish:
        if isinstance(error, WorkerRequestError) and error.failed.kind == "task":
            return Finish("bad-input", str(error))
        if isinstance(error, TaskError):
            return Finish("bad-input", str(error))
        if isinstance(error, WorkerRequestError | WorkerDiedError | TapeError):
            return Finish("failed", str(error))
        if isinstance(error, OSError) and error.errno in RESOURCES:
            return Finish("failed", said_of(error))
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        said = f"{type(error).__name__}: {error} ({where})"
        return Finish("failed", f"this is a bug; please report it with the tape: {said}")

    async def _run(self) -> Finish:
        name = actor_of(self.incarnation)
        with closing(Arena()) as arena, closing(self._open_log()) as log:
            pinned = pinned_file(self.folder / SOURCE, self.job.job.task)
            worker = self.job.worker_of(name)
            async with open_worker(self.incarnation, arena, worker, pinned=pinned) as process:
                arrays = Arrays(arena)
                process.show_trace = partial(self._show_trace, process.show_trace, log)
                keep = await trio.to_thread.run_sync(self._open_keep, name)
                sink = self._open_sink()
                workers = Workers(
                    self.job,
                    self.incarnation,
                    arrays,
                    process,
                    folder=self.folder,
                    keep=keep,
                    sink=sink,
                    note=self.note,
                )
                prepared = None
                with self.opening:
                    prepared = await self._attending(workers.prepare)
                if prepared is None:
                    return Finish("left", self.leave_reason or "")
                await trio.to_thread.run_sync(keep_sources, self.folder, prepared.sources)
                first, behind = await self._begin(workers, arrays, prepared, keep)
                self.driver = self._open_driver(workers, arrays, prepared, log)
                for event, fields in self.early_notes:
                    self.note(event, fields)
                if self.stop_reason is not None:
                    self.driver.request_stop(self.stop_reason)
                if self.leave_reason is not None:  # It came while the actor was made.
                    self.driver.request_leave(self.leave_reason)
                finish = await self._drive(partial(self.driver.run, first, behind))
                if finish.status == "done" and name == self.job.syncer_names()[0]:
                    with suppress(OSError):  # The job is done all the same.
                        keep.note_done()
                return finish

    def _open_keep(self, name: str) -> FragmentFolder:
        """Where a syncer keeps its merges; learners keep nothing."""
        folder, syncs = self.folder, name in self.job.syncer_names()
        run = run_of(folder, make=True) if syncs else ""
        return FragmentFolder(folder / KEPT / name, self.job.id, run)

    def _open_sink(self) -> StoreSink:
        """Where this actor writes its parts of snapshots; only the lead's sink knows the run, since
        the lead commits them."""
        job, begun = self.job, self.beginning
        place = place_of(job, self.folder)
        if actor_of(self.incarnation) != job.syncer_names()[0] or job.job.method in DATA_PARALLEL:
            return sink_of(job, place)
        where = str(place) if "://" in str(place) else str(Path(place).absolute())
        same = begun is not None and begun.place == where

        def warn(said: str) -> None:
            trio.from_thread.run_sync(self.note, "snapshots damaged", {"reason": said})

        from_ = begun.snapshot if begun is not None and same else ""
        return sink_of(job, place, run_of_place(job, self.folder, make=True), from_, warn)

    async def _attending(self, make_ready: Callable[[], Awaitable[rpc.Prepared]]) -> Any:
        """Prepare the actor, and serve the lanes below its driver meanwhile."""
        if not isinstance(self.endpoint, SideChannel):
            return await make_ready()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.endpoint.run_early)
            prepared = await make_ready()
            nursery.cancel_scope.cancel()
        return prepared

    async def _begin(
        self, workers: Workers, arrays: Arrays, prepared: rpc.Prepared, keep: FragmentFolder
    ) -> tuple[Event, list[Arrived | Event]]:
        """The first event of an actor that is new or continues, and those that follow at once."""
        start, beginning = self._start, self.beginning
        if start is None or beginning is None:
            own = self._own_state(workers, arrays)
            return Started(self.incarnation, prepared.leaves, own, tells=True, copies=True), []
        await start.take_up(workers, arrays)
        start.adopt(self.job, workers.plan)
        await trio.to_thread.run_sync(start.keep, arrays, keep)
        missing = beginning.missing(start, self.job.names())
        restored = Restored(beginning.snapshot, missing, keep.run)
        return restored, [*start.results(), *start.arrivals(self.job.id)]

    def _own_state(self, workers: Workers, arrays: Arrays) -> OwnState | None:
        if self.own is None:
            return None
        [start] = self.own.starts.values()
        return start.bring(workers, arrays, self.own.snapshot)

    @property
    def _start(self) -> JobStart | None:
        return self.beginning.starts.get(self.incarnation) if self.beginning is not None else None

    async def _drive(self, run: Callable[[], Awaitable[Finish]]) -> Finish:
        """Run the actor, and the task beside it until that has finished."""
        beside = self.beside or self._dropper()
        if beside is None:
            return await run()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._aside, beside.run)
            finish = await run()
            nursery.cancel_scope.cancel()
        within_s = LEAVE_FINISH_S if finish.status == "left" else math.inf
        await self._aside(partial(beside.finish, within_s))
        return finish

    def _dropper(self) -> "Beside | None":
        """What bounds the tape, if the job has ``tape.bound``; such a tape is not shipped."""
        job, tapes = self.job, self.folder / TAPES
        if not job.tape.bound or job.tape.level == "off":
            return None
        place = place_of(job, self.folder)
        return TapeRetention(tapes, self.incarnation, job, place, self.note)

    async def _aside(self, what: Callable[[], Awaitable[None]]) -> None:
        try:
            await what()
        except Exception as error:  # noqa: BLE001, the actor goes on without it
            said = f"this is a bug: {type(error).__name__}: {first_of(error)}"
            self.note("aside failed", {"reason": said})

    def note(self, event: str, fields: dict[str, Any]) -> None:
        """Log something that is not on the tape; before the driver exists, keep it until then."""
        if self.driver is not None:
            self.driver.note(event, fields)
        elif len(self.early_notes) < EARLY_NOTES_MAX:
            self.early_notes.append((event, fields))

    def _show_trace(
        self, show: Callable[[rpc.Failed], None], log: ActorLog, failed: rpc.Failed
    ) -> None:
        """Report an exception of user code on the screen, in the log and in a file."""
        show(failed)
        log.observe("task raised", 0.0, 0, {"traceback": failed.trace})
        path = self.folder / TRACEBACKS / f"{self.incarnation}.txt"
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            path.write_text(failed.full)
            self.traceback = path

    def _open_log(self) -> ActorLog:
        return ActorLog(self.folder / LOG_FILE, self.incarnation, MonotonicTime().began)

    def _open_driver(
        self, workers: Workers, arrays: Arrays, prepared: rpc.Prepared, log: ActorLog
    ) -> Driver:
        name, start = actor_of(self.incarnation), self._start
        fresh = Actor(self.incarnation, machine_for(self.job, self.incarnation))
        actor = start.actor if start is not None else fresh
        return Driver(
            actor,
            said=Said,
            job_id=self.job.id,
            actors=self.job.names(),
            endpoint=self.endpoint,
            worker=slowed(workers, self.job.learner_table(name).factor),
            arrays=arrays,
            recorder=recorder_for(
                self.job,
                self.incarnation,
                self.folder,
                prepared,
                {OWN_STATE: f"{self.own.place}/{self.own.snapshot}"} if self.own else None,
                beginning=self.beginning,
                clock=actor.clock.wire,
            ),
            time=MonotonicTime(start.actor.at if start is not None else 0.0),
            log=log,
            admits=admission(
                workers.plan,
                workers.state.nbytes,
                self.job.compress.up,
                self.job.compress.down,
            ),
            # Fragments arrive where the worker process can see them, without another copy, and
            # in memory that is used again, without a page fault.
            allocate=arrays.allocate,
            facts=self._facts,
        )

    def _facts(self) -> dict[str, Any]:
        """What only the host knows of a running actor."""
        size = bytes_of(self.folder / TAPES, self.incarnation)
        job: dict[str, Any] = {"name": self.job.job.name, "steps": self.job.job.steps}
        if self.job.job.tokens is not None:
            job["tokens"] = self.job.job.tokens
        job["lead"] = self.job.syncer_names()[0]
        return {**job, "quorum": self.job.sync.quorum, "tape_bytes": size}


def recorder_for(
    job: Job,
    incarnation: str,
    folder: Path,
    prepared: rpc.Prepared,
    facts: dict[str, str] | None = None,
    *,
    beginning: JobBeginning | None = None,
    clock: Callable[[], dict[str, int]] | None = None,
) -> Recorder:
    """The pen at the door of an actor with a worker, as the job wants it; one that begins a file at
    each cut only where the ``clock`` is told.

    Raises:
        TapeError: the tape exists already, or cannot be written.
    """
    if job.tape.level == "off":
        return Recorder(None)
    start = beginning.starts.get(incarnation) if beginning is not None else None
    if start is not None and beginning is not None:
        facts = {**(facts or {}), RESTORED: beginning.snapshot, RESTORED_PLACE: beginning.place}
    header = Header(
        incarnation=incarnation,
        job_id=job.id,
        job=job.as_plain(),
        code=code_version(),
        fingerprint=prepared.fingerprint,
        semantics=SEMANTICS,
        facts={
            "python": platform.python_version(),
            "numpy": np.__version__,
            "platform": platform.platform(),
            TASK: task_digest(job.job.task, folder),
            **(facts or {}),
        },
        after=start.part.number if start is not None else 0,
        clock=dict(start.part.clock) if start is not None else {},
    )
    writer = TapeWriter(folder / TAPES / f"{incarnation}.tape", header)
    if job.tape.bound and clock is not None:
        return ChainRecorder(writer, job.tape.on_error, clock)
    return Recorder(writer, job.tape.on_error)


def slowed(workers: Workers, factor: float) -> Doer:
    """The same work, its steps ``factor`` times slower; what comes out is the same."""
    return workers if factor == 1.0 else _Slowed(workers, factor)


@dataclass(frozen=True)
class _Slowed:
    workers: Workers
    factor: float

    async def do(self, work: Work) -> WorkResult:
        begun = trio.current_time()
        result = await self.workers.do(work)
        if isinstance(work, RunStep):
            await trio.sleep((self.factor - 1.0) * (trio.current_time() - begun))
        return result


def sink_of(
    job: Job,
    place: str | Path,
    run: str = "",
    began_from: str = "",
    warn: Callable[[str], None] = lambda _: None,
) -> StoreSink:
    """Where a job's snapshots go.

    Args:
        job: whose.
        place: where.
        run: which of the runs that share the place.
        began_from: the snapshot of this place that the run went on from.
        warn: told, in a thread, of what is wrong with older ones.
    """
    facts, table = {"job": job.id, "name": job.job.name}, job.snapshot
    facts |= {RUN: run} if run else {}
    facts |= {BEGAN_FROM: began_from} if began_from else {}
    store = Store(place, run)
    return StoreSink(store, facts, keep=table.keep, keep_every=table.keep_every, warn=warn)
