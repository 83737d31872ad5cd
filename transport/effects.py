"""What a machine may ask of its links and of the world: frozen commands."""

from typing import Generic, TypeVar

from msgspec import Struct

from transport.message import Body, Lane

B = TypeVar("B", bound=Body)


class Effect(Struct, frozen=True, tag=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of every effect of every machine; their encoding is what a tape's digest covers."""


class Dial(Effect, frozen=True):
    """Open a link to ``peer``, whose address the driver knows, and keep it open."""

    peer: str
    agreement: dict[str, str]


class Listen(Effect, frozen=True):
    """Welcome whoever says Hello with the same ``agreement``.

    ``run`` tells this run from others of the same job. Who took part in another one is welcome, and
    takes part in this one from then on; but not once this run is ``settled``: then only the members
    of runs that joined it before are. Without a run nobody is refused for theirs.
    """

    agreement: dict[str, str]
    run: str = ""
    settled: bool = False


class Send(Effect, Generic[B], frozen=True):
    """Say ``body`` to ``peer`` when credit allows.

    A message that still waits is replaced by a newer one with the same non-empty ``key``. The link
    holds the ``payload`` until it has left.
    """

    peer: str
    lane: Lane
    body: B
    payload: str = ""
    key: str = ""


class Mark(Effect, frozen=True):
    """Send a marker down both lanes to ``peer``, now: what waits for credit is part of the sender's
    state, and so belongs behind it."""

    peer: str
    snapshot: str


class Hangup(Effect, frozen=True):
    """Say goodbye to ``peer`` and forget it; ``final`` tells it never to dial again."""

    peer: str
    reason: str
    final: bool = False


class Retire(Effect, frozen=True):
    """Nobody will hear again of an actor's incarnations below ``floors[actor]``: their entries
    leave the clock. Performed by the actor; never reaches the world."""

    floors: dict[str, int]


class Transmit(Effect, Generic[B], frozen=True):
    """Put a message on the wire now; made by the link machine, performed by the driver."""

    peer: str
    lane: Lane
    session: int
    seq: int
    clock: dict[str, int]
    body: B
    payload: str = ""


class SetTimer(Effect, frozen=True):
    """Say ``TimerFired`` at ``at`` seconds; setting a timer again moves it."""

    timer: str
    at: float


class CancelTimer(Effect, frozen=True):
    """Forget a timer; one that is not set is no error."""

    timer: str


class Keep(Effect, frozen=True):
    """One more holder of an array: of one that a message brought, or of one just named.

    Counted by the actor, in order with what else is asked; never reaches the world.
    """

    handle: str


class Drop(Effect, frozen=True):
    """One holder of an array less; the last one frees it. Counted by the actor."""

    handle: str


class Free(Effect, frozen=True):
    """Nobody needs this array any more."""

    handle: str
