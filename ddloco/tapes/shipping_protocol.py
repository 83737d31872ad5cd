"""How a tape travels to the syncer's folder: what is said on the way, and the limits on it.

A tape is shipped in *segments*, ranges of bytes of the one file. A tape that ends anywhere reads up
to its last whole record, so whatever has arrived is a tape, cut short; there is nothing to put
together. One segment at a time is on its way, on a lane of its own below the door: no machine and
no tape ever hears of it.

    [Ask]               from the sender: how much do you have?
    [Segment, bytes]    these come next
    [Whole]             that was all
    [Has]               from the receiver: so many bytes, written
    [Sorry]             nothing more is wanted, and why

The incarnation whose tape it is stands nowhere in here: it is the peer of the route, which keys
prove.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import xxhash
from msgspec import Meta, Struct

from transport.endpoint import Buffer
from transport.message import Count, Reason

VERSION = 1
LANE = "tape"

SEGMENT_BYTES_MAX = 2**20
"""Also what a job may ask for: the longest that other messages of the host wait behind one."""

TAPE_BYTES_MAX = 8 * 2**30
"""Of one incarnation: a month of steps at ten a second."""

WORD_BYTES_MAX = 1024
"""A word is a few small numbers and a reason."""

Digest = Annotated[bytes, Meta(max_length=16)]


class ShippingError(ValueError):
    """They said something that this language does not have; one line names the field."""


class Word(Struct, frozen=True, tag=True):
    """Base of what is said; ``n`` is the sender's count, which its answer repeats."""

    n: Count


class Ask(Word, frozen=True):
    """How much of my tape do you have?"""

    version: int = VERSION


class Segment(Word, frozen=True):
    """The bytes from ``offset`` on, in a part of their own; ``digest`` is xxh3-128 of them."""

    offset: Count
    digest: Digest


class Whole(Word, frozen=True):
    """The tape has ``length`` bytes and will not grow."""

    length: Count


class Has(Word, frozen=True):
    """``length`` bytes are there; to an ask also the digest of all of them."""

    length: Count
    digest: Digest = b""


class Sorry(Word, frozen=True):
    """No more of this tape, please. ``shared``: it is in this folder already, as its own file."""

    reason: Reason
    shared: bool = False


encode = msgspec.msgpack.Encoder().encode
digest_of = xxhash.xxh3_128_digest
_said = msgspec.msgpack.Decoder(Ask | Segment | Whole)
_answer = msgspec.msgpack.Decoder(Has | Sorry)


def decode_said(frames: Sequence[Buffer]) -> tuple[Ask | Segment | Whole, Buffer]:
    """What a sender says, with the bytes of a segment.

    Raises:
        ShippingError: it is none of these, or too long.
    """
    said = _decoded(_said, frames)
    parts = 2 if isinstance(said, Segment) else 1
    if len(frames) != parts:
        raise ShippingError(f"{type(said).__name__} of {len(frames)} parts, {parts} expected")
    data = frames[1] if parts == 2 else b""
    if len(data) > SEGMENT_BYTES_MAX:
        raise ShippingError(f"a segment of {len(data)} bytes, at most {SEGMENT_BYTES_MAX}")
    return said, data


def decode_answer(frames: Sequence[Buffer]) -> Has | Sorry:
    """What a receiver answers.

    Raises:
        ShippingError: it is no answer.
    """
    return _decoded(_answer, frames)


def _decoded(decoder: msgspec.msgpack.Decoder[Any], frames: Sequence[Buffer]) -> Any:
    if not frames or len(frames[0]) > WORD_BYTES_MAX:
        raise ShippingError(f"a word of at most {WORD_BYTES_MAX} bytes expected")
    try:
        return decoder.decode(frames[0])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ShippingError(str(error)) from None
