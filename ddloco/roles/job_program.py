"""A job as a program: its roles are syncers, relays and learners.

An actor's worker process is started first and describes the task; its fingerprint is written to the
tape's header; then the actor starts.
"""

import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import trio

from clocks import number_of, replace_file
from ddloco.job.config import DATA_PARALLEL, Job
from ddloco.job.keys import curve_of
from ddloco.job.protocol.events import Happened, OwnState, Started, WorkerBusy
from ddloco.job.protocol.messages import JobBody
from ddloco.job.protocol.tape_facts import FROM_COPY, SEMANTICS
from ddloco.job.protocol.validation import admission
from ddloco.job.protocol.work import RunStep
from ddloco.machines.data_parallel.coordinator import Coordinator
from ddloco.machines.data_parallel.replica import Replica
from ddloco.machines.learner.machine import Learner
from ddloco.machines.registry import machine_for, states_for
from ddloco.machines.syncer.machine import Syncer
from ddloco.roles.resume import (
    OWN_STATE,
    JobStart,
    JobStartPoint,
    begins_anew,
    check_start_point,
    load_job_start,
    other_settings,
    place_said,
    refuse_without_learners,
)
from ddloco.stage.actors.actor import Actor, ActorStates, Machine, new_actor
from ddloco.stage.actors.effects import Finish, Work
from ddloco.stage.actors.events import WorkResult
from ddloco.stage.arrays.array_table import ArrayTable
from ddloco.stage.arrays.shared_memory import SharedMemory
from ddloco.stage.driver.driver import Arrived, Executor
from ddloco.stage.files.faults import LINK_KINDS, SYNCER, Faults
from ddloco.stage.files.run_folder import JOB_FILE, KEPT, TAPES, TRACEBACKS, run_of
from ddloco.stage.files.settings import SnapshotTable, TapeTable
from ddloco.stage.files.toml import ConfigError, passes
from ddloco.stage.nodes.node import HostedActor, OpenedActor
from ddloco.stage.nodes.runnable import Runnable
from ddloco.stage.process.errors import raised_at, said_of
from ddloco.stage.tapes.side_channel import SideChannel
from ddloco.workers import rpc
from ddloco.workers.call_watch import WORKER_BUSY
from ddloco.workers.environment import flags_of
from ddloco.workers.executor import WorkExecutor
from ddloco.workers.fork_protocol import MEETING, Rank
from ddloco.workers.fragment_store import FragmentFolder
from ddloco.workers.process import WorkerDiedError, WorkerRequestError, open_worker
from ddloco.workers.task import TaskError, task_digests
from ddloco.workers.task_sources import keep_sources, kept_modules, of_the_user
from replay import TapeError, UnwrittenError, bytes_of
from snapshot import Part, Store
from transport import Event
from transport.curve_auth import Curve

