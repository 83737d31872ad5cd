"""One tape's part in a replay: its machine, its worker, and what must have become true again."""

import struct
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from traceback import format_exception
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import trio

from clocks import actor_of
from ddloco.actors.actor import Actor
from ddloco.actors.effects import Work
from ddloco.actors.events import Captured, WorkFailed, WorkResult
from ddloco.replayer.gate import Gate
from ddloco.replayer.message_matcher import Key, Mailbox, Posted
from ddloco.runtime.array_table import Arrays
from ddloco.runtime.driver import Worker
from ddloco.runtime.resume import Beginning, Start, passed
from replay import Divergence, Player, Tape, describe, tape
from transport import GREETINGS, Effect, Free, Marker, MessageArrived, Payload, Transmit


class DependsOnDivergence(Exception):  # noqa: N818, it ends one tape's replay and is no error
    """An event follows from one that the replay of another tape has not come to."""


class ReplayContext(Protocol):
    """Where parts play together."""

    payloads: int
    unverified: int

    @property
    def mailbox(self) -> Mailbox:
        """Where messages travel."""
        ...

    @property
    def beginning(self) -> Beginning[Any] | None:
        """The snapshot that it begins with, if it does."""
        ...

    def note(self, what: str) -> None:
        """Something that people should know afterwards."""
        ...

    def gap(self, what: str) -> None:
        """Something could not be verified, so that the replay cannot be called identical."""
        ...

    def posted_by(self, sender: str, number: int) -> bool:
        """Whether there is a tape to check a message of the sender's event ``number`` against."""
        ...

    def found_equal(self, event: Any) -> None:
        """Count one more event that was found equal."""
        ...

    @property
    def gate(self) -> Gate:
        """How far each tape may go."""
        ...

    def parted(self, found: Divergence) -> None:
        """Note where a tape and its replay part; nothing behind it is compared."""
        ...

    def has_parted(self, incarnation: str) -> bool:
        """Whether the replay of a tape has parted from it, or depends on one that has."""
        ...

    def depends(self, incarnation: str) -> None:
        """Note that a tape cannot be replayed further, because another one has parted."""
        ...


W = TypeVar("W", bound=Worker)


