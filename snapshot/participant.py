"""A participant of snapshots: what it records when, whom it tells, and when a snapshot is whole.

A machine: it decides, and knows nothing of how messages travel, what a state consists of or where
it is written. Whoever drives it does what it asks for, in order, before anything else happens:
markers leave with the event that asks for them, ahead of what still waits to be sent, which is part
of the recorded state and leaves after the cut. The message type is the driver's own; a channel is a
pair of a peer and a lane.

A part travels to the initiator by the way its marker came: each participant hands parts to whoever
sent it the first marker, so any connected topology will do.

Whatever happens, each snapshot is committed or discarded. Who dies, cannot write, or has a channel
that broke or was opened in the middle of it is absent, for a reason; the others make it whole.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from snapshot.channel_recorder import Cuts
from snapshot.coordinator import Gathering
from snapshot.record import CONTENTS, REASON_CHARS_MAX, Part, name_of

M = TypeVar("M")

Channel = tuple[str, str]
"""A peer's incarnation and a lane."""

PATIENCE_S = 60.0
"""How long a participant waits for markers. A fragment of 100 MB that is on its way over a slow
link comes first, and nobody waits for a snapshot; so there is no hurry."""

GATHERING_S = 3 * PATIENCE_S
"""How long an initiator waits for parts; theirs are sent after at most one patience and writing."""

UNDER_WAY_MAX = 4
"""Snapshots at once; the next one is refused. What is in flight is held in memory until it is
written, and more pictures of the same minute tell nobody more."""

REFUSED = f"{UNDER_WAY_MAX} snapshots are under way already"

REMEMBERED_MAX = 64
"""Snapshots whose way to the initiator is remembered, for parts that come late; and peers whose
channels broke, which matters to the snapshots of the next minutes."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a participant stands: the event that it handles, its whole clock, who its peers are."""

    number: int
    clock: Mapping[str, int]
    peers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Capture:
    """Record your state as it is now, and send a marker down every lane to each of ``peers``; say
    ``captured`` when it is written, and ``late`` at ``until``."""

    snapshot: str
    peers: tuple[str, ...]
    until: float


@dataclass(frozen=True, slots=True)
class Mark:
    """Send a marker down every lane to a peer; nothing is recorded with it."""

    snapshot: str
    peer: str


@dataclass(frozen=True, slots=True)
class RecordFlight(Generic[M]):
    """All that was in flight to you is known: record it; say ``captured`` when it is written."""

    snapshot: str
    in_flight: tuple[tuple[Channel, tuple[M, ...]], ...]


@dataclass(frozen=True, slots=True)
class Forget(Generic[M]):
    """Messages that were in flight need be held no longer: they will not be written."""

    messages: tuple[M, ...]


@dataclass(frozen=True, slots=True)
class Tell:
    """Hand a part on to a peer, on its way to who began the snapshot."""

    peer: str
    snapshot: str
    part: Part


@dataclass(frozen=True, slots=True)
class Commit:
    """The snapshot is whole, and consistent: make it stand."""

    snapshot: str
    parts: tuple[Part, ...]
    absent: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Discard:
    """There will be no such snapshot, and why."""

    snapshot: str
    reason: str


Ask = Capture | Mark | RecordFlight[M] | Forget[M] | Tell | Commit | Discard


@dataclass(slots=True)
class Own:
    """One's own part while it is made."""

    number: int
    clock: Mapping[str, int]
    peers: tuple[str, ...]
    lost: dict[str, str]
    """With whom there is no whole channel, and why."""
    heard_all: bool = False
    """Whether no marker is awaited any more."""
    contents: list[str] = field(default_factory=list[str])

    @property
    def whole(self) -> bool:
        """Whether the state and what was in flight are both written."""
        return self.heard_all and len(self.contents) == CONTENTS


