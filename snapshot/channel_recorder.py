"""One participant's side of the cuts in progress (Chandy and Lamport, 1985).

At the first marker of a snapshot, or when it initiates one, a participant records its own state and
sends a marker on every channel. From then on every message that arrives over a channel before that
channel's own marker was in flight at the cut, and is recorded as well. Messages are neither held
back nor delayed.

Channels are FIFO. Several cuts may be in progress at once. A cut stops waiting for a channel that
breaks, and notes that it broke.
"""

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from msgspec import Struct

from snapshot.record import split

INITIATORS_MAX = 1024
"""Initiators whose newest snapshot is remembered. One that is forgotten has begun no snapshot while
as many others did; if an old marker of it arrives after all, it begins a cut that is never
completed."""

C = TypeVar("C", bound=Hashable)
M = TypeVar("M")


class Cut(Struct, Generic[C, M], forbid_unknown_fields=True):
    """One cut, from the moment when this participant's state was recorded."""

    snapshot: str
    awaited: dict[C, None]
    """Channels whose marker has not arrived."""
    in_flight: dict[C, list[M]] = {}
    broken: dict[C, str] = {}
    """Channels that broke before their marker arrived, and why."""


class ChannelRecorder(Struct, Generic[C, M], forbid_unknown_fields=True):
    """The cuts of one participant; ``newest`` is the number of the newest snapshot that was seen of
    each initiator."""

    open: dict[str, Cut[C, M]] = {}
    newest: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.open)

    def new(self, snapshot: str) -> bool:
        """Whether a snapshot has not been seen before.

        An initiator numbers its snapshots upwards and channels preserve order, so only the newest
        one of each initiator needs to be remembered.
        """
        initiator, number = split(snapshot)
        return self.newest.get(initiator, -1) < number

    def inherit(self, former: "ChannelRecorder[C, M]") -> None:
        self.newest = dict(former.newest)

    def see(self, snapshot: str) -> None:
        """Mark a snapshot as seen, whether or not this participant takes part in it."""
        initiator, number = split(snapshot)
        self.newest.pop(initiator, None)
        self.newest[initiator] = number
        if len(self.newest) > INITIATORS_MAX:
            del self.newest[next(iter(self.newest))]

    def begin(self, snapshot: str, incoming: Collection[C]) -> None:
        """Begin a cut: the participant's state is recorded now; ``incoming`` are its channels."""
        assert self.new(snapshot), "asked before"
        self.see(snapshot)
        self.open[snapshot] = Cut(snapshot, dict.fromkeys(incoming))

    def heard(self, channel: C, message: M) -> int:
        """Record a message in every cut for which it was in flight; returns how many there are."""
        times = 0
        for cut in self.open.values():
            if channel in cut.awaited:
                cut.in_flight.setdefault(channel, []).append(message)
                times += 1
        return times

    def marked(self, snapshot: str, channel: C) -> None:
        """A marker arrived: later messages on this channel are after the cut."""
        cut = self.open.get(snapshot)
        if cut is not None:
            cut.awaited.pop(channel, None)

    def broken(self, channel: C, reason: str) -> None:
        """A channel broke: no cut waits for its marker any longer."""
        for cut in self.open.values():
            if channel in cut.awaited:
                del cut.awaited[channel]
                cut.broken[channel] = reason

    def give_up(self, snapshot: str, reason: str) -> None:
        cut = self.open.get(snapshot)
        if cut is not None:
            cut.broken.update(dict.fromkeys(sorted(cut.awaited, key=repr), reason))
            cut.awaited.clear()

    def drop(self, snapshot: str) -> list[M]:
        """Forget a cut, complete or not; returns the messages that were recorded for it."""
        cut = self.open.pop(snapshot, None)
        return [message for said in cut.in_flight.values() for message in said] if cut else []

    def complete(self) -> list[Cut[C, M]]:
        done = [cut for cut in self.open.values() if not cut.awaited]
        for cut in done:
            del self.open[cut.snapshot]
        return done
