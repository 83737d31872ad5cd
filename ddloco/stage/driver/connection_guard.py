"""The connection guard: checks who may send to an actor, for whom, and about whom. It works below
the door: a message that it rejects becomes no event and is on no tape. Machines reject by
themselves what only they can judge."""

from collections.abc import Callable, Collection
from typing import Any

from clocks import actor_of, is_incarnation
from transport import Allowances, Header, RemoteProtocolError

HELLOS_AT_ONCE, HELLOS_PER_S = 32.0, 1.0
"""Rate limit of Hellos per actor, over all its incarnations; each dial sends two. An actor that
lost its link dials after 0.5, 1, 2, 4 and then every 8 s, so it stays within the limit even after a
quarter of an hour of trouble. Each accepted Hello costs an open link and everything that is sent
over a new one."""


class ConnectionGuard:
    """Checks headers before memory for their payloads is allocated."""

    def __init__(
        self, me: str, actors: Collection[str], admits: Callable[[Header[Any]], None]
    ) -> None:
        self._me = actor_of(me)
        self._actors = frozenset(actors)
        self._admits = admits
        self._hellos = Allowances(HELLOS_AT_ONCE, HELLOS_PER_S)

    def check(self, peer: str, header: Header[Any]) -> None:
        sender = header.sender
        if sender != peer and actor_of(sender) != peer:
            raise RemoteProtocolError(f"$.sender: {sender} speaks on the lane of {peer}")
        if not self._is_known(sender):
            raise RemoteProtocolError(f"$.sender: {sender!r} is not an incarnation of this job")
        if actor_of(sender) == self._me:
            raise RemoteProtocolError(f"$.sender: {sender} speaks under this actor's own name")
        for name in header.clock:
            if not self._is_known(name):
                raise RemoteProtocolError(f"$.clock: {name!r} is not an incarnation of this job")
        self._admits(header)

    def may_greet(self, now: float, sender: str) -> bool:
        return self._hellos.take(actor_of(sender), now)

    def _is_known(self, name: str) -> bool:
        return actor_of(name) in self._actors and is_incarnation(name)