class TapeRunner(Generic[W]):
    """One tape's part in a replay.

    Args:
        replay: what it is a part of.
        tape: its tape.
        fresh: the actor as it begins; unused where it goes on from a snapshot.
        events: the union that its events belong to.
    """

    _arrays: Arrays
    _workers: W

    def __init__(self, replay: ReplayContext, tape: Tape, fresh: Actor, events: Any) -> None:
        self._replay = replay
        self._tape = tape
        self._name = tape.incarnation
        beginning = replay.beginning
        start: Start | None = None
        if beginning is not None:
            start = beginning.starts.get(self._name)
        self._begun = start
        self._actor = start.actor if start is not None else fresh
        after = beginning.after(self._name) if beginning is not None else 0
        self._player: Player[Any] = Player(tape, events, self._actor, after)
        self._given: set[int] = set()
        """Work that a snapshot has the result of."""
        self._results: dict[int, Result] = {}
        self._outputs: dict[int, tuple[str, ...]] = {}

    @property
    def actor(self) -> Actor:
        """The actor, as it is after the newest event that was replayed."""
        return self._actor

    @property
    def arrays(self) -> Arrays:
        """Its arrays, by handle."""
        return self._arrays

    async def execute(self) -> None:
        """Execute the tape to its end, to the first difference, or to what depends on one.

        Raises:
            TapeError: the tape cannot be read.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._go_on()
            try:
                await self._handle_events()
                await self._finish()
                self._note_end()
            except Divergence as found:
                self._replay.parted(found)
            except DependsOnDivergence:
                self._replay.depends(self._name)
            nursery.cancel_scope.cancel()
        self._replay.mailbox.silence(self._name)

    async def _handle_events(self) -> None:
        for record, event, outcome in self._player.moments():
            await self._replay.gate.passing(self._name, record.n)
            sure = await self._confirm(record, event)
            effects = self._handle(record, sure, outcome)
            for effect in effects:
                self._perform(record.n, effect)
            self._replay.found_equal(sure)

    def _note_end(self) -> None:
        """Say how a tape ends that was not closed."""
        where = f"{self._name}:{self._actor.number}"
        if self._player.failure is not None:
            trace = "".join(format_exception(self._player.failure)).rstrip()
            self._replay.note(f"{where}: handling this event raised, as it did then:\n{trace}")
        elif self._tape.closed is None:
            ends = f"{self._name}: the tape ends after event {self._actor.number}, not closed"
            self._replay.note(f"{ends} (its process was killed)")

    def _handle(
        self, record: tape.Event, event: Any, outcome: tape.Effects | tape.Raised | None
    ) -> Sequence[Any]:
        return self._player.play(record, event, outcome)

    async def _finish(self) -> None:
        """The tape has come to its end."""

    def _go_on(self) -> None:
        """Whatever was being done at the cut is done again, but for what the snapshot has."""
        if self._begun is None:
            return
        self._given = {each.work for each in self._begun.results()}
        for work in list(self._actor.under_way.values()):
            if work.work not in self._given and self._is_repeated(work):
                self._begin(work)

    def _is_repeated(self, work: Work) -> bool:
        """Whether work that ran at the cut can be done again."""
        del work
        return True

    # What the event says must be so again.

    async def _confirm(self, record: tape.Event, event: Any) -> Any:
        """Wait until what the event says has become true again; the event that is so."""
        match event:
            case MessageArrived():
                await self._confirm_message(record, event)
            case WorkResult():
                await self._confirm_result(record, event)
            case _:
                await trio.lowlevel.checkpoint()
        return event

    async def _confirm_message(self, record: tape.Event, event: MessageArrived[Any]) -> None:
        payload: Payload | None = None
        beginning, number = self._replay.beginning, event.clock.get(event.sender, 0)
        if beginning is not None and beginning.before(event.sender, number):
            payload = self._confirm_flight(record, event)
        elif self._replay.posted_by(event.sender, event.clock.get(event.sender, 0)):
            key = self._key_of(event)
            posted = await self._replay.mailbox.take(key)
            if posted is None and self._replay.has_parted(event.sender):
                raise DependsOnDivergence
            if posted is None:
                raise self._differs(record, event, describe(event), "never said", "message")
            self._compare_message(record, event, posted)
            payload = posted.payload
            if event.handle:
                self._replay.mailbox.take_payload(key)
        if event.handle:
            self._arrays.put(event.handle, payload)

    def _confirm_flight(self, record: tape.Event, event: MessageArrived[Any]) -> Payload | None:
        """It was said before the cut and came after it: it must have been in flight."""
        assert self._begun is not None, "whoever began later has heard of nothing before that"
        found = {passed(each): each for each in self._begun.flight}.get(passed(event))
        if found is None:
            if type(event.body) not in GREETINGS | {Marker}:
                said = f"{describe(event.body)} of {event.sender} was said before the cut"
                self._replay.unverified += 1
                self._replay.gap(f"{self._name}:{record.n}: {said}, and is not in the snapshot")
            return None
        if msgspec.structs.replace(found, handle=event.handle) != event:
            raise self._differs(record, event, describe(event), describe(found), "message")
        self._replay.payloads += bool(event.handle)
        return self._begun.payload(found)

    def _key_of(self, event: MessageArrived[Any]) -> Key:
        """A listening side is addressed by its actor's name, a dialling one by incarnation."""
        me = actor_of(self._name) if event.peer == event.sender else self._name
        number = event.clock.get(event.sender, 0)
        return (event.sender, number, me, event.lane, event.session, event.seq)

    def _compare_message(
        self, record: tape.Event, event: MessageArrived[Any], posted: Posted
    ) -> None:
        said = posted.said
        if (event.body, event.clock) != (said.body, said.clock):
            got = f"{describe(said.body)} with clock {said.clock}"
            recorded = f"{describe(event.body)} with clock {event.clock}"
            raise self._differs(record, event, recorded, got, "message")
        if posted.payload is not None:
            self._replay.payloads += 1
            if posted.payload.digest != event.payload:
                got = f"payload {posted.payload.digest.hex()}"
                recorded = f"payload {event.payload.hex()}"
                raise self._differs(record, event, recorded, got, "message")

    async def _confirm_result(self, record: tape.Event, event: Any) -> None:
        result = self._results.pop(event.work, None)
        outputs = self._outputs.pop(event.work, ())
        if isinstance(event, WorkFailed) and event.kind == "worker":
            # The world's doing, not the work's: a fact, like the time.
            self._replay.note(f"{self._name}:{record.n}: {event.reason}")
            return
        if event.work in self._given or self._wrote(event):
            return
        if result is None:
            # Its inputs are missing: taken from the tape.
            self._replay.unverified += 1
            for handle in outputs:
                if not isinstance(event, WorkFailed):
                    self._arrays.put(handle, None)
            return
        await result.done.wait()
        found = self._comparable(event, result.value)
        if same_bits(event) != same_bits(found):
            raise self._player.differs(
                record,
                event,
                "result",
                describe(event),
                describe(found),
                hint=self._hint(event, found),
            )
        self._settled(event)

    def _comparable(self, event: Any, found: Any) -> Any:
        """What work brought now, without what tapes of the recording's version do not hold."""
        del event
        return found

    def _hint(self, event: Any, found: Any) -> str:
        """Say what kind of difference two results have."""
        if type(event) is not type(found):
            return "the work ended otherwise"
        fields = [
            name for name in event.__struct_fields__ if getattr(event, name) != getattr(found, name)
        ]
        return f"differs in {', '.join(fields)}"

    def _settled(self, event: Any) -> None:
        """Work was done again, and came out the same."""

    def _wrote(self, event: Any) -> bool:
        """Whether it tells of what was written of the snapshot that this replay begins with."""
        if self._begun is None or not isinstance(event, Captured):
            return False
        return event.content in self._begun.part.contents

    def _differs(
        self, record: tape.Event, event: Any, expected: Any, actual: Any, aspect: Any = "result"
    ) -> Divergence:
        return self._player.differs(record, event, aspect, expected, actual)

    # What the machine asks for again.

    def _perform(self, number: int, effect: Effect) -> None:
        match effect:
            case Transmit():
                known = effect.payload and self._arrays.known(effect.payload)
                payload = self._arrays.get(effect.payload) if known else None
                self._replay.mailbox.post(self._name, number, effect, payload)
            case Free(handle):
                self._arrays.free(handle)
            case Work():
                self._begin(effect)
            case _:
                pass  # Timers and observations belong to the first run.

    def _begin(self, work: Work) -> None:
        self._outputs[work.work] = work.makes
        if self._can_do(work):
            self._results[work.work] = result = Result()
            self._nursery.start_soon(self._work, self._workers.do(work), result)

    def _can_do(self, work: Work) -> bool:
        """Whether all that the work reads is known."""
        return self._arrays.known(*work.reads)

    async def _work(self, coming: Awaitable[WorkResult], result: "Result") -> None:
        result.value = await coming
        result.done.set()


@dataclass
class Result:
    """Work under way in a replay."""

    done: trio.Event = field(default_factory=trio.Event)
    value: WorkResult | None = None


def same_bits(event: Any) -> tuple[bytes, bytes]:
    """What must be equal of a result: its encoding, and the bits of its loss (NaN has many)."""
    loss = getattr(event, "loss", None)
    bits = struct.pack("<d", loss) if isinstance(loss, float) else b""
    return msgspec.msgpack.encode(event), bits