RESOURCES = frozenset({
    *(errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
    *(errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.ENOENT),
})  # fmt: skip
"""Errors because the machine lacks or forbids something: reported in the system's words, since
they are not bugs."""


def program_of(job: Job) -> "JobProgram":
    return JobProgram(job)


@final
@dataclass(frozen=True)
class JobProgram(Runnable):
    """The roles of a job; see ``Runnable``.

    Attributes:
        snapshot_said: what its processes continue from, as given to ``--from``.
        fresh_learners: whether it may continue from a snapshot without learners.
        rank: of the learner that runs here, if the other ranks are elsewhere.
    """

    settings_name = "job file"
    interrupt_stops = False

    job: Job
    snapshot_said: str = ""
    trust: bool = False
    fresh_learners: bool = False
    rank: Rank | None = None

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def name(self) -> str:
        return self.job.job.name

    @property
    def names(self) -> tuple[str, ...]:
        return self.job.names()

    @property
    def listeners(self) -> tuple[str, ...]:
        return self.job.listeners()

    @property
    def semantics(self) -> tuple[str, ...]:
        return SEMANTICS

    @property
    def events(self) -> Any:
        return Happened

    def machine(self, incarnation: str) -> Machine:
        return machine_for(self.job, incarnation)

    def states(self, incarnation: str) -> ActorStates[Any]:
        return states_for(self.job, incarnation)

    def load_start(self, store: Store, part: Part) -> JobStart:
        return load_job_start(self.job, store, part)

    def place_said(self, said: str) -> tuple[str, str]:
        return place_said(said)

    def checked(self, found: JobStartPoint, only: str | None) -> JobStartPoint:
        """See ``Runnable``; the lead refuses a snapshot that has no learners."""
        check_start_point(found, self.job)
        if only in {None, self.lead} and not self.fresh_learners:
            refuse_without_learners(found, self.job)
        anew = begins_anew(found, self.job) if only is None else ""
        return replace(found, notes=tuple(filter(None, (anew, other_settings(found, self.job)))))

    @property
    def source_name(self) -> str:
        return f"task {self.job.job.task}"

    @property
    def tape(self) -> TapeTable:
        return self.job.tape

    @property
    def snapshot(self) -> SnapshotTable:
        return self.job.snapshot

    @property
    def shares_memory(self) -> bool:
        """Whether actors of one host may read each other's fragments where they lie. Faults of
        links are those of sockets, so there every byte goes through one."""
        faults, storms = self.job.chaos.fault, self.job.chaos.storm
        what = {each.what for each in faults} | {kind for each in storms for kind in each.what}
        return self.job.transport.shared_memory and not what & set(LINK_KINDS)

    @property
    def chaos(self) -> Faults:
        return self.job.chaos

    @property
    def is_open(self) -> bool:
        return bool(self.job.transport.keys) or self.job.transport.insecure

    @property
    def how_to_close(self) -> str:
        return (
            "make keys with `ddloco keys DIR` and name them with --keys DIR or transport.keys, or "
            "set transport.insecure = true if the network is yours alone"
        )

    def dials(self, name: str) -> tuple[str, ...]:
        return self.job.dials(name)

    def curve(self, name: str) -> Curve | None:
        return curve_of(self.job, name)

    def as_plain(self) -> dict[str, Any]:
        return self.job.as_plain()

    def sources(self, folder: Path | None = None) -> Mapping[str, str]:
        return task_digests(self.job.job.task, folder)

    def flags(self, name: str) -> Mapping[str, str]:
        if name not in self.job.learner_names():
            return {}
        return flags_of({**os.environ, **self.job.worker_of(name).env})

    def live_faults(self) -> None:
        job, chaos = self.job, self.job.chaos
        named = [(f"fault[{i}]", (each.what,), (each.who,)) for i, each in enumerate(chaos.fault)]
        named += [(f"storm[{i}]", each.what, each.who) for i, each in enumerate(chaos.storm)]
        for where, what, who in named:
            if "crash" in what and SYNCER in who and job.job.method in DATA_PARALLEL:
                raise ConfigError(
                    f"{where}: crash of {SYNCER}: data-parallel training keeps nothing that "
                    "another could continue from; it can be stalled"
                )

    def command(self, name: str, folder: Path) -> list[str]:
        goes_on = ["--from", self.snapshot_said] if self.snapshot_said else []
        goes_on += ["--trust"] if self.trust else []
        said = [str(folder / JOB_FILE), "--dir", str(folder), "--join", "--with-parent"]
        command = _command_of(self.job, name)
        named = [] if name == self.lead else ["--name", name]
        return [command, *said, *goes_on, *named]

    def address_arguments(self, name: str, addresses: Mapping[str, str]) -> list[str]:
        bound = ["--bind", addresses[name]] if name in self.listeners else []
        dialled = [addresses[other] for other in self.dials(name)]
        return [*bound, "--connect", *dialled] if dialled else bound

    def address_option(self, name: str, address: str, *, listens: bool) -> str:
        del name
        return f"{'--bind' if listens else '--connect'} {address}"

    def awaits(self, name: str, machine: Machine, linked: set[str], met: set[str]) -> Sequence[str]:
        """Whom it dials; and learners, as long as a sync would have no quorum. A job that has ended
        waits for nobody, though its syncer may stay for a while."""
        del met
        if isinstance(machine, Syncer | Coordinator) and machine.shutdown is not None:
            return []
        dialling = [other for other in self.job.learner_names() if name in self.dials(other)]
        quorum = self.job.sync.quorum if name in self.job.syncer_names() else 1
        enough = len(linked & set(dialling)) >= quorum
        wanted = (*self.dials(name), *(() if enough else dialling))
        return [other for other in wanted if other not in linked]

    def stands(self, machine: Machine, silent_s: float) -> str:
        """What a learner waits for between two steps. Of a syncer that merges nothing its own
        warnings tell; see ``machines.syncer.standstill``."""
        del silent_s
        return machine.standing if isinstance(machine, Learner | Replica) else ""

    def untold(self, machine: Machine) -> Sequence[str]:
        return machine.untold if isinstance(machine, Syncer) else ()

    def peers_said(self, name: str) -> str:
        others = {"syncer": "learner", "relay": "syncer or learner", "learner": "syncer"}
        return others[_command_of(self.job, name)]

    def asked_to_stop(self) -> tuple[str, ...]:
        """The leading syncer, which tells the others."""
        return (self.lead,)

    def ends_all(self, name: str, finish: Finish) -> bool:
        return name == self.lead or finish.status == "bad-input"

    def is_over(self, running: Sequence[str], failed: Collection[str]) -> str:
        learners = {*self.job.learner_names()}
        if not learners.intersection(running):
            return "no learner is left"
        gone = learners.intersection(failed).difference(running)  # Others have come back.
        return self.job.too_few(len(learners) - len(gone))

    def failure(self, error: BaseException, incarnation: str) -> Finish:
        """Errors of user code and of the machine, and bugs, each in its words. User code that an
        earlier incarnation has run may do without what is away now."""
        if isinstance(error, WorkerRequestError | TaskError) and number_of(incarnation) > 1:
            return Finish("failed", str(error), again=True)
        if isinstance(error, WorkerRequestError) and error.failed.kind == "task":
            return Finish("bad-input", str(error))
        if isinstance(error, TaskError):
            return Finish("bad-input", str(error))
        if isinstance(error, WorkerRequestError | WorkerDiedError | TapeError):
            again = isinstance(error, WorkerDiedError | UnwrittenError)
            return Finish("failed", str(error), again=again)
        if isinstance(error, OSError) and error.errno in RESOURCES:
            return Finish("failed", said_of(error), again=passes(error))
        said = f"{type(error).__name__}: {error} ({raised_at(error)})"
        return Finish("failed", f"this is a bug; please report it with the tape: {said}")

    def advised(self, finish: Finish, traceback: Path | None) -> Finish:
        reason = finish.reason
        if finish.status not in ("bad-input", "failed"):
            return finish
        if reason.startswith("StopIteration"):
            reason += "; batches must be endless: begin again where the data ends"
        said = f"{reason}; traceback in {traceback}" if traceback else reason
        return Finish(finish.status, said, finish.again)

    @asynccontextmanager
    async def open(self, hosted: HostedActor) -> AsyncIterator[OpenedActor | None]:
        """Open everything that the actor needs, the worker process first."""
        folder, name = hosted.folder, hosted.name
        arrived_max = 1e9 * self.job.transport.memory_gb or None
        with closing(SharedMemory(arrived_max=arrived_max)) as arena:
            kept = kept_modules(folder, self.job.job.task)
            worker = self.job.worker_of(name)
            opened = open_worker(hosted.incarnation, arena, worker, kept=kept, rank=self.rank)
            async with opened as process:
                arrays = ArrayTable(arena)
                process.show_trace = partial(_show_trace, process.show_trace, hosted)
                process.note = partial(_heard, hosted)
                keep = await trio.to_thread.run_sync(self._open_keep, hosted)
                executor = WorkExecutor(
                    self.job,
                    hosted.incarnation,
                    arrays,
                    process,
                    folder=folder,
                    keep=keep,
                    sink=hosted.sink(),
                    note=hosted.note,
                    settle=hosted.settle,
                )
                prepared = None
                with hosted.opening:
                    prepared = await _attending(hosted, executor.prepare)
                if prepared is None:
                    yield None
                    return
                await trio.to_thread.run_sync(keep_sources, folder, prepared.sources)
                own = await trio.to_thread.run_sync(of_the_user, prepared.sources)
                hosted.tell_source(own)
                yield await self._opened(hosted, executor, arrays, prepared, keep)
                assert hosted.finish is not None, "the actor has run"
                if self.rank is not None:
                    ended = hosted.finish
                    await process.dismiss(final=ended.status != "left" and not ended.again)

    def _open_keep(self, hosted: HostedActor) -> FragmentFolder:
        """Where a syncer keeps its merges; learners keep nothing."""
        folder, name = hosted.folder, hosted.name
        run = run_of(folder, make=True) if name in self.job.syncer_names() else ""
        return FragmentFolder(folder / KEPT / name, self.job.id, run, hosted.confirm)

    async def _opened(
        self,
        hosted: HostedActor,
        executor: WorkExecutor,
        arrays: ArrayTable,
        prepared: rpc.Prepared,
        keep: FragmentFolder,
    ) -> OpenedActor:
        job, own = self.job, hosted.own
        if self.shares_memory:
            hosted.endpoint.share(arrays.shared)
        actor, first, pending = await self._begin(hosted, executor, arrays, prepared, keep)
        facts = {OWN_STATE: f"{own.place}/{own.snapshot}"} if own is not None else {}
        if hosted.lease is not None and hosted.lease.elsewhere:
            facts |= {FROM_COPY: hosted.lease.place}
        listens = hosted.name in self.listeners
        return OpenedActor(
            actor,
            first,
            pending,
            said=JobBody,
            executor=slowed(executor, job.learner_table(hosted.name).factor),
            arrays=arrays,
            recorder=hosted.recorder(prepared.fingerprint, facts, actor.clock.wire),
            admits=admission(
                executor.plan,
                executor.state.nbytes,
                job.compress.up,
                job.compress.down,
                relays=hosted.name in job.relay,
            ),
            # A learner's fragments arrive where its worker process can see them. A syncer's stay
            # where ZeroMQ received them, because a merge reads them there, unless they may be too
            # many for memory.
            allocate=arrays.allocate if job.transport.memory_gb or not listens else None,
            facts=partial(self._facts, hosted),
        )

    async def _begin(
        self,
        hosted: HostedActor,
        executor: WorkExecutor,
        arrays: ArrayTable,
        prepared: rpc.Prepared,
        keep: FragmentFolder,
    ) -> tuple[Actor, Event, Sequence[Arrived | Event]]:
        """An actor that is new or continues, its first event, and those that follow at once."""
        job, start_point, incarnation = self.job, hosted.start_point, hosted.incarnation
        start = start_point.start(incarnation) if start_point is not None else None
        if start is None or start_point is None:
            own = _own_state(hosted.own, executor, arrays)
            fresh = new_actor(incarnation, machine_for(job, incarnation))
            return fresh, Started(incarnation, prepared.leaves, own, tells=True, copies=True), []
        await start.take_up(executor, arrays)
        start.adopt(job, executor.plan)
        await trio.to_thread.run_sync(start.keep, arrays, keep)
        return start.actor, *start_point.first(start, job.names(), job.id, keep.run)

    def _facts(self, hosted: HostedActor) -> dict[str, Any]:
        size = bytes_of(hosted.folder / TAPES, hosted.incarnation)
        job: dict[str, Any] = {"name": self.job.job.name, "steps": self.job.job.steps}
        if self.job.job.tokens is not None:
            job["tokens"] = self.job.job.tokens
        job["lead"] = self.lead
        sync = self.job.sync
        asked = {"quorum": sync.quorum, "interval": sync.interval}
        return {**job, **asked, "tape_bytes": size, "differs": hosted.differs}


def _command_of(job: Job, name: str) -> str:
    """The command that runs an actor, which is also the word for what it is."""
    if name in job.syncer_names():
        return "syncer"
    return "relay" if name in job.relay else "learner"


async def _attending(hosted: HostedActor, make_ready: Callable[[], Awaitable[rpc.Prepared]]) -> Any:
    """Prepare the actor, and serve the lanes below its driver meanwhile."""
    if not isinstance(hosted.endpoint, SideChannel):
        return await make_ready()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hosted.endpoint.run_early)
        prepared = await make_ready()
        nursery.cancel_scope.cancel()
    return prepared


def _own_state(
    own: JobStartPoint | None, executor: WorkExecutor, arrays: ArrayTable
) -> OwnState | None:
    if own is None:
        return None
    [start] = own.starts.values()
    return start.bring(executor, arrays, own.snapshot)


def _show_trace(
    show: Callable[[rpc.Failed], None], hosted: HostedActor, failed: rpc.Failed
) -> None:
    show(failed)
    hosted.log.observe("task raised", 0.0, 0, {"traceback": failed.trace})
    path = hosted.folder / TRACEBACKS / f"{hosted.incarnation}.txt"
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        replace_file(path, [failed.full.encode(errors="replace")])
        hosted.traceback = path


def _heard(hosted: HostedActor, event: str, fields: dict[str, Any]) -> None:
    """Log what a worker tells; the actor itself hears which call takes long, and tells others. For
    whom a worker waits is said while it does."""
    if event == MEETING:
        hosted.awaits = fields["for"]
    elif event != WORKER_BUSY or not hosted.tell(WorkerBusy(**fields)):
        hosted.note(event, fields)


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
