"""One participant's part in the cuts that are under way (Chandy and Lamport, 1985).

At the first marker of a snapshot, or when it begins one itself, a participant records its own state
and sends a marker down every channel. From then on whatever arrives over a channel, up to that
channel's own marker, was in flight: it is recorded, too. Nothing is held back, nothing waits.

Channels are FIFO. Several cuts may be under way at once. A channel that breaks is waited for no
longer; the cut says so.
"""

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from snapshot.record import split

INITIATORS_MAX = 1024
"""Initiators of which the newest snapshot is remembered. One that is forgotten has begun none for
as many others' beginnings; should an old marker of it come after all, it begins a cut in vain."""

C = TypeVar("C", bound=Hashable)
M = TypeVar("M")


@dataclass(slots=True)
class Cut(Generic[C, M]):
    """One cut, since this participant's state was recorded."""

    snapshot: str
    awaited: set[C]
    """Channels whose marker has not come."""
    in_flight: dict[C, list[M]] = field(default_factory=dict)
    broken: dict[C, str] = field(default_factory=dict)
    """Channels that broke before their marker came, and why."""


class Cuts(Generic[C, M]):
    """The cuts of one participant."""

    def __init__(self) -> None:
        self._open: dict[str, Cut[C, M]] = {}
        self._newest: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._open)

    def new(self, snapshot: str) -> bool:
        """Whether it is a snapshot that was never seen.

        Whoever begins snapshots numbers them upwards, and a channel keeps their order, so of each
        initiator only the newest needs to be remembered.
        """
        initiator, number = split(snapshot)
        return self._newest.get(initiator, -1) < number

    def inherit(self, former: "Cuts[C, M]") -> None:
        """What another has seen is new here no longer."""
        self._newest = dict(former._newest)

    def see(self, snapshot: str) -> None:
        """It is new no longer, whether it is taken part in or not."""
        initiator, number = split(snapshot)
        self._newest.pop(initiator, None)
        self._newest[initiator] = number
        if len(self._newest) > INITIATORS_MAX:
            del self._newest[next(iter(self._newest))]

    def begin(self, snapshot: str, incoming: Collection[C]) -> None:
        """The participant's state is recorded now; ``incoming`` are its channels."""
        assert self.new(snapshot), "asked before"
        self.see(snapshot)
        self._open[snapshot] = Cut(snapshot, set(incoming))

    def heard(self, channel: C, message: M) -> int:
        """A message came; in how many cuts it was in flight, and is recorded."""
        times = 0
        for cut in self._open.values():
            if channel in cut.awaited:
                cut.in_flight.setdefault(channel, []).append(message)
                times += 1
        return times

    def marked(self, snapshot: str, channel: C) -> None:
        """A marker came; what follows it in this channel is after the cut."""
        cut = self._open.get(snapshot)
        if cut is not None:
            cut.awaited.discard(channel)

    def broken(self, channel: C, reason: str) -> None:
        """A channel is no more."""
        for cut in self._open.values():
            if channel in cut.awaited:
                cut.awaited.remove(channel)
                cut.broken[channel] = reason

    def give_up(self, snapshot: str, reason: str) -> None:
        """Wait for no marker of this cut any longer."""
        cut = self._open.get(snapshot)
        if cut is not None:
            # A set has no order that a replay would find again.
            cut.broken.update(dict.fromkeys(sorted(cut.awaited, key=repr), reason))
            cut.awaited.clear()

    def drop(self, snapshot: str) -> list[M]:
        """Forget a cut, complete or not; the messages that were held for it."""
        cut = self._open.pop(snapshot, None)
        return [message for said in cut.in_flight.values() for message in said] if cut else []

    def complete(self) -> list[Cut[C, M]]:
        """The cuts for which no marker is awaited any more, forgotten with that."""
        done = [cut for cut in self._open.values() if not cut.awaited]
        for cut in done:
            del self._open[cut.snapshot]
        return done
