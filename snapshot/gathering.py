"""Whoever begins a snapshot gathers its parts, and says when it is whole.

Who takes part is not known beforehand: every part names its own peers, and all of those are
expected, too, but for whom it has lost. When nobody is awaited any more, it is decided who is in:
of two whose channel is not whole one is absent. The rest is a consistent cut, which is checked by
the clocks. In which order parts came makes no difference.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations

from clocks import VectorClock, actor_of, inconsistencies
from snapshot.part import Part


class Gathering:
    """The parts of one snapshot.

    Args:
        snapshot: its name.
        initiator: who began it; there is no snapshot without it.
    """

    def __init__(self, snapshot: str, initiator: str) -> None:
        self.snapshot = snapshot
        self._initiator = initiator
        self._parts: dict[str, Part] = {}
        self._gone: dict[str, str] = {}

    def add(self, part: Part) -> None:
        """A participant has recorded its part, or could not."""
        self._parts[part.who] = part

    def gone(self, who: str, reason: str) -> None:
        """Somebody left; whose part is here already has nothing more to say."""
        self._gone.setdefault(who, reason)

    def awaited(self) -> list[str]:
        """Whose part is still to come, in order of names as bytes; nobody's, where whoever began
        could not write its own."""
        if self._doom():
            return []
        expected = {self._initiator}
        for part in self._parts.values():
            expected.update(peer for peer in part.peers if peer not in part.lost)
        return _ordered(expected - self._gone.keys() - self._parts.keys())

    def give_up(self, reason: str) -> None:
        """Wait for nobody any longer."""
        for who in self.awaited():
            self.gone(who, reason)

    def present(self) -> dict[str, Part]:
        """The parts that the snapshot consists of, in order of names as bytes."""
        absent = self.absent()
        return {who: self._parts[who] for who in _ordered(self._parts) if who not in absent}

    def absent(self) -> dict[str, str]:
        """Who is not part of it, and why, in order of names as bytes; once nobody is awaited."""
        absent = self._missing()
        whole = [who for who in _ordered(self._parts) if who not in absent]
        odds = self._odds(whole)
        while at_odds := {who: others for who, others in odds.items() if others}:
            leaves = max(at_odds, key=lambda who: self._dispensable(who, at_odds))
            others = odds.pop(leaves)
            absent[leaves] = next(iter(others.values()))
            for other in others:
                del odds[other][leaves]
        return {who: absent[who] for who in _ordered(absent)}

    def _missing(self) -> dict[str, str]:
        """Who has no part, or none that could be written."""
        missing: dict[str, str] = {}
        for who in _ordered(self._parts):
            part = self._parts[who]
            if part.failed:
                missing[who] = part.failed
            for peer in part.peers:
                if peer not in self._parts:
                    missing.setdefault(peer, self._gone.get(peer) or part.lost.get(peer, ""))
        return missing

    def _odds(self, whole: list[str]) -> dict[str, dict[str, str]]:
        """For each participant with whom it cannot both be in, and why."""
        odds: dict[str, dict[str, str]] = {who: {} for who in whole}
        for one, other in combinations(whole, 2):
            problem = next(_problems(self._parts[one], self._parts[other]), None)
            if problem is not None:
                odds[one][other] = f"with {other}: {problem}"
                odds[other][one] = f"with {one}: {problem}"
        return odds

    def _dispensable(
        self, who: str, odds: Mapping[str, Mapping[str, str]]
    ) -> tuple[bool, bool, int, int]:
        """Whoever is at odds with the initiator goes first, then with most; of two that are at odds
        with each other it is the one that fewer know. The initiator stays."""
        begun, others = self._initiator, odds[who]
        return who != begun, begun in others, len(others), -len(self._parts[who].peers)

    def _doom(self) -> str:
        own = self._parts.get(self._initiator)
        return own.failed if own is not None else self._gone.get(self._initiator, "")

    def problem(self) -> str | None:
        """Why what was gathered is no consistent cut; None when it is."""
        doom = self._doom()
        if doom:
            return f"{self._initiator}, who began it: {doom}"
        return disagreement({who: part.clock for who, part in self.present().items()})


def _ordered(names: Mapping[str, object] | set[str]) -> list[str]:
    return sorted(names, key=str.encode)


def _problems(one: Part, other: Part) -> Iterator[str]:
    """Why two participants cannot both be in."""
    if actor_of(one.who) == actor_of(other.who):
        yield "one came back as the other"
    for part, peer in ((one, other.who), (other, one.who)):
        if peer in part.lost:
            yield part.lost[peer]
    if (one.who in other.peers) != (other.who in one.peers):
        # What one said over the new channel before its cut came after the cut of the other.
        yield "the channel was opened between their cuts"


def disagreement(clocks: Mapping[str, Mapping[str, int]]) -> str | None:
    """Why the clocks of a cut's participants are not those of a consistent cut; None if they are.

    For all i, j: VC_i[j] <= VC_j[j]; nobody has heard of what is after another's cut.
    """
    wrong = inconsistencies({who: VectorClock(clock) for who, clock in clocks.items()})
    if not wrong:
        return None
    (knows, of), more = wrong[0], len(wrong) - 1
    said = f"{knows} has heard of {of}:{clocks[knows][of]}, {of} is recorded at {clocks[of][of]}"
    return said + (f", and {more} more" if more else "")
