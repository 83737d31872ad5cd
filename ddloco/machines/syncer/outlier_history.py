"""What is usual in contributions, so that finite ones that are wrong are noticed. A machine inside
the syncer's: it remembers, the worker that merges measures and decides (see ``measure``).

Only what was accepted is remembered, so a wrong one moves no band; before there is anything to
remember, contributions are accepted, and learned from. All of it is one-sided: too short a change
or too few tokens harm nobody, and learning rates decay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar

from ddloco.outer.weights import lower_median, usual_norm
from ddloco.protocol.events import FragmentMerged
from ddloco.protocol.messages import Contribution

T = TypeVar("T")

WINDOW = 32
"""Accepted contributions that say what is usual: with eight learners the last four merges. A change
of habits, as when learning rates decay, is followed within half of it."""

FEW = 3
"""Fewer than so many say nothing yet: their median could be a wrong one."""

STRIKES = 3
"""A learner with so many contributions refused in a row is told to start over from the globals.
One may be a stray bit on the way, two may have been under way together; what comes from its
parameters comes again with every one."""

PATIENCE = 32
"""After so many refusals in a row with nothing accepted what was usual is forgotten: everybody has
started over several times, so it is not they who are wrong but the memory, as after a jump of the
learning rate. Without this a job of one learner would stand still for ever."""


@dataclass(slots=True)
class Usual:
    """Of one fragment: (norm, steps) and cosines of the last accepted contributions, per version
    the one before and how far the outer step went, and merges of which nothing was believed."""

    norms: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    cosines: list[float] = field(default_factory=list[float])
    moves: dict[int, tuple[int, float]] = field(default_factory=dict[int, tuple[int, float]])
    vain: int = 0


class Bands:
    """What is usual, fragment by fragment.

    Args:
        band: how many times the usual is still believed; 0 for everything.
        fragments: how many there are.
    """

    def __init__(self, band: float, fragments: int) -> None:
        self.band = band
        self._fragments = [Usual() for _ in range(fragments)]
        self._tokens: list[float] = []
        self._vain = 0

    def norm(self, fragment: int, steps: int) -> float:
        """The usual norm of a contribution of so many steps; 0 while that is unknown."""
        known = self._fragments[fragment].norms
        return usual_norm(known, steps) if len(known) >= FEW else 0.0

    def cosine(self, fragment: int) -> float | None:
        """The usual cosine of a contribution and the others; None while that is unknown."""
        known = self._fragments[fragment].cosines
        return lower_median(known) if len(known) >= FEW else None

    def moved(self, fragment: int, base: int, version: int) -> float:
        """How far outer steps have gone from ``base`` to ``version``, at most; infinity where they
        were taken by an earlier incarnation of this syncer."""
        moves, total = self._fragments[fragment].moves, 0.0
        while version > base:
            version, far = moves.get(version, (base, inf))
            total += far
        return total

    def objection(self, said: Contribution) -> str | None:
        """Why a contribution's count of tokens is not believed."""
        if not self.band or len(self._tokens) < FEW:
            return None
        usual = lower_median(self._tokens)
        if said.tokens <= self.band * usual * said.steps:
            return None
        self._vain += 1
        if self._vain >= PATIENCE:
            self._tokens, self._vain = [], 0
        return (
            f"more tokens than steps allow: {said.tokens} in {said.steps}, "
            f"usual are {usual:.4g} a step, {self.band:g} times that is taken"
        )

    def learn(self, merged: FragmentMerged, said: Mapping[str, Contribution], before: int) -> None:
        """A merge into version ``before`` is done, of what these learners had said.

        Differences of contributions from older versions hold what others did: nothing is learned
        from those.
        """
        fragment, t = next((each.fragment, each.t) for each in said.values())
        usual = self._fragments[fragment]
        if not merged.accepted:
            # What is no number at all was not measured, and is no matter of what is usual.
            usual.vain += len(merged.measured) == len(said)
            if usual.vain >= PATIENCE:
                self._fragments[fragment] = Usual(moves=usual.moves)
            return
        usual.vain = self._vain = 0
        level = {name for name in merged.accepted if said[name].base == before}
        for each in merged.measured:
            if each.name in level:
                _remember(usual.norms, [(each.norm, said[each.name].steps)])
                _remember(usual.cosines, [each.cosine] if each.cosine is not None else [])
        taken = [said[name] for name in merged.accepted]
        _remember(self._tokens, [each.tokens / each.steps for each in taken])
        usual.moves[t] = before, merged.moved
        for old in list(usual.moves)[:-WINDOW]:
            del usual.moves[old]


def _remember(known: list[T], newer: Sequence[T]) -> None:
    known += newer
    del known[:-WINDOW]
