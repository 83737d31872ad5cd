"""The pieces of a message: what does not belong together is refused, and nothing is left over."""

import contextlib
import math

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddloco.job.protocol.messages import JobBody
from transport import (
    DTYPES,
    PROTOCOL_VERSION,
    Assembler,
    Codec,
    Header,
    Payload,
    RemoteProtocolError,
    aligned,
    describe,
)
from transport.codec import CHUNK_BYTES, sealed
from transport.message import Welcome

CODEC = Codec(JobBody, "job-1")

PLAIN = {
    "type": "message",
    "version": PROTOCOL_VERSION,
    "job": "job-1",
    "sender": "a.0",
    "session": 1,
    "seq": 0,
    "clock": {"a.0": 7, "b.0": 3},
    "body": {"type": "Contribution", "t": 1, "fragment": 0, "base": 0, "step": 5}
    | {"steps": 5, "tokens": 160},
    "tensors": [{"name": "w", "shape": [4], "dtype": "float32", "bits": 32, "digest": bytes(16)}],
}


def header(tensors=(), seq=0, session=1, body=None):
    return Header(
        PROTOCOL_VERSION, "job-1", "a.0", session, seq, {"a.0": 7}, body or Welcome(), tensors
    )


def payload_of(layout, seed=0):
    sizes = [math.prod(shape) * DTYPES[dtype].itemsize for _, shape, dtype in layout]
    data = np.random.default_rng(seed).integers(0, 256, sum(map(aligned, sizes)), np.uint8)
    return Payload(describe(data, layout), data)


def as_bytes(frames):
    """Give the ZeroMQ messages of one message as they come out of the other end."""
    return [[bytes(part) for part in parts] for parts in frames]


def message(payload, seq=0, session=1):
    return as_bytes(CODEC.encode(header(payload.tensors, seq, session), payload))


def chunk_head(index):
    return sealed(msgpack.packb({"type": "chunk", "session": 1, "seq": 0, "index": index}))


def feed(assembler, frames):
    """Give what the last ZeroMQ message completes; those before it complete nothing."""
    *before, last = frames
    assert [assembler.feed(parts) for parts in before] == [None] * len(before)
    return assembler.feed(last)


def patched(path, value):
    """Give a header's bytes with one field set, or removed where the value is ``...``."""
    plain = msgpack.unpackb(msgpack.packb(PLAIN))
    at = plain
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return msgpack.packb(plain)


TWO_PIECES = [("x", (CHUNK_BYTES // 2 + 32,), "bfloat16"), ("y", (5,), "float32")]


def bad_sequences():
    """Give name, ZeroMQ messages of which the last is bad, and what the refusal says."""
    payload = payload_of(TWO_PIECES)
    small = payload_of([("x", (5,), "float32")])
    first, second = message(payload)
    [[head, piece]] = message(small)
    again = message(payload, seq=1)
    other = message(payload, session=2)
    flipped = bytearray(second[1])
    flipped[0] ^= 1
    moved = message(Payload(small.tensors, small.data), seq=0)[0][0]
    yield "no parts", [[]], "0 parts"
    yield "three parts", [[head, piece, piece]], "3 parts"
    yield "many parts", [[head, *[piece] * 50]], "51 parts"
    yield "tensors without bytes", [[head]], "tensor bytes: received 0, expected 64"
    yield "too few bytes", [[head, piece[:-1]]], "tensor bytes: received 63"
    yield "too many bytes", [[head, piece + b"\x00"]], "tensor bytes: received 65"
    more = [[CODEC.encode(header(), None)[0][0], b"x"]]
    yield "bytes without tensors", more, "received 1, expected 0"
    yield "first piece too short", [[first[0], first[1][:-1]]], "tensor bytes"
    yield "second piece too short", [first, [second[0], second[1][:-1]]], "tensor bytes"
    yield "second piece too long", [first, [second[0], second[1] + b"x"]], "tensor bytes"
    yield "second piece without bytes", [first, second[:1]], "tensor bytes"
    yield "bytes of another tensor", [first, [second[0], bytes(flipped)]], "tensor x: bytes do not"
    yield "wrong bytes", [[moved, bytes(64)]], "tensor x: bytes do not match their digest"
    yield "chunk without a beginning", [second], "did not begin"
    yield "chunk after the end", [first, second, second], "did not begin"
    yield "a piece again", [first, [chunk_head(0), second[1]]], "chunk 0 where 1 was due"
    yield "a piece too far", [first, [chunk_head(2), second[1]]], "chunk 2 where 1 was due"
    yield "chunk of another message", [first, again[1]], "chunk of message 1 inside message 0"
    yield "chunk of another session", [first, other[1]], "chunk of message 0 inside"
    yield "a header inside", [first, again[0]], "message 1 begins before message 0 is complete"
    yield "the header again", [first, first], "begins before"
    yield "rubbish inside", [first, [b"\xc1", second[1]]], "header"


@pytest.mark.parametrize(
    ("frames", "says"),
    [pytest.param(frames, says, id=name) for name, frames, says in bad_sequences()],
)
def test_a_bad_piece_is_refused_and_the_next_good_message_is_taken(frames, says):
    """Pieces that are too many, too long, of another message, or unlike their header, are
    refused, and nothing of them is left over."""
    assembler = Assembler(CODEC)
    for parts in frames[:-1]:
        assembler.feed(parts)

    with pytest.raises(RemoteProtocolError, match=says):
        assembler.feed(frames[-1])

    payload = payload_of(TWO_PIECES, seed=5)
    came = feed(assembler, message(payload, seq=9))
    assert came.header.seq == 9
    assert came.payload.data.tobytes() == payload.data.tobytes()


def test_a_flipped_bit_anywhere_in_the_tensors_is_refused():
    """Every byte of every tensor is under its digest."""
    payload = payload_of([("x", (5,), "float32"), ("y", (3,), "bfloat16")])
    [[head, piece]] = message(payload)
    inside = [*range(20), *range(64, 70)]

    for index in inside:
        broken = bytearray(piece)
        broken[index] ^= 1 << index % 8
        with pytest.raises(RemoteProtocolError, match=f"tensor {'x' if index < 64 else 'y'}: "):
            Assembler(CODEC).feed([head, bytes(broken)])


def test_nothing_is_allocated_for_what_is_refused():
    """A header that breaks a limit asks for no memory."""
    asked = []
    assembler = Assembler(CODEC, lambda n: asked.append(n) or np.empty(n, np.uint8))

    for path, value in [(["tensors", 0, "shape"], [2**40]), (["job"], "other"), (["version"], 9)]:
        with pytest.raises(RemoteProtocolError):
            assembler.feed([patched(path, value), b""])

    assert asked == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=12))
def test_any_shuffle_of_good_pieces_gives_good_messages_or_refusals(picks):
    """Pieces in any order complete a message only where both of it came, one after the other."""
    payloads = [payload_of(TWO_PIECES, seed) for seed in range(3)]
    pieces = [parts for seq, each in enumerate(payloads) for parts in message(each, seq)]
    assembler = Assembler(CODEC)
    previous = None

    for index in picks:
        came = None
        with contextlib.suppress(RemoteProtocolError):
            came = assembler.feed(pieces[index])
        if index % 2 == 0 or previous != index - 1:
            assert came is None
        if came is not None:
            assert came.payload.digest == payloads[index // 2].digest
        previous = index
