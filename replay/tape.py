"""The tape: one append-only file per incarnation, readable up to the last whole record.

To the byte (all integers little-endian):

    prefix   16 bytes   "ddlotape", format version u32, reserved u32 (zero)
    record   u32        length L of the body
             u32        head check: CRC-32 of the length, continuing the chain
             L bytes    body: one msgpack map, its "kind" says which record it is
             u32        tail check: CRC-32 of the body, continuing the head check
    record   ...

The chain starts with the CRC-32 of the prefix, and every check continues the one before it, so a
changed, moved or missing byte is detected at its place. The length has a check of its own, which
distinguishes a tape that *ends early* (its process was killed: normal, and readable to the last
whole record) from one that is *damaged* (refused, with the byte).

The records of a tape: one ``header``; then for every event an ``event``, written before the machine
handles it, and ``effects``, the digest of its effects, written before any is performed; or
``raised`` if handling failed; at an orderly end, ``closed``.

Bodies are self-describing maps, so any msgpack reader shows a tape. Tried: MCAP (an early kill left
32 bytes), SQLite (nothing back after a cut), Arrow (171 MB for one file format).
"""

import os
import re
import zlib
from bisect import bisect
from collections.abc import Iterator
from io import BufferedReader
from operator import attrgetter
from pathlib import Path
from struct import Struct as Pack
from typing import IO, Any, NamedTuple

import msgspec
from msgspec import Struct

from clocks import ClockError, check_entries, is_incarnation, open_regular

MAGIC = b"ddlotape"
FORMAT_VERSION = 1
SUFFIX = ".tape"

BODY_BYTES_MAX = 64 * 2**20
"""The longest record, so that a reader never allocates more because of a forged length."""

_PREFIX = Pack("<8sII")
_HEAD = Pack("<II")
_TAIL = Pack("<I")
_AROUND = _HEAD.size + _TAIL.size


PLAIN_NAME = re.compile(r"[\w.-]{1,128}", re.ASCII)
"""The form of an incarnation's name, which is part of file names."""


class TapeError(ValueError):
    """A tape that cannot be read or written; the text names file and byte."""

    def __init__(self, path: Path | str, byte: int, problem: str) -> None:
        super().__init__(self.line(path, byte, problem))
        self.path, self.byte, self.problem = Path(path), byte, problem

    def line(self, path: Path | str, byte: int, problem: str) -> str:
        """The text."""
        return f"{path}: byte {byte}: {problem}"


class DamagedTapeError(TapeError):
    """A tape with bytes that are not those that were written; what is before them can be read."""


class UnwrittenError(TapeError):
    """A tape that cannot be written now: there is no room, or its disk is away."""


class NoTapesError(TapeError):
    def __init__(self, folder: Path, problem: str) -> None:
        super().__init__(folder, 0, problem)

    def line(self, path: Path | str, byte: int, problem: str) -> str:
        """The text; there is no byte to name."""
        del byte
        return f"{path}: {problem}"


class UnbegunError(TapeError):
    """A file that ends within its header: its process was killed at once."""


class Record(Struct, frozen=True, tag_field="kind", tag=str.lower, omit_defaults=True):
    """Base of the records of a tape."""


class TapeHeader(Record, frozen=True, tag="header"):
    """The first record: everything that must be equal for a replay to be equal.

    ``job`` is the resolved job file, ``fingerprint`` whatever can change arithmetic (versions,
    device, threads, flags), ``semantics`` the behaviours of the program that recorded it: a program
    with others refuses the tape. ``facts`` is what the recording program notes besides: some facts
    are for people alone, and a replay acts on others, such as the snapshot that a run began with. A
    tape that continues from a
    snapshot begins after event ``after``, where the actor's clock was ``clock``; so does file
    ``part`` of a chain, of which 0 is the first, and may have been dropped.
    """

    incarnation: str
    job_id: str
    job: dict[str, Any]
    code: str
    fingerprint: dict[str, str]
    semantics: tuple[str, ...] = ()
    facts: dict[str, str] = {}
    after: int = 0
    clock: dict[str, int] = {}
    part: int = 0


class Event(Record, frozen=True, gc=False):
    """Event ``n`` at ``at`` seconds. ``clock`` has the entries that it added to the actor's clock,
    without the actor's own, which is ``n``; ``event`` is the encoded event."""

    n: int
    at: float
    event: msgspec.Raw
    clock: dict[str, int] = {}


class Effects(Record, frozen=True, gc=False):
    """The effects of event ``n``: their number and their digest."""

    n: int
    count: int
    digest: bytes


class Raised(Record, frozen=True, gc=False):
    """Handling event ``n`` failed with ``error``."""

    n: int
    error: str


class Closed(Record, frozen=True, gc=False):
    """The orderly end, after event ``n``."""

    n: int
    reason: str


