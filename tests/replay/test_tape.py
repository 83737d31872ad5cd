"""The tape, byte by byte: cut anywhere, flipped anywhere, and read by another program."""

import os
import struct
import zlib
from itertools import pairwise, product

import msgpack
import msgspec
import pytest

from replay import Tape, TapeError, TapeHeader, TapeWriter, tape
from replay.tape import BODY_BYTES_MAX, Closed, Effects, Event, Raised

PREFIX = struct.Struct("<8sII")


def header(incarnation="a.1", job="job-1"):
    return TapeHeader(incarnation, job, {"job": {"task": "x"}}, "0.1.0", {"jax": "1"}, ("s1",))


def event(n, said="hello"):
    return Event(n, n / 4, msgspec.Raw(msgpack.packb([said, n])), {"b.1": n} if n % 2 else {})


RECORDS = [
    event(1),
    Effects(1, 2, bytes(range(16))),
    event(2),
    Raised(2, "ValueError: no"),
    event(3),
    Effects(3, 0, bytes(16)),
    Closed(3, "stopped"),
]


def write(path, records=RECORDS, first=None):
    """Write a tape, and give the byte at which each of its records ends."""
    writer = TapeWriter(path, first or header())
    ends = [PREFIX.size, writer.bytes_written]
    for record in records:
        writer.append(record)
        ends.append(writer.bytes_written)
    writer.close()
    return ends


def frame(body, chain):
    """Give the bytes of a record with this body, and the chain after it."""
    length = struct.pack("<I", len(body))
    head = zlib.crc32(length, chain)
    tail = zlib.crc32(body, head)
    return length + struct.pack("<I", head) + body + struct.pack("<I", tail), tail


def forge(path, bodies):
    """Write a tape whose checks are right, whatever its bodies are."""
    data = PREFIX.pack(b"ddlotape", 1, 0)
    chain = zlib.crc32(data)
    for body in bodies:
        more, chain = frame(body, chain)
        data += more
    path.write_bytes(data)
    return path


def comparable(records):
    return [msgspec.msgpack.encode(record) for record in records]


def test_what_is_written_is_read(tmp_path):
    """TapeHeader and records come back equal, in order, and the tape says how it ended."""
    path = tmp_path / "deep" / "a.1.tape"
    ends = write(path)

    opened = Tape(path)

    assert opened.header == header()
    assert opened.incarnation == "a.1"
    assert comparable(opened.records()) == comparable(RECORDS)
    assert comparable(opened.records()) == comparable(RECORDS), "a tape can be read again"
    scanned = opened.scan()
    assert (scanned.events, scanned.closed, scanned.truncated_at) == (3, "stopped", None)
    assert path.stat().st_size == ends[-1]


def test_every_record_is_on_disk_when_append_returns(tmp_path):
    """Nothing waits in a buffer: another reader sees each record as soon as it is written."""
    path = tmp_path / "a.tape"
    writer = TapeWriter(path, header())

    for index, record in enumerate(RECORDS):
        writer.append(record)
        assert path.stat().st_size == writer.bytes_written
        assert comparable(Tape(path).records()) == comparable(RECORDS[: index + 1])
    writer.close()
    writer.close()


def test_a_tape_cut_at_any_byte_gives_the_whole_records_before(tmp_path):
    """A kill at any byte costs the record that was being written, and nothing else."""
    path = tmp_path / "a.tape"
    ends, written = write(path), comparable(RECORDS)
    data = path.read_bytes()

    for length in range(len(data)):
        path.write_bytes(data[:length])
        if length < ends[0]:
            with pytest.raises(TapeError, match=f"byte {length}: too short to be a tape"):
                Tape(path)
        elif length < ends[1]:
            with pytest.raises(TapeError, match="byte 16: no header"):
                Tape(path)
        else:
            whole = sum(end <= length for end in ends[2:])
            cut = Tape(path)
            assert comparable(cut.records()) == written[:whole]
            assert cut.truncated_at == (None if length in ends else ends[whole + 1])
            assert cut.closed is None


def test_every_flipped_bit_is_noticed_where_it_stands(tmp_path):
    """A damaged tape is refused with file and byte, and gives no record after the damage."""
    path = tmp_path / "a.tape"
    ends, written = write(path), comparable(RECORDS)
    data = path.read_bytes()

    with path.open("r+b", buffering=0) as file:
        for index, bit in product(range(len(data)), range(8)):
            start = max(end for end in (0, *ends) if end <= index)
            whole = ends[1:].index(start) if start in ends[1:] else 0
            os.pwrite(file.fileno(), bytes([data[index] ^ 1 << bit]), index)
            got = []
            with pytest.raises(TapeError) as caught:
                got.extend(Tape(path).records())
            os.pwrite(file.fileno(), data[index : index + 1], index)
            assert str(caught.value).startswith(f"{path}: byte {caught.value.byte}: ")
            assert start <= caught.value.byte <= index + 8
            assert comparable(got) == written[:whole]


