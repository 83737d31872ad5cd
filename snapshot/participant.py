"""The state machine of one participant of snapshots: what it records, sends, and commits.

It decides only; it does not know how messages travel, what a state consists of, or where it is
written. Its driver performs the actions it returns, in order, before anything else happens: markers
are sent with the event that asks for them, ahead of queued messages, which belong to the recorded
state and are sent after the cut. The message type is the driver's; a channel is a peer and a lane.

A part travels to the initiator along the path of the markers: each participant passes parts to the
peer that sent it the first marker, so any connected topology works.

Each snapshot is eventually committed or discarded. A participant that dies, cannot write its part,
or has a channel that broke or was opened during the cut is left out, with a reason; the snapshot is
completed without it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec import Struct, field

from snapshot.channel_recorder import ChannelRecorder
from snapshot.coordinator import SnapshotCoordinator, new_gathering
from snapshot.record import CONTENTS, REASON_CHARS_MAX, Part, name_of

M = TypeVar("M")

Channel = tuple[str, str]
"""A peer's incarnation and a lane."""

PATIENCE_S = 60.0
"""How long a participant waits for markers, in seconds. A fragment of 100 MB on a slow link arrives
before the marker behind it, and nothing waits for a snapshot, so there is no hurry."""

GATHERING_S = 3 * PATIENCE_S
"""How long an initiator waits for parts, in seconds: participants send theirs after at most
``PATIENCE_S`` and the time to write them."""

UNDER_WAY_MAX = 4
"""Snapshots in progress at once; the next one is refused. Messages in flight are held in memory
until they are written, and several snapshots of the same minute are of no use."""

REFUSED = f"{UNDER_WAY_MAX} snapshots are under way already"

REMEMBERED_MAX = 64
"""Snapshots whose path to the initiator is remembered for late parts, and peers whose broken
channels are remembered, which matter to the snapshots of the next minutes."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The position of a participant: the event it handles, its whole clock, and its peers."""

    number: int
    clock: Mapping[str, int]
    peers: tuple[str, ...]


class Capture(Struct, frozen=True, forbid_unknown_fields=True):
    """Record the current state, and send a marker on every lane to each of ``peers``. Call
    ``captured`` when the state is written, and ``late`` at time ``until``."""

    snapshot: str
    peers: tuple[str, ...]
    until: float


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Send a marker on every lane to a peer, without recording anything."""

    snapshot: str
    peer: str


@dataclass(frozen=True, slots=True)
class RecordFlight(Generic[M]):
    """Write the messages that were in flight, now complete; call ``captured`` when it is done."""

    snapshot: str
    in_flight: tuple[tuple[Channel, tuple[M, ...]], ...]


@dataclass(frozen=True, slots=True)
class Forget(Generic[M]):
    """Release messages that were held as in flight: they will not be written."""

    messages: tuple[M, ...]


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a part to a peer, on its way to the initiator."""

    peer: str
    snapshot: str
    part: Part


class Commit(Struct, frozen=True, forbid_unknown_fields=True):
    """The snapshot is complete and consistent: commit it."""

    snapshot: str
    parts: tuple[Part, ...]
    absent: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Discard:
    """The snapshot will not be committed; says why."""

    snapshot: str
    reason: str


Ask = Capture | SendMarkers | RecordFlight[M] | Forget[M] | Tell | Commit | Discard


class Own(Struct, forbid_unknown_fields=True):
    number: int
    clock: Mapping[str, int]
    peers: tuple[str, ...]
    lost: dict[str, str]
    """Peers with which there is no complete channel, and why."""
    heard_all: bool = False
    contents: list[str] = []

    @property
    def whole(self) -> bool:
        return self.heard_all and len(self.contents) == CONTENTS


