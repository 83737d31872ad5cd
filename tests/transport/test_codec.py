"""Frames and back: what we say is read back exactly, and every bad header is refused by name."""

import contextlib
import math

import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ddloco.job.protocol.messages import GlobalFragment, JobBody, Stop
from transport import (
    DTYPES,
    PROTOCOL_VERSION,
    Assembler,
    Codec,
    Header,
    LocalProtocolError,
    Message,
    Payload,
    RemoteProtocolError,
    TensorMeta,
    aligned,
    describe,
)
from transport.codec import CHUNK_BYTES, HEADER_BYTES_MAX, sealed
from transport.message import TENSORS_MAX, Chunk, Welcome
from transport.payload import PAYLOAD_BYTES_MAX

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
    return sealed(msgpack.packb(plain))


def with_raw(key, raw):
    """Give a header's bytes with the bytes of one field's value replaced, well-formed or not."""
    pairs = [(k, raw if k == key else msgpack.packb(v)) for k, v in PLAIN.items()]
    return sealed(bytes([0x80 | len(PLAIN)]) + b"".join(msgpack.packb(k) + v for k, v in pairs))


# Round trips.


@pytest.mark.parametrize("body", [Welcome(), GlobalFragment(1, 2), Stop(3, "Ende ✓")])
def test_a_message_without_payload_comes_back(body):
    """One frame, read back equal."""
    frames = CODEC.encode(header(body=body), None)

    assert [len(parts) for parts in frames] == [1]
    assert feed(Assembler(CODEC), as_bytes(frames)) == Message(header(body=body), None)


@pytest.mark.parametrize(
    "nbytes",
    [
        *(0, 1, 64, CHUNK_BYTES - 64, CHUNK_BYTES - 1, CHUNK_BYTES),
        *(CHUNK_BYTES + 1, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES + 64 * 5 - 3),
    ],
)
def test_a_payload_of_any_length_comes_back(nbytes):
    """Bytes, names, shapes and digests are equal, in as many pieces as the length needs."""
    elements = -(-nbytes // 2)
    payload = payload_of([("x", (elements,), "bfloat16")])

    frames = message(payload)
    came = feed(Assembler(CODEC), frames)

    assert len(frames) == max(1, -(-len(payload.data) // CHUNK_BYTES))
    assert all(len(parts) == 2 and len(parts[1]) <= CHUNK_BYTES for parts in frames)
    assert came.header == header(payload.tensors)
    assert came.payload.tensors == payload.tensors
    assert came.payload.data.tobytes() == payload.data.tobytes()
    assert came.payload.digest == payload.digest


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 4), max_size=3).map(tuple), st.sampled_from(sorted(DTYPES))
        ),
        min_size=1,
        max_size=5,
    )
)
def test_tensors_of_any_shape_and_type_come_back(tensors):
    """Several tensors of one payload, empty and scalar ones included, are equal."""
    payload = payload_of([(f"t/{i}", shape, dtype) for i, (shape, dtype) in enumerate(tensors)])

    came = feed(Assembler(CODEC), message(payload))

    assert came.payload.tensors == payload.tensors
    assert came.payload.data.tobytes() == payload.data.tobytes()


def test_bfloat16_values_come_back():
    """What was bfloat16 before is bfloat16 after, NaN payloads and signed zeros included."""
    values = np.array([0x7FC1, 0x8000, 0x3F80, 0xFF80], np.uint16).view(ml_dtypes.bfloat16)
    data = np.zeros(64, np.uint8)
    data[:8] = values.view(np.uint8)
    payload = Payload(describe(data, [("x", (4,), "bfloat16")]), data)

    came = feed(Assembler(CODEC), message(payload))

    assert came.payload.data[:8].view(ml_dtypes.bfloat16).tobytes() == values.tobytes()


