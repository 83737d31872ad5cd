"""Arrivals: messages on their way in, put together piece by piece below the door.

Only what is unfinished is kept. A peer that dies in the middle of a fragment leaves a part of it
behind; as soon as its next incarnation begins to send one, that part is given up, so what is held
grows neither with restarts nor with peers that were heard once.
"""

from collections.abc import Callable, Sequence
from typing import Any

from clocks import actor_of, number_of
from transport import Assembler, Message, RemoteProtocolError
from transport.endpoint import Frame

UNFINISHED_MAX = 16384
"""Messages in the middle of their arrival: two lanes for twice as many learners as a job may
have."""


class Arrivals:
    """Unfinished messages, by route.

    Args:
        assembler: makes what puts the messages of one peer together.
    """

    def __init__(self, assembler: Callable[[str], Assembler[Any]]) -> None:
        self._assembler = assembler
        self._unfinished: dict[str, Assembler[Any]] = {}
        self._newest: dict[tuple[str, str], str] = {}
        """By actor and lane: whose incarnation began the last unfinished message."""

    def __len__(self) -> int:
        return len(self._unfinished)

    def feed(self, peer: str, lane: str, frames: Sequence[Frame]) -> Message[Any] | None:
        """Take one ZeroMQ message; returns the message that it completes, if it does.

        Raises:
            RemoteProtocolError: see `Assembler.feed`; or too many have begun and not ended.
        """
        route = f"{peer}/{lane}"
        begun = self._unfinished.pop(route, None)
        assembler = begun or self._assembler(peer)
        message = assembler.feed(frames)
        if assembler.unfinished:
            if begun is None:
                self._give_up_older(peer, lane)
                if len(self._unfinished) >= UNFINISHED_MAX:
                    assembler.give_up()
                    raise RemoteProtocolError(f"more than {UNFINISHED_MAX} messages have begun")
            self._unfinished[route] = assembler
        return message

    def _give_up_older(self, peer: str, lane: str) -> None:
        key = (actor_of(peer), lane)
        before = self._newest.get(key, peer)
        if len(self._newest) >= UNFINISHED_MAX:
            self._newest.clear()  # Strangers' names; what they left behind is bounded anyway.
        if number_of(before) <= number_of(peer):
            self._newest[key] = peer
            left = self._unfinished.pop(f"{before}/{lane}", None) if before != peer else None
            if left is not None:
                left.give_up()
