"""An actor: one machine, its links, its clock. What is taped, simulated and replayed.

Every event that comes through the door is one tick of the actor's clock, so an event's number is
the actor's own entry, and every message sent while handling it carries that clock. The links hear
an event first; what they pass on reaches the machine; what the machine says goes back through them.
"""

from typing import Any, Protocol

from clocks import RunningClock, actor_of, number_of
from transport import (
    Dial,
    Drop,
    Effect,
    Event,
    Handles,
    Hangup,
    Keep,
    Links,
    Listen,
    MessageArrived,
    Retire,
    Send,
)

LINK_EFFECTS = frozenset({Send, Dial, Listen, Hangup})


class Machine(Protocol):
    """A participant: everything that it decides, and nothing that it does.

    No await, clock, randomness, thread, file, socket or log call inside; fixed order of iteration.
    """

    def handle(self, at: float, event: Event) -> list[Any]:
        """Take one event, at ``at`` seconds since the actor's start; what it asks for, in order."""
        ...


class Actor:
    """A machine at its door.

    Args:
        incarnation: its name and number, ``learner-3.2``.
        machine: what decides.
    """

    def __init__(self, incarnation: str, machine: Machine) -> None:
        self.incarnation = incarnation
        self.machine = machine
        self.handles = Handles()
        self.clock = RunningClock(incarnation)
        self.links = Links(self.clock, self.handles)
        self.learned: dict[str, int] = {}
        """What the newest event added to the clock, the actor's own count left out."""
        self._witnessed: Event | None = None
        self.floors: dict[str, int] = {}
        """Below these numbers no incarnation of an actor will be heard of again."""

    @property
    def number(self) -> int:
        """The number of the last event, 0 before the first."""
        return self.clock.number

    def witness(self, event: Event) -> dict[str, int]:
        """Let the clock take in ``event``, which is to be handled next; what it learned.

        The door asks before the event is handled, so that the tape can say it.
        """
        if isinstance(event, MessageArrived):
            heard = event.clock
            if self.floors:
                heard = {name: count for name, count in heard.items() if not self._retired(name)}
            self.learned = self.clock.tick(heard, event.sender)
        else:
            self.learned = self.clock.tick()
        self._witnessed = event
        return self.learned

    def handle(self, at: float, event: Event) -> list[Effect]:
        """Take one event; the effects that are for the world to do, in order.

        An array that came with a message is freed at the end unless somebody holds it by then.
        """
        if self._witnessed is not event:
            self.witness(event)
        self._witnessed = None
        arrived = event.handle if isinstance(event, MessageArrived) else ""
        if arrived:
            self.handles.hold(arrived)
        heard, effects = self.links.handle(at, event)
        for fact in heard:
            self._tell(at, fact, effects)
        if arrived:
            effects += self.handles.release(arrived)
        return effects

    def _tell(self, at: float, fact: Event, effects: list[Effect]) -> None:
        """Let the machine hear a fact, and its links what it says, and the machine their news."""
        handles = self.handles
        for effect in self.machine.handle(at, fact):
            # By exact type: this is where an actor's time goes.
            kind = type(effect)
            if kind in LINK_EFFECTS:
                news, asked = self.links.perform(at, effect)
                effects += asked
                for more in news:
                    self._tell(at, more, effects)
            elif kind is Keep:
                handles.hold(effect.handle)
            elif kind is Drop:
                effects += handles.release(effect.handle)
            elif kind is Retire:
                self._retire(effect.floors)
            else:
                effects.append(effect)

    def _retire(self, floors: dict[str, int]) -> None:
        """Forget incarnations that will not be heard of again, also when old messages name them."""
        for actor, floor in floors.items():
            self.floors[actor] = max(self.floors.get(actor, 0), floor)
        self.clock.forget(name for name in self.clock.others() if self._retired(name))

    def _retired(self, name: str) -> bool:
        return number_of(name) < self.floors.get(actor_of(name), 0)
