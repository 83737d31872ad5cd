"""What travels: the header of every message, the chunk of a long one, the bodies of the link.

A message is one msgpack header and at most one *payload*, the bytes of its named tensors. The body
is a tagged union; the link's own bodies stand here, an application adds its own by subclassing
``Body`` and naming the union to the codec. Field names and tags are the wire format.
"""

from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

PROTOCOL_VERSION = 1

CONTROL = "control"
BULK = "bulk"
Lane = Literal["control", "bulk"]
LANES: tuple[Lane, Lane] = (CONTROL, BULK)
"""A link has two lanes, so that a large fragment never delays a report."""

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
Reason = Annotated[str, Meta(max_length=1024)]
Run = Annotated[str, Meta(max_length=64)]
Digest = Annotated[bytes, Meta(min_length=16, max_length=16)]

TENSORS_MAX = 1024
"""Tensors of one message: a fragment with more would need a header beyond its limit."""


class TensorMeta(Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor of a payload. ``bits`` is the width of an element on the wire, ``digest`` the
    xxh3-128 of the tensor's bytes as sent."""

    name: Annotated[str, Meta(min_length=1, max_length=512)]
    shape: Annotated[tuple[Count, ...], Meta(max_length=16)]
    dtype: Annotated[str, Meta(min_length=1, max_length=16)]
    bits: Annotated[int, Meta(ge=1, le=64)]
    digest: Digest


class Body(Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of everything that can be said; the class name is the tag on the wire."""


class Hello(Body, frozen=True):
    """The dialling side opens one lane of a session. ``agreement`` names what both must share;
    ``run`` is the run in which the listening side last welcomed it, empty for none."""

    agreement: dict[str, str]
    run: Run = ""


class Welcome(Body, frozen=True):
    """The listening side has seen Hello on both lanes, and agrees. ``run`` is its run."""

    run: Run = ""


class Refused(Body, frozen=True):
    """The listening side does not agree, and says what differs. Final for this incarnation; where
    ``again``, the actor's next incarnation is welcome."""

    reason: Reason
    again: bool = False


class Reset(Body, frozen=True):
    """A session is unknown or broken; the dialling side shakes hands again, with the session after
    ``beyond`` where that is said."""

    reason: Reason
    beyond: Count | None = None


class Credit(Body, frozen=True):
    """How many messages of ``lane`` the sender of this has taken in, in all, this session, and how
    many bytes have come of the one after these."""

    lane: Lane
    taken: Count
    arrived: Count = 0


class Bye(Body, frozen=True):
    """The sender leaves for good."""

    reason: Reason


class Marker(Body, frozen=True):
    """What the sender said in this lane before this belongs before the cut ``snapshot``, what it
    says after it behind the cut (Chandy and Lamport). It needs no credit."""

    snapshot: Annotated[str, Meta(min_length=3, max_length=160)]


GREETINGS = frozenset({Hello, Welcome, Reset, Refused})
"""Bodies of the handshake, which stand outside the numbers of a session."""

LinkBody = Hello | Welcome | Refused | Reset | Credit | Bye | Marker

B = TypeVar("B", bound=Body)


class Header(Struct, Generic[B], frozen=True, tag="message", forbid_unknown_fields=True):
    """The first frame of every message. ``clock`` holds the entries that changed since the last
    message of this lane, all of them at ``seq`` 0; the sender's own entry is always there."""

    version: int
    job: Name
    sender: Name
    session: Count
    seq: Count
    clock: dict[str, Count]
    body: B
    tensors: Annotated[tuple[TensorMeta, ...], Meta(max_length=TENSORS_MAX)] = ()


class Chunk(Struct, frozen=True, tag="chunk", forbid_unknown_fields=True):
    """The header of a later piece of a long payload; ``index`` counts from 1."""

    session: Count
    seq: Count
    index: Count


def encoder() -> msgspec.msgpack.Encoder:
    """The one way in which anything that is hashed or sent becomes bytes."""
    return msgspec.msgpack.Encoder(order="deterministic")