def test_records_that_change_places_are_noticed(tmp_path):
    """Each check continues the one before, so whole records cannot be swapped or left out."""
    path = tmp_path / "a.tape"
    ends = write(path)
    data = path.read_bytes()
    pieces = [data[a:b] for a, b in pairwise(ends[1:])]

    for order in ([1, 0, 2], [0, 2], [1], [0, 0]):
        path.write_bytes(data[: ends[1]] + b"".join(pieces[i] for i in order))
        with pytest.raises(TapeError, match="damaged"):
            Tape(path).scan()


def test_another_program_with_msgpack_can_read_a_tape(tmp_path):
    """The documented layout and any msgpack reader are enough; the checks are plain CRC-32."""
    path = tmp_path / "a.tape"
    write(path)

    data = path.read_bytes()
    magic, version, reserved = struct.unpack_from("<8sII", data)
    chain, at, bodies = zlib.crc32(data[:16]), 16, []
    while at < len(data):
        length, head = struct.unpack_from("<II", data, at)
        body = data[at + 8 : at + 8 + length]
        (tail,) = struct.unpack_from("<I", data, at + 8 + length)
        assert head == zlib.crc32(data[at : at + 4], chain)
        assert tail == zlib.crc32(body, head)
        chain, at = tail, at + 12 + length
        bodies.append(msgpack.unpackb(body))

    assert (magic, version, reserved) == (b"ddlotape", 1, 0)
    kinds = ["header", *["event", "effects", "event", "raised", "event", "effects"], "closed"]
    assert [body["kind"] for body in bodies] == kinds
    assert bodies[0]["job"] == {"job": {"task": "x"}}
    assert bodies[1] == {"kind": "event", "n": 1, "at": 0.25, "clock": {"b.1": 1}} | {
        "event": ["hello", 1]
    }
    assert bodies[2] == {"kind": "effects", "n": 1, "count": 2, "digest": bytes(range(16))}


# What is no tape, or none of ours.


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "byte 0: too short to be a tape"),
        (b"x" * 100, "byte 0: not a ddloco tape"),
        (PREFIX.pack(b"ddlotape", 2, 0), "byte 8: tape format 2, this program reads format 1"),
        (PREFIX.pack(b"ddlotape", 1, 5), "byte 8: tape format 1"),
        (PREFIX.pack(b"ddlotape", 1, 0), "byte 16: no header"),
    ],
)
def test_what_is_no_tape_of_this_format_is_refused(tmp_path, data, problem):
    """Another file, another version, or nothing at all are named for what they are."""
    path = tmp_path / "x.tape"
    path.write_bytes(data)

    with pytest.raises(TapeError, match=problem):
        Tape(path)


@pytest.mark.parametrize(
    ("bodies", "problem"),
    [
        ([RECORDS[0]], "byte 16: the first record is no header"),
        ([header(), header()], "a second header"),
        ([header(), event(2)], "event 2 where 1 was due"),
        ([header(), event(1), event(1)], "event 1 where 2 was due"),
        ([header(), event(1), event(3)], "event 3 where 2 was due"),
        ([header(), Effects(1, 0, b"")], "record of event 1 after event 0"),
        ([header(), event(1), Raised(2, "x")], "record of event 2 after event 1"),
        ([header(), event(1), Closed(0, "x")], "record of event 0 after event 1"),
    ],
)
def test_records_out_of_their_order_are_refused(tmp_path, bodies, problem):
    """Events are numbered from 1 without holes, and what follows one says so."""
    path = forge(tmp_path / "x.tape", [msgspec.msgpack.encode(body) for body in bodies])

    with pytest.raises(TapeError, match=problem):
        Tape(path).scan()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x93\x01\x02\x03",
        msgpack.packb({"kind": "sound", "n": 1}),
        msgpack.packb({"kind": "event", "n": "1"}),
        b"\x81\xa4kind\xa2\xff\xfe",
        b"\x83\xa4kind\xa6raised\xa1n\x00\xa5error\xa2\xff\xfe",
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x82\xa4kind\xa6header\xa3job" + b"\x91" * 100_000,
    ],
)
def test_a_body_that_is_no_record_is_refused(tmp_path, body):
    """Whatever stands in a record whose checks are right, nothing but a refusal is raised."""
    path = forge(tmp_path / "x.tape", [msgspec.msgpack.encode(header()), body])

    with pytest.raises(TapeError, match="a record that this program does not know"):
        Tape(path).scan()


