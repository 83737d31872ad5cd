"""An actor: one machine, its links and its clock; the unit of recording, simulation and replay.
Every event that the door admits is one tick of its clock, so an event's number is the actor's own
entry, and every message sent while handling it carries that clock."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from clocks import ActorClock, actor_of, number_of
from ddloco.stage.actors.effects import AskedByAll, CaptureState, TakeSnapshot, Work
from ddloco.stage.actors.events import (
    Captured,
    LeaveRequested,
    Restored,
    SnapshotRequested,
    SnapshotSettled,
    WorkResult,
)
from ddloco.stage.actors.snapshot_adapter import SnapshotAdapter, new_cutting
from ddloco.stage.actors.timers import TimerOfAll
from snapshot import Moment, StateError, read_state, write_state
from snapshot.attributes import machine_from, plain_state
from transport import (
    CONTROL,
    Body,
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
    Superseded,
    Timer,
    TimerFired,
    Transmit,
)

LINK_EFFECTS = frozenset({Send, Dial, Listen, Hangup, Mark})


ACTOR_SEMANTICS = (
    *("shared-deltas", "owed-credit", "runs-told-apart", "typed-states", "timers-are-values"),
    "followed-by-all",
)
"""Behaviours of links and clocks, which every tape names. A change that makes old tapes replay
differently adds or renames one, so that old tapes are refused with an error message."""


class Machine(Protocol):
    """The decisions of one actor, as a pure state machine: no await, clock, randomness, thread,
    file, socket or log call, and a fixed order of iteration."""

    def handle(self, at: float, event: Event) -> list[Any]:
        """Handle one event, ``at`` seconds after the actor's start; returns effects in order."""
        ...


if TYPE_CHECKING:  # A checker knows defaults of type variables, Python 3.11 does not.
    from typing_extensions import TypeVar as TypeVarWithDefault

    M = TypeVarWithDefault("M", bound="Machine", default=Any)
    B = TypeVarWithDefault("B", bound=Body, default=Any)
    W = TypeVarWithDefault("W", bound=Work, default=Any)
    T = TypeVarWithDefault("T", bound=Timer, default=Any)
else:
    M, B, W, T = TypeVar("M"), TypeVar("B"), TypeVar("W"), TypeVar("T")


class OwnMachine(Struct, tag=True, forbid_unknown_fields=True):
    """Base of the machines that are structs of their whole state, with declared types. One of any
    other class is written by its attributes; see ``user_state``."""


