"""An actor's own clock while it runs: it grows in place, and knows what is new since when.

The same clock as ``VectorClock``, kept so that an event costs only what it changes: entries stand
in the order of their last change, newest last, each with the number of the event that changed it.
"""

from collections.abc import Iterable, Mapping

from clocks.vector import VectorClock

_NOTHING: dict[str, int] = {}


class RunningClock:
    """The clock of one incarnation.

    Args:
        me: the incarnation; its entry is the number of its newest event.
    """

    __slots__ = ("_changed", "_counts", "_source", "me", "number")

    def __init__(self, me: str) -> None:
        self.me = me
        self.number = 0
        self._counts: dict[str, int] = {}
        self._changed: dict[str, int] = {}
        self._source: dict[str, str] = {}

    def __getitem__(self, name: str) -> int:
        return self.number if name == self.me else self._counts.get(name, 0)

    def __len__(self) -> int:
        return len(self._counts) + (self.number > 0)

    def tick(self, heard: Mapping[str, int] = _NOTHING, source: str = "") -> dict[str, int]:
        """One more event, which hears of ``heard`` from ``source``; the entries that it raises,
        one's own apart.

        Of its own events an actor hears nothing new: a message that says otherwise is false, and
        its links refuse it.
        """
        self.number = number = self.number + 1
        if not heard:
            return _NOTHING
        counts, changed, sources, me = self._counts, self._changed, self._source, self.me
        learned: dict[str, int] = {}
        for name, count in heard.items():
            before = counts.get(name)
            if before is None:
                if name == me or not count:
                    continue
            elif count <= before:
                continue
            else:
                del counts[name]
            learned[name] = counts[name] = count
            changed[name] = number
            sources[name] = source
        return learned

    def since(self, number: int, reader: str | None = None) -> dict[str, int]:
        """The entries that events after ``number`` changed, and always one's own: a delta.

        What ``reader`` itself was the source of it knows; in a star that is nearly everything that
        a learner could tell its syncer.
        """
        delta = {self.me: self.number}
        counts, changed, sources = self._counts, self._changed, self._source
        for name in reversed(counts):
            if changed[name] <= number:
                break
            if sources[name] != reader:
                delta[name] = counts[name]
        # In the order in which whoever decodes it finds it: clocks remember in which order they
        # were told, and what was told within this process must leave the same clock behind.
        return dict(sorted(delta.items())) if len(delta) > 1 else delta

    def forget(self, names: Iterable[str]) -> None:
        """Let go of entries whose incarnations will never be heard of again."""
        for name in names:
            if self._counts.pop(name, None) is not None:
                del self._changed[name], self._source[name]

    def others(self) -> list[str]:
        """Whoever has an entry, apart from oneself."""
        return list(self._counts)

    def wire(self) -> dict[str, int]:
        """All entries in canonical order, as plain data."""
        return self.frozen().wire()

    def frozen(self) -> VectorClock:
        """The clock as a value."""
        return VectorClock({**self._counts, self.me: self.number})