class Participant(Generic[M]):
    """One participant.

    Args:
        me: its incarnation.
        lanes: how many lanes, by name, there are to each peer.
    """

    def __init__(self, me: str, lanes: Sequence[str]) -> None:
        self.me = me
        self._lanes = tuple(lanes)
        self._cuts: Cuts[Channel, M] = Cuts()
        self._own: dict[str, Own] = {}
        self._towards: dict[str, str] = {}
        self._gatherings: dict[str, Gathering] = {}
        self._parted: dict[str, str] = {}
        """Peers whose channels broke and were not opened again, and why."""

    @property
    def recording(self) -> bool:
        """Whether anything that comes may be in flight."""
        return len(self._cuts) > 0

    def began(self) -> list[str]:
        """The snapshots that this participant began, and that are not settled."""
        return list(self._gatherings)

    def unheard_of(self, snapshot: str) -> bool:
        """Whether a snapshot is one that this participant has neither begun nor heard of."""
        return self._cuts.new(snapshot)

    def inherit(self, former: "Participant[M]") -> None:
        """Whoever goes on from a snapshot has seen its markers, and those before it."""
        self._cuts.inherit(former._cuts)

    # A cut: one's own state, then what was in flight.

    def take(self, at: float, now: Moment) -> list[Ask[M]]:
        """Begin a snapshot with this event; nothing but its name is needed to follow it."""
        snapshot = name_of(self.me, now.number)
        if self._busy():
            return [Discard(snapshot, REFUSED)]
        self._gatherings[snapshot] = Gathering(snapshot, self.me)
        return self._cut(at, snapshot, now, "")

    def marker(
        self, at: float, snapshot: str, channel: Channel, moment: Callable[[], Moment]
    ) -> list[Ask[M]]:
        """A marker came: the first one of a snapshot cuts here, at this ``moment``, which the
        others do not need: to take it down costs as much as there are peers."""
        asks: list[Ask[M]] = []
        if self._cuts.new(snapshot):
            cut = self._pass_on if self._busy() else self._cut
            asks = cut(at, snapshot, moment(), channel[0])
        self._cuts.marked(snapshot, channel)
        return asks + self._look()

    def joined(self, peer: str) -> list[Ask[M]]:
        """A channel to a peer is open: it hears first of the cuts that are under way.

        So what is said over it is after the peer's own cut, also where an older channel broke with
        a marker in it.
        """
        self._parted.pop(peer, None)
        return [Mark(snapshot, peer) for snapshot in self._own]

    def _busy(self) -> bool:
        return len(self._own.keys() | self._gatherings.keys()) >= UNDER_WAY_MAX

    def _cut(self, at: float, snapshot: str, now: Moment, towards: str) -> list[Ask[M]]:
        self._cuts.begin(snapshot, [(peer, lane) for peer in now.peers for lane in self._lanes])
        self._route(snapshot, towards)
        self._own[snapshot] = Own(now.number, now.clock, now.peers, dict(self._parted))
        return [Capture(snapshot, now.peers, at + PATIENCE_S), *self._look()]

    def _pass_on(self, at: float, snapshot: str, now: Moment, towards: str) -> list[Ask[M]]:
        """One's own part is refused; what is said from here on is after the cut all the same, and
        the others must hear of it."""
        del at
        self._cuts.see(snapshot)
        self._route(snapshot, towards)
        part = Part(self.me, now.number, now.clock, now.peers, {}, failed=REFUSED)
        return [*(Mark(snapshot, peer) for peer in now.peers), *self.told(snapshot, part)]

    def _route(self, snapshot: str, towards: str) -> None:
        self._towards[snapshot] = towards
        _forget_oldest(self._towards)

    def heard(self, channel: Channel, message: M) -> int:
        """A message came; in how many cuts it was in flight, and is held."""
        return self._cuts.heard(channel, message)

    def _look(self) -> list[Ask[M]]:
        """Whether some cut knows by now all that was in flight."""
        asks: list[Ask[M]] = []
        for cut in self._cuts.complete():
            own = self._own[cut.snapshot]
            own.lost.update((peer, reason) for (peer, _), reason in cut.broken.items())
            own.heard_all = True
            flight = [(channel, tuple(said)) for channel, said in cut.in_flight.items()]
            asks.append(RecordFlight(cut.snapshot, tuple(sorted(flight, key=lambda each: each[0]))))
        return asks

    def captured(self, snapshot: str, content: str) -> list[Ask[M]]:
        """Something of one's own part is written; ``content`` names it."""
        own = self._own.get(snapshot)
        if own is None:
            return []  # It was given up meanwhile.
        own.contents.append(content)
        if not own.whole:
            return []
        del self._own[snapshot]
        lost = dict(sorted(own.lost.items()))  # As whoever decodes it finds it.
        part = Part(self.me, own.number, own.clock, own.peers, lost, tuple(own.contents))
        return self.told(snapshot, part)

    def failed(self, snapshot: str, reason: str) -> list[Ask[M]]:
        """One's own part cannot be written: the snapshot must do without."""
        own = self._own.pop(snapshot, None)
        if own is None:
            return []
        held = tuple(self._cuts.drop(snapshot))
        said = reason[:REASON_CHARS_MAX] or "it cannot be written"
        part = Part(self.me, own.number, own.clock, own.peers, {}, failed=said)
        return [*([Forget(held)] if held else []), *self.told(snapshot, part)]

    # Parts find their way to the initiator.

    def told(self, snapshot: str, part: Part) -> list[Ask[M]]:
        """A part: one's own, or that of somebody whose way to the initiator leads through here."""
        gathering = self._gatherings.get(snapshot)
        if gathering is not None:
            gathering.add(part)
            return self._settle(gathering)
        towards = self._towards.get(snapshot, "")
        return [Tell(towards, snapshot, part)] if towards else []

    def _settle(self, gathering: Gathering) -> list[Ask[M]]:
        if not gathering.whole:
            return []
        snapshot = gathering.snapshot
        del self._gatherings[snapshot]
        absent = gathering.absent()
        present = gathering.present(absent)
        problem = gathering.problem(present)
        if problem is not None:
            return [Discard(snapshot, problem)]
        return [Commit(snapshot, tuple(present.values()), absent)]

    # What goes wrong.

    def gone(self, peer: str, reason: str) -> list[Ask[M]]:
        """The channels with a peer are no more; what was in flight there is lost with them. The
        reason may be the peer's own words, and none at all."""
        reason = reason[:REASON_CHARS_MAX] or "it left"
        self._parted[peer] = reason
        _forget_oldest(self._parted)
        for lane in self._lanes:
            self._cuts.broken((peer, lane), reason)
        asks = self._look()
        for gathering in list(self._gatherings.values()):
            gathering.gone(peer, reason)
            asks += self._settle(gathering)
        return asks

    def late(self, snapshot: str) -> list[Ask[M]]:
        """A patience has passed since the cut: whoever sent no marker is waited for no longer."""
        self._cuts.give_up(snapshot, f"no marker within {PATIENCE_S:g} s")
        return self._look()

    def overdue(self, snapshot: str) -> list[Ask[M]]:
        """Whoever began a snapshot has waited long enough for parts."""
        gathering = self._gatherings.get(snapshot)
        if gathering is None:
            return []
        gathering.give_up(f"nothing was heard of its part within {GATHERING_S:g} s")
        return self._settle(gathering)


def _forget_oldest(remembered: dict[str, str]) -> None:
    for old in list(remembered)[:-REMEMBERED_MAX]:
        del remembered[old]
