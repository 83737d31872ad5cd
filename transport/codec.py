"""Conversion of messages to frames and back, with a limit on every size and count.

On the wire a message is one or more ZeroMQ messages of at most two frames each:

    [header]                          a message without tensors
    [header, bytes 0 .. 2 MiB)        the first piece of a payload
    [chunk header, next 2 MiB) ...    the rest, ``index`` 1, 2, ...

The header lists every tensor, so the receiver knows the payload's length before it allocates
memory. Every header ends with a digest of its bytes, as every tensor has one: one that was changed
on the way is refused, whatever it says then. All pieces but the last are as long as the first, so
the receiver knows the length of each chunk before it copies. Tensor bytes are sent without copying.
On arrival they stay where the endpoint put them, or are copied once, into a single buffer from
``allocate``.

Decoding raises ``RemoteProtocolError``, with the path of the field, for any input that breaks a
limit or a type, and raises nothing else. Encoding raises ``LocalProtocolError`` for mistakes of
this side. A rejected message changes no state except that its lane is given up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import xxhash

from clocks import ClockError, check_entries
from transport.endpoint import FRAME_BYTES_MAX, Buffer
from transport.message import (
    PROTOCOL_VERSION,
    TENSORS_MAX,
    Body,
    Chunk,
    Header,
    Hello,
    Refused,
    TensorMeta,
    encoder,
)
from transport.payload import (
    PAYLOAD_BYTES_MAX,
    SENDABLE,
    ArrivingDigests,
    Bytes,
    Payload,
    payload_bytes,
)

HEADER_BYTES_MAX = FRAME_BYTES_MAX
"""A header is one part of a message. Half of it is room for ``TENSORS_MAX`` tensors with short
names, or for 8,000 with names of ordinary length."""

CHUNK_BYTES = 2 * 1024 * 1024
"""Bytes in a piece of a payload: with 2 MiB instead of 1 a round of 64 MiB with four learners took
0.88 instead of 0.96 core-seconds. A piece must arrive within `link.STALL_S`, so a lane needs
70 kB/s."""

WORD_BYTES = 8
"""Pieces begin at multiples of this, so that elements of every type can be read where they are."""

TENSORS_HEADER_BYTES_MAX = HEADER_BYTES_MAX // 2
"""The share of the header for tensor descriptions; the rest is for the clock and the body."""

TENSOR_NAME_CHARS_MAX = 512
DIMENSIONS_MAX = 16
"""The same limits as the fields of `TensorMeta`."""

B = TypeVar("B", bound=Body)


class LocalProtocolError(ValueError):
    """This side tried to send a message that the protocol does not allow."""


class RemoteProtocolError(ValueError):
    """The peer sent a message that the protocol does not allow; the text names the field."""


@dataclass(frozen=True, slots=True)
class Message(Generic[B]):
    """A complete message: its header, and its payload if it has tensors."""

    header: Header[B]
    payload: Payload | None


DIGEST_BYTES = 8
"""Bytes of a header's digest, xxh3-64, at its end."""


def sealed(words: bytes) -> bytes:
    return words + xxhash.xxh3_64_digest(words)


