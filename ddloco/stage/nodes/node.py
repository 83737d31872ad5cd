"""Hosts one actor of any program: opens everything that it needs, in order, and closes it in
reverse. What a program opens for its actors (``Runnable.open``) is the only difference."""

import errno
import math
import platform
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
import trio

from clocks import MonotonicTime, actor_of
from ddloco.stage.actors.actor import Actor
from ddloco.stage.actors.effects import Finish
from ddloco.stage.actors.observations import APART, CODE_DIFFERS, TASK_DIFFERS
from ddloco.stage.arrays.array_table import ArrayTable
from ddloco.stage.driver.driver import FENCE_LOOK_S, Arrived, Driver, Executor
from ddloco.stage.driver.resume import RESTORED, RESTORED_PLACE, StartPoint, absolute_place
from ddloco.stage.driver.snapshot_sink import StoreSink
from ddloco.stage.files.run_folder import LOG_FILE, TAPES, run_of
from ddloco.stage.files.toml import passes
from ddloco.stage.files.trust import leave_place
from ddloco.stage.nodes.lease import Lease
from ddloco.stage.nodes.repeated_failures import unless_lasting
from ddloco.stage.nodes.runnable import Runnable
from ddloco.stage.process.best_effort import FAILED_ASIDE, BestEffort
from ddloco.stage.process.code_version import code_version
from ddloco.stage.process.errors import first_of
from ddloco.stage.process.log import ActorLog
from ddloco.stage.process.run_identity import said_of_sources
from ddloco.stage.tapes.retention import ChainRecorder, TapeRetention
from replay import Recorder, TapeHeader, TapeWriter
from snapshot import BEGAN_FROM, RUN, Store
from transport import Bytes, Endpoint, Event, Header

LEAVE_FINISH_S = 1.5
"""How long, in seconds, the rest of a tape may take to be shipped when the process must end soon;
its successor in the same folder ships what is missing."""

EARLY_NOTES_MAX = 64
"""How many log lines are kept while an actor is being prepared, which takes a few seconds."""


@dataclass(frozen=True)
class OpenedActor:
    """What an actor is driven with. All but ``first`` and ``pending``, which are the arguments of
    ``Driver.run``, are those of ``Driver``."""

    actor: Actor
    first: Event
    pending: Sequence[Arrived | Event]
    said: Any
    executor: Executor
    arrays: ArrayTable
    recorder: Recorder
    admits: Callable[[Header[Any]], None]
    facts: Callable[[], dict[str, Any]]
    allocate: Callable[[int], Bytes] | None = None


class Notes:
    """What is logged about an actor and is not on its tape; kept until its driver exists.

    Attributes:
        differs: of other incarnations, by name, in what they differ, for the status.
    """

    def __init__(self) -> None:
        self.differs: dict[str, str] = {}
        self._early: list[tuple[str, dict[str, Any]]] = []
        self._driver: Driver | None = None

    def write(self, event: str, fields: dict[str, Any]) -> None:
        if event in {APART, CODE_DIFFERS, TASK_DIFFERS}:
            before = self.differs.get(fields["learner"])
            self.differs[fields["learner"]] = "; ".join(filter(None, (before, fields["reason"])))
        if self._driver is not None:
            self._driver.note(event, fields)
        elif len(self._early) < EARLY_NOTES_MAX:
            self._early.append((event, fields))

    def pass_to(self, driver: Driver) -> None:
        self._driver = driver
        for event, fields in self._early:
            driver.note(event, fields)


class Beside(Protocol):
    """A task beside an actor, below its driver; an error in it does not affect the actor."""

    async def run(self) -> None:
        """Run while the actor runs."""
        ...

    async def finish(self, within_s: float) -> None:
        """Finish after the actor has ended, within a limit of its own and ``within_s`` seconds."""
        ...


