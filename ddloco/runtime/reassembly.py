"""Arrivals: messages on their way in, put together piece by piece below the door.

Only what is unfinished is kept, and of each actor one message in each lane at most: whose
incarnation is the newest. So what is held is bounded by the actors of a job, however often they
come back and whatever a peer calls itself; how large one message may be is the doorkeeper's affair.
"""

from collections.abc import Callable, Sequence
from typing import Any

from clocks import actor_of, number_of
from transport import Assembler, Message, RemoteProtocolError
from transport.endpoint import Frame

PROGRESS_S = 5.0
"""How often it is told that a message is still arriving: six times before a sender without credit
would give its link up, and seldom enough to cost a tape nothing."""


class Arrivals:
    """Unfinished messages, by actor and lane.

    Args:
        assembler: makes what puts the messages of one peer together.
    """

    def __init__(self, assembler: Callable[[str], Assembler[Any]]) -> None:
        self._assembler = assembler
        self._unfinished: dict[tuple[str, str], tuple[str, Assembler[Any]]] = {}
        self._told_at: dict[tuple[str, str], float] = {}

    def __len__(self) -> int:
        return len(self._unfinished)

    def feed(self, peer: str, lane: str, frames: Sequence[Frame]) -> Message[Any] | None:
        """Take one ZeroMQ message; returns the message that it completes, if it does.

        Raises:
            RemoteProtocolError: see `Assembler.feed`; or a newer incarnation of the same actor is
                in the middle of a message.
        """
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
        """Bytes that have come of a message that takes long, when it is time to tell; else None.

        Args:
            at: seconds; now.
            peer: who sends it.
            lane: in which lane.
        """
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