class Codec(Generic[B]):
    """Encodes and decodes the messages of one job.

    Args:
        body_type: the union of all message bodies of the job.
        job: the id of the job; messages of other jobs are rejected.
    """

    def __init__(self, body_type: Any, job: str) -> None:
        self.job = job
        self._encode = encoder().encode
        self._decoder: msgspec.msgpack.Decoder[Header[B] | Chunk] = msgspec.msgpack.Decoder(
            Header[body_type] | Chunk
        )

    def encode(self, header: Header[B], payload: Payload | None) -> list[list[Buffer]]:
        """Encode one message as a list of ZeroMQ messages, each a list of frames.

        Raises:
            LocalProtocolError: the header is longer than ``HEADER_BYTES_MAX``.
        """
        head = sealed(self._encode(header))
        if len(head) > HEADER_BYTES_MAX:
            raise LocalProtocolError(
                f"header of {len(head)} bytes, at most {HEADER_BYTES_MAX}: "
                f"a fragment of {len(header.tensors)} tensors is too many; use more fragments"
            )
        if payload is None:
            return [[head]]
        data = payload.data.data
        frames: list[list[Buffer]] = [[head, data[:CHUNK_BYTES]]]
        for index, start in enumerate(range(CHUNK_BYTES, len(data), CHUNK_BYTES), start=1):
            chunk = sealed(self._encode(Chunk(header.session, header.seq, index)))
            frames.append([chunk, data[start : start + CHUNK_BYTES]])
        return frames

    def decode_head(self, frame: Buffer) -> Header[B] | Chunk:
        """Decode the first frame of a ZeroMQ message.

        Raises:
            RemoteProtocolError: the frame is not a valid header or chunk header of this job.
        """
        if len(frame) > HEADER_BYTES_MAX:
            raise RemoteProtocolError(f"header: {len(frame)} bytes, at most {HEADER_BYTES_MAX}")
        words, digest = frame[:-DIGEST_BYTES], frame[-DIGEST_BYTES:]
        if xxhash.xxh3_64_digest(words) != bytes(digest):
            said = "bytes do not match their digest: changed on the way, or of another version"
            raise RemoteProtocolError(f"header: {said}")
        try:
            head = self._decoder.decode(words)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RemoteProtocolError(f"header: {error}") from None
        if isinstance(head, Header):
            self._check(head)
        return head

    def _check(self, header: Header[B]) -> None:
        if not isinstance(header.body, Hello | Refused):
            # These two tell the peer that its job or its protocol version differs.
            if header.version != PROTOCOL_VERSION:
                raise RemoteProtocolError(
                    f"$.version: protocol {header.version}, this side speaks {PROTOCOL_VERSION}"
                )
            if header.job != self.job:
                raise RemoteProtocolError(f"$.job: {header.job!r}, this is job {self.job!r}")
        if header.sender not in header.clock:
            raise RemoteProtocolError(f"$.clock: has no entry of its sender {header.sender}")
        try:
            check_entries(header.clock)
        except ClockError as error:
            raise RemoteProtocolError(f"$.clock: {error}") from None
        for index, meta in enumerate(header.tensors):
            dtype = SENDABLE.get(meta.dtype)
            if dtype is None:
                known = ", ".join(SENDABLE)
                raise RemoteProtocolError(
                    f"$.tensors[{index}].dtype: {meta.dtype!r} is not one of {known}"
                )
            if meta.bits != dtype.itemsize * 8:
                raise RemoteProtocolError(
                    f"$.tensors[{index}].bits: {meta.bits}, {meta.dtype} has {dtype.itemsize * 8}"
                )
        if payload_bytes(header.tensors) > PAYLOAD_BYTES_MAX:
            raise RemoteProtocolError(
                f"$.tensors: {payload_bytes(header.tensors)} bytes, at most {PAYLOAD_BYTES_MAX}"
            )


def layout_problem(layout: Sequence[tuple[str, tuple[int, ...], str]]) -> str | None:
    """Why tensors (name, shape, dtype) cannot be sent in one message; None if they can.

    Checked before training starts, because otherwise every attempt to send would break the link.
    """
    if len(layout) > TENSORS_MAX:
        return f"{len(layout)} tensors, a message has at most {TENSORS_MAX}"
    for name, shape, _ in layout:
        if not 0 < len(name) <= TENSOR_NAME_CHARS_MAX or len(shape) > DIMENSIONS_MAX:
            said = f"{len(name)} characters and {len(shape)} dimensions"
            most = f"{TENSOR_NAME_CHARS_MAX} and {DIMENSIONS_MAX}"
            return f"tensor {name[:40]!r}: its name and shape have {said}, at most {most}"
    metas = [
        TensorMeta(name, shape, dtype, SENDABLE[dtype].itemsize * 8, bytes(16))
        for name, shape, dtype in layout
    ]
    if payload_bytes(metas) > PAYLOAD_BYTES_MAX:
        return f"{payload_bytes(metas)} bytes, a message has at most {PAYLOAD_BYTES_MAX}"
    nbytes = len(encoder().encode(metas))
    if nbytes > TENSORS_HEADER_BYTES_MAX:
        return (
            f"the names of its {len(layout)} tensors make a header of {nbytes} bytes, "
            f"at most {TENSORS_HEADER_BYTES_MAX}"
        )
    return None


def _in_place(piece: Buffer) -> Bytes:
    """A piece as an array, not copied if its address allows reading elements there."""
    data = np.frombuffer(piece, np.uint8)
    return data if data.ctypes.data % WORD_BYTES == 0 else data.copy()


