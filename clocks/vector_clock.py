"""Vector clocks as immutable values.

An entry counts the events of one *incarnation* (``learner-3.2``): the entry of an actor in its
own clock is the number of its newest event, so a clock also names events (``learner-3.2:1042``).

On the wire and on tape a clock is a delta: the entries that changed since the last message on the
same lane (Singhal and Kshemkalyani). This needs lanes without loss or reordering, which the link
layer provides; it sends the whole clock after every handshake. Entries are absolute counts that
only grow. So a receiver that has merged the earlier messages of a lane can merge a delta as if it
were the sender's whole clock, and keeps no clock per lane.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache

from clocks.causality import Order

COUNT_MAX = 2**63 - 1
"""Largest count of an entry: what a signed 64-bit integer holds, in msgpack for any language."""

NAME_BYTES_MAX = 128
"""Longest name of an incarnation; names are part of headers, whose size is limited."""

CHARACTER_BYTES_MAX = 4
"""Of UTF-8."""

NUMBER_DIGITS_MAX = 9
"""Digits of an incarnation's number: one restart per second for thirty years."""

NAMES_REMEMBERED = 4096
"""Names whose parts are remembered: each message asks for those of all entries of its clock."""


class ClockError(ValueError):
    """A clock that no run of the protocol could have produced."""


class VectorClock:
    """An immutable vector clock: counts of events by incarnation; a missing entry is zero.

    Iteration and the wire form are in the order of the names as UTF-8 bytes, so that equal clocks
    have equal bytes.
    """

    __slots__ = ("_counts",)

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self._counts: dict[str, int] = {}
        if counts:
            check_entries(counts)
            self._counts = {name: counts[name] for name in _ordered(counts) if counts[name] > 0}

    @classmethod
    def _trusted(cls, counts: dict[str, int]) -> "VectorClock":
        clock = cls.__new__(cls)
        clock._counts = counts
        return clock

    def __getitem__(self, name: str) -> int:
        return self._counts.get(name, 0)

    def __iter__(self) -> Iterator[str]:
        return iter(_ordered(self._counts))

    def __len__(self) -> int:
        return len(self._counts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VectorClock) and self._counts == other._counts

    def __hash__(self) -> int:
        return hash(tuple(self.wire().items()))

    def __repr__(self) -> str:
        return f"VectorClock({self.wire()})"

    def tick(self, name: str) -> "VectorClock":
        """The clock after one more event of ``name``."""
        return VectorClock._trusted({**self._counts, name: self._counts.get(name, 0) + 1})

    def merge(self, other: "VectorClock | Mapping[str, int]") -> "VectorClock":
        """The entry-wise maximum with ``other``, a clock or a delta."""
        entries = other._counts if isinstance(other, VectorClock) else other
        mine = self._counts
        news = {name: count for name, count in entries.items() if count > mine.get(name, 0)}
        return VectorClock._trusted({**mine, **news}) if news else self

    def wire(self) -> dict[str, int]:
        """All entries in canonical order, as plain data."""
        return {name: self._counts[name] for name in _ordered(self._counts)}

    def compare(self, other: "VectorClock") -> Order:
        """The causal relation of this clock's event to the event of ``other``."""
        behind = any(count > other[name] for name, count in self._counts.items())
        ahead = any(count > self[name] for name, count in other._counts.items())
        if behind and ahead:
            return Order.CONCURRENT
        if behind:
            return Order.AFTER
        return Order.BEFORE if ahead else Order.EQUAL

    def __le__(self, other: "VectorClock") -> bool:
        return self.compare(other) in (Order.BEFORE, Order.EQUAL)

    def __lt__(self, other: "VectorClock") -> bool:
        return self.compare(other) is Order.BEFORE


@lru_cache(NAMES_REMEMBERED)
def actor_of(incarnation: str) -> str:
    """``learner-3`` for ``learner-3.2``; a name without an incarnation is returned unchanged."""
    actor, dot, number = incarnation.rpartition(".")
    return actor if dot and number.isdecimal() else incarnation


@lru_cache(NAMES_REMEMBERED)
def number_of(incarnation: str) -> int:
    """2 for ``learner-3.2``; 0 for a name without a number."""
    number = incarnation.rpartition(".")[2]
    return int(number) if number.isdecimal() else 0


def is_incarnation(name: str) -> bool:
    """Whether a name is an actor's name with a number from 1 on in its only valid spelling:
    ``learner-3.2``, but not ``learner-3``, ``learner-3.02`` or a number in other digits."""
    actor, _, number = name.rpartition(".")
    digits = number.isascii() and number.isdigit() and len(number) <= NUMBER_DIGITS_MAX
    return bool(actor) and digits and number[0] != "0"


def check_entries(entries: Mapping[str, int]) -> None:
    """Check that entries are valid for a clock.

    Raises:
        ClockError: a name is empty or too long, or a count is negative or too large.
    """
    if entries and _plain(entries):
        return
    for name, count in entries.items():
        if not name or len(name.encode()) > NAME_BYTES_MAX:
            raise ClockError(f"clock entry {name[:40]!r}: a name has 1 to {NAME_BYTES_MAX} bytes")
        if not 0 <= count <= COUNT_MAX:
            raise ClockError(f"clock entry {name}: {count} is not a count from 0 to {COUNT_MAX}")


def _plain(entries: Mapping[str, int]) -> bool:
    """Whether all entries are certainly valid, checked without Python code per entry, because the
    parts of snapshots have clocks of a thousand entries."""
    counts = entries.values()
    if min(counts) < 0 or max(counts) > COUNT_MAX or "" in entries:
        return False
    return max(map(len, entries)) * CHARACTER_BYTES_MAX <= NAME_BYTES_MAX


def _ordered(counts: Mapping[str, int]) -> list[str]:
    return sorted(counts, key=str.encode)
