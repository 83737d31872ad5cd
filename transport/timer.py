"""Timers: what an actor wants to be woken for, as values."""

from typing import TypeVar

from msgspec import Struct

from transport.message import Lane


class Timer(Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of what timers are for; its fields are the key, such as the peer.

    Equal values are one timer: setting it again moves it. Timers that are due at the same time
    expire in the order in which they were set.
    """


T = TypeVar("T", bound=Timer)


class Redial(Timer, frozen=True):
    """Dial a peer again, whose link is not open by then."""

    peer: str


class Stall(Timer, frozen=True):
    """Check whether the peer has taken in anything of what waits on a lane."""

    peer: str
    lane: Lane


LinkTimer = Redial | Stall
