"""Whoever begins a snapshot gathers its parts, and says when it is whole.

Who takes part is not known beforehand: every part names its own peers, and all of those are
expected, too. Whoever is gone, or has lost a channel to somebody before its marker came, is absent;
the rest is still a consistent cut, which is checked by the clocks.
"""

from collections.abc import Mapping

from clocks import VectorClock, inconsistencies
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
        self._absent: dict[str, str] = {}

    def add(self, part: Part) -> None:
        """A participant has recorded its part."""
        self._parts[part.who] = part
        if part.failed:
            self._absent.setdefault(part.who, part.failed)
        for peer, reason in part.lost.items():
            # Of the two ends of a channel that is not whole, the initiator stays.
            absent = peer if peer != self._initiator else part.who
            self._absent.setdefault(absent, reason)

    def gone(self, who: str, reason: str) -> None:
        """Somebody left; whose part is here already has nothing more to say."""
        if who not in self._parts:
            self._absent.setdefault(who, reason)

    def awaited(self) -> list[str]:
        """Whose part is still to come, in order of names as bytes."""
        expected = {self._initiator}
        for who, part in self._parts.items():
            if who not in self._absent:
                expected.update(part.peers)
        return sorted(expected - self._absent.keys() - self._parts.keys(), key=str.encode)

    def give_up(self, reason: str) -> None:
        """Wait for nobody any longer."""
        for who in self.awaited():
            self._absent.setdefault(who, reason)

    def present(self) -> dict[str, Part]:
        """The parts that the snapshot consists of, in order of names as bytes."""
        names = sorted(self._parts.keys() - self._absent.keys(), key=str.encode)
        return {name: self._parts[name] for name in names}

    def absent(self) -> Mapping[str, str]:
        """Who is not part of it, and why, in order of names as bytes."""
        return dict(sorted(self._absent.items(), key=lambda each: each[0].encode()))

    def problem(self) -> str | None:
        """Why what was gathered is no consistent cut; None when it is."""
        parts = self.present()
        if self._initiator not in parts:
            return f"{self._initiator}, who began it: {self._absent[self._initiator]}"
        return disagreement({who: part.clock for who, part in parts.items()})


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