@final
class HostedActor:
    """An actor on this host, with the means to control it from outside; the caller closes its
    endpoint. From ``own``, a snapshot, a returning actor takes its own state.

    Attributes:
        leave_reason: why it was asked to leave, if it was before it had started.
        opening: the scope of the preparation before the actor starts; cancelling it loses nothing.
        awaits: for whom its worker waits before it can start; empty for nobody.
        log: where its lines go; while it is open.
        copies_at_once: copies what a successor on another host needs; does nothing by default.
        tell_source: called with the user's source files, by name, once they are known.
    """

    log: ActorLog

    def __init__(
        self,
        program: Runnable,
        incarnation: str,
        folder: Path,
        endpoint: Endpoint,
        *,
        start_point: StartPoint[Any] | None = None,
        own: StartPoint[Any] | None = None,
        beside: Beside | None = None,
        notes: Notes | None = None,
        lease: Lease | None = None,
    ) -> None:
        self.program = program
        self.incarnation = incarnation
        self.name = actor_of(incarnation)
        self.folder = folder
        self.endpoint = endpoint
        self.start_point = start_point
        self.own = own
        self.lease = lease
        self.driver: Driver | None = None
        self.finish: Finish | None = None
        self.leave_reason: str | None = None
        self.opening = trio.CancelScope()
        self.awaits = ""
        self.traceback: Path | None = None
        self.tell_source: Callable[[Mapping[str, str]], None] = lambda _: None
        self.copies_at_once: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self._leaving = False
        self._stop_reason: str | None = None
        self._notes = notes if notes is not None else Notes()
        self._best = BestEffort(self._failed_aside)
        self._beside = beside or self._retention()

    # Requests.

    def request_leave(self, reason: str) -> None:
        """Ask the actor to leave: its process must end, and will be started again."""
        self._leaving = True
        if self.driver is not None:
            self.driver.request_leave(reason)
        else:
            self.leave_reason = self.leave_reason or reason
            self.opening.cancel()

    @property
    def is_asked(self) -> bool:
        return self._stop_reason is not None or self.leave_reason is not None

    def request_stop(self, reason: str) -> None:
        """Ask the actor to end in good order, also before it has started."""
        self._stop_reason = self._stop_reason or reason
        if self.driver is not None:
            self.driver.request_stop(reason)

    def tell(self, event: Event) -> bool:
        if self.driver is not None:
            self.driver.tell(event)
        return self.driver is not None

    def request_snapshot(self) -> None:
        """Ask for a snapshot, if the actor runs; the result is in the log."""
        if self.driver is not None:
            self.driver.request_snapshot()

    def confirm(self) -> None:
        """Return if no other process acts as this actor; called in threads before they write. Waits
        while nobody knows. ``OSError`` if one does, or nobody knows and this process is asked to
        leave."""
        while self.lease is not None:
            try:
                self.lease.confirm()
            except OSError as error:
                if error.errno == errno.ESTALE or self._leaving:
                    raise
            else:
                return
            time.sleep(FENCE_LOOK_S)

    async def settle(self) -> None:
        """Copy what a successor on another host needs, before anybody hears of the job's end."""
        await self.copies_at_once()

    @property
    def differs(self) -> dict[str, str]:
        """See ``Notes``."""
        return self._notes.differs

    def note(self, event: str, fields: dict[str, Any]) -> None:
        """Log something that is not on the tape; before the driver exists, keep it until then."""
        self._notes.write(event, fields)

    def _failed_aside(self, name: str, reason: str) -> None:
        self.note(FAILED_ASIDE, {"what": name, "reason": reason})

    # Its life.

    async def run(self) -> Finish:
        """Open everything, run the actor to its end, and close; returns how it finished."""
        comes_back = self.name not in self.program.listeners
        try:
            began = MonotonicTime().began
            with closing(ActorLog(self.folder / LOG_FILE, self.incarnation, began)) as self.log:
                await self._run()
        except Exception as error:  # noqa: BLE001, whatever ends one actor ends one actor
            found = first_of(error)
            self.finish = self.program.failure(found, self.incarnation)
            comes_back = comes_back and not passes(found)  # An outage is not counted.
        assert self.finish is not None, "it has ended, one way or the other"
        if comes_back:
            self.finish = unless_lasting(self.folder, self.name, self.finish)
        self.finish = self.program.advised(self.finish, self.traceback)
        return self.finish

    async def _run(self) -> None:
        async with self.program.open(self) as opened:
            if opened is None:
                self.finish = Finish("left", self.leave_reason or "")
                return
            async with self._beside_it():
                self.driver = self._new_driver(opened)
                self.finish = await self.driver.run(opened.first, opened.pending)

    def _new_driver(self, opened: OpenedActor) -> Driver:
        driver = Driver(
            opened.actor,
            said=opened.said,
            job_id=self.program.id,
            actors=self.program.names,
            endpoint=self.endpoint,
            executor=opened.executor,
            arrays=opened.arrays,
            recorder=opened.recorder,
            time=MonotonicTime(opened.actor.at),
            log=self.log,
            admits=opened.admits,
            allocate=opened.allocate,
            facts=opened.facts,
            fence=self.lease,
        )
        self._notes.pass_to(driver)
        if self._stop_reason is not None:
            driver.request_stop(self._stop_reason)
        if self.leave_reason is not None:  # It came after the preparation.
            driver.request_leave(self.leave_reason)
        return driver

    @asynccontextmanager
    async def _beside_it(self) -> AsyncIterator[None]:
        beside = self._beside
        if beside is None:
            yield
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.aside, beside.run)
            yield
            nursery.cancel_scope.cancel()
        left = self.finish is not None and self.finish.status == "left"
        await self.aside(partial(beside.finish, LEAVE_FINISH_S if left else math.inf))

    def _retention(self) -> Beside | None:
        """What bounds the tape, if ``tape.keep`` says so; such a tape is not shipped."""
        program = self.program
        if not program.tape.bound or program.tape.level == "off":
            return None
        place = program.place(self.folder)
        return TapeRetention(
            self.folder / TAPES,
            self.incarnation,
            place,
            self.note,
            count=program.tape.bound,
            program=program.id,
        )

    async def aside(self, what: Callable[[], Awaitable[object]]) -> None:
        """Run something beside the actor, which continues without it if it fails."""
        name = getattr(what, "__qualname__", "") or repr(what)
        await self._best.run(name, what)

    # What its program opens.

    def recorder(
        self,
        fingerprint: dict[str, str],
        facts: Mapping[str, str],
        clock: Callable[[], dict[str, int]],
    ) -> Recorder:
        for each in filter(None, (self.start_point, self.own)):
            leave_place(self.folder, each.place)
        return recorder_for(
            self.program, self.incarnation, self.folder, fingerprint,
            facts=facts, start_point=self.start_point, clock=clock,
        )  # fmt: skip

    def sink(self) -> StoreSink:
        """Where this actor writes its parts of snapshots; only the lead's sink knows the run, since
        the lead commits those that are taken on a schedule."""
        program, begun = self.program, self.start_point
        place = program.place(self.folder)
        confirm = self.confirm
        if self.name != program.lead:
            return sink_of(program, place, confirm=confirm)
        same = begun is not None and begun.place == absolute_place(place)

        token = trio.lowlevel.current_trio_token()

        def warn(said: str) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(self.note, "snapshots damaged", {"reason": said})

        from_ = begun.snapshot if begun is not None and same else ""
        run = run_of(self.folder, make=True) if program.snapshot.place else ""
        return sink_of(program, place, run, from_, warn, confirm=confirm)


