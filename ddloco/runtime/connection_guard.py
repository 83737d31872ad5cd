"""The doorkeeper: who may speak at an actor's door, for whom, and of whom.

Below the door: what is refused here becomes no event and is on no tape. It knows the job's actors,
and nothing of what their machines make of a message; what only a machine can judge it refuses by
itself.
"""

from collections.abc import Callable, Collection
from typing import Any

from clocks import actor_of, is_incarnation
from transport import Allowance, Header, RemoteProtocolError

HELLOS_AT_ONCE, HELLOS_PER_S = 32.0, 1.0
"""Hellos of one actor, whichever of its incarnations it says it is, two to each dial. Whoever has
lost its link dials after 0.5, 1, 2, 4 and then 8 s, and goes on to be heard after a quarter of an
hour of trouble; each one that is heard costs an open link and everything that is sent over a new
one."""


class Doorkeeper:
    """Judges headers before anything is allocated for their payloads.

    Args:
        me: the actor's incarnation.
        company: the actors of the job, by name.
        admits: raises RemoteProtocolError where a message's tensors are not what its body must
            carry.
    """

    def __init__(
        self, me: str, company: Collection[str], admits: Callable[[Header[Any]], None]
    ) -> None:
        self._me = actor_of(me)
        self._company = frozenset(company)
        self._admits = admits
        self._hellos: dict[str, Allowance] = {}

    def check(self, peer: str, header: Header[Any]) -> None:
        """Refuse a message that ``peer`` cannot have said.

        Raises:
            RemoteProtocolError: it speaks for somebody else, or of nobody.
        """
        sender = header.sender
        if sender != peer and actor_of(sender) != peer:
            raise RemoteProtocolError(f"$.sender: {sender} speaks on the lane of {peer}")
        if not self._is_known(sender):
            raise RemoteProtocolError(f"$.sender: {sender!r} is no incarnation of this job")
        if actor_of(sender) == self._me:
            raise RemoteProtocolError(f"$.sender: {sender} speaks under this actor's own name")
        for name in header.clock:
            if not self._is_known(name):
                raise RemoteProtocolError(f"$.clock: {name!r} is no incarnation of this job")
        self._admits(header)

    def may_greet(self, now: float, sender: str) -> bool:
        """Whether an actor of the job may say Hello once more."""
        full = Allowance(HELLOS_AT_ONCE, HELLOS_PER_S, HELLOS_AT_ONCE, now)
        return self._hellos.setdefault(actor_of(sender), full).take(now)

    def _is_known(self, name: str) -> bool:
        return actor_of(name) in self._company and is_incarnation(name)
