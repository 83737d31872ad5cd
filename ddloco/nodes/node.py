"""Hosts one actor: opens everything that it needs, in order, and closes it in reverse.

This is the same for an actor that shares its process with others and for one that has its own. The
worker process is started first and describes the task; its fingerprint is written to the tape's
header; then the actor starts.
"""

import errno
import math
import platform
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
import trio

from clocks import MonotonicTime, actor_of
from ddloco.job.config import DATA_PARALLEL, Job
from ddloco.job.job_folder import place_of, run_of_place
from ddloco.job.protocol.effects import RunStep
from ddloco.job.protocol.events import OwnState, Started
from ddloco.job.protocol.messages import Said
from ddloco.job.protocol.tape_facts import SEMANTICS, TASK
from ddloco.job.protocol.validation import admission
from ddloco.machines.registry import machine_for
from ddloco.nodes.resume import OWN_STATE, JobStartPoint
from ddloco.nodes.tapes.code_version import code_version
from ddloco.nodes.tapes.retention import TapeRetention
from ddloco.nodes.tapes.segments import ChainRecorder
from ddloco.nodes.tapes.side_channel import SideChannel
from ddloco.stage.actors.actor import Actor, new_actor
from ddloco.stage.actors.effects import Finish, Work
from ddloco.stage.actors.events import WorkResult
from ddloco.stage.arrays.array_table import Arrays
from ddloco.stage.arrays.shared_memory import Arena
from ddloco.stage.driver.driver import Arrived, Executor
from ddloco.stage.driver.hosting import HostedActor, Notes, OpenedActor, tape_header
from ddloco.stage.driver.snapshot_sink import StoreSink
from ddloco.stage.files.run_folder import KEPT, LOG_FILE, TAPES, TRACEBACKS, run_of
from ddloco.stage.files.trust import leave_place
from ddloco.stage.process.entry_point import pinned_file
from ddloco.stage.process.errors import first_of, raised_at, said_of
from ddloco.stage.process.log import ActorLog
from ddloco.workers import rpc
from ddloco.workers.executor import WorkExecutor
from ddloco.workers.fragment_store import FragmentFolder
from ddloco.workers.process import WorkerDiedError, WorkerRequestError, open_worker
from ddloco.workers.task import TaskError, task_digest
from ddloco.workers.task_sources import SOURCE, keep_sources
from replay import Recorder, TapeError, TapeWriter, bytes_of
from snapshot import BEGAN_FROM, RUN, Store
from transport import Endpoint, Event

LEAVE_FINISH_S = 1.5
"""How long, in seconds, the rest of a tape may take to be shipped when the process must end soon;
its successor in the same folder ships what is missing."""

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


