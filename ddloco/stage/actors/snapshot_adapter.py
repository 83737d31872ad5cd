"""An actor's part in snapshots, between its links and its machine.

The links deliver the markers, and the in-flight messages are those that the links accept. The
state is the whole actor: machine, links, clock, handles, timers and unfinished work. All of that is
plain data, so a cut costs one encoding; arrays are referenced, not copied, until they are written.

The cut is at the end of an event: markers are sent after every message of that event.
"""

from collections.abc import Callable
from typing import Any

from clocks import actor_of
from ddloco.stage.actors.effects import CaptureFlight, CaptureState, CommitSnapshot, Observe, Work
from ddloco.stage.actors.events import (
    Captured,
    Committed,
    SnapshotRequested,
    SnapshotSettled,
    WorkFailed,
)
from ddloco.stage.actors.messages import SnapshotPart
from ddloco.stage.actors.observations import BEGUN, DISCARDED, FAILED, TAKEN
from ddloco.stage.actors.state_types import states_of
from snapshot import (
    GATHERING_S,
    Ask,
    Capture,
    Commit,
    Discard,
    Forget,
    Mark,
    Moment,
    Part,
    Participant,
    RecordFlight,
    Tell,
    freeze,
    problem_of,
    split,
)
from transport import (
    CONTROL,
    LANES,
    Drop,
    Effect,
    Keep,
    Links,
    Marker,
    MessageArrived,
    PeerJoined,
    Send,
    SetTimer,
    TimerFired,
    TokenBucket,
)
from transport import Mark as MarkLanes

CUT = "cut/"
GATHER = "gather/"
BEGUN_AT_ONCE, BEGUN_PER_S = 16.0, 2.0
"""Limits, as a burst and a rate per second, on the snapshots of one other actor. Each one captures
the whole state, and any peer with a key could begin one with every message."""

OWN = frozenset({Captured, Committed, SnapshotRequested})
OWN_BODIES = frozenset({Marker, SnapshotPart})


def _refused(message: MessageArrived[Any], reason: str) -> Effect:
    """Log that a peer's message about a snapshot was refused."""
    return Observe("refused", {"peer": message.sender, "reason": reason})


