"""Effects: commands of a machine to its links and to its driver, as frozen structs."""

from typing import Generic, TypeVar

from msgspec import Struct

from transport.message import Body, Lane
from transport.timer import Timer

B = TypeVar("B", bound=Body)


class Effect(Struct, frozen=True, tag=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base class of every effect of every machine; a tape's digests cover their encoding."""


class Dial(Effect, frozen=True):
    """Open a link to ``peer``, whose address the driver knows, and keep it open."""

    peer: str
    agreement: dict[str, str]


class Listen(Effect, frozen=True):
    """Accept peers whose Hello has the same ``agreement``.

    ``run`` distinguishes this run from other runs of the same job. Until this run is ``settled``,
    a member of any run is accepted, and its run counts as joined. After that, only members of this
    run and of joined runs are accepted. If ``run`` is empty, runs are not compared.
    """

    agreement: dict[str, str]
    run: str = ""
    settled: bool = False


class Send(Effect, Generic[B], frozen=True):
    """Send ``body`` to ``peer`` as soon as credit allows.

    A newer message with the same non-empty ``key`` replaces one that is still queued. The link
    holds a reference to ``payload`` until the message has been sent.
    """

    peer: str
    lane: Lane
    body: B
    payload: str = ""
    key: str = ""


class Mark(Effect, frozen=True):
    """Send a marker on both lanes to ``peer`` now, ahead of messages that wait for credit: those
    belong to the sender's recorded state, so they must arrive after the marker."""

    peer: str
    snapshot: str


class Hangup(Effect, frozen=True):
    """Close the link to ``peer`` and forget it; ``final`` tells the peer never to dial again."""

    peer: str
    reason: str
    final: bool = False


class Retire(Effect, frozen=True):
    """Remove the clock entries of actors' incarnations below ``floors[actor]``; no message of them
    can arrive any more. The actor performs this itself; the driver never sees it."""

    floors: dict[str, int]


class Transmit(Effect, Generic[B], frozen=True):
    """Put a message on the wire now; issued by the link machine, performed by the driver."""

    peer: str
    lane: Lane
    session: int
    seq: int
    clock: dict[str, int]
    body: B
    payload: str = ""


class SetTimer(Effect, frozen=True):
    """Deliver ``TimerFired`` at ``at`` seconds; setting an existing timer moves it."""

    timer: Timer
    at: float


class CancelTimer(Effect, frozen=True):
    """Cancel a timer; cancelling one that is not set is allowed."""

    timer: Timer


class Keep(Effect, frozen=True):
    """Add one reference to an array that a message brought or that was just created.

    The actor counts references, in order with its other effects; the driver never sees this.
    """

    handle: str


class Drop(Effect, frozen=True):
    """Release one reference to an array; the last release frees it. Counted by the actor."""

    handle: str


class Free(Effect, frozen=True):
    """Free an array: nothing refers to it any more."""

    handle: str
