"""An actor's part in snapshots, between its links and its machine. The state is the whole actor,
which is plain data, so a cut costs one encoding; arrays are referenced until they are written. The
cut is at the end of an event: markers are sent after every message of that event."""

from collections.abc import Callable
from typing import Any, Generic

from msgspec import Struct

from clocks import ActorClock, actor_of
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
from ddloco.stage.actors.timers import MarkerDeadline, PartDeadline, SnapshotTimer
from snapshot import (
    GATHERING_S,
    REFUSED,
    Ask,
    Capture,
    Commit,
    Discard,
    Forget,
    Moment,
    Part,
    Participant,
    RecordFlight,
    SendMarkers,
    Tell,
    problem_of,
    split,
    write_state,
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
    Timer,
    TimerFired,
    TokenBucket,
)
from transport import Mark as MarkLanes
from transport.message import B

BEGUN_AT_ONCE, BEGUN_PER_S = 16.0, 2.0
"""Limits, as a burst and a rate per second, on the snapshots of one other actor. Each one captures
the whole state, and any peer with a key could begin one with every message."""

OWN = frozenset({Captured, Committed, SnapshotRequested})
OWN_BODIES = frozenset({Marker, SnapshotPart})


def _refused(message: MessageArrived[Any], reason: str) -> Effect:
    return Observe("refused", {"peer": message.sender, "reason": reason})


