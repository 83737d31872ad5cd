"""Events of a link: facts in the past tense, as a machine receives them."""

from typing import Generic, TypeVar

from msgspec import Struct

from transport.message import Body, Lane
from transport.timer import T

B = TypeVar("B", bound=Body)


class Event(Struct, frozen=True, tag=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base class of every event of every machine; events can be written to a tape."""


class MessageArrived(Event, Generic[B], frozen=True):
    """A complete message arrived. ``clock`` is the delta as sent; ``payload`` is the digest of the
    message's payload, empty if it has none; ``handle`` is the name that its arrays have here."""

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
    """Part of a message arrived: ``nbytes`` of its payload so far. Reported every few seconds, so
    that a slow transfer is not mistaken for a dead peer."""

    peer: str
    lane: Lane
    nbytes: int


class LaneAdvanced(Event, frozen=True):
    """The peer has taken in more of what was sent on this lane; the link machine reports this to
    the machine above it."""

    peer: str
    lane: Lane


class LaneBroken(Event, frozen=True):
    """A lane is unusable: a message was rejected, or the peer is unreachable or its queue full."""

    peer: str
    lane: Lane
    reason: str


class TimerFired(Event, Generic[T], frozen=True):
    """A timer has expired."""

    timer: T


class PeerJoined(Event, frozen=True):
    """Both lanes of a link are open; the link machine reports this to the machine above it."""

    peer: str
    incarnation: str


class PeerLost(Event, frozen=True):
    """A link that was open has closed; messages queued for it will not be sent."""

    peer: str
    reason: str


class Superseded(Event, frozen=True):
    """The peer has followed another incarnation of this actor, whose number is ``number``: a later
    one, or one of the same number that was recorded elsewhere."""

    peer: str
    number: int


class PeerRefused(Event, frozen=True):
    """The peer rejects this incarnation; with ``again`` it will accept the actor's next one."""

    peer: str
    reason: str
    again: bool = False