@final
class Hosted(HostedActor):
    """A learner or a syncer on this host.

    Args:
        job: the resolved job.
        incarnation: the actor's incarnation.
        folder: the run folder.
        endpoint: carries its messages.
        start_point: the snapshot that the actor continues from, if any.
        own: the snapshot from which a returning learner takes its own state, if any.
        beside: a task beside the actor, such as the shipping of its tape, if there is one.
        notes: what is logged about it; by default an empty one.

    Attributes:
        traceback: the file with the last traceback of user code.
    """

    def __init__(
        self,
        job: Job,
        incarnation: str,
        folder: Path,
        endpoint: Endpoint,
        *,
        start_point: JobStartPoint | None = None,
        own: JobStartPoint | None = None,
        beside: Beside | None = None,
        notes: Notes | None = None,
    ) -> None:
        super().__init__(incarnation, endpoint, notes)
        self.job = job
        self.folder = folder
        self.start_point = start_point
        self.own = own
        self._beside = beside or self._retention()
        self.traceback: Path | None = None

    def failure(self, error: BaseException) -> Finish:
        """Return how an actor ended that an exception ended, with advice."""
        return self._with_advice(self._failure(error))

    def _with_advice(self, finish: Finish) -> Finish:
        """Add advice for users to a finish that is a failure; tapes have it without."""
        reason = finish.reason
        if finish.status not in ("bad-input", "failed"):
            return finish
        if reason.startswith("StopIteration"):
            reason += "; batches must be endless: begin again where the data ends"
        traceback = f"; traceback in {self.traceback}" if self.traceback else ""
        return Finish(finish.status, f"{reason}{traceback}")

    def _failure(self, error: BaseException) -> Finish:
        if isinstance(error, WorkerRequestError) and error.failed.kind == "task":
            return Finish("bad-input", str(error))
        if isinstance(error, TaskError):
            return Finish("bad-input", str(error))
        if isinstance(error, WorkerRequestError | WorkerDiedError | TapeError):
            return Finish("failed", str(error))
        if isinstance(error, OSError) and error.errno in RESOURCES:
            return Finish("failed", said_of(error))
        said = f"{type(error).__name__}: {error} ({raised_at(error)})"
        return Finish("failed", f"this is a bug; please report it with the tape: {said}")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[OpenedActor | None]:
        """Open everything that the actor needs, the worker process first."""
        name = actor_of(self.incarnation)
        with closing(Arena()) as arena, closing(self._open_log()) as log:
            pinned = pinned_file(self.folder / SOURCE, self.job.job.task)
            worker = self.job.worker_of(name)
            async with open_worker(self.incarnation, arena, worker, pinned=pinned) as process:
                arrays = Arrays(arena)
                process.show_trace = partial(self._show_trace, process.show_trace, log)
                keep = await trio.to_thread.run_sync(self._open_keep, name)
                executor = WorkExecutor(
                    self.job,
                    self.incarnation,
                    arrays,
                    process,
                    folder=self.folder,
                    keep=keep,
                    sink=self._open_sink(),
                    note=self.note,
                )
                prepared = None
                with self.opening:
                    prepared = await self._attending(executor.prepare)
                if prepared is None:
                    yield None
                    return
                await trio.to_thread.run_sync(keep_sources, self.folder, prepared.sources)
                opened = await self._opened(executor, arrays, prepared, keep, log)
                async with self._beside_it():
                    yield opened
                assert self.finish is not None, "the actor has run"
                if self.finish.status == "done" and name == self.job.syncer_names()[0]:
                    with suppress(OSError):  # The job is done all the same.
                        keep.note_done()
                self.finish = self._with_advice(self.finish)

    def _open_keep(self, name: str) -> FragmentFolder:
        """Where a syncer keeps its merges; learners keep nothing."""
        folder, syncs = self.folder, name in self.job.syncer_names()
        run = run_of(folder, make=True) if syncs else ""
        return FragmentFolder(folder / KEPT / name, self.job.id, run)

    def _open_sink(self) -> StoreSink:
        """Where this actor writes its parts of snapshots; only the lead's sink knows the run, since
        the lead commits them."""
        job, begun = self.job, self.start_point
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
        self, executor: WorkExecutor, arrays: Arrays, prepared: rpc.Prepared, keep: FragmentFolder
    ) -> tuple[Actor, Event, Sequence[Arrived | Event]]:
        """An actor that is new or continues, its first event, and those that follow at once."""
        start_point = self.start_point
        start = start_point.start(self.incarnation) if start_point is not None else None
        if start is None or start_point is None:
            own = self._own_state(executor, arrays)
            fresh = new_actor(self.incarnation, machine_for(self.job, self.incarnation))
            leaves = prepared.leaves
            return fresh, Started(self.incarnation, leaves, own, tells=True, copies=True), []
        await start.take_up(executor, arrays)
        start.adopt(self.job, executor.plan)
        await trio.to_thread.run_sync(start.keep, arrays, keep)
        return start.actor, *start_point.first(start, self.job.names(), self.job.id, keep.run)

    def _own_state(self, executor: WorkExecutor, arrays: Arrays) -> OwnState | None:
        if self.own is None:
            return None
        [start] = self.own.starts.values()
        return start.bring(executor, arrays, self.own.snapshot)

    @asynccontextmanager
    async def _beside_it(self) -> AsyncIterator[None]:
        """Run the task beside the actor, if there is one, until that has finished."""
        beside = self._beside
        if beside is None:
            yield
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._aside, beside.run)
            yield
            nursery.cancel_scope.cancel()
        left = self.finish is not None and self.finish.status == "left"
        await self._aside(partial(beside.finish, LEAVE_FINISH_S if left else math.inf))

    def _retention(self) -> Beside | None:
        """What bounds the tape, if the job has ``tape.bound``; such a tape is not shipped."""
        job, tapes = self.job, self.folder / TAPES
        if not job.tape.bound or job.tape.level == "off":
            return None
        place = place_of(job, self.folder)
        return TapeRetention(tapes, self.incarnation, job, place, self.note)

    async def _aside(self, what: Callable[[], Awaitable[None]]) -> None:
        try:
            await what()
        except Exception as error:  # noqa: BLE001, the actor continues without it
            said = f"this is a bug: {type(error).__name__}: {first_of(error)}"
            self.note("aside failed", {"reason": said})

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

    async def _opened(
        self,
        executor: WorkExecutor,
        arrays: Arrays,
        prepared: rpc.Prepared,
        keep: FragmentFolder,
        log: ActorLog,
    ) -> OpenedActor:
        job = self.job
        for each in filter(None, (self.start_point, self.own)):
            leave_place(self.folder, each.place)
        actor, first, pending = await self._begin(executor, arrays, prepared, keep)
        learns = actor_of(self.incarnation) in job.learner_names()
        return OpenedActor(
            actor,
            first,
            pending,
            said=Said,
            job_id=job.id,
            names=job.names(),
            executor=slowed(executor, job.learner_table(actor_of(self.incarnation)).factor),
            arrays=arrays,
            recorder=recorder_for(
                job,
                self.incarnation,
                self.folder,
                prepared,
                {OWN_STATE: f"{self.own.place}/{self.own.snapshot}"} if self.own else {},
                start_point=self.start_point,
                clock=actor.clock.wire,
            ),
            log=log,
            admits=admission(
                executor.plan, executor.state.nbytes, job.compress.up, job.compress.down
            ),
            # A learner's fragments arrive where its worker process can see them. A syncer's stay
            # where ZeroMQ received them, because a merge reads them there.
            allocate=arrays.allocate if learns else None,
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
    facts: Mapping[str, str],
    *,
    start_point: JobStartPoint | None = None,
    clock: Callable[[], dict[str, int]] | None = None,
) -> Recorder:
    """Return what writes the tape of an actor with a worker, as the job's ``[tape]`` says. With
    ``clock`` and a bounded tape it begins a new file at each cut.

    Raises:
        TapeError: the tape exists already, or cannot be written.
    """
    if job.tape.level == "off":
        return Recorder(None)
    header = tape_header(
        incarnation,
        start_point,
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
            **facts,
        },
    )
    writer = TapeWriter(folder / TAPES / f"{incarnation}.tape", header)
    if job.tape.bound and clock is not None:
        return ChainRecorder(writer, job.tape.on_error, clock)
    return Recorder(writer, job.tape.on_error)


def slowed(executor: WorkExecutor, factor: float) -> Executor:
    """The same work, its steps ``factor`` times slower; what comes out is the same."""
    return executor if factor == 1.0 else _Slowed(executor, factor)


@dataclass(frozen=True)
class _Slowed:
    executor: WorkExecutor
    factor: float

    def do(self, work: Work) -> Awaitable[WorkResult]:
        """Do one piece of work; it begins before this returns, as with ``WorkExecutor``."""
        coming = self.executor.do(work)
        return self._delayed(coming) if isinstance(work, RunStep) else coming

    async def _delayed(self, coming: Awaitable[WorkResult]) -> WorkResult:
        begun = trio.current_time()
        result = await coming
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
        began_from: the snapshot of this place that the run continued from.
        warn: told, in a thread, of what is wrong with older ones.
    """
    facts, table = {"job": job.id, "name": job.job.name}, job.snapshot
    facts |= {RUN: run} if run else {}
    facts |= {BEGAN_FROM: began_from} if began_from else {}
    store = Store(place, run)
    return StoreSink(store, facts, keep=table.keep, keep_every=table.keep_every, warn=warn)
