"""Feeds one tape to one machine and stops at the first event that it handles differently.

The player knows neither where messages come from nor how work is done. Its caller asks for the next
event, makes sure that the event has happened again (a message was sent, a result was computed), and
passes it to the player.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from clocks import ActorClock
from replay import tape
from replay.divergence import CONTEXT_EVENTS, Aspect, Divergence
from replay.recorder import digest_effects
from replay.tape import Tape, TapeError

E = TypeVar("E")


class Playable(Protocol):
    """An actor that handles events, live or in a replay."""

    @property
    def clock(self) -> ActorClock:
        """The clock as of the event handled last."""
        ...

    @property
    def learned(self) -> dict[str, int]:
        """The entries that this event added to the clock, without the actor's own."""
        ...

    def handle(self, at: float, event: Any) -> Sequence[Any]: ...


class Player(Generic[E]):
    """One tape against one machine.

    Args:
        tape: opened, not necessarily scanned.
        event_type: the union that the tape's events belong to.
        actor: the machine, as it was after event ``after``.
        after: the number of the last event that is not played.
    """

    def __init__(self, tape: Tape, event_type: Any, actor: Playable, after: int = 0) -> None:
        self.tape = tape
        self.actor = actor
        self.played = 0
        """Events handled and found equal."""
        self.failure: Exception | None = None
        """What the machine raised at the newest event, as in the recording."""
        self._after = after
        self._decode = msgspec.msgpack.Decoder(event_type).decode
        self._context: deque[tuple[int, E]] = deque(maxlen=CONTEXT_EVENTS)

    def moments(self) -> Iterator[tuple[tape.Event, E, tape.Effects | tape.Raised | None]]:
        """Each event of the tape, decoded, with what the tape says of its handling.

        The last is None for the final event of an actor that was killed while handling it.
        """
        pending: tape.Event | None = None
        for record in self.tape.records(self._after):
            if isinstance(record, tape.Event):
                if pending is not None:
                    yield pending, self._event(pending), None
                pending = record
            elif isinstance(record, tape.Effects | tape.Raised) and pending is not None:
                yield pending, self._event(pending), record
                pending = None
        if pending is not None:
            yield pending, self._event(pending), None

    def _event(self, record: tape.Event) -> E:
        try:
            return self._decode(record.event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            problem = f"event {record.n} is unknown to this version: {error}"
            raise TapeError(self.tape.path, 0, problem) from None

    def play(
        self, record: tape.Event, event: E, outcome: tape.Effects | tape.Raised | None
    ) -> Sequence[Any]:
        """Let the machine handle the event; returns its effects, which equal the recording's.

        Raises:
            Divergence: clock, effects or failure differ.
        """
        failure = self.failure = None
        effects: Sequence[Any] = ()
        digest = b""
        try:
            effects = self.actor.handle(record.at, event)
            if outcome is not None:
                digest = digest_effects(effects)  # Effects that cannot be written are a failure.
        except Exception as error:  # noqa: BLE001, whatever a machine raises is on the tape too
            failure = self.failure = error
        learned = self.actor.learned
        if learned != record.clock or self.actor.clock.number != record.n:
            raise self.differs(record, event, "clock", record.clock, learned)
        if isinstance(outcome, tape.Raised) or failure is not None:
            said = outcome.error if isinstance(outcome, tape.Raised) else "no exception"
            got = f"{type(failure).__name__}: {failure}"[:1000] if failure else "no exception"
            if said != got and outcome is not None:
                raise self.differs(record, event, "exception", said, got)
        elif outcome is not None and (outcome.count != len(effects) or outcome.digest != digest):
            expected = f"{outcome.count} effects, digest {outcome.digest.hex()}"
            actual = f"{len(effects)} effects, digest {digest.hex()}: {effects}"
            found = self.differs(record, event, "effects", expected, actual)
            found.values = (outcome.count, effects)
            raise found
        self.played += 1
        self._context.append((record.n, event))
        return effects

    def differs(
        self, record: tape.Event, event: E, aspect: Aspect, expected: Any, actual: Any
    ) -> Divergence:
        """The divergence at this event; its ``clock`` includes the event itself. ``expected`` and
        ``actual`` are its values."""
        known = {**self.actor.clock.wire(), **record.clock, self.tape.incarnation: record.n}
        return Divergence(
            actor=self.tape.incarnation,
            number=record.n,
            aspect=aspect,
            expected=_text(expected),
            actual=_text(actual),
            happened=event,
            values=(expected, actual),
            clock=dict(sorted(known.items(), key=lambda item: item[0].encode())),
            event=event_line(event),
            context=tuple(f"{self.tape.incarnation}:{n} {event_line(e)}" for n, e in self._context),
        )


def _text(value: Any) -> str:
    return event_line(value) if isinstance(value, msgspec.Struct) else str(value)


def event_line(event: Any) -> str:
    """An event on one line, with long values shortened."""
    text = repr(event)
    return text if len(text) <= 200 else f"{text[:197]}..."