def test_bytes_are_sent_from_where_they_lie_and_land_where_told():
    """Encoding copies no tensor; decoding copies once, into the buffer that it is given."""
    payload = payload_of([("x", (CHUNK_BYTES,), "bfloat16")])
    frames = CODEC.encode(header(payload.tensors), payload)
    given_out = []

    def allocate(nbytes):
        given_out.append(np.zeros(nbytes, np.uint8))
        return given_out[-1]

    came = feed(Assembler(CODEC, allocate=allocate), as_bytes(frames))

    assert all(np.shares_memory(np.frombuffer(parts[1]), payload.data) for parts in frames)
    assert [id(part) for part in came.payload.pieces] == [id(buffer) for buffer in given_out]
    assert len(given_out) == 1


def test_a_payload_without_a_buffer_stays_where_it_arrived():
    """Without `allocate`, nothing is copied; what is read across two pieces is joined."""
    payload = payload_of([("x", (CHUNK_BYTES // 2 + 32,), "bfloat16"), ("y", (5,), "float32")])
    frames = as_bytes(CODEC.encode(header(payload.tensors), payload))

    came = feed(Assembler(CODEC), frames)

    arrived = [np.frombuffer(parts[1], np.uint8) for parts in frames]
    assert len(arrived) == 2
    for part, piece in zip(came.payload.pieces, arrived, strict=True):
        assert np.shares_memory(part, piece)
    np.testing.assert_array_equal(came.payload.data, payload.data)
    assert came.payload.digest == payload.digest


def test_pieces_have_one_length():
    """All but the last one; another length is refused with both lengths."""
    payload = payload_of([("x", (CHUNK_BYTES // 4 + 8,), "float32")])
    head = CODEC.encode(header(payload.tensors), payload)[0][0]
    short = bytes(payload.data[: CHUNK_BYTES // 2])

    with pytest.raises(RemoteProtocolError, match="tensor bytes: received 1048576, expected 2097"):
        feed(Assembler(CODEC), [(head, short)])


def test_a_header_too_long_is_our_own_mistake():
    """A fragment of too many long-named tensors is refused before it is sent, with the cure."""
    metas = [TensorMeta("n" * 300 + str(i), (1,), "float32", 32, bytes(16)) for i in range(8000)]

    with pytest.raises(LocalProtocolError, match="use more fragments"):
        CODEC.encode(header(tuple(metas)), None)


# Refusals of a header.


def test_the_unpatched_header_is_good():
    """What the refusals below change is accepted as it stands."""
    assert CODEC.decode_head(sealed(msgpack.packb(PLAIN))).clock == {"a.0": 7, "b.0": 3}


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        # Types.
        (["version"], "1", r"\$\.version"),
        (["version"], 1.0, r"\$\.version"),
        (["job"], 5, r"\$\.job"),
        (["job"], b"job-1", r"\$\.job"),
        (["sender"], None, r"\$\.sender"),
        (["seq"], "0", r"\$\.seq"),
        (["seq"], True, r"\$\.seq"),
        (["clock"], [], r"\$\.clock"),
        (["clock", "a.0"], "7", r"\$\.clock"),
        (["clock", 5], 7, r"\$\.clock"),
        (["body"], [], r"\$\.body"),
        (["body", "t"], 0.5, r"\$\.body\.t"),
        (["tensors"], {}, r"\$\.tensors"),
        (["tensors", 0], 1, r"\$\.tensors\[0\]"),
        (["tensors", 0, "shape"], 4, r"\$\.tensors\[0\]\.shape"),
        (["tensors", 0, "shape", 0], "4", r"\$\.tensors\[0\]\.shape\[0\]"),
        (["tensors", 0, "digest"], "0" * 16, r"\$\.tensors\[0\]\.digest"),
        # Tags and fields.
        (["type"], "letter", r"letter.*\$\.type"),
        (["type"], ..., "type"),
        (["body", "type"], "Contributio", r"\$\.body\.type"),
        (["body", "type"], 3, r"\$\.body\.type"),
        (["body", "type"], ..., r"type.*\$\.body"),
        (["extra"], 1, "unknown field `extra`"),
        (["body", "extra"], 1, r"unknown field `extra`.*\$\.body"),
        (["tensors", 0, "extra"], 1, r"unknown field `extra`.*\$\.tensors\[0\]"),
        (["seq"], ..., "missing required field `seq`"),
        (["clock"], ..., "missing required field `clock`"),
        (["body", "step"], ..., r"missing required field `step`.*\$\.body"),
        (["tensors", 0, "bits"], ..., r"missing required field `bits`.*\$\.tensors\[0\]"),
        # Bounds.
        (["session"], -1, r"\$\.session"),
        (["seq"], 2**63, r"\$\.seq"),
        (["sender"], "", r"\$\.sender"),
        (["sender"], "x" * 129, r"\$\.sender"),
        (["clock", "a.0"], -1, r"\$\.clock"),
        (["clock", "b.0"], 2**63, r"\$\.clock"),
        (["clock", ""], 1, r"\$\.clock: .*1 to 128 bytes"),
        (["clock", "x" * 129], 1, r"\$\.clock: .*1 to 128 bytes"),
        (["clock", "é" * 65], 1, r"\$\.clock: .*1 to 128 bytes"),
        (["body", "tokens"], -1, r"\$\.body\.tokens"),
        (["tensors"], [PLAIN["tensors"][0]] * (TENSORS_MAX + 1), r"\$\.tensors"),
        (["tensors", 0, "name"], "", r"\$\.tensors\[0\]\.name"),
        (["tensors", 0, "name"], "x" * 513, r"\$\.tensors\[0\]\.name"),
        (["tensors", 0, "shape"], [1] * 17, r"\$\.tensors\[0\]\.shape"),
        (["tensors", 0, "shape"], [-4], r"\$\.tensors\[0\]\.shape\[0\]"),
        (["tensors", 0, "digest"], bytes(15), r"\$\.tensors\[0\]\.digest"),
        (["tensors", 0, "bits"], 0, r"\$\.tensors\[0\]\.bits"),
        # Meaning.
        (["version"], PROTOCOL_VERSION + 1, r"\$\.version: protocol 3, this side speaks 2"),
        (["version"], -1, r"\$\.version"),
        (["job"], "job-2", r"\$\.job: 'job-2', this is job 'job-1'"),
        (["clock", "a.0"], ..., r"\$\.clock: has no entry of its sender a\.0"),
        (["tensors", 0, "dtype"], "object", r"\$\.tensors\[0\]\.dtype: 'object' is not one of"),
        (["tensors", 0, "dtype"], "int8", r"\$\.tensors\[0\]\.dtype"),
        (["tensors", 0, "bits"], 16, r"\$\.tensors\[0\]\.bits: 16, float32 has 32"),
        (["tensors", 0, "shape"], [2**62] * 16, rf"\$\.tensors: .* at most {PAYLOAD_BYTES_MAX}"),
    ],
)
def test_a_bad_header_is_refused_with_the_path_of_its_field(path, value, says):
    """Whatever breaks a type, a bound or a meaning is named where it stands."""
    with pytest.raises(RemoteProtocolError, match=says):
        CODEC.decode_head(patched(path, value))


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        ("tensors", b"\xdd\xff\xff\xff\xff"),
        ("tensors", b"\xdc\xff\xff"),
        ("clock", b"\xdf\xff\xff\xff\xff"),
        ("job", b"\xdb\xff\xff\xff\xff"),
        ("job", b"\xa2\xff\xfe"),
        ("clock", b"\x81\xa2\xff\xfe\x01"),
        ("body", b"\x82\xa4type\xa4Stop\xa1t\xdf\xff\xff\xff\xff"),
        ("body", b"\x91" * 200_000),
        ("body", b"\x81\xa1t" * 80_000),
        ("body", b"\xc1"),
        ("seq", b"\xc7\xff\x01"),
        ("tensors", b"\xc6\xff\xff\xff\xff"),
    ],
)
def test_a_bomb_inside_a_header_is_refused(key, raw):
    """Claims of 2^32 elements, deep nesting and broken text cost nothing and are refused."""
    with pytest.raises(RemoteProtocolError):
        CODEC.decode_head(with_raw(key, raw))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00",
        b"\xc0",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff\x00\x00\x00\x00\x00",
        b"\xdf\xff\xff\xff\xff\x00\x00\x00\x00\x00",
        b"\xc6\xff\xff\xff\xff\x00\x00\x00\x00\x00",
        b"\xdb\xff\xff\xff\xff\x00\x00\x00\x00\x00",
        b"\xc9\xff\xff\xff\xff\x00\x00\x00\x00\x00",
        b"\x91" * HEADER_BYTES_MAX,
        b"\x81" * HEADER_BYTES_MAX,
        b"\x81\xa4type" * 50_000,
        b"\x80",
        msgpack.packb({"type": "chunk", "session": 1, "seq": 0}),
        msgpack.packb({"type": "chunk", "session": 1, "seq": 0, "index": -1}),
        msgpack.packb({"type": "chunk", "session": 1, "seq": 0, "index": 1, "x": 1}),
        msgpack.packb(PLAIN) + b"\x00",
        msgpack.packb(PLAIN) * 2,
    ],
)
def test_what_is_no_header_at_all_is_refused(frame):
    """Rubbish, bombs and good headers with something behind them are refused, sealed or not."""
    for each in (frame, sealed(frame)):
        with pytest.raises(RemoteProtocolError):
            CODEC.decode_head(each)


def test_a_header_cut_at_any_byte_is_refused():
    """No beginning of a header is taken for a whole one, even if it has a digest of its own."""
    frame = msgpack.packb(PLAIN)

    for length in range(len(frame)):
        for each in (frame[:length], sealed(frame[:length])):
            with pytest.raises(RemoteProtocolError):
                CODEC.decode_head(each)


def test_no_bit_of_a_header_can_change_on_the_way():
    """In whatever field it is: each is refused, in one line."""
    for [frame, *_] in message(payload_of([("x", (3,), "float32")]), seq=3):
        for bit in range(8 * len(frame)):
            changed = bytearray(frame)
            changed[bit // 8] ^= 1 << bit % 8
            with pytest.raises(RemoteProtocolError, match="bytes do not match their digest"):
                CODEC.decode_head(bytes(changed))


def test_an_oversized_header_is_refused_unread():
    """Beyond the limit nothing is decoded, however well-formed it may be."""
    frame = patched(["clock", "b.0"], 3)
    frame += bytes(HEADER_BYTES_MAX + 1 - len(frame))

    with pytest.raises(RemoteProtocolError, match=f"{len(frame)} bytes, at most"):
        CODEC.decode_head(frame)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=256))
@example(b"\x81\xa4type\xa5chunk")
def test_any_bytes_are_a_header_or_refused(frame):
    """No bytes raise anything but a refusal."""
    for each in (frame, sealed(frame)):
        with contextlib.suppress(RemoteProtocolError):
            assert isinstance(CODEC.decode_head(each), Header | Chunk)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, len(msgpack.packb(PLAIN)) - 1), st.integers(0, 255), st.binary(max_size=6))
def test_a_damaged_header_is_a_header_or_refused(index, value, inserted):
    """A good header with bytes changed or inserted, by who also makes its digest, raises nothing
    but a refusal."""
    frame = bytearray(msgpack.packb(PLAIN))
    frame[index : index + 1] = bytes([value]) + inserted

    with contextlib.suppress(RemoteProtocolError):
        assert isinstance(CODEC.decode_head(sealed(bytes(frame))), Header)


@pytest.mark.parametrize(("field", "value"), [("job", "job-2"), ("version", 9)])
@pytest.mark.parametrize(
    "body", [{"type": "Hello", "agreement": {}}, {"type": "Refused", "reason": "no"}]
)
def test_who_is_of_another_job_may_say_so(field, value, body):
    """Hello and its refusal are read across jobs and versions, so that a person learns why."""
    plain = {**PLAIN, field: value, "body": body, "tensors": []}

    assert type(CODEC.decode_head(sealed(msgpack.packb(plain))).body).__name__ == body["type"]
