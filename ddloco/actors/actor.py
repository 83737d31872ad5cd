"""An actor: one machine, its links, its clock. What is taped, simulated and replayed.

Every event that comes through the door is one tick of the actor's clock, so an event's number is
the actor's own entry, and every message sent while handling it carries that clock. The links hear
an event first; what they pass on reaches the machine; what the machine says goes back through them.
"""

from typing import Any, Protocol

from clocks import RunningClock, actor_of, number_of
from ddloco.actors.effects import CaptureState, TakeSnapshot, Work
from ddloco.actors.events import Captured, Restored, SnapshotRequested, SnapshotSettled, WorkResult
from ddloco.actors.snapshot_adapter import Cutting, packages_of
from snapshot import FreezeError, Moment, freeze
from transport import (
    CONTROL,
    CancelTimer,
    Dial,
    Drop,
    Effect,
    Event,
    Handles,
    Hangup,
    Keep,
    LaneBroken,
    Links,
    Listen,
    Mark,
    MessageArrived,
    PeerJoined,
    PeerLost,
    Retire,
    Send,
    SetTimer,
    TimerFired,
)

LINK_EFFECTS = frozenset({Send, Dial, Listen, Hangup, Mark})


ACTOR_SEMANTICS = ("shared-deltas", "owed-credit", "runs-told-apart")
"""Behaviours of links and clocks that every tape names. A change of behaviour that makes old tapes
replay differently adds or renames one, so that they are refused with a line instead."""


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
        self.snapshots = Cutting(incarnation, self.links, packages_of(machine))
        self.at = 0.0
        """When the newest event was handled."""
        self.timers: dict[str, float] = {}
        """What was set and has not fired: part of the state, though only the world looks at it."""
        self.under_way: dict[int, Work] = {}
        """Work that was asked for and has not ended."""
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

        The door asks before the event is handled, so that the tape can say it. Of messages only
        those teach anything that the links will take as part of an open session.
        """
        if isinstance(event, MessageArrived) and self.links.teaches(event):
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
        effects: list[Effect] = []
        arrived = ""
        self.at = at
        begun = self._renew(effects) if isinstance(event, Restored) else []
        if isinstance(event, MessageArrived):
            arrived = event.handle
            if arrived:
                self.handles.hold(arrived)
            for kept in self.snapshots.hears(event):
                self._do(at, kept, effects)
        heard, asked = self.links.handle(at, event)
        effects += asked
        for fact in heard:
            self._tell(at, fact, effects)
        if isinstance(event, Restored):
            self._part_with(at, begun, event.missing, effects)
        if arrived:
            effects += self.handles.release(arrived)
        if self.snapshots.due:
            for marker in self.snapshots.mark():
                self._do(at, marker, effects)
        self._remember(event, effects)
        if self.snapshots.due:
            self._capture(at, effects)
        return effects

    def _tell(self, at: float, fact: Any, effects: list[Effect]) -> None:
        """Let snapshots and machine hear a fact, links what they say, and both the links' news."""
        snapshots = self.snapshots
        if snapshots.concerns(fact):
            asked = snapshots.take_part(at, fact, self._moment)
            if type(fact) is SnapshotRequested:
                asked = [*self.machine.handle(at, fact), *asked]
        else:
            asked = self.machine.handle(at, fact)
            kind = type(fact)
            if kind is PeerJoined:
                asked = [*snapshots.joined(fact), *asked]
            elif kind is PeerLost:
                asked = [*snapshots.lost(fact.peer, fact.reason), *asked]
        for effect in asked:
            self._do(at, effect, effects)
        for news in snapshots.news():
            for effect in self.machine.handle(at, news):
                self._do(at, effect, effects)

    def _do(self, at: float, effect: Any, effects: list[Effect]) -> None:
        """One effect, in its turn: what is the actor's own is done now, the rest is the world's."""
        # By exact type: this is where an actor's time goes.
        kind = type(effect)
        if kind in LINK_EFFECTS:
            if kind is Hangup:
                for more in self.snapshots.lost(effect.peer, effect.reason):
                    self._do(at, more, effects)
            news, asked = self.links.perform(at, effect)
            effects += asked
            for more in news:
                self._tell(at, more, effects)
        elif kind is Keep:
            self.handles.hold(effect.handle)
        elif kind is Drop:
            effects += self.handles.release(effect.handle)
        elif kind is Retire:
            self._retire(effect.floors)
        elif kind is TakeSnapshot:
            for more in self.snapshots.take(at, self._moment()):
                self._do(at, more, effects)
        else:
            effects.append(effect)

    # Snapshots.

    def _moment(self) -> Moment:
        return Moment(self.clock.number, self.clock.wire(), self.snapshots.peers())

    def _remember(self, event: Event, effects: list[Any]) -> None:
        """Timers and work under way, as the world will know them after this event."""
        if isinstance(event, TimerFired):
            self.timers.pop(event.timer, None)
        elif isinstance(event, WorkResult):
            self.under_way.pop(event.work, None)
        for effect in effects:
            kind = type(effect)
            if kind is SetTimer:
                self.timers[effect.timer] = effect.at
            elif kind is CancelTimer:
                self.timers.pop(effect.timer, None)
            elif isinstance(effect, Work):
                self.under_way[effect.work] = effect

    def _renew(self, effects: list[Effect]) -> list[str]:
        """Go on in another run: what was being written of snapshots is that run's affair; those
        that this actor had begun there."""
        former, links = self.snapshots, self.links
        self.snapshots = Cutting(self.incarnation, links, packages_of(self.machine))
        self.snapshots.inherit(former)
        for handle in former.holding():
            effects += self.handles.release(handle)
        self.under_way = {n: work for n, work in self.under_way.items() if not former.wrote(work)}
        self.timers = {name: due for name, due in self.timers.items() if not former.timed(name)}
        for peer in links.peers():
            self.snapshots.joined(PeerJoined(peer, links.incarnation(peer)))
        return former.began()

    def _part_with(
        self, at: float, begun: list[str], missing: tuple[str, ...], effects: list[Effect]
    ) -> None:
        """The machine has heard that it goes on; now that those snapshots come to nothing, and that
        whoever has not come along is lost."""
        for snapshot in begun:
            settled = SnapshotSettled(snapshot, "the job went on from a snapshot")
            for effect in self.machine.handle(at, settled):
                self._do(at, effect, effects)
        for peer in missing:
            broken = LaneBroken(peer, CONTROL, "it did not come along")
            heard, asked = self.links.handle(at, broken)
            effects += asked
            for fact in heard:
                self._tell(at, fact, effects)

    def _capture(self, at: float, effects: list[Effect]) -> None:
        """The state as it is now, for each cut that this event brought; what is still being made is
        made again by whoever goes on from here. Captures are not: a worker's state of then is
        gone, so they are no part of what is under way.

        A machine whose state is no plain data takes no part, and says so.
        """
        coming = {handle for work in self.under_way.values() for handle in work.makes}
        there = tuple(name for name in sorted(self.handles.names()) if name not in coming)
        begun = self.snapshots.hold(there)
        for _ in begun:
            for handle in there:
                self.handles.hold(handle)
        self.clock.rest()
        try:
            state = freeze(self, packages_of(self.machine))
        except FreezeError as error:
            for work, _ in begun:
                self._tell(at, Captured(work, failed=str(error)), effects)
            return
        effects += [CaptureState(work, snapshot, state, there) for work, snapshot in begun]

    def _retire(self, floors: dict[str, int]) -> None:
        """Forget incarnations that will not be heard of again, also when old messages name them."""
        for actor, floor in floors.items():
            self.floors[actor] = max(self.floors.get(actor, 0), floor)
        self.clock.forget(name for name in self.clock.others() if self._retired(name))

    def _retired(self, name: str) -> bool:
        return number_of(name) < self.floors.get(actor_of(name), 0)
