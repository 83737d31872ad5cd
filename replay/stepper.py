"""Steps through one tape, forwards and backwards, with the machine and without its work.

Machines are pure, so a machine that handles the events of its tape has the state that it had live.
Every event is compared with the tape, as in a replay.
"""

from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from replay import tape
from replay.player import Playable, Player
from replay.tape import Tape

KEYFRAME_EVENTS = 2048
"""Events between two keyframes: stepping so many takes about 0.1 s, writing one 1 to 9 ms."""

KEYFRAMES_MAX = 256
"""When there are so many keyframes, every second one is dropped."""

A = TypeVar("A", bound=Playable)


class Step(NamedTuple):
    """One event, after the actor has handled it.

    Attributes:
        number: the event's number.
        at: the time of the event, in seconds since the actor's start.
        event: the event itself.
        effects: what the actor asked for, in order; empty if handling failed.
        failure: the exception that handling raised, as on the tape; None if it raised none.
    """

    number: int
    at: float
    event: Any
    effects: Sequence[Any]
    failure: Exception | None = None


class Stepper(Generic[A]):
    """One actor at any event of its tape.

    Args:
        tape: the tape, which has been scanned.
        event_type: the union that its events belong to.
        actor: the actor as it was after event ``after``.
        freeze: writes an actor as bytes.
        thaw: reads such bytes.
        after: the event after which to begin; by default, where the tape does.

    Attributes:
        actor: the actor as it was after event ``number``.
        step: the newest event and what it led to; None at the tape's beginning.
    """

    def __init__(
        self,
        tape: Tape,
        event_type: Any,
        actor: A,
        freeze: Callable[[A], bytes],
        thaw: Callable[[bytes], A],
        *,
        after: int | None = None,
    ) -> None:
        self.tape = tape
        first = tape.header.after if after is None else after
        self._events = event_type
        self._freeze, self._thaw = freeze, thaw
        self._every = KEYFRAME_EVENTS
        self._keyframes = [(first, freeze(actor))]
        self._enter(first, actor)

    @property
    def number(self) -> int:
        """The number of the newest event; at the start of the tape, that of the event before it."""
        return self.step.number if self.step is not None else self._entered

    @property
    def first(self) -> int:
        """The number of the first event that can be reached."""
        return self._keyframes[0][0] + 1

    def steps(self, until: int | None = None) -> Iterator[Step]:
        """Step on to event ``until``, or to the end of the tape, and yield each step.

        Raises:
            Divergence: this program handles an event differently than the tape says.
            TapeError: the tape cannot be read.
        """
        while (until is None or self.number < until) and self.forward():
            assert self.step is not None, "an event was handled"
            yield self.step

    def forward(self) -> bool:
        """Handle the next event; False at the end of the tape.

        Raises:
            Divergence, TapeError: see ``steps``.
        """
        moment = next(self._moments, None)
        if moment is None:
            return False
        record, event, outcome = moment
        effects = self._player.play(record, event, outcome)
        self.step = Step(record.n, record.at, event, effects, self._player.failure)
        if record.n >= self._keyframes[-1][0] + self._every and self._player.failure is None:
            self._keep(record.n)
        return True

    def goto(self, number: int) -> Step:
        """Go to event ``number``, forwards or backwards; returns its step.

        Raises:
            LookupError: the tape has no such event.
            Divergence, TapeError: see ``steps``.
        """
        if not self.first <= number <= self.tape.events:
            span = f"{self.first} to {self.tape.events}"
            raise LookupError(f"{self.tape.incarnation}:{number}: the tape has events {span}")
        keyframe, state = self._keyframes[
            bisect(self._keyframes, number - 1, key=lambda each: each[0]) - 1
        ]
        there = self.step is not None and number == self.number
        if not there and not keyframe <= self.number < number:
            self._enter(keyframe, self._thaw(state))
        for _ in self.steps(number):
            pass
        assert self.step is not None, "the tape has this event"
        return self.step

    def _enter(self, after: int, actor: A) -> None:
        self.actor = actor
        self.step: Step | None = None
        self._entered = after
        self._player: Player[Any] = Player(self.tape, self._events, actor, after)
        self._moments: Iterator[tuple[tape.Event, Any, tape.Effects | tape.Raised | None]] = (
            self._player.moments()
        )

    def _keep(self, number: int) -> None:
        self._keyframes.append((number, self._freeze(self.actor)))
        if len(self._keyframes) >= KEYFRAMES_MAX:
            self._keyframes = self._keyframes[::2]
            self._every *= 2