class Participant(Struct, Generic[M], forbid_unknown_fields=True):
    """One participant.

    Attributes:
        me: its incarnation.
        lanes: the names of the lanes to each peer.
        cuts: the cuts in progress.
        own: its own parts in progress, by snapshot.
        towards: the peer on the way to the initiator of a snapshot; empty for its own.
        gatherings: the snapshots that it began, with the parts that have arrived.
        parted: peers whose channels broke and were not opened again, and why.
    """

    me: str
    lanes: tuple[str, ...]
    cuts: ChannelRecorder[Channel, M] = field(default_factory=ChannelRecorder[Channel, M])
    own: dict[str, Own] = {}
    towards: dict[str, str] = {}
    gatherings: dict[str, SnapshotCoordinator] = {}
    parted: dict[str, str] = {}

    @property
    def recording(self) -> bool:
        """Whether an arriving message may have been in flight at a cut."""
        return len(self.cuts) > 0

    def began(self) -> list[str]:
        """The snapshots that this participant initiated and that are not settled."""
        return list(self.gatherings)

    def unheard_of(self, snapshot: str) -> bool:
        """Whether this participant has neither initiated nor heard of a snapshot."""
        return self.cuts.new(snapshot)

    def inherit(self, former: "Participant[M]") -> None:
        """After resuming from a snapshot, treat the markers seen before it as seen."""
        self.cuts.inherit(former.cuts)

    # A cut: the own state, then the messages in flight.

    def take(self, at: float, now: Moment) -> list[Ask[M]]:
        """Initiate a snapshot at this event; the others need only its name."""
        snapshot = name_of(self.me, now.number)
        if self._busy():
            return [Discard(snapshot, REFUSED)]
        self.gatherings[snapshot] = new_gathering(snapshot, self.me)
        return self._cut(at, snapshot, now, "")

    def marker(
        self, at: float, snapshot: str, channel: Channel, moment: Callable[[], Moment]
    ) -> list[Ask[M]]:
        """Handle a marker. The first marker of a snapshot starts the cut at this ``moment``, which
        is only computed then, because that takes time proportional to the number of peers."""
        asks: list[Ask[M]] = []
        if self.cuts.new(snapshot):
            cut = self._pass_on if self._busy() else self._cut
            asks = cut(at, snapshot, moment(), channel[0])
        self.cuts.marked(snapshot, channel)
        return asks + self._look()

    def joined(self, peer: str) -> list[Ask[M]]:
        """A channel to a peer has opened: first send it the markers of the cuts in progress.

        So all messages sent on it are after the peer's own cut, even if an older channel broke with
        a marker in it.
        """
        self.parted.pop(peer, None)
        return [SendMarkers(snapshot, peer) for snapshot in self.own]

    def _busy(self) -> bool:
        return len(self.own.keys() | self.gatherings.keys()) >= UNDER_WAY_MAX

    def _cut(self, at: float, snapshot: str, now: Moment, towards: str) -> list[Ask[M]]:
        self.cuts.begin(snapshot, [(peer, lane) for peer in now.peers for lane in self.lanes])
        self._route(snapshot, towards)
        self.own[snapshot] = Own(now.number, now.clock, now.peers, dict(self.parted))
        return [Capture(snapshot, now.peers, at + PATIENCE_S), *self._look()]

    def _pass_on(self, at: float, snapshot: str, now: Moment, towards: str) -> list[Ask[M]]:
        """Refuse to take part, but pass the markers on: messages sent from here on are after the
        cut, and the other participants need to know of it."""
        del at
        self.cuts.see(snapshot)
        self._route(snapshot, towards)
        part = Part(self.me, now.number, now.clock, now.peers, {}, failed=REFUSED)
        return [*(SendMarkers(snapshot, peer) for peer in now.peers), *self.told(snapshot, part)]

    def _route(self, snapshot: str, towards: str) -> None:
        self.towards[snapshot] = towards
        _forget_oldest(self.towards)

    def heard(self, channel: Channel, message: M) -> int:
        """Hold a message for every cut at which it was in flight; returns how many there are."""
        return self.cuts.heard(channel, message)

    def _look(self) -> list[Ask[M]]:
        asks: list[Ask[M]] = []
        for cut in self.cuts.complete():
            own = self.own[cut.snapshot]
            own.lost.update((peer, reason) for (peer, _), reason in cut.broken.items())
            own.heard_all = True
            flight = [(channel, tuple(said)) for channel, said in cut.in_flight.items()]
            asks.append(RecordFlight(cut.snapshot, tuple(sorted(flight, key=lambda each: each[0]))))
        return asks

    def captured(self, snapshot: str, content: str) -> list[Ask[M]]:
        """The state or the messages in flight were written, as ``content``."""
        own = self.own.get(snapshot)
        if own is None:
            return []  # The snapshot was given up in the meantime.
        own.contents.append(content)
        if not own.whole:
            return []
        del self.own[snapshot]
        lost = dict(sorted(own.lost.items()))  # The order in which a receiver decodes it.
        part = Part(self.me, own.number, own.clock, own.peers, lost, tuple(own.contents))
        return self.told(snapshot, part)

    def failed(self, snapshot: str, reason: str) -> list[Ask[M]]:
        """The own part cannot be written: the snapshot continues without it."""
        own = self.own.pop(snapshot, None)
        if own is None:
            return []
        held = tuple(self.cuts.drop(snapshot))
        said = reason[:REASON_CHARS_MAX] or "it cannot be written"
        part = Part(self.me, own.number, own.clock, own.peers, {}, failed=said)
        return [*([Forget(held)] if held else []), *self.told(snapshot, part)]

    # Parts on their way to the initiator.

    def told(self, snapshot: str, part: Part) -> list[Ask[M]]:
        """Handle the own part, or the part of a participant whose path leads through this one."""
        gathering = self.gatherings.get(snapshot)
        if gathering is not None:
            gathering.add(part)
            return self._settle(gathering)
        towards = self.towards.get(snapshot, "")
        return [Tell(towards, snapshot, part)] if towards else []

    def _settle(self, gathering: SnapshotCoordinator) -> list[Ask[M]]:
        if not gathering.whole:
            return []
        snapshot = gathering.snapshot
        del self.gatherings[snapshot]
        absent = gathering.absent()
        present = gathering.present(absent)
        problem = gathering.problem(present)
        if problem is not None:
            return [Discard(snapshot, problem)]
        return [Commit(snapshot, tuple(present.values()), absent)]

    # Failures.

    def gone(self, peer: str, reason: str) -> list[Ask[M]]:
        """The channels to a peer broke, and messages in flight on them are lost. The reason may be
        the peer's own text, and may be empty."""
        reason = reason[:REASON_CHARS_MAX] or "it left"
        self.parted[peer] = reason
        _forget_oldest(self.parted)
        for lane in self.lanes:
            self.cuts.broken((peer, lane), reason)
        asks = self._look()
        for gathering in list(self.gatherings.values()):
            gathering.gone(peer, reason)
            asks += self._settle(gathering)
        return asks

    def late(self, snapshot: str) -> list[Ask[M]]:
        """``PATIENCE_S`` has passed since the cut: stop waiting for missing markers."""
        self.cuts.give_up(snapshot, f"no marker within {PATIENCE_S:g} s")
        return self._look()

    def overdue(self, snapshot: str) -> list[Ask[M]]:
        """``GATHERING_S`` has passed since the snapshot was initiated: stop waiting for parts."""
        gathering = self.gatherings.get(snapshot)
        if gathering is None:
            return []
        gathering.give_up(f"nothing was heard of its part within {GATHERING_S:g} s")
        return self._settle(gathering)


def _forget_oldest(remembered: dict[str, str]) -> None:
    for old in list(remembered)[:-REMEMBERED_MAX]:
        del remembered[old]