class SnapshotAdapter(Struct, Generic[B], forbid_unknown_fields=True):
    """One actor's part in snapshots; made by ``new_cutting``.

    Attributes:
        incarnations: the links to each incarnation.
        held: snapshot and handles that are being written, by work number.
        flight: references to each handle for in-flight messages of incomplete cuts.
        settled: events that the machine must handle.
    """

    participant: Participant[MessageArrived[B]]
    links_up: dict[str, str] = {}
    incarnations: dict[str, list[str]] = {}
    cuts: list[Capture] = []
    held: dict[int, tuple[str, tuple[str, ...]]] = {}
    flight: dict[str, int] = {}
    commits: dict[int, Commit] = {}
    allowances: dict[str, TokenBucket] = {}
    newest_work: int = 0
    settled: list[SnapshotSettled] = []

    # Events.

    def hears(self, event: MessageArrived[Any], links: Links[Any]) -> list[Effect]:
        """Record a message that is in flight at a cut, before the links handle it. The marker that
        ends the recording of a lane is itself recorded, because it has a sequence number in that
        lane."""
        if not self.participant.recording or not links.carries(event):
            return []
        times = self.participant.heard((event.sender, event.lane), event)
        if not event.handle:
            return []
        if times:
            self.flight[event.handle] = self.flight.get(event.handle, 0) + times
        return [Keep(event.handle)] * times

    def concerns(self, fact: Any) -> bool:
        """Whether a fact concerns only snapshots and is not passed to the machine."""
        kind = type(fact)
        if kind is MessageArrived:
            return type(fact.body) in OWN_BODIES
        if kind is TimerFired:
            return self.timed(fact.timer)
        if kind is WorkFailed:
            return fact.work in self.held or fact.work in self.commits
        return kind in OWN

    def take_part(
        self, at: float, fact: Any, moment: Callable[[], Moment], clock: ActorClock
    ) -> list[Effect]:
        participant = self.participant
        match fact:
            case MessageArrived(body=Marker(snapshot)):
                problem = self._marker_problem(at, snapshot, clock)
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
            case TimerFired(MarkerDeadline(snapshot)):
                return self._do(participant.late(snapshot))
            case TimerFired(PartDeadline(snapshot)):
                return self._do(participant.overdue(snapshot))
            case Captured():
                return self._captured(fact.work, fact.content, fact.failed)
            case Committed(work, failed):
                return self._committed(work, failed)
            case WorkFailed(work, _, reason):
                if work in self.commits:
                    return self._committed(work, reason)
                return self._captured(work, "", reason)
            case _:
                return []

    def _marker_problem(self, at: float, snapshot: str, clock: ActorClock) -> str | None:
        """Return why a marker is refused, or None: its snapshot cannot exist, or its actor begins
        too many. A peer that knows a snapshot also has the event that began it in its clock."""
        try:
            initiator, number = split(snapshot)
        except ValueError as error:
            return f"$.body.snapshot: {error}"
        known = clock[initiator]
        if number > known:
            return f"$.body.snapshot: {snapshot}, of {initiator} event {known} is known"
        if initiator == self.participant.me and self.participant.unheard_of(snapshot):
            return f"$.body.snapshot: {snapshot} was not begun here"
        who = actor_of(initiator)
        if self.participant.unheard_of(snapshot) and not self._allowed(at, who):
            return f"$.body.snapshot: {who} begins more than {BEGUN_PER_S:g} snapshots a second"
        return None

    def _allowed(self, at: float, initiator: str) -> bool:
        """Whether an actor may begin another snapshot now; refused attempts count as well."""
        full = TokenBucket(BEGUN_AT_ONCE, BEGUN_PER_S, BEGUN_AT_ONCE, at)
        return self.allowances.setdefault(initiator, full).take(at)

    def _part_problem(self, sender: str, snapshot: str, part: Part) -> str | None:
        """Return why a part of a snapshot is refused, or None. A connected actor must send its own
        part of a snapshot that was begun here; those of others arrive through the actors that they
        are connected to."""
        problem = problem_of(part)
        if problem is not None:
            return f"$.body.{problem}"
        begun_here = snapshot in self.participant.began()
        if (
            begun_here
            and part.who != sender
            and (part.who == self.participant.me or part.who in self.incarnations)
        ):
            return f"$.body.part.who: {part.who}, which is not who speaks"
        return None

    def take(self, at: float, now: Moment) -> list[Effect]:
        asked = self._do(self.participant.take(at, now))
        return [*(Observe(BEGUN, {"snapshot": each.snapshot}) for each in self.cuts), *asked]

    def joined(self, fact: PeerJoined) -> list[Effect]:
        self._unplug(fact.peer)
        self.links_up[fact.peer] = fact.incarnation
        self.incarnations.setdefault(fact.incarnation, []).append(fact.peer)
        return self._do(self.participant.joined(fact.incarnation))

    def lost(self, peer: str, reason: str) -> list[Effect]:
        gone = self._unplug(peer)
        return self._do(self.participant.gone(gone, reason)) if gone is not None else []

    def _unplug(self, peer: str) -> str | None:
        """Remove a link; returns the incarnation at its other end, None if there was no link."""
        gone = self.links_up.pop(peer, None)
        if gone is not None:
            routes = self.incarnations[gone]
            routes.remove(peer)
            if not routes:
                del self.incarnations[gone]
        return gone

    def holding(self) -> list[str]:
        """Return the referenced handles, each as often as it is referenced."""
        flight = (handle for handle, times in self.flight.items() for _ in range(times))
        return [*flight, *(each for _, handles in self.held.values() for each in handles)]

    def began(self) -> list[str]:
        committing = [each.snapshot for each in self.commits.values()]
        return [*self.participant.began(), *committing]

    def inherit(self, former: "SnapshotAdapter") -> None:
        """Take over the set of known snapshots from before a restore, and nothing else."""
        self.participant.inherit(former.participant)

    def wrote(self, work: Work) -> bool:
        return isinstance(work, CaptureState | CaptureFlight | CommitSnapshot)

    def timed(self, timer: Timer) -> bool:
        return isinstance(timer, SnapshotTimer)

    def peers(self) -> tuple[str, ...]:
        return tuple(sorted(self.links_up.values(), key=str.encode))

    def news(self) -> list[SnapshotSettled]:
        news, self.settled = self.settled, []
        return news

    # The cut.

    def mark(self) -> list[Effect]:
        """Send markers to all peers, after every message of this event."""
        effects: list[Effect] = []
        for cut in self.cuts:
            effects += [mark for peer in cut.peers for mark in self._mark(peer, cut.snapshot)]
            effects.append(SetTimer(MarkerDeadline(cut.snapshot), cut.until))
            if cut.snapshot in self.participant.began():
                until = cut.until + GATHERING_S
                effects.append(SetTimer(PartDeadline(cut.snapshot), until))
        return effects

    def hold(self, handles: tuple[str, ...]) -> list[tuple[int, str]]:
        """Note that ``handles`` are needed until they are written, once for each cut, for each of
        which the caller adds a reference."""
        begun: list[tuple[int, str]] = []
        for cut in self.cuts:
            work = self._next_work()
            self.held[work] = cut.snapshot, handles
            begun.append((work, cut.snapshot))
        self.cuts.clear()
        return begun

    def _captured(self, work: int, content: str, failed: str) -> list[Effect]:
        snapshot, handles = self.held.pop(work)
        effects: list[Effect] = [Drop(handle) for handle in handles]
        if not failed:
            return effects + self._do(self.participant.captured(snapshot, content))
        asked = self._do(self.participant.failed(snapshot, failed))
        if asked:  # Otherwise the failure of another blob was logged already.
            effects.append(Observe(FAILED, {"snapshot": snapshot, "reason": failed}))
        return effects + asked

    def _committed(self, work: int, failed: str) -> list[Effect]:
        commit = self.commits.pop(work)
        return self._settle(commit.snapshot, failed, commit)

    # Requests of the participant.

    def _do(self, asks: list[Ask[MessageArrived[Any]]]) -> list[Effect]:
        return [effect for ask in asks for effect in self._ask(ask)]

    def _ask(self, ask: Ask[MessageArrived[Any]]) -> list[Effect]:
        match ask:
            case Capture():
                self.cuts.append(ask)
                return []
            case SendMarkers(snapshot, peer):
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
                self.commits[work] = ask
                return [CommitSnapshot(work, snapshot, parts, dict(absent))]
            case Discard(snapshot, reason):
                return self._settle(snapshot, reason, None)

    def _mark(self, peer: str, snapshot: str) -> list[Effect]:
        """Send markers to one peer, unless its link was lost during this event."""
        return [MarkLanes(route, snapshot) for route in self._routes(peer)]

    def _routes(self, incarnation: str) -> list[str]:
        return self.incarnations.get(incarnation, [])

    def _record_flight(self, ask: RecordFlight[MessageArrived[Any]]) -> Effect:
        messages = [event for _, events in ask.in_flight for event in events]
        handles = tuple(event.handle for event in messages if event.handle)
        for handle in handles:
            self._land(handle)  # The reference now belongs to the work that writes it.
        work = self._next_work()
        self.held[work] = ask.snapshot, handles
        return CaptureFlight(work, ask.snapshot, write_state(messages), handles)

    def _forget(self, handles: list[str]) -> list[Effect]:
        for handle in handles:
            self._land(handle)
        return [Drop(handle) for handle in handles]

    def _land(self, handle: str) -> None:
        left = self.flight[handle] - 1
        if left:
            self.flight[handle] = left
        else:
            del self.flight[handle]

    def _settle(self, snapshot: str, failed: str, commit: Commit | None) -> list[Effect]:
        self.settled.append(SnapshotSettled(snapshot, failed, failed == REFUSED))
        if failed or commit is None:
            return [Observe(DISCARDED, {"snapshot": snapshot, "reason": failed})]
        parts = [part.who for part in commit.parts]
        absent = {"absent": dict(commit.absent)} if commit.absent else {}
        return [Observe(TAKEN, {"snapshot": snapshot, "parts": parts, **absent})]

    def _next_work(self) -> int:
        """Return the next work number; they are negative, unlike those of machines."""
        self.newest_work -= 1
        return self.newest_work


def new_cutting(incarnation: str) -> SnapshotAdapter[Any]:
    return SnapshotAdapter(Participant(incarnation, LANES))
