"""The initiator's side of a snapshot: it gathers the parts and decides when the snapshot is whole.

The participants are not known beforehand: each part names the peers that its participant had, and
their parts are expected too, except those of peers whose channel was lost. When no part is awaited
any more, the initiator decides who is included: of two participants whose channel is incomplete,
one is left out. The others form a consistent cut, which is verified by their clocks. The result
does not depend on the order in which the parts arrived.
"""

import heapq
from collections.abc import Iterator, Mapping

from msgspec import Struct

from clocks import VectorClock, actor_of, inconsistencies
from snapshot.record import Part


class SnapshotCoordinator(Struct, forbid_unknown_fields=True):
    """The parts of one snapshot; begun by ``new_gathering``.

    Attributes:
        awaiting: participants that are expected, have not left, and whose part has not arrived.
        heard: by participant, the largest count in any part's clock; updated as parts arrive.
    """

    snapshot: str
    initiator: str
    awaiting: dict[str, None]
    parts: dict[str, Part] = {}
    left: dict[str, str] = {}
    heard: dict[str, int] = {}

    def add(self, part: Part) -> None:
        again = part.who in self.parts
        self.parts[part.who] = part
        if again:  # Peers that only the replaced part expected are no longer expected.
            self.awaiting = {} if self.initiator in self.left else {self.initiator: None}
            for each in self.parts.values():
                self._expect(each)
        else:
            self._expect(part)
        heard = self.heard
        for name, count in part.clock.items():
            if count > heard.get(name, 0):
                heard[name] = count

    def _expect(self, part: Part) -> None:
        self.awaiting.pop(part.who, None)
        for peer in part.peers:
            if not (peer in self.parts or peer in self.left or peer in part.lost):
                self.awaiting[peer] = None

    def gone(self, who: str, reason: str) -> None:
        """A participant left: do not wait for its part; a part that has arrived still counts."""
        self.left.setdefault(who, reason)
        self.awaiting.pop(who, None)

    @property
    def whole(self) -> bool:
        return not self.awaiting or bool(self._doom())

    def awaited(self) -> list[str]:
        """The participants whose part is awaited, sorted by name as bytes; empty if the initiator's
        own part has failed."""
        return [] if self._doom() else _ordered(self.awaiting)

    def give_up(self, reason: str) -> None:
        for who in self.awaited():
            self.gone(who, reason)

    def present(self, absent: Mapping[str, str]) -> dict[str, Part]:
        """The parts that the snapshot consists of, sorted by name as bytes."""
        return {who: self.parts[who] for who in _ordered(self.parts) if who not in absent}

    def absent(self) -> dict[str, str]:
        """The participants that are left out, and why, sorted by name as bytes. Valid once no part
        is awaited any more."""
        absent = self._missing()
        whole = [who for who in _ordered(self.parts) if who not in absent]
        odds = self._odds(whole)
        # The next one to be left out is on top of the heap. A rank can only improve when others
        # are left out, so an entry with an outdated rank is put back with its new one.
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
        """The participants without a part, or whose part could not be written, and why."""
        missing: dict[str, str] = {}
        for who in _ordered(self.parts):
            part = self.parts[who]
            if part.failed:
                missing[who] = part.failed
            for peer in part.peers:
                if peer not in self.parts:
                    missing.setdefault(peer, self.left.get(peer) or part.lost.get(peer, ""))
        return missing

    def _odds(self, whole: list[str]) -> dict[str, dict[str, str]]:
        """For each participant, those that cannot be included together with it, and why; without
        participants that have no conflict."""
        odds: dict[str, dict[str, str]] = {}
        for one, other in self._doubtful(whole):
            problem = next(_problems(self.parts[one], self.parts[other]), None)
            if problem is not None:
                odds.setdefault(one, {})[other] = f"with {other}: {problem}"
                odds.setdefault(other, {})[one] = f"with {one}: {problem}"
        return odds

    def _doubtful(self, whole: list[str]) -> list[tuple[str, str]]:
        """The pairs that may be in conflict, sorted by name as bytes. Most pairs have no channel in
        common; checking all of them would take quadratic time."""
        at = {who: place for place, who in enumerate(whole)}
        peers = {who: frozenset(self.parts[who].peers) for who in whole}
        pairs: dict[tuple[int, int], None] = {}
        actors: dict[str, list[int]] = {}
        for place, who in enumerate(whole):
            former = actors.setdefault(actor_of(who), [])
            pairs.update(dict.fromkeys((each, place) for each in former))
            former.append(place)
            part = self.parts[who]
            one_sided = (peer for peer in part.peers if peer in at and who not in peers[peer])
            for peer in (*(each for each in part.lost if each in at), *one_sided):
                pairs[min(place, at[peer]), max(place, at[peer])] = None
        return [(whole[one], whole[other]) for one, other in sorted(pairs)]

    def _dispensable(
        self, who: str, odds: Mapping[str, Mapping[str, str]]
    ) -> tuple[bool, bool, int, int]:
        """The rank of a participant for being left out; the smallest rank is left out first.

        Those in conflict with the initiator go first, then those with the most conflicts, then
        those with fewer peers. The initiator itself is never left out.
        """
        begun, others = self.initiator, odds.get(who, {})
        return who == begun, begun not in others, -len(others), len(self.parts[who].peers)

    def _doom(self) -> str:
        own = self.parts.get(self.initiator)
        return own.failed if own is not None else self.left.get(self.initiator, "")

    def problem(self, present: Mapping[str, Part]) -> str | None:
        """Why the parts in ``present`` are not a consistent cut; None if they are."""
        doom = self._doom()
        if doom:
            return f"{self.initiator}, who began it: {doom}"
        heard = self.heard
        if all(heard.get(who, 0) <= part.clock.get(who, 0) for who, part in present.items()):
            return None
        # The clock that is too large may belong to a part that is left out: check the others.
        return cut_disagreement({who: part.clock for who, part in present.items()})


def new_gathering(snapshot: str, initiator: str) -> SnapshotCoordinator:
    return SnapshotCoordinator(snapshot, initiator, {initiator: None})


def _ordered(names: Mapping[str, object]) -> list[str]:
    return sorted(names, key=str.encode)


def _problems(one: Part, other: Part) -> Iterator[str]:
    if actor_of(one.who) == actor_of(other.who):
        yield "one came back as the other"
    for part, peer in ((one, other.who), (other, one.who)):
        if peer in part.lost:
            yield part.lost[peer]
    if (one.who in other.peers) != (other.who in one.peers):
        # Messages sent over the new channel before the sender's cut arrived after the other's cut.
        yield "the channel was opened between their cuts"


def cut_disagreement(clocks: Mapping[str, Mapping[str, int]]) -> str | None:
    """Why the clocks of a cut are not those of a consistent cut; None if they are.

    For all i, j: VC_i[j] <= VC_j[j]; no participant knows of an event after another's cut.
    """
    wrong = inconsistencies({who: VectorClock(clock) for who, clock in clocks.items()})
    if not wrong:
        return None
    (knows, of), more = wrong[0], len(wrong) - 1
    said = f"{knows} has heard of {of}:{clocks[knows][of]}, {of} is recorded at {clocks[of][of]}"
    return said + (f", and {more} more" if more else "")
