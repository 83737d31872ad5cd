"""The protocol between observers and a syncer's observer server, and its limits.

An observer is not a peer: it has no link and no clock, and its messages are on no tape. A notice is
one msgpack frame. A fragment's bytes follow it raw, in pieces:

    [Ask]                             from the observer; it sends nothing else
    [Told] [News] [Sorry]             from the server
    [Fragment, bytes 0 .. 1 MiB)      then [FragmentPiece, next 1 MiB) ... until it is complete
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct

from ddloco.stage.process.side_protocol import SideDecoder
from transport.endpoint import FRAME_BYTES_MAX, Buffer
from transport.message import TENSORS_MAX, Count, Reason, TensorMeta

if TYPE_CHECKING:
    from ddloco.stage.observers.observer_fragments import FragmentReader

VERSION = 1
"""The version of this protocol; observers of another version get an answer that says so."""

OBSERVER, OWNER = "observer-", "owner-"
"""The prefixes of observers' routes; no actor's name begins with one. With keys only who has the
key ``owner`` can use the second. Who uses the first may look: the status, news and fragments."""

ASK_BYTES_MAX = 1024
"""A request contains only a few small numbers, and the name of an actor."""

WHO_CHARS_MAX = 128

PIECE_BYTES = 1024 * 1024
"""Bytes in a piece of a fragment; only the last may be shorter."""

NOTICE_BYTES_MAX = FRAME_BYTES_MAX
"""A status of 1,024 learners takes an eighth of a megabyte."""


class Notice(Struct, frozen=True, tag=True):
    """Base class of all messages; the class name is the tag. Unknown fields are ignored, so that a
    request of another version can be decoded far enough to read its version number."""


Request = Literal["snapshot", "stop", "leave"]


class Ask(Notice, frozen=True):
    """Asks for the status, for the news from now on, for a snapshot, for the end of the job, or for
    the actor ``who`` to leave it for good. ``taken`` is the greatest ``seq`` that the observer has
    received, which acknowledges it: the server limits how much is unacknowledged."""

    what: Literal["status", "follow", "snapshot", "stop", "leave"]
    version: int = VERSION
    taken: Count = 0
    payloads: bool = False
    who: Annotated[str, Meta(max_length=WHO_CHARS_MAX)] = ""


class Told(Notice, frozen=True):
    """The syncer's status as plain data; times are seconds relative to now."""

    seq: Count
    status: dict[str, Any]


class News(Notice, frozen=True):
    """One observation: ``at`` is in seconds since the syncer's start, ``ref`` is its event on the
    tape. ``lost`` counts earlier news that this observer missed because it was slow."""

    seq: Count
    lost: Count
    event: str
    at: float
    ref: str
    fields: dict[str, Any]


class Fragment(Notice, frozen=True):
    """The newest version ``t`` of a global fragment; its bytes follow."""

    seq: Count
    fragment: Count
    t: Count
    tensors: Annotated[tuple[TensorMeta, ...], Meta(max_length=TENSORS_MAX)]


class FragmentPiece(Notice, frozen=True):
    """The next bytes of the current fragment."""

    seq: Count
    index: Count


class Sorry(Notice, frozen=True):
    """The request is declined, and why."""

    reason: Reason


decode_ask: SideDecoder[Ask] = SideDecoder(Ask, ASK_BYTES_MAX)
decode_told: SideDecoder[Told | News | Fragment | FragmentPiece | Sorry] = SideDecoder(
    Told | News | Fragment | FragmentPiece | Sorry, NOTICE_BYTES_MAX
)


class Reader:
    def __init__(self) -> None:
        self._fragments: FragmentReader | None = None

    def feed(self, frames: Sequence[Buffer]) -> tuple[Told | News | Fragment | Sorry, Any] | None:
        """Process one message; returns a whole notice with its payload, if it has one, or None. An
        incomplete fragment is forgotten; the server sends it again. ``SideProtocolError`` if it is
        no valid notice, or a tensor's bytes do not match its digest."""
        said = decode_told(frames, parts=2)
        piece = frames[1] if len(frames) == 2 else b""
        if isinstance(said, Fragment | FragmentPiece):
            return self._assembled().feed(said, piece)
        return said, None

    def _assembled(self) -> "FragmentReader":
        if self._fragments is None:
            # Observers that only ask for a status need no arrays.
            from ddloco.stage.observers.observer_fragments import FragmentReader  # noqa: PLC0415

            self._fragments = FragmentReader()
        return self._fragments
