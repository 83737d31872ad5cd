"""An actor's own clock while it runs: it grows in place, and knows what is new since when.

The same clock as ``VectorClock``, kept so that an event costs only what it changes: entries stand
side by side in the order of their names, each with the number of the event that changed it last, so
that what is new for a reader is picked out without a step of Python for each entry.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import compress
from typing import Any

from clocks.vector_clock import VectorClock, actor_of, number_of

INCARNATIONS_MAX = 2
"""Entries of one actor: the incarnation that is there and the one before it, whose last words may
still be on their way. Of older ones nothing is needed: their numbers are never used again. So a
clock is bounded by the actors of a job, and fits a header, however often they come back and
whatever their peers make up."""

ALWAYS = 2**63
"""One's own entry is in every delta: it changes with each event."""

_UNTAUGHT = "\0"
"""The source of an entry that nobody has taught yet."""

_NOTHING: dict[str, int] = {}
_NOBODY: dict[str, None] = {}


class RunningClock:
    """The clock of one incarnation.

    Args:
        me: the incarnation; its entry is the number of its newest event.
    """

    __slots__ = (
        "_changed", "_counts", "_incarnations", "_index", "_names", "_newest", "_said", "_source",
        "_taught", "me", "number",
    )  # fmt: skip

    def __init__(self, me: str) -> None:
        self.me = me
        self.number = 0
        self._names: list[str] = [me]
        self._counts: list[int] = [0]
        self._changed: list[int] = [ALWAYS]
        self._source: list[str] = [""]
        self._index: dict[str, int] = {me: 0}
        self._newest = 0
        """The newest event that changed any entry but one's own."""
        self._taught: dict[str, dict[str, None]] = {}
        """By source, the entries that it taught last."""
        self._said: dict[int, dict[str, int]] = {}
        """What was new since an event, as it was said while the newest event was handled."""
        self._incarnations: dict[str, list[str]] = {}
        """By actor its incarnations that have entries."""

    def __getitem__(self, name: str) -> int:
        at = self._index.get(name)
        return 0 if at is None else self._counts[at]

    def __len__(self) -> int:
        return len(self._names) - (self.number == 0)

    def tick(self, heard: Mapping[str, int] = _NOTHING, source: str = "") -> dict[str, int]:
        """One more event, which hears of ``heard`` from ``source``; the entries that it raises,
        one's own apart.

        Of its own events an actor hears nothing new: a message that says otherwise is false, and
        its links refuse it.
        """
        self.number = number = self.number + 1
        if self._said:
            self._said = {}
        index, counts, me = self._index, self._counts, self.me
        counts[index[me]] = number
        if not heard:
            return _NOTHING
        changed, sources = self._changed, self._source
        learned: dict[str, int] = {}
        for name, count in heard.items():
            at = index.get(name)
            if at is None:
                if not count or not self._has_room(name):
                    continue
                at = self._insert(name)
            elif name == me or count <= counts[at]:
                continue
            counts[at] = learned[name] = count
            changed[at] = number
            if sources[at] != source:
                self._taught.get(sources[at], {}).pop(name, None)
                self._taught.setdefault(source, {})[name] = None
                sources[at] = source
        if learned:
            self._newest = number
        return learned

    def _has_room(self, name: str) -> bool:
        """Whether an incarnation may have an entry: the newest of its actor do, and an older one
        makes room."""
        kept = self._incarnations.setdefault(actor_of(name), [])
        if len(kept) >= INCARNATIONS_MAX:
            oldest = min(kept, key=number_of)
            if number_of(name) < number_of(oldest):
                return False
            self.forget([oldest])
        kept.append(name)
        return True

    def _insert(self, name: str) -> int:
        at = bisect_left(self._names, name)
        for entries, value in self._columns(name):
            entries.insert(at, value)
        self._number_from(at)
        return at

    def _columns(self, name: str) -> list[tuple[list[Any], Any]]:
        """The lists that run side by side, and what a new entry has in each."""
        return [
            (self._names, name), (self._counts, 0), (self._changed, 0), (self._source, _UNTAUGHT),
        ]  # fmt: skip

    def _number_from(self, at: int) -> None:
        self._index.update((self._names[i], i) for i in range(at, len(self._names)))

    def since(self, number: int, reader: str | None = None) -> dict[str, int]:
        """The entries that events after ``number`` changed, and always one's own: a delta.

        What ``reader`` itself was the source of it knows; in a star that is nearly everything that
        a learner could tell its syncer. A reader that taught nothing but its own entry is told that
        one, too: so whoever speaks to many with one event tells them all the same, which is looked
        for once. Nobody may change what is returned.
        """
        if self._newest <= number:
            return {self.me: self.number}
        taught = self._taught.get(reader, _NOBODY) if reader else _NOBODY
        if len(taught) == len(self._names) - 1:
            return {self.me: self.number}
        if len(taught) <= 1:
            return self._since(number)
        return {name: n for name, n in self._since(number).items() if name not in taught}

    def _since(self, number: int) -> dict[str, int]:
        delta = self._said.get(number)
        if delta is None:
            # In the order in which whoever decodes it finds it: clocks remember in which order they
            # were told, and what was told within this process must leave the same clock behind.
            entries = zip(self._names, self._counts, strict=True)
            delta = self._said[number] = dict(compress(entries, map(number.__lt__, self._changed)))
        return delta

    def rest(self) -> None:
        """Nothing more is said with this event: what was said is kept no longer."""
        self._said = {}

    def forget(self, names: Iterable[str]) -> None:
        """Let go of entries whose incarnations will never be heard of again."""
        self._said = {}
        for name in names:
            at = self._index.get(name)
            if at is None or name == self.me:
                continue
            self._taught.get(self._source[at], {}).pop(name, None)
            for entries, _ in self._columns(name):
                del entries[at]
            del self._index[name]
            self._number_from(at)
            self._incarnations[actor_of(name)].remove(name)

    def others(self) -> list[str]:
        """Whoever has an entry, apart from oneself."""
        return [name for name in self._names if name != self.me]

    def wire(self) -> dict[str, int]:
        """All entries in canonical order, as plain data."""
        return self.frozen().wire()

    def frozen(self) -> VectorClock:
        """The clock as a value."""
        return VectorClock(dict(zip(self._names, self._counts, strict=True)))