class Actor(Struct, Generic[M, B, W, T], forbid_unknown_fields=True):
    """A machine with its links, timers and part in snapshots; made by ``new_actor``.

    Attributes:
        at: the time of the newest event, in seconds since the actor's start.
        timers: the timers that are set, each with its due time, in the order of setting.
        learned: the entries of other actors that the newest event changed in the clock.
        witnessed: whether the clock is already advanced to the event that is handled next.
        floors: for each actor, the lowest incarnation number that may still occur.
    """

    machine: M
    links: Links[B]
    snapshots: SnapshotAdapter[B]
    at: float = 0.0
    timers: list[tuple[T, float]] = []
    under_way: dict[int, W] = {}
    learned: dict[str, int] = {}
    witnessed: bool = False
    floors: dict[str, int] = {}

    @property
    def incarnation(self) -> str:
        return self.links.clock.me

    @property
    def clock(self) -> ActorClock:
        return self.links.clock

    @property
    def handles(self) -> Handles:
        return self.links.handles

    @property
    def number(self) -> int:
        return self.clock.number

    def witness(self, event: Event) -> dict[str, int]:
        """Advance the clock by ``event``, which must be handled next, so that the tape can record
        the result; returns the entries of other actors that changed. Only messages that the links
        will accept as part of an open session add entries."""
        links = self.links
        if type(event) is MessageArrived and links.teaches(event):
            heard = event.clock
            if self.floors:
                heard = {name: count for name, count in heard.items() if not self._retired(name)}
            learned = links.clock.tick(heard, event.sender)
        else:
            learned = links.clock.tick()
        self.learned, self.witnessed = learned, True
        return learned

    def handle(self, at: float, event: Event) -> list[Effect]:
        """Handle one event; returns the effects for the driver to perform, in order. An array that
        came with a message is released at the end unless it was kept meanwhile."""
        if not self.witnessed:
            self.witness(event)
        self.witnessed = False
        effects: list[Effect] = []
        arrived, links, snapshots = "", self.links, self.snapshots
        self.at = at
        # Exact types are compared because each event passes here; isinstance costs a struct more.
        begun = self._renew(effects) if type(event) is Restored else []
        if type(event) is MessageArrived:
            arrived = event.handle
            if arrived:
                links.handles.hold(arrived)
            for kept in snapshots.hears(event, links):
                self._do(at, kept, effects)
        heard, asked = links.handle(at, event)
        effects += asked
        for fact in heard:
            self._tell(at, fact, effects)
        if type(event) is Restored:
            self._part_with(at, begun, event.missing, effects)
        if arrived:
            effects += links.handles.release(arrived)
        cuts = self.snapshots.cuts
        if cuts:
            for marker in self.snapshots.mark():
                self._do(at, marker, effects)
        self._remember(event, effects)
        if cuts:
            self._capture(at, effects)
        return effects

    def _tell(self, at: float, fact: Any, effects: list[Effect]) -> None:
        snapshots = self.snapshots
        if type(fact) is Superseded:
            later = f"{actor_of(self.incarnation)}.{fact.number}"
            later = f"another {later}" if later == self.incarnation else later
            reason = f"{fact.peer} has followed {later}; started again, this is the one after it"
            fact = LeaveRequested(reason)
        if snapshots.concerns(fact):
            asked = snapshots.take_part(at, fact, self._moment, self.links.clock)
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
        # The exact type is compared because this is the most frequent call of an actor.
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
            self.links.handles.hold(effect.handle)
        elif kind is Drop:
            effects += self.links.handles.release(effect.handle)
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
        if type(event) is TimerFired:
            self._unset(event.timer)
        elif type(event) is not MessageArrived and isinstance(event, WorkResult):
            self.under_way.pop(event.work, None)
        for effect in effects:
            kind = type(effect)
            if kind is SetTimer:
                self._unset(effect.timer)
                self.timers.append((effect.timer, effect.at))
            elif kind is CancelTimer:
                self._unset(effect.timer)
            elif kind is not Transmit and isinstance(effect, Work):
                work: Any = effect
                self.under_way[work.work] = work

    def _unset(self, timer: T) -> None:
        self.timers = [each for each in self.timers if each[0] != timer]

    def _renew(self, effects: list[Effect]) -> list[str]:
        """Continue in another run, without the unfinished snapshots of the earlier one; returns
        those that this actor had begun."""
        former, links = self.snapshots, self.links
        self.snapshots = new_cutting(self.incarnation)
        self.snapshots.inherit(former)
        for handle in former.holding():
            effects += self.handles.release(handle)
        self.under_way = {n: work for n, work in self.under_way.items() if not former.wrote(work)}
        self.timers = [each for each in self.timers if not former.timed(each[0])]
        for peer in links.peers():
            self.snapshots.joined(PeerJoined(peer, links.incarnation(peer)))
        return former.began()

    def _part_with(
        self, at: float, begun: list[str], missing: tuple[str, ...], effects: list[Effect]
    ) -> None:
        """Report to the machine, after ``Restored``, what the new run does not continue."""
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
        """Capture the actor's state for each cut that this event belongs to, without arrays that
        unfinished work is still computing: an actor that resumes starts that work again. Captures
        are no unfinished work, because they could not be repeated: the worker's state has changed
        by then."""
        coming = {handle for work in self.under_way.values() for handle in work.makes}
        there = tuple(name for name in sorted(self.handles.names()) if name not in coming)
        begun = self.snapshots.hold(there)
        for _ in begun:
            for handle in there:
                self.handles.hold(handle)
        self.clock.rest()
        try:
            state = self.write()
        except StateError as error:
            for work, _ in begun:
                self._tell(at, Captured(work, failed=str(error)), effects)
            return
        effects += [CaptureState(work, snapshot, state, there) for work, snapshot in begun]

    def write(self) -> bytes:
        """Return the whole state as bytes. Raises ``StateError`` if the machine's state is no plain
        data."""
        own = isinstance(self.machine, OwnMachine)
        return write_state(self if own else replace(self, machine=plain_state(self.machine)))

    def _retire(self, floors: dict[str, int]) -> None:
        """Remove retired incarnations from the clock; later messages that name them add nothing."""
        for actor, floor in floors.items():
            self.floors[actor] = max(self.floors.get(actor, 0), floor)
        self.clock.forget(name for name in self.clock.others() if self._retired(name))

    def _retired(self, name: str) -> bool:
        return number_of(name) < self.floors.get(actor_of(name), 0)


def new_actor(incarnation: str, machine: M) -> Actor[M, Any, Any, Any]:
    links = Links(ActorClock(incarnation), Handles())
    return Actor(machine, links, new_cutting(incarnation))


@dataclass(frozen=True)
class ActorStates(Generic[M]):
    """Reads the states of actors whose machines are of one class: ``machine``, as it is before its
    first event, with the unions of its message bodies, its work effects and its timers."""

    machine: M
    said: Any
    asked: Any
    timed: Any

    def read(self, data: bytes) -> Actor[M, Any, Any, Any]:
        """Read what ``Actor.write`` wrote. Raises ``StateError`` if it is not the whole state of
        such an actor."""
        asked, timed = AskedByAll | self.asked, TimerOfAll | self.timed
        if isinstance(self.machine, OwnMachine):
            own: Any = type(self.machine)
            actor = read_state(data, Actor[own, self.said, asked, timed])
            if actor.write() != data:
                raise StateError("a state of another version, which lacks fields of this one")
            return actor
        plain: Any = dict[str, Any]
        actor = read_state(data, Actor[plain, self.said, asked, timed])
        return replace(actor, machine=machine_from(self.machine, actor.machine))

    def read_flight(self, data: bytes) -> list[MessageArrived[Any]]:
        return read_state(data, list[MessageArrived[self.said]])
