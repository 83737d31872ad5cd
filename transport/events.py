"""What can happen at a link: facts in the past tense, as a machine is told them."""

from typing import Generic, TypeVar

from msgspec import Struct

from transport.message import Body, Lane

B = TypeVar("B", bound=Body)


class Event(Struct, frozen=True, tag=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of every event of every machine; events can be written to a tape."""


class MessageArrived(Event, Generic[B], frozen=True):
    """A whole message came in. ``clock`` is the delta as sent; ``payload`` the digest of its
    payload, empty where it has none; ``handle`` the name under which its arrays were stored."""

    peer: str
    lane: Lane
    sender: str
    session: int
    seq: int
    clock: dict[str, int]
    body: B
    payload: bytes = b""
    handle: str = ""


class BytesArrived(Event, frozen=True):
    """A message is on its way in: ``nbytes`` of its payload have come. Told every few seconds, so
    that a slow transfer is not taken for a dead peer."""

    peer: str
    lane: Lane
    nbytes: int


class LaneAdvanced(Event, frozen=True):
    """The peer has taken in more of what was sent in this lane; said by the link machine to the one
    above it."""

    peer: str
    lane: Lane


class LaneBroken(Event, frozen=True):
    """A lane can no longer be trusted: a refused message, an unreachable or a full peer."""

    peer: str
    lane: Lane
    reason: str


class TimerFired(Event, frozen=True):
    """A timer that was set has come due."""

    timer: str


class PeerJoined(Event, frozen=True):
    """Both lanes of a link are open; said by the link machine to the one above it."""

    peer: str
    incarnation: str


class PeerLost(Event, frozen=True):
    """A link that was open is open no more; nothing queued for it will be sent."""

    peer: str
    reason: str


class PeerRefused(Event, frozen=True):
    """The other side will not have this incarnation; where ``again``, it will have the next."""

    peer: str
    reason: str
    again: bool = False