class Assembler(Generic[B]):
    """Reassembles the messages of one lane from chunks; only complete messages become events.

    Args:
        codec: the codec of the job.
        check: raises ``RemoteProtocolError`` for a header that is not allowed on this lane; called
            before memory for the payload is allocated.
        allocate: returns a uint8 buffer of the requested length for a payload. Without it a payload
            stays in the pieces in which it arrives.
        release: takes back the buffer of a rejected message.
    """

    def __init__(
        self,
        codec: Codec[B],
        check: Callable[[Header[B]], None] = lambda _: None,
        allocate: Callable[[int], Bytes] | None = None,
        release: Callable[[Bytes], None] = lambda _: None,
    ) -> None:
        self._codec = codec
        self._check = check
        self._allocate = allocate
        self._release = release
        self._header: Header[B] | None = None
        self._total = 0
        self._data: Bytes | None = None
        self._pieces: list[Bytes] = []
        self._digests = ArrivingDigests(())
        self._filled = 0
        self._chunks = 0

    def feed(self, frames: Sequence[Buffer]) -> Message[B] | None:
        """Process one ZeroMQ message; returns the message that it completes, or None.

        Raises:
            RemoteProtocolError: it breaks a limit, a type or the order of chunks, or a tensor's
                bytes do not match its digest. The lane's incomplete message is discarded.
        """
        try:
            return self._feed(frames)
        except RemoteProtocolError:
            self.give_up()
            raise

    @property
    def unfinished(self) -> bool:
        """Whether a message has begun and is not complete; otherwise there is no state to keep."""
        return self._header is not None

    @property
    def arrived(self) -> int:
        """Bytes received so far of the incomplete message's payload."""
        return self._filled if self._header is not None else 0

    def give_up(self) -> None:
        """Discard the incomplete message, if there is one."""
        if self._data is not None:
            self._release(self._data)
        self._header = self._data = None
        self._pieces = []

    def _feed(self, frames: Sequence[Buffer]) -> Message[B] | None:
        if not 1 <= len(frames) <= 2:
            raise RemoteProtocolError(f"message of {len(frames)} parts, 1 or 2 expected")
        head = self._codec.decode_head(frames[0])
        piece = frames[1] if len(frames) == 2 else b""
        if isinstance(head, Header):
            self._open(head)
        else:
            self._follow(head)
        self._take(piece)
        return self._finish()

    def _open(self, header: Header[B]) -> None:
        if self._header is not None:
            raise RemoteProtocolError(
                f"message {header.seq} begins before message {self._header.seq} is complete"
            )
        self._check(header)
        self._header, self._filled, self._chunks = header, 0, 1
        self._total = payload_bytes(header.tensors)
        self._digests = ArrivingDigests(header.tensors)
        if header.tensors and self._allocate is not None:
            self._data = self._allocate(self._total)

    def _follow(self, chunk: Chunk) -> None:
        header = self._header
        if header is None:
            raise RemoteProtocolError(f"chunk {chunk.index} of a message that did not begin")
        if (chunk.session, chunk.seq) != (header.session, header.seq):
            raise RemoteProtocolError(f"chunk of message {chunk.seq} inside message {header.seq}")
        if chunk.index != self._chunks:
            raise RemoteProtocolError(f"chunk {chunk.index} where {self._chunks} was due")
        self._chunks += 1

    def _take(self, piece: Buffer) -> None:
        due = min(CHUNK_BYTES, self._total - self._filled)
        if len(piece) != due:
            raise RemoteProtocolError(
                f"tensor bytes: received {len(piece)}, expected {due} by shapes and types"
            )
        if not due:
            return
        if self._data is None:
            here = _in_place(piece)
            self._pieces.append(here)
        else:
            here = self._data[self._filled : self._filled + due]
            here[:] = np.frombuffer(piece, np.uint8)
        self._digests.update(here.data)  # Here copied bytes are still in the cache.
        self._filled += due

    def _finish(self) -> Message[B] | None:
        header = self._header
        if header is None or self._filled < self._total:
            return None
        if self._digests.broken is not None:
            broken = self._digests.broken
            raise RemoteProtocolError(f"tensor {broken}: bytes do not match their digest")
        parts = self._pieces if self._data is None else [self._data]
        self._header = self._data = None
        self._pieces = []
        return Message(header, Payload(header.tensors, *parts) if header.tensors else None)