def recorder_for(
    program: Runnable,
    incarnation: str,
    folder: Path,
    fingerprint: dict[str, str],
    *,
    facts: Mapping[str, str],
    start_point: StartPoint[Any] | None = None,
    clock: Callable[[], dict[str, int]] | None = None,
) -> Recorder:
    """Return what writes the tape of an actor, as ``[tape]`` says. With ``clock`` and a bounded
    tape it begins a new file at each cut. ``TapeError`` if the tape exists already, or cannot be
    written."""
    table = program.tape
    if table.level == "off":
        return Recorder(None)
    start = start_point.start(incarnation) if start_point is not None else None
    resumed: dict[str, str] = {}
    if start is not None and start_point is not None:
        resumed = {RESTORED: start_point.snapshot, RESTORED_PLACE: start_point.place}
    header = TapeHeader(
        incarnation=incarnation,
        job_id=program.id,
        job=program.as_plain(),
        code=code_version(),
        fingerprint={**fingerprint, **said_of_sources(program.sources(folder))},
        semantics=program.semantics,
        facts={
            "python": platform.python_version(),
            "numpy": np.__version__,
            "platform": platform.platform(),
            **facts,
            **resumed,
        },
        after=start.part.number if start is not None else 0,
        clock=dict(start.part.clock) if start is not None else {},
    )
    writer = TapeWriter(folder / TAPES / f"{incarnation}.tape", header)
    if table.bound and clock is not None:
        return ChainRecorder(writer, table.on_error, clock)
    return Recorder(writer, table.on_error)


def sink_of(
    program: Runnable,
    place: str | Path,
    run: str = "",
    began_from: str = "",
    warn: Callable[[str], None] = lambda _: None,
    *,
    confirm: Callable[[], None] = lambda: None,
) -> StoreSink:
    facts, table = {"job": program.id, "name": program.name}, program.snapshot
    facts |= {RUN: run} if run else {}
    facts |= {BEGAN_FROM: began_from} if began_from else {}
    return StoreSink(
        Store(place, run),
        facts,
        keep=table.keep,
        keep_every=table.keep_every,
        warn=warn,
        confirm=confirm,
    )
