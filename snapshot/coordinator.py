"""Whoever begins a snapshot gathers its parts, and says when it is whole.

Who takes part is not known beforehand: every part names its own peers, and all of those are
expected, too, but for whom it has lost. When nobody is awaited any more, it is decided who is in:
of two whose channel is not whole one is absent. The rest is a consistent cut, which is checked by
the clocks. In which order parts came makes no difference.
"""

import heapq
from collections.abc import Iterator, Mapping

from clocks import VectorClock, actor_of, inconsistencies
from snapshot.record import Part


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
        self._awaited: dict[str, None] = {initiator: None}
        """Who is expected, has not left, and whose part is not here."""
        self._heard: dict[str, int] = {}
        """The most that any part had heard of each: looked at once, as the parts come."""

    def add(self, part: Part) -> None:
        """A participant has recorded its part, or could not."""
        again = part.who in self._parts
        self._parts[part.who] = part
        if again:  # What the former one expected may be expected no longer.
            self._awaited = {} if self._initiator in self._gone else {self._initiator: None}
            for each in self._parts.values():
                self._expect(each)
        else:
            self._expect(part)
        heard = self._heard
        for name, count in part.clock.items():
            if count > heard.get(name, 0):
                heard[name] = count

    def _expect(self, part: Part) -> None:
        """A part is here; the parts of its peers will come."""
        self._awaited.pop(part.who, None)
        for peer in part.peers:
            if not (peer in self._parts or peer in self._gone or peer in part.lost):
                self._awaited[peer] = None

    def gone(self, who: str, reason: str) -> None:
        """Somebody left; whose part is here already has nothing more to say."""
        self._gone.setdefault(who, reason)
        self._awaited.pop(who, None)

    @property
    def whole(self) -> bool:
        """Whether nobody is awaited."""
        return not self._awaited or bool(self._doom())

    def awaited(self) -> list[str]:
        """Whose part is still to come, in order of names as bytes; nobody's, where whoever began
        could not write its own."""
        return [] if self._doom() else _ordered(self._awaited)

    def give_up(self, reason: str) -> None:
        """Wait for nobody any longer."""
        for who in self.awaited():
            self.gone(who, reason)

    def present(self, absent: Mapping[str, str]) -> dict[str, Part]:
        """The parts that the snapshot consists of, in order of names as bytes."""
        return {who: self._parts[who] for who in _ordered(self._parts) if who not in absent}

    def absent(self) -> dict[str, str]:
        """Who is not part of it, and why, in order of names as bytes; once nobody is awaited."""
        absent = self._missing()
        whole = [who for who in _ordered(self._parts) if who not in absent]
        odds = self._odds(whole)
        # Who leaves next is on top: nobody gets more dispensable when others leave, so whoever
        # is found to be less so than it was is only put back.
        leaving = [(self._dispensable(who, odds), at) for at, who in enumerate(whole)]
        heapq.heapify(leaving)
        while leaving:
            rank, at = heapq.heappop(leaving)
            leaves = whole[at]
            if not odds.get(leaves):
                continue
            now = self._dispensable(leaves, odds)
            if now != rank:
                heapq.heappush(leaving, (now, at))
                continue
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
        """For each participant with whom it cannot both be in, and why; whoever gets on with
        everybody is left out."""
        odds: dict[str, dict[str, str]] = {}
        for one, other in self._doubtful(whole):
            problem = next(_problems(self._parts[one], self._parts[other]), None)
            if problem is not None:
                odds.setdefault(one, {})[other] = f"with {other}: {problem}"
                odds.setdefault(other, {})[one] = f"with {one}: {problem}"
        return odds

    def _doubtful(self, whole: list[str]) -> list[tuple[str, str]]:
        """The pairs that there may be a problem with, in order of names as bytes: most are at two
        ends of nothing, and would be looked at in vain, as many times as there are pairs."""
        at = {who: place for place, who in enumerate(whole)}
        peers = {who: frozenset(self._parts[who].peers) for who in whole}
        pairs: dict[tuple[int, int], None] = {}
        actors: dict[str, list[int]] = {}
        for place, who in enumerate(whole):
            former = actors.setdefault(actor_of(who), [])
            pairs.update(dict.fromkeys((each, place) for each in former))
            former.append(place)
            part = self._parts[who]
            one_sided = (peer for peer in part.peers if peer in at and who not in peers[peer])
            for peer in (*(each for each in part.lost if each in at), *one_sided):
                pairs[min(place, at[peer]), max(place, at[peer])] = None
        return [(whole[one], whole[other]) for one, other in sorted(pairs)]

    def _dispensable(
        self, who: str, odds: Mapping[str, Mapping[str, str]]
    ) -> tuple[bool, bool, int, int]:
        """Whoever is at odds with the initiator goes first, then with most; of two that are at odds
        with each other it is the one that fewer know. The initiator stays. The least goes first."""
        begun, others = self._initiator, odds.get(who, {})
        return who == begun, begun not in others, -len(others), len(self._parts[who].peers)

    def _doom(self) -> str:
        own = self._parts.get(self._initiator)
        return own.failed if own is not None else self._gone.get(self._initiator, "")

    def problem(self, present: Mapping[str, Part]) -> str | None:
        """Why the parts that are ``present`` are no consistent cut; None when they are."""
        doom = self._doom()
        if doom:
            return f"{self._initiator}, who began it: {doom}"
        heard = self._heard
        if all(heard.get(who, 0) <= part.clock.get(who, 0) for who, part in present.items()):
            return None
        # Somebody has heard too much, and may be absent: only the parts that are in count.
        return disagreement({who: part.clock for who, part in present.items()})


def _ordered(names: Mapping[str, object]) -> list[str]:
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
