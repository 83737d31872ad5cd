"""Plays one tape: its events go through a door to the machine, and its work is done again."""

from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from traceback import format_exception
from typing import Any, NamedTuple, Protocol, final

import trio

from ddloco.replayer.replay_state import ReplayState
from ddloco.stage.actors.actor import Actor
from ddloco.stage.actors.effects import Work
from ddloco.stage.actors.events import WorkResult
from ddloco.stage.arrays.array_table import ArrayTable
from ddloco.stage.driver.resume import Start
from replay import Divergence, Player, tape
from transport import Effect, Free, Transmit


class DependsOnDivergence(Exception):  # noqa: N818, it ends one tape's replay and is no error
    """An event follows from one that the replay of another tape has not come to."""


class Mismatch(Exception):  # noqa: N818, a difference is a finding, not an error
    """A fact is not as it was recorded."""

    def __init__(self, recorded: Any, found: Any) -> None:
        super().__init__()
        self.recorded, self.found = recorded, found


class Difference(NamedTuple):
    """What kind of difference two results have, in words, and the first tensor that differs, where
    that is known."""

    said: str
    tensor: str = ""


class ReplayExecutor(Protocol):
    @property
    def arrays(self) -> ArrayTable: ...

    def begin(self, work: Work) -> Awaitable[WorkResult] | None:
        """Begin a piece of work; None if it cannot be done, since something it reads is missing."""
        ...

    def is_repeated(self, work: Work) -> bool:
        """Whether work that ran at the cut of a snapshot can be begun again."""
        ...

    async def finish(self) -> None:
        """Wait for the work that must be done even if the tape does not have its result."""
        ...

    def check_fact(self, event: Any) -> bool:
        """Check an event that tells of the worker or its disk, with ``Mismatch`` if it is not as it
        was recorded; False for every other event."""
        ...

    def difference(self, recorded: WorkResult, found: WorkResult) -> Difference | None:
        """Return what kind of difference two results have; None if they are equal."""
        ...


class ReplayDoor(Protocol):
    async def confirm(self, record: tape.Event, event: Any) -> Any:
        """Wait until an event has happened again; returns the event that did."""
        ...

    def admit(
        self, record: tape.Event, event: Any, outcome: tape.Effects | tape.Raised | None
    ) -> Sequence[Any]:
        """Let the machine handle an event; returns its effects."""
        ...


@dataclass
class RunningWork:
    work: Work
    begun: bool = False
    _done: trio.Event = field(default_factory=trio.Event)
    _value: WorkResult | None = None

    async def run(self, coming: Awaitable[WorkResult]) -> None:
        self._value = await coming
        self._done.set()

    async def result(self) -> WorkResult:
        assert self.begun, "its beginning is not computed"
        await self._done.wait()
        assert self._value is not None, "it is stored first"
        return self._value


class PendingWork:
    def __init__(self, executor: ReplayExecutor, nursery: trio.Nursery) -> None:
        self.executor = executor
        self._nursery = nursery
        self._pending: dict[int, RunningWork] = {}

    def begin(self, work: Work) -> None:
        coming = self.executor.begin(work)
        pending = self._pending[work.work] = RunningWork(work, begun=coming is not None)
        if coming is not None:
            self._nursery.start_soon(pending.run, coming)

    def resume(self, actor: Actor, start: Start) -> None:
        """Begin again the work that was under way at the cut and has no result in the snapshot, as
        far as it is repeated."""
        given = {each.work for each in start.results}
        for work in list(actor.under_way.values()):
            if work.work not in given and self.executor.is_repeated(work):
                self.begin(work)
            else:
                self._pending[work.work] = RunningWork(work)

    def take(self, number: int) -> RunningWork | None:
        return self._pending.pop(number, None)


@asynccontextmanager
async def open_pending(executor: ReplayExecutor) -> AsyncIterator[PendingWork]:
    """Open a nursery for an actor's work; what is not done at the end is cancelled."""
    async with trio.open_nursery() as nursery:
        yield PendingWork(executor, nursery)
        nursery.cancel_scope.cancel()


@final
@dataclass(frozen=True)
class TapeRunner:
    state: ReplayState
    actor: Actor
    player: Player[Any]
    door: ReplayDoor
    pending: PendingWork

    @property
    def name(self) -> str:
        return self.player.tape.incarnation

    @property
    def arrays(self) -> ArrayTable:
        return self.pending.executor.arrays

    async def execute(self) -> None:
        """Execute the tape to its end, to the first difference, or to what depends on one."""
        try:
            for record, recorded, outcome in self.player.moments():
                await self.state.gate.passing(self.name, record.n)
                event = await self.door.confirm(record, recorded)
                for effect in self.door.admit(record, event, outcome):
                    self._perform(record.n, effect)
                self.state.found_equal(self.name, event)
            await self.pending.executor.finish()
            self._note_end()
        except Divergence as found:
            self.state.parted(found)
        except DependsOnDivergence:
            self.state.depends(self.name)
        self.state.mailbox.silence(self.name)

    def _note_end(self) -> None:
        """Note how a tape ends that was not closed."""
        notes = self.state.report.notes
        where = f"{self.name}:{self.actor.number}"
        if self.player.failure is not None:
            trace = "".join(format_exception(self.player.failure)).rstrip()
            notes.append(f"{where}: handling this event raised, as it did then:\n{trace}")
        elif self.player.tape.closed is None:
            ends = f"{self.name}: the tape ends after event {self.actor.number}, not closed"
            notes.append(
                f"{ends}: its process was killed, its recording was given up, or it was cut"
            )

    def _perform(self, number: int, effect: Effect) -> None:
        match effect:
            case Transmit():
                known = effect.payload and self.arrays.known(effect.payload)
                payload = self.arrays.get(effect.payload) if known else None
                self.state.mailbox.post(self.name, number, effect, payload)
            case Free(handle):
                self.arrays.free(handle)
            case Work():
                self.pending.begin(effect)
            case _:
                pass  # Timers and observations belong to the first run.
