"""An actor's own vector clock during a run, updated in place.

It has the same value as a ``VectorClock``, but handling an event costs only as much as the event
changes. With each entry is stored the number of the event that last changed it, so that a delta is
selected in one pass over the entries. A message that changes many of them, such as one from a
syncer of 1,000 learners, is taken in by operations on whole dicts.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clocks.vector_clock import VectorClock, actor_of, number_of

INCARNATIONS_MAX = 2
"""Entries per actor: its current incarnation and the one before, whose last messages may still be
in flight. Older ones are not needed, since incarnation numbers are never reused. So the size of a
clock is bounded by the number of actors, and fits a header, however often actors restart and
whatever names their peers invent."""

FEW = 16
"""Entries up to which a message is taken in one by one: whole dicts cost a microsecond more."""

ALWAYS = 2**63
"""An actor's own entry is in every delta, because it changes with each event."""

_NOTHING: dict[str, int] = {}
_NO_READERS: dict[str, None] = {}


@dataclass(slots=True, init=False, eq=False)
class ActorClock:
    """The clock of one incarnation.

    Args:
        me: the incarnation; its entry is the number of its newest event.
    """

    me: str
    number: int
    _names: list[str]
    """In order."""
    _counts: dict[str, int]
    _changed: dict[str, int]
    _source: dict[str, str]
    _newest: int
    """The newest event that changed any entry other than the actor's own."""
    _taught: dict[str, dict[str, None]]
    """By source, the entries that it was the last to raise."""
    _said: dict[int, dict[str, int]]
    """Deltas by starting event, cached while the newest event is handled."""
    _incarnations: dict[str, list[str]]
    """By actor, its incarnations that have entries."""

    def __init__(self, me: str) -> None:
        self.me, self.number, self._newest = me, 0, 0
        self._names, self._counts, self._changed, self._source = [me], {me: 0}, {me: ALWAYS}, {}
        self._taught, self._said, self._incarnations = {}, {}, {}

    def __getitem__(self, name: str) -> int:
        return self._counts.get(name, 0)

    def __len__(self) -> int:
        return len(self._names) - (self.number == 0)

    def end(self, name: str, count: int) -> None:
        """Learn of a later incarnation of this actor, which makes this one the last to know it."""
        assert self._is_later(name), name
        if name not in self._counts:
            insort(self._names, name)
            self._counts[name], self._changed[name] = count, 0
            self._incarnations.setdefault(actor_of(name), []).append(name)

    def newest(self, actor: str) -> int:
        """The highest number of an actor's other incarnations that has an entry; 0 if none has."""
        return max(map(number_of, self._incarnations.get(actor, ())), default=0)

    def tick(self, heard: Mapping[str, int] = _NOTHING, source: str = "") -> dict[str, int]:
        """Count one more event and merge ``heard`` from ``source``; returns the entries it raised,
        without the actor's own.

        ``heard`` cannot raise the actor's own entry: links refuse a message that claims to know
        events of this actor that have not happened.
        """
        self.number = number = self.number + 1
        if self._said:
            self._said = {}
        counts = self._counts
        counts[self.me] = number
        if not heard:
            return _NOTHING
        whole = len(heard) > FEW and heard.keys() <= counts.keys()
        learned = self._take_whole(heard, source) if whole else self._take_each(heard, source)
        if learned:
            self._newest = number
        return learned

    def _take_each(self, heard: Mapping[str, int], source: str) -> dict[str, int]:
        """Raise the entries one by one, and make room for those that are new."""
        counts, changed, sources = self._counts, self._changed, self._source
        learned: dict[str, int] = {}
        for name, count in heard.items():
            if count <= counts.get(name, 0) or name == self.me:
                continue
            if name not in counts:
                if not self._has_room(name):
                    continue
                insort(self._names, name)
            counts[name] = learned[name] = count
            changed[name] = self.number
            if sources.get(name) != source:
                self._credit(name, source)
        return learned

    def _take_whole(self, heard: Mapping[str, int], source: str) -> dict[str, int]:
        """The same where all of them have entries."""
        counts = self._counts
        learned = {name: count for name, count in heard.items() if count > counts[name]}
        learned.pop(self.me, None)
        counts.update(learned)
        self._changed.update(dict.fromkeys(learned, self.number))
        if not learned.keys() <= self._taught.get(source, _NO_READERS).keys():
            for name in learned:
                if self._source.get(name) != source:
                    self._credit(name, source)
        return learned

    def _credit(self, name: str, source: str) -> None:
        before = self._source.get(name)
        if before is not None:
            del self._taught[before][name]
        self._taught.setdefault(source, {})[name] = None
        self._source[name] = source

    def _has_room(self, name: str) -> bool:
        """Make room for an incarnation's entry; False if it is older than all that are kept, or a
        later one of this actor: that one cannot be heard of by an actor that goes on."""
        if self._is_later(name):
            return False
        kept = self._incarnations.setdefault(actor_of(name), [])
        if len(kept) >= INCARNATIONS_MAX:
            oldest = min(kept, key=number_of)
            if number_of(name) < number_of(oldest):
                return False
            self.forget([oldest])
        kept.append(name)
        return True

    def _is_later(self, name: str) -> bool:
        return actor_of(name) == actor_of(self.me) and number_of(name) > number_of(self.me)

    def since(self, number: int, reader: str | None = None) -> dict[str, int]:
        """The entries changed by events after ``number``, and always the actor's own: a delta.

        Entries that ``reader`` itself supplied are left out; in a star topology these are nearly
        all that a learner could send to its syncer. The exception is a reader that supplied only
        its own entry: it gets that one too, so that an actor that sends to many peers in one event
        sends all of them the same delta, computed once. The caller must not change the result.
        """
        if self._newest <= number:
            return {self.me: self.number}
        taught = self._taught.get(reader, _NO_READERS) if reader else _NO_READERS
        if len(taught) == len(self._names) - 1:
            return {self.me: self.number}
        if len(taught) <= 1:
            return self._since(number)
        return {name: n for name, n in self._since(number).items() if name not in taught}

    def _since(self, number: int) -> dict[str, int]:
        delta = self._said.get(number)
        if delta is None:
            delta = self._said[number] = self._like_said(number) or self._new(number)
        return delta

    def _like_said(self, number: int) -> dict[str, int] | None:
        """Return a delta computed for another event if no entry changed between the two events.

        If many peers were last told at different events, they then share one delta.
        """
        if not self._said:
            return None
        change = max(filter(number.__ge__, self._changed.values()), default=0)
        if change not in self._said:
            self._said[change] = self._new(change)
        return self._said[change]

    def _new(self, number: int) -> dict[str, int]:
        # In name order, the order in which a decoder finds it: the order of insertion matters for
        # clocks, so a message within this process must have the same effect as a decoded one.
        counts, changed = self._counts, self._changed
        return {name: counts[name] for name in self._names if changed[name] > number}

    def rest(self) -> None:
        """Clear the cache of deltas: no more messages are sent with this event."""
        self._said = {}

    def forget(self, names: Iterable[str]) -> None:
        """Remove the entries of incarnations that will never be heard from again."""
        self._said = {}
        for name in names:
            if name not in self._counts or name == self.me:
                continue
            del self._names[bisect_left(self._names, name)]
            del self._counts[name], self._changed[name]
            source = self._source.pop(name, None)
            if source is not None:
                del self._taught[source][name]
            self._incarnations[actor_of(name)].remove(name)

    def others(self) -> list[str]:
        """The names of all entries except the actor's own."""
        return [name for name in self._names if name != self.me]

    def wire(self) -> dict[str, int]:
        """All entries in canonical order, as plain data."""
        return self.frozen().wire()

    def frozen(self) -> VectorClock:
        """The clock as an immutable value."""
        return VectorClock({name: self._counts[name] for name in self._names})