_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_decode = msgspec.msgpack.Decoder(TapeHeader | Event | Effects | Raised | Closed).decode


class TapeWriter:
    """Appends records, each with one unbuffered write, so that a kill loses nothing written.

    Raises:
        TapeError: the file exists already, or cannot be written whole (a full disk).
    """

    def __init__(self, path: Path, header: TapeHeader) -> None:
        self.path, self.header = path, header
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(path, flags, 0o644)
        except OSError as error:
            raise TapeError(path, 0, f"cannot be created: {error.strerror}") from None
        self._bytes = 0
        prefix = _PREFIX.pack(MAGIC, FORMAT_VERSION, 0)
        self._chain = zlib.crc32(prefix)
        try:
            self._write(prefix)
            self.append(header)
        except TapeError:
            self.close()
            raise

    @property
    def bytes_written(self) -> int:
        """Bytes on the tape so far."""
        return self._bytes

    def append(self, record: Record) -> None:
        """Write one record, now.

        Raises:
            TapeError: the record is too long, or the write failed or was short.
        """
        body = _encode(record)
        if len(body) > BODY_BYTES_MAX:
            problem = f"record of {len(body)} bytes, at most {BODY_BYTES_MAX}"
            raise TapeError(self.path, self._bytes, problem)
        length = _TAIL.pack(len(body))
        head = zlib.crc32(length, self._chain)
        self._chain = zlib.crc32(body, head)
        self._write(b"".join((length, _TAIL.pack(head), body, _TAIL.pack(self._chain))))

    def _write(self, data: bytes) -> None:
        try:
            written = os.write(self._file, data)
        except OSError as error:
            problem = f"cannot write: {error.strerror}"
            raise UnwrittenError(self.path, self._bytes, problem) from None
        if written != len(data):
            problem = f"cannot write: {written} of {len(data)} bytes taken (disk full?)"
            raise UnwrittenError(self.path, self._bytes, problem)
        self._bytes += written

    def close(self) -> None:
        """Let go of the file; idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def header_problem(header: TapeHeader) -> str | None:
    """What no recorder would have written into a header; None where it is as it should be."""
    if not (is_incarnation(header.incarnation) and PLAIN_NAME.fullmatch(header.incarnation)):
        return f"header: {header.incarnation[:80]!r} is no incarnation; want NAME.NUMBER"
    if header.after < 0 or header.part < 0:
        return f"header: after {header.after}, part {header.part}; want no negative numbers"
    if header.clock and not header.after:
        return "header: a clock, though the tape begins with event 1"
    try:
        check_entries(header.clock)
    except ClockError as error:
        return f"header: {error}"
    for name in header.clock:
        if not (is_incarnation(name) and PLAIN_NAME.fullmatch(name)):
            return f"header: clock entry {name[:80]!r} is no incarnation"
    return None


class TapeEntry(NamedTuple):
    """A place at which a tape can be entered: after event ``number``, at ``byte``, where the chain
    of checks stood at ``chain``."""

    number: int
    byte: int
    chain: int


BLOCK_BYTES = 2**16

MARK_EVENTS = 512
"""Events between two marks. Reading so many records takes about two milliseconds."""


def _are_zeros(file: IO[bytes]) -> bool:
    while block := file.read(BLOCK_BYTES):
        if block.strip(b"\0"):
            return False
    return True


class Tape:
    """A tape opened for reading.

    Args:
        path: the file.
        salvage: whether to read a damaged tape up to the damage, as if it ended there.

    Attributes:
        header: its first record.
        events: number of the last event; known after ``scan``.
        heard: the newest event of each other actor that its events heard of, without the header's;
            known after ``scan``.
        truncated_at: the byte where the last whole record ends, if the tape ends in the middle of
            another (its process was killed while writing it); known after reading to the end.
        closed: the reason of its orderly end, if it had one.
        damage: what is damaged, with its byte, if a damaged tape was salvaged; otherwise empty.

    Raises:
        TapeError: no tape, another version of one, or damaged.
    """

    def __init__(self, path: Path, *, salvage: bool = False) -> None:
        self.path = Path(path)
        self.damage = ""
        self._salvage = salvage
        self.truncated_at: int | None = None
        self.closed: str | None = None
        self.events = 0
        self.heard: dict[str, int] = {}
        _, _, first = next(self._records(), (0, 0, None))
        if first is None:
            raise UnbegunError(path, 16, "no header: nothing was recorded")
        if not isinstance(first, TapeHeader):
            raise TapeError(path, 16, "the first record is no header")
        problem = header_problem(first)
        if problem is not None:
            raise TapeError(path, 16, problem)
        self.header = first
        self.events = self.header.after
        self._marks = [TapeEntry(self.events, 0, 0)]

    @property
    def incarnation(self) -> str:
        """Whose tape it is."""
        return self.header.incarnation

    @property
    def dropped(self) -> bool:
        """Whether it had a beginning that is not there any more."""
        return self.header.part > 0

    def scan(self) -> "Tape":
        """Check every record once, count the events, and see how the tape ends."""
        heard = self.heard
        for record in self.records():
            if isinstance(record, Event):
                self.events = record.n
                if record.clock:
                    heard.update(record.clock)
        return self

    def records(self, after: int = 0) -> Iterator[Event | Effects | Raised | Closed]:
        """Read the records of every event after number ``after``, checked as they are read.

        A tape that was read before is entered at the nearest of the places that were noted then.

        Raises:
            TapeError: at the first damaged byte, or an event out of its order.
        """
        mark = self._mark_before(after)
        previous = mark.number
        for start, chain, record in self._whole(mark):
            if isinstance(record, Event):  # The most frequent one first: each record passes here.
                if record.n != previous + 1:
                    problem = f"event {record.n} where {previous + 1} was due"
                    raise TapeError(self.path, start, problem)
                if previous >= self._marks[-1].number + MARK_EVENTS:
                    self._marks.append(TapeEntry(previous, start, chain))
                previous = record.n
            elif isinstance(record, TapeHeader):
                if start != _PREFIX.size:
                    raise TapeError(self.path, start, "a second header")
                continue
            elif record.n != previous:
                problem = f"record of event {record.n} after event {previous}"
                raise TapeError(self.path, start, problem)
            elif isinstance(record, Closed):
                self.closed = record.reason
            if record.n > after:
                yield record

    def _mark_before(self, after: int) -> TapeEntry:
        if after >= self._marks[-1].number:
            return self._marks[-1]
        return self._marks[max(bisect(self._marks, after, key=attrgetter("number")) - 1, 0)]

    def _whole(
        self, mark: TapeEntry
    ) -> Iterator[tuple[int, int, TapeHeader | Event | Effects | Raised | Closed]]:
        """The records up to the end, or up to the damage of a tape that is salvaged."""
        try:
            yield from self._records(mark)
        except TapeError as error:
            if not self._salvage:
                raise
            self.truncated_at, self.damage = error.byte, f"byte {error.byte}: {error.problem}"

    def _records(
        self, mark: TapeEntry | None = None
    ) -> Iterator[tuple[int, int, TapeHeader | Event | Effects | Raised | Closed]]:
        """Each record with the byte at which it begins, and the chain of checks before it."""
        self.truncated_at = None
        try:
            file = BufferedReader(open_regular(self.path))
        except OSError as error:
            raise TapeError(self.path, 0, f"cannot be opened: {error.strerror}") from None
        with file:
            chain = self._prefix(file.read(_PREFIX.size))
            start = _PREFIX.size
            if mark is not None and mark.byte:
                start, chain = mark.byte, mark.chain
                file.seek(start)
            crc32, head, tail = zlib.crc32, _HEAD.unpack_from, _TAIL.unpack_from
            block, at, end = b"", 0, 0
            while True:
                if end - at < _HEAD.size:
                    block, at = block[at:] + file.read(BLOCK_BYTES), 0
                    end = len(block)
                    if end < _HEAD.size:
                        self.truncated_at = start if block else None
                        return
                length, check = head(block, at)
                if crc32(block[at : at + 4], chain) != check:
                    problem = "damaged: the length fails its check"
                    if not block[at:].strip(b"\0") and _are_zeros(file):
                        problem = "damaged: zeros from here to its end, as after a loss of power"
                    raise DamagedTapeError(self.path, start, problem)
                if length > BODY_BYTES_MAX:
                    raise TapeError(self.path, start, f"record of {length} bytes")
                size = length + _AROUND
                if end - at < size:
                    block, at = block[at:] + file.read(max(BLOCK_BYTES, size)), 0
                    end = len(block)
                    if end < size:
                        self.truncated_at = start
                        return
                ends = at + size - _TAIL.size
                body = block[at + _HEAD.size : ends]
                before, chain = chain, crc32(body, check)
                if tail(block, ends)[0] != chain:
                    problem = "damaged: the record fails its check"
                    raise DamagedTapeError(self.path, start + _HEAD.size, problem)
                try:
                    record = _decode(body)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    problem = f"a record that this program does not know: {error}"
                    raise TapeError(self.path, start + _HEAD.size, problem) from None
                yield start, before, record
                start += size
                at += size

    def _prefix(self, prefix: bytes) -> int:
        if len(prefix) < _PREFIX.size:
            raise UnbegunError(self.path, len(prefix), "too short to be a tape")
        magic, version, reserved = _PREFIX.unpack(prefix)
        if magic != MAGIC:
            raise TapeError(self.path, 0, "not a ddloco tape")
        if version != FORMAT_VERSION or reserved:
            problem = f"tape format {version}, this program reads format {FORMAT_VERSION}"
            raise TapeError(self.path, len(MAGIC), problem)
        return zlib.crc32(prefix)