def test_a_length_beyond_the_limit_is_refused_before_it_is_read(tmp_path):
    """A reader allocates no more than the limit on a tape's word."""
    path = tmp_path / "x.tape"
    data = PREFIX.pack(b"ddlotape", 1, 0)
    length = struct.pack("<I", BODY_BYTES_MAX + 1)
    check = struct.pack("<I", zlib.crc32(length, zlib.crc32(data)))
    path.write_bytes(data + length + check)

    with pytest.raises(TapeError, match=f"byte 16: record of {BODY_BYTES_MAX + 1} bytes"):
        Tape(path)


def test_a_tape_may_begin_after_an_event(tmp_path):
    """One that continues from a snapshot says after which; any other one is a gap."""
    goes_on = msgspec.structs.replace(header(), after=7, clock={"a.1": 7, "b.1": 2})
    write(tmp_path / "a.tape", [event(8), Effects(8, 0, bytes(16))], goes_on)
    tape = Tape(tmp_path / "a.tape").scan()
    assert (8, 7, {"a.1": 7, "b.1": 2}) == (tape.events, tape.header.after, tape.header.clock)
    write(tmp_path / "b.tape", [event(1)], goes_on)
    with pytest.raises(TapeError, match="event 1 where 8 was due"):
        Tape(tmp_path / "b.tape").scan()


def test_a_file_that_is_not_there_is_named(tmp_path):
    """What cannot be opened is a TapeError that says why."""
    with pytest.raises(TapeError, match=r"gone\.tape: byte 0: cannot be opened: No such file"):
        Tape(tmp_path / "gone.tape")
    with pytest.raises(TapeError, match="cannot be opened"):
        Tape(tmp_path)


# Writing that fails.


def test_an_existing_file_is_never_written_over(tmp_path):
    """A tape is never continued or replaced."""
    path = tmp_path / "a.tape"
    path.write_bytes(b"precious")

    with pytest.raises(TapeError, match="cannot be created: File exists"):
        TapeWriter(path, header())
    assert path.read_bytes() == b"precious"


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    """A file where the folder should be is a TapeError too."""
    (tmp_path / "file").write_text("")

    with pytest.raises(TapeError, match=r"a\.tape: byte 0: cannot be created"):
        TapeWriter(tmp_path / "file" / "a.tape", header())


def test_a_record_too_long_is_refused_and_nothing_of_it_written(tmp_path, monkeypatch):
    """What no reader would take is not written; the tape stays good."""
    monkeypatch.setattr(tape, "BODY_BYTES_MAX", 1000)
    path = tmp_path / "a.tape"
    writer = TapeWriter(path, header())

    with pytest.raises(TapeError, match=r"record of .* bytes, at most 1000"):
        writer.append(Raised(0, "x" * 1000))
    writer.append(event(1))
    writer.close()

    assert Tape(path).scan().events == 1


@pytest.mark.parametrize("spare", [0, 1, 8, 20])
def test_a_full_disk_is_a_tape_error(tmp_path, small_disk, spare):
    """A write that fails or is short is noticed at once; what was whole before is readable."""
    path = tmp_path / "a.tape"
    writer = TapeWriter(path, header())
    writer.append(event(1))

    full = pytest.raises(TapeError, match=f"byte {writer.bytes_written}: cannot write")
    with full, small_disk(writer.bytes_written + spare):
        writer.append(event(2))
    writer.close()

    opened = Tape(path).scan()
    assert opened.events == 1
    assert opened.truncated_at == (writer.bytes_written if spare else None)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")  # noqa: PTH110
def test_a_device_without_room_is_a_tape_error(tmp_path):
    """The error of the system is passed on in words."""
    writer = TapeWriter(tmp_path / "a.tape", header())
    writer.close()
    writer._file = os.open("/dev/full", os.O_WRONLY)

    with pytest.raises(TapeError, match="cannot write: No space left on device"):
        writer.append(event(1))
    writer.close()


@pytest.mark.parametrize("block", [8, 9, 64, 1000])
def test_records_that_cross_blocks_are_read_whole(tmp_path, monkeypatch, block):
    """Wherever a block ends, and wherever the tape is entered or cut."""
    monkeypatch.setattr(tape, "BLOCK_BYTES", block)
    path = tmp_path / "a.1.tape"
    ends = write(path)
    opened = Tape(path).scan()
    assert comparable(opened.records()) == comparable(RECORDS)
    assert opened.truncated_at is None
    path.write_bytes(path.read_bytes()[:-3])
    cut = Tape(path).scan()
    assert (cut.truncated_at, comparable(cut.records())) == (ends[-2], comparable(RECORDS[:-1]))
