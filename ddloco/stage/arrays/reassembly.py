"""Reassembly of arriving messages from their chunks, below the door. Per actor at most one
incomplete message is kept on each lane, that of the newest incarnation, however often an actor
restarts and whatever names a peer uses; the connection guard limits the size of each message."""

from collections.abc import Callable, Sequence
from typing import Any

from clocks import actor_of, number_of
from transport import Assembler, Message, RemoteProtocolError
from transport.endpoint import Frame

PROGRESS_S = 5.0
"""Interval, in seconds, at which the progress of an arriving message is reported: six reports
before a sender without credit would give up its link, and rare enough not to enlarge the tape."""


class Reassembly:
    """Incomplete messages, by actor and lane."""

    def __init__(self, assembler: Callable[[str], Assembler[Any]]) -> None:
        self._assembler = assembler
        self._unfinished: dict[tuple[str, str], tuple[str, Assembler[Any]]] = {}
        self._told_at: dict[tuple[str, str], float] = {}

    def __len__(self) -> int:
        return len(self._unfinished)

    def feed(self, peer: str, lane: str, frames: Sequence[Frame]) -> Message[Any] | None:
        """Process one ZeroMQ message; returns the message that it completes, or None. Raises
        ``RemoteProtocolError`` as ``Assembler.feed`` does, or if a newer incarnation of the actor
        has an incomplete message."""
        key = (actor_of(peer), lane)
        other, begun = self._unfinished.get(key, ("", None))
        if begun is not None and other == peer:
            del self._unfinished[key]
            return self._fed(key, peer, begun, frames)
        assembler = self._assembler(peer)
        message = assembler.feed(frames)
        if not assembler.unfinished:
            return message
        if begun is not None:
            if number_of(other) > number_of(peer):
                assembler.give_up()
                raise RemoteProtocolError(f"{other} is in the middle of a message")
            begun.give_up()
        self._unfinished[key] = peer, assembler
        return None

    def progress(self, at: float, peer: str, lane: str) -> int | None:
        """The bytes received of a message that takes long, when a report is due; otherwise None."""
        key = (actor_of(peer), lane)
        if key not in self._unfinished:
            self._told_at.pop(key, None)
            return None
        told_at = self._told_at.setdefault(key, at)
        if at - told_at < PROGRESS_S:
            return None
        self._told_at[key] = at
        return self._unfinished[key][1].arrived

    def _fed(
        self, key: tuple[str, str], peer: str, begun: Assembler[Any], frames: Sequence[Frame]
    ) -> Message[Any] | None:
        message = begun.feed(frames)
        if begun.unfinished:
            self._unfinished[key] = peer, begun
        return message
