"""The wire types: the header of every message, the chunk header, and the bodies of the link.

A message is one msgpack header and at most one *payload*, the bytes of its named tensors. The body
is a tagged union. The link's own bodies are defined here; an application subclasses ``Body`` for
its own and passes their union to the codec. Field names and tags are the wire format.
"""

from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

PROTOCOL_VERSION = 2

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

TENSORS_MAX = 16_384
"""Tensors in one message; a fragment with more would need a header beyond its limit."""


class TensorMeta(Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor of a payload. ``bits`` is the width of an element on the wire; ``digest`` is the
    xxh3-128 of the tensor's bytes as sent."""

    name: Annotated[str, Meta(min_length=1, max_length=512)]
    shape: Annotated[tuple[Count, ...], Meta(max_length=16)]
    dtype: Annotated[str, Meta(min_length=1, max_length=16)]
    bits: Annotated[int, Meta(ge=1, le=64)]
    digest: Digest


class Body(Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base class of all message bodies; the class name is the tag on the wire."""


class Hello(Body, frozen=True):
    """The dialling side opens one lane of a session. Both sides must have the same ``agreement``;
    ``run`` is the run named in the listening side's last Welcome, empty if there was none."""

    agreement: dict[str, str]
    run: Run = ""


class Welcome(Body, frozen=True):
    """The listening side received Hello on both lanes and agrees. ``run`` is its run."""

    run: Run = ""


class Refused(Body, frozen=True):
    """The listening side does not agree, and says what differs. Final for this incarnation; with
    ``again``, the actor's next incarnation will be accepted."""

    reason: Reason
    again: bool = False


class Reset(Body, frozen=True):
    """A session is unknown or broken: the dialling side must shake hands again, with a session
    above ``beyond`` if that is given."""

    reason: Reason
    beyond: Count | None = None


class Credit(Body, frozen=True):
    """How many messages of ``lane`` the sender of this has taken in during this session, and how
    many bytes of the next one have arrived."""

    lane: Lane
    taken: Count
    arrived: Count = 0


class Bye(Body, frozen=True):
    """The sender closes the link for good."""

    reason: Reason


class Marker(Body, frozen=True):
    """Divides a lane: messages before it belong before the cut ``snapshot``, those after it after
    the cut (Chandy and Lamport). It needs no credit."""

    snapshot: Annotated[str, Meta(min_length=3, max_length=160)]


GREETINGS = frozenset({Hello, Welcome, Reset, Refused})
"""Bodies of the handshake, which have no sequence number in an open session."""

LINK_TALK = frozenset({Credit, Bye, Marker})
"""Bodies that links of an open session handle themselves; all others are for the machine."""

LinkBody = Hello | Welcome | Refused | Reset | Credit | Bye | Marker

if TYPE_CHECKING:  # A checker knows defaults of type variables, Python 3.11 does not.
    from typing_extensions import TypeVar as TypeVarWithDefault

    B = TypeVarWithDefault("B", bound=Body, default=Any)
else:
    B = TypeVar("B", bound=Body)


class Header(Struct, Generic[B], frozen=True, tag="message", forbid_unknown_fields=True):
    """The first frame of every message. ``clock`` holds the entries that changed since the last
    message on this lane, and all entries at ``seq`` 0; it always has the sender's own entry."""

    version: int
    job: Name
    sender: Name
    session: Count
    seq: Count
    clock: dict[str, Count]
    body: B
    tensors: Annotated[tuple[TensorMeta, ...], Meta(max_length=TENSORS_MAX)] = ()


class Chunk(Struct, frozen=True, tag="chunk", forbid_unknown_fields=True):
    """The header of a later chunk of a long payload; ``index`` counts from 1."""

    session: Count
    seq: Count
    index: Count


def encoder() -> msgspec.msgpack.Encoder:
    """The one encoder for everything that is hashed or sent, so that its bytes are unique."""
    return msgspec.msgpack.Encoder(order="deterministic")
