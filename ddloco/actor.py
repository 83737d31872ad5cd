"""An actor: one machine, its links, its clock. What is taped, simulated and replayed.

Every event that comes through the door is one tick of the actor's clock, so an event's number is
the actor's own entry, and every message sent while handling it carries that clock. The links hear
an event first; what they pass on reaches the machine; what the machine says goes back through them.
"""

from typing import Protocol

from clocks import VectorClock
from transport import Drop, Effect, Event, Handles, Keep, Links, MessageArrived


class Machine(Protocol):
    """A participant: everything that it decides, and nothing that it does.

    No await, clock, randomness, thread, file, socket or log call inside; fixed order of iteration.
    """

    def handle(self, at: float, event: Event) -> list[Effect]:
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
        self.links = Links(incarnation, self.handles)
        self.clock = VectorClock()
        self._witnessed: tuple[Event, VectorClock] | None = None

    @property
    def number(self) -> int:
        """The number of the last event, 0 before the first."""
        return self.clock[self.incarnation]

    def witness(self, event: Event) -> VectorClock:
        """The clock of ``event``, if it were handled now.

        Of its own events an actor hears nothing new: a message that says otherwise is false, and
        its links refuse it.
        """
        if self._witnessed is not None and self._witnessed[0] is event:
            return self._witnessed[1]  # The door asks before the event is handled.
        known = self.clock
        if isinstance(event, MessageArrived):
            known = known.merge({n: c for n, c in event.clock.items() if n != self.incarnation})
        clock = known.tick(self.incarnation)
        self._witnessed = (event, clock)
        return clock

    def handle(self, at: float, event: Event) -> list[Effect]:
        """Take one event; the effects that are for the world to do, in order.

        An array that came with a message is freed at the end unless somebody holds it by then.
        """
        self.clock = self.links.clock = self.witness(event)
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
        for effect in self.machine.handle(at, fact):
            match effect:
                case Keep(handle):
                    self.handles.hold(handle)
                case Drop(handle):
                    effects += self.handles.release(handle)
                case _:
                    self._perform(at, effect, effects)

    def _perform(self, at: float, effect: Effect, effects: list[Effect]) -> None:
        done = self.links.perform(at, effect)
        if done is None:
            effects.append(effect)
            return
        news, asked = done
        effects += asked
        for more in news:
            self._tell(at, more, effects)
