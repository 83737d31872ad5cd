"""What an observer and the window of a syncer say to each other, and the limits on it.

An observer is no peer: it has no link, no clock, and nothing of this is on a tape. A notice is one
msgpack frame; a fragment's bytes follow it raw, cut into pieces as between peers:

    [Ask]                             from the observer, all that it ever says
    [Told] [News] [Sorry]             from the window
    [Fragment, bytes 0 .. 1 MiB)      then [Piece, next 1 MiB) ... until the fragment is whole
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from transport import DTYPES, Bytes, Payload, TensorMeta
from transport.codec import CHUNK_BYTES
from transport.endpoint import FRAME_BYTES_MAX, Buffer
from transport.message import TENSORS_MAX, Count, Reason
from transport.payload import PAYLOAD_BYTES_MAX, broken_tensor, payload_bytes

VERSION = 1
"""Of this language alone; an observer of another version is told so."""

OBSERVER = "observer-"
"""How the route of an observer begins, and no actor's name."""

ASK_BYTES_MAX = 1024
"""An ask is a few small numbers."""

NOTICE_BYTES_MAX = FRAME_BYTES_MAX
"""A status of 1,024 learners has an eighth of a megabyte."""


class NoticeError(ValueError):
    """They said something that this language does not have; one line names the field."""


class Notice(Struct, frozen=True, tag=True):
    """Base of everything that is said; the class name is the tag. Unknown fields are let be, so
    that another version is understood far enough to be told its number."""


Request = Literal["snapshot", "stop"]
"""What goes on to the actor's door, and becomes an event."""


class Ask(Notice, frozen=True):
    """Tell me the status, or (go on to) tell me the news, or take a snapshot, or end the job.
    ``taken`` is the greatest ``seq`` that the observer has taken in: what it has not, is held
    against it."""

    what: Literal["status", "follow", "snapshot", "stop"]
    version: int = VERSION
    taken: Count = 0
    payloads: bool = False


class Told(Notice, frozen=True):
    """What the syncer says of itself: plain data, times as seconds before or after now."""

    seq: Count
    status: dict[str, Any]


class News(Notice, frozen=True):
    """One observation: ``at`` seconds since the syncer's start, ``ref`` its event on the tape.
    ``lost`` news did not reach this observer before, since it was slow."""

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


class Piece(Notice, frozen=True):
    """More bytes of the fragment that was begun."""

    seq: Count
    index: Count


class Sorry(Notice, frozen=True):
    """Nothing will be told, and why."""

    reason: Reason


encode = msgspec.msgpack.Encoder().encode
_ask = msgspec.msgpack.Decoder(Ask)
_answer = msgspec.msgpack.Decoder(Told | News | Fragment | Piece | Sorry)


def decode_ask(frames: Sequence[Buffer]) -> Ask:
    """What an observer asks.

    Raises:
        NoticeError: it is no ask.
    """
    if len(frames) != 1:
        raise NoticeError(f"an ask of {len(frames)} parts, 1 expected")
    if len(frames[0]) > ASK_BYTES_MAX:
        raise NoticeError(f"an ask of {len(frames[0])} bytes, at most {ASK_BYTES_MAX}")
    return _decoded(_ask, frames[0])


def _decoded(decoder: msgspec.msgpack.Decoder[Any], frame: Buffer) -> Any:
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NoticeError(str(error)) from None


def cut(said: Fragment, data: Bytes) -> Iterator[list[Buffer]]:
    """The messages of a fragment: ``data`` (uint8) is sent from where it lies."""
    yield [encode(said), data[:CHUNK_BYTES].data]
    for index, start in enumerate(range(CHUNK_BYTES, len(data), CHUNK_BYTES), start=1):
        yield [encode(Piece(said.seq, index)), data[start : start + CHUNK_BYTES].data]


class Reader:
    """Reads what a window says, and puts fragments together."""

    def __init__(self) -> None:
        self._begun: Fragment | None = None
        self._data: Bytes = np.empty(0, np.uint8)
        self._filled = 0
        self._index = 0

    def feed(self, frames: Sequence[Buffer]) -> tuple[Told | News | Fragment | Sorry, Any] | None:
        """Take one message: a whole notice, with its payload if it has one, or None.

        A fragment that stops in the middle is forgotten; the window sends it again.

        Raises:
            NoticeError: it is no notice, or a tensor's bytes do not match its digest.
        """
        if not 1 <= len(frames) <= 2 or len(frames[0]) > NOTICE_BYTES_MAX:
            raise NoticeError("1 or 2 parts within the limits expected")
        said = _decoded(_answer, frames[0])
        piece = frames[1] if len(frames) == 2 else b""
        if isinstance(said, Fragment):
            self._begin(said)
            return self._fill(piece)
        if isinstance(said, Piece):
            begun = self._begun
            if begun is None or (said.seq, said.index) != (begun.seq, self._index):
                self._begun = None
                raise NoticeError(f"piece {said.index} of a fragment that was not begun")
            return self._fill(piece)
        return said, None

    def _begin(self, said: Fragment) -> None:
        self._begun = None
        for meta in said.tensors:
            if meta.dtype not in DTYPES:
                raise NoticeError(f"$.tensors: {meta.dtype!r} is none of {', '.join(DTYPES)}")
        total = payload_bytes(said.tensors)
        if total > PAYLOAD_BYTES_MAX:
            raise NoticeError(f"$.tensors: {total} bytes, at most {PAYLOAD_BYTES_MAX}")
        self._begun, self._data = said, np.empty(total, np.uint8)
        self._filled = self._index = 0

    def _fill(self, piece: Buffer) -> tuple[Fragment, Payload] | None:
        said, due = self._begun, min(CHUNK_BYTES, len(self._data) - self._filled)
        assert said is not None, "a piece is filled in only where a fragment was begun"
        if len(piece) != due:
            self._begun = None
            raise NoticeError(f"tensor bytes: {len(piece)} came where {due} were due")
        self._data[self._filled : self._filled + due] = np.frombuffer(piece, np.uint8)
        self._filled += due
        self._index += 1
        if self._filled < len(self._data):
            return None
        self._begun = None
        payload = Payload(said.tensors, self._data)
        broken = broken_tensor(payload)
        if broken is not None:
            raise NoticeError(f"tensor {broken}: bytes do not match their digest")
        return said, payload
