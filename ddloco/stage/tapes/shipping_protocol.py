"""The protocol for shipping a tape to the syncer's folder, and its limits.

A tape is shipped in *segments*, byte ranges of one file. A truncated tape is valid up to its last
whole record, so whatever has arrived is a usable tape, and nothing needs to be assembled. One
segment is in flight at a time, on a separate lane below the door: machines and tapes do not see it.

    [AskLength]               from the sender: how much do you have?
    [Segment, bytes]    the next bytes
    [Whole]             the tape is complete
    [Has]               from the receiver: this many bytes are written
    [Declined]             send no more, and why

Messages do not contain the tape's incarnation: it is the peer of the route, which keys prove.
"""

from collections.abc import Sequence
from typing import Annotated

import xxhash
from msgspec import Meta, Struct

from ddloco.stage.process.side_protocol import SideDecoder, SideProtocolError
from transport.endpoint import Buffer
from transport.message import Count, Reason

VERSION = 1
LANE = "tape"

SEGMENT_BYTES_MAX = 2**20
"""Also the largest segment that a job may configure, since other messages of the host wait behind
one."""

TAPE_BYTES_MAX = 8 * 2**30
"""Size limit of one incarnation's tape: a month of steps at ten per second."""

WORD_BYTES_MAX = 1024
"""Size limit of a message: a few small numbers and a reason."""

Digest = Annotated[bytes, Meta(max_length=16)]


class Word(Struct, frozen=True, tag=True):
    """Base class of the messages; ``n`` is the sender's count, which the answer repeats."""

    n: Count


class AskLength(Word, frozen=True):
    """Asks how much of the tape the receiver has."""

    version: int = VERSION


class Segment(Word, frozen=True):
    """The bytes from ``offset`` on, as a second part; ``digest`` is their xxh3-128."""

    offset: Count
    digest: Digest


class Whole(Word, frozen=True):
    """The tape has ``length`` bytes and will not grow."""

    length: Count


class Has(Word, frozen=True):
    """The receiver has ``length`` bytes; in answer to ``AskLength`` also their digest."""

    length: Count
    digest: Digest = b""


class Declined(Word, frozen=True):
    """Send no more of this tape. ``shared``: the original tape is in this folder."""

    reason: Reason
    shared: bool = False


digest_of = xxhash.xxh3_128_digest
decode_sent: SideDecoder[AskLength | Segment | Whole] = SideDecoder(
    AskLength | Segment | Whole, WORD_BYTES_MAX
)
decode_answer: SideDecoder[Has | Declined] = SideDecoder(Has | Declined, WORD_BYTES_MAX)


def decode_said(frames: Sequence[Buffer]) -> tuple[AskLength | Segment | Whole, Buffer]:
    said = decode_sent(frames, parts=2)
    parts = 2 if isinstance(said, Segment) else 1
    if len(frames) != parts:
        raise SideProtocolError(f"{type(said).__name__} of {len(frames)} parts, {parts} expected")
    data = frames[1] if parts == 2 else b""
    if len(data) > SEGMENT_BYTES_MAX:
        raise SideProtocolError(f"a segment of {len(data)} bytes, at most {SEGMENT_BYTES_MAX}")
    return said, data