class Cutting:
    """One actor's part in snapshots.

    Args:
        me: the actor's incarnation.
        links: its links.
        package: the top-level package of its machine, if that is of a program.
    """

    def __init__(self, me: str, links: Links, package: str = "") -> None:
        self._me = me
        self._links = links
        self._package = package
        self._participant: Participant[MessageArrived[Any]] = Participant(me, LANES)
        self._peers: dict[str, str] = {}
        """The incarnation at the other end of each link, by the link's name."""
        self._incarnations: dict[str, list[str]] = {}
        """The links to each incarnation."""
        self._cuts: list[Capture] = []
        """Cuts at the end of the current event."""
        self._held: dict[int, tuple[str, tuple[str, ...]]] = {}
        """Snapshot and handles that are being written, by work number."""
        self._flight: dict[str, int] = {}
        """References to each handle for in-flight messages of incomplete cuts."""
        self._commits: dict[int, Commit] = {}
        self._allowances: dict[str, TokenBucket] = {}
        """The remaining allowance of each actor that begins snapshots."""
        self._work = 0
        self._news: list[SnapshotSettled] = []

    # Events.

    def hears(self, event: MessageArrived[Any]) -> list[Effect]:
        """Record a message that is in flight at a cut, before the links handle it.

        The marker that ends the recording of a lane is itself recorded, because it has a sequence
        number in that lane.
        """
        if not self._participant.recording or not self._links.carries(event):
            return []
        times = self._participant.heard((event.sender, event.lane), event)
        if not event.handle:
            return []
        if times:
            self._flight[event.handle] = self._flight.get(event.handle, 0) + times
        return [Keep(event.handle)] * times

    def concerns(self, fact: Any) -> bool:
        """Whether a fact concerns only snapshots and is not passed to the machine."""
        kind = type(fact)
        if kind is MessageArrived:
            return type(fact.body) in OWN_BODIES
        if kind is TimerFired:
            return self.timed(fact.timer)
        if kind is WorkFailed:
            return fact.work in self._held or fact.work in self._commits
        return kind in OWN

    def take_part(self, at: float, fact: Any, moment: Callable[[], Moment]) -> list[Effect]:
        """Handle a fact that concerns snapshots; returns effects, as a machine does.

        Args:
            at: the current time, in seconds.
            fact: the fact.
            moment: returns the actor's event number, clock and peers, for a cut at this event.
        """
        participant = self._participant
        match fact:
            case MessageArrived(body=Marker(snapshot)):
                problem = self._marker_problem(at, snapshot)
                if problem is not None:
                    return [_refused(fact, problem)]
                channel = (fact.sender, fact.lane)
                return self._do(participant.marker(at, snapshot, channel, moment))
            case MessageArrived(body=SnapshotPart(snapshot, part)):
                problem = self._part_problem(fact.sender, snapshot, part)
                if problem is not None:
                    return [_refused(fact, problem)]
                return self._do(participant.told(snapshot, part))
            case SnapshotRequested():
                return self.take(at, moment())
            case TimerFired(timer) if timer.startswith(CUT):
                return self._do(participant.late(timer.removeprefix(CUT)))
            case TimerFired(timer):
                return self._do(participant.overdue(timer.removeprefix(GATHER)))
            case Captured():
                return self._captured(fact.work, fact.content, fact.failed)
            case Committed(work, failed):
                return self._committed(work, failed)
            case WorkFailed(work, _, reason):
                if work in self._commits:
                    return self._committed(work, reason)
                return self._captured(work, "", reason)
            case _:
                return []

    def _marker_problem(self, at: float, snapshot: str) -> str | None:
        """Return why a marker is refused, or None.

        A marker is refused if its snapshot cannot exist or if its actor begins too many. A peer
        that knows a snapshot also has the event that began it in its clock.
        """
        try:
            initiator, number = split(snapshot)
        except ValueError as error:
            return f"$.body.snapshot: {error}"
        known = self._links.clock[initiator]
        if number > known:
            return f"$.body.snapshot: {snapshot}, of {initiator} event {known} is known"
        if initiator == self._me and self._participant.unheard_of(snapshot):
            return f"$.body.snapshot: {snapshot} was not begun here"
        who = actor_of(initiator)
        if self._participant.unheard_of(snapshot) and not self._allowed(at, who):
            return f"$.body.snapshot: {who} begins more than {BEGUN_PER_S:g} snapshots a second"
        return None

    def _allowed(self, at: float, initiator: str) -> bool:
        """Whether an actor may begin another snapshot now; refused attempts count as well."""
        full = TokenBucket(BEGUN_AT_ONCE, BEGUN_PER_S, BEGUN_AT_ONCE, at)
        return self._allowances.setdefault(initiator, full).take(at)

    def _part_problem(self, sender: str, snapshot: str, part: Part) -> str | None:
        """Return why a part of a snapshot is refused, or None.

        A connected actor must send its own part of a snapshot that was begun here; the parts of
        other actors arrive through the actors that they are connected to.
        """
        problem = problem_of(part)
        if problem is not None:
            return f"$.body.{problem}"
        begun_here = snapshot in self._participant.began()
        if (
            begun_here
            and part.who != sender
            and (part.who == self._me or part.who in self._incarnations)
        ):
            return f"$.body.part.who: {part.who}, which is not who speaks"
        return None

    def take(self, at: float, now: Moment) -> list[Effect]:
        """Begin a snapshot with this event."""
        asked = self._do(self._participant.take(at, now))
        return [*(Observe(BEGUN, {"snapshot": each.snapshot}) for each in self._cuts), *asked]

    def joined(self, fact: PeerJoined) -> list[Effect]:
        """Handle a new link."""
        self._unplug(fact.peer)
        self._peers[fact.peer] = fact.incarnation
        self._incarnations.setdefault(fact.incarnation, []).append(fact.peer)
        return self._do(self._participant.joined(fact.incarnation))

    def lost(self, peer: str, reason: str) -> list[Effect]:
        """Handle the loss of a link."""
        gone = self._unplug(peer)
        return self._do(self._participant.gone(gone, reason)) if gone is not None else []

    def _unplug(self, peer: str) -> str | None:
        """Remove a link; returns the incarnation at its other end, None if there was no link."""
        gone = self._peers.pop(peer, None)
        if gone is not None:
            routes = self._incarnations[gone]
            routes.remove(peer)
            if not routes:
                del self._incarnations[gone]
        return gone

    def holding(self) -> list[str]:
        """Return the referenced handles, each as often as it is referenced."""
        flight = (handle for handle, times in self._flight.items() for _ in range(times))
        return [*flight, *(each for _, handles in self._held.values() for each in handles)]

    def began(self) -> list[str]:
        """Return the snapshots that this actor began and that are not yet settled."""
        committing = [each.snapshot for each in self._commits.values()]
        return [*self._participant.began(), *committing]

    def inherit(self, former: "Cutting") -> None:
        """Take over the set of known snapshots from before a restore, and nothing else."""
        self._participant.inherit(former._participant)

    def wrote(self, work: Work) -> bool:
        """Whether a work effect belongs to a snapshot."""
        return isinstance(work, CaptureState | CaptureFlight | CommitSnapshot)

    def timed(self, timer: str) -> bool:
        """Whether a timer belongs to a snapshot."""
        return timer.startswith((CUT, GATHER))

    def peers(self) -> tuple[str, ...]:
        """Return the incarnations of the connected peers, sorted by name as bytes."""
        return tuple(sorted(self._peers.values(), key=str.encode))

    def news(self) -> list[SnapshotSettled]:
        """Return and clear the events that the machine must handle."""
        news, self._news = self._news, []
        return news

    # The cut.

    @property
    def due(self) -> bool:
        """Whether the actor is to be captured at the end of this event."""
        return bool(self._cuts)

    def mark(self) -> list[Effect]:
        """Send markers to all peers, after every message of this event."""
        effects: list[Effect] = []
        for cut in self._cuts:
            effects += [mark for peer in cut.peers for mark in self._mark(peer, cut.snapshot)]
            effects.append(SetTimer(CUT + cut.snapshot, cut.until))
            if cut.snapshot in self._participant.began():
                until = cut.until + GATHERING_S
                effects.append(SetTimer(GATHER + cut.snapshot, until))
        return effects

    def hold(self, handles: tuple[str, ...]) -> list[tuple[int, str]]:
        """Note that ``handles`` are needed until they are written, once for each cut.

        The caller adds the references to the handles, one for each cut.

        Returns:
            The work number and the snapshot of each cut.
        """
        begun: list[tuple[int, str]] = []
        for cut in self._cuts:
            work = self._next_work()
            self._held[work] = cut.snapshot, handles
            begun.append((work, cut.snapshot))
        self._cuts.clear()
        return begun

    def _captured(self, work: int, content: str, failed: str) -> list[Effect]:
        snapshot, handles = self._held.pop(work)
        effects: list[Effect] = [Drop(handle) for handle in handles]
        if not failed:
            return effects + self._do(self._participant.captured(snapshot, content))
        asked = self._do(self._participant.failed(snapshot, failed))
        if asked:  # Otherwise the failure of another blob was logged already.
            effects.append(Observe(FAILED, {"snapshot": snapshot, "reason": failed}))
        return effects + asked

    def _committed(self, work: int, failed: str) -> list[Effect]:
        commit = self._commits.pop(work)
        return self._settle(commit.snapshot, failed, commit)

    # Requests of the participant.

    def _do(self, asks: list[Ask[MessageArrived[Any]]]) -> list[Effect]:
        return [effect for ask in asks for effect in self._ask(ask)]

    def _ask(self, ask: Ask[MessageArrived[Any]]) -> list[Effect]:
        match ask:
            case Capture():
                self._cuts.append(ask)
                return []
            case Mark(snapshot, peer):
                return self._mark(peer, snapshot)
            case RecordFlight():
                return [self._record_flight(ask)]
            case Forget(messages):
                return self._forget([event.handle for event in messages if event.handle])
            case Tell(peer, snapshot, part):
                # Without a route, the actor that began the snapshot waits until its deadline.
                said = SnapshotPart(snapshot, part)
                routes = self._routes(split(snapshot)[0]) or self._routes(peer)
                return [Send(route, CONTROL, said) for route in routes]
            case Commit(snapshot, parts, absent):
                work = self._next_work()
                self._commits[work] = ask
                return [CommitSnapshot(work, snapshot, parts, dict(absent))]
            case Discard(snapshot, reason):
                return self._settle(snapshot, reason, None)

    def _mark(self, peer: str, snapshot: str) -> list[Effect]:
        """Send markers to one peer, unless its link was lost during this event."""
        return [MarkLanes(route, snapshot) for route in self._routes(peer)]

    def _routes(self, incarnation: str) -> list[str]:
        """Return the links to an incarnation."""
        return self._incarnations.get(incarnation, [])

    def _record_flight(self, ask: RecordFlight[MessageArrived[Any]]) -> Effect:
        messages = [event for _, events in ask.in_flight for event in events]
        handles = tuple(event.handle for event in messages if event.handle)
        for handle in handles:
            self._land(handle)  # The reference now belongs to the work that writes it.
        work = self._next_work()
        self._held[work] = ask.snapshot, handles
        return CaptureFlight(
            work, ask.snapshot, freeze(messages, states_of(self._package)), handles
        )

    def _forget(self, handles: list[str]) -> list[Effect]:
        for handle in handles:
            self._land(handle)
        return [Drop(handle) for handle in handles]

    def _land(self, handle: str) -> None:
        """Remove one reference of an in-flight message."""
        left = self._flight[handle] - 1
        if left:
            self._flight[handle] = left
        else:
            del self._flight[handle]

    def _settle(self, snapshot: str, failed: str, commit: Commit | None) -> list[Effect]:
        self._news.append(SnapshotSettled(snapshot, failed))
        if failed or commit is None:
            return [Observe(DISCARDED, {"snapshot": snapshot, "reason": failed})]
        parts = [part.who for part in commit.parts]
        absent = {"absent": dict(commit.absent)} if commit.absent else {}
        return [Observe(TAKEN, {"snapshot": snapshot, "parts": parts, **absent})]

    def _next_work(self) -> int:
        """Return the next work number; they are negative, unlike those of machines."""
        self._work -= 1
        return self._work
