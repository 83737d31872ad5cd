"""The history of accepted contributions, from which outliers with finite values are detected, by
the worker that merges. Rejected ones do not enter it. While it is short, every contribution is
accepted. Limits are upper limits only: too small a change or too few tokens do no harm, and
learning rates decay."""

from collections.abc import Container, Mapping, Sequence
from math import inf
from typing import TypeVar

from msgspec import Struct

from clocks import actor_of
from ddloco.job.protocol.messages import Contribution
from ddloco.job.protocol.work import FragmentMerged
from ddloco.machines.outer.weights import lower_median, usual_norm

T = TypeVar("T")

WINDOW = 32
"""Accepted contributions in the history: with eight learners, the last four merges. The median
follows a lasting change, such as a learning rate decay, within half of the window."""

FEW = 3
"""Contributions needed for a limit; the median of fewer could itself be an outlier."""

STRIKES = 3
"""Consecutive rejected contributions after which a learner must start over from the global
fragments. One may be a transmission error, and two may have been in flight together; wrong
parameters cause a rejection every time."""

PATIENCE = 8
"""Consecutive merges of a fragment without an accepted contribution after which its history is
cleared. The learners have started over twice by then, so the history is wrong, for example after a
jump of the learning rate. Without this limit a job of one learner would never merge again."""

FAR = 1000.0
"""A learner's tokens per step are never more than so many times the median of the others', unless
the job file says the size of its batches: nobody's word alone outweighs all others."""

STEP_TOKENS_MAX, TOKENS_MAX = 2**31, 2**53
"""The most tokens of one step, and of one contribution; their sums must fit into 64 bits."""

RATES = 8
"""A learner's tokens per step in the history: those of its last accepted contributions."""


class Usual(Struct, forbid_unknown_fields=True):
    """The history of one fragment.

    Attributes:
        moves: for each version, the version before it and the norm of the outer step between.
        vain: consecutive merges of which every contribution was rejected.
    """

    norms: list[tuple[float, int]] = []
    cosines: list[float] = []
    moves: dict[int, tuple[int, float]] = {}
    vain: int = 0


class OutlierHistory(Struct, forbid_unknown_fields=True):
    """The histories of all fragments.

    Attributes:
        rates: tokens per step of the last accepted contributions of each learner, by its name.
        doubted: those of its last contributions, all rejected for their tokens.
    """

    fragments: list[Usual]
    rates: dict[str, list[float]] = {}
    doubted: dict[str, list[float]] = {}

    def norm(self, fragment: int, steps: int) -> float:
        """Return the usual norm of a contribution of ``steps`` steps; 0 while that is unknown."""
        known = self.fragments[fragment].norms
        return usual_norm(known, steps) if len(known) >= FEW else 0.0

    def cosine(self, fragment: int) -> float | None:
        known = self.fragments[fragment].cosines
        return lower_median(known) if len(known) >= FEW else None

    def moved(self, fragment: int, base: int, version: int) -> float:
        """Return an upper bound of the distance between two versions, the sum of the norms of the
        outer steps; infinity if an earlier incarnation of this syncer took some of them."""
        moves, total = self.fragments[fragment].moves, 0.0
        while version > base:
            version, far = moves.get(version, (base, inf))
            total += far
        return total

    def objections(
        self, said: Mapping[str, Contribution], band: float, apart: Container[str] = ()
    ) -> dict[str, str]:
        """Return whose token counts are too high, and why: above ``band`` times what that learner
        has always counted, what most learners of the job have, or most of this sync have, whichever
        is largest; batches may differ by learner, and sequences may grow. Band 0 accepts all that
        is possible. A learner that counts as much several times in a row is believed. Those in
        ``apart`` are compared with themselves only: the job file says their batches."""
        rates = {name: each.tokens / each.steps for name, each in said.items()}
        found = self._impossible(said, rates, apart)
        if not band:
            return found
        most = [lower_median(list(rates.values()))] if len(rates) > 1 else []
        if sum(map(len, self.rates.values())) >= FEW:
            most.append(lower_median([lower_median(each) for each in self.rates.values()]))
        for name, rate in rates.items():
            if name in found:
                continue
            own = self.rates.get(actor_of(name), [])
            if not own and actor_of(name) in apart:
                continue
            # Where most batches had no tokens, nothing is usual.
            usual = max((*most, lower_median(own)) if own else most, default=inf) or inf
            if self._is_usual(actor_of(name), rate, band, usual):
                continue
            found[name] = (
                f"more tokens than steps allow: {said[name].tokens} in {said[name].steps}, "
                f"usual are {usual:.4g} a step, {band:g} times that is taken"
            )
        return found

    def _impossible(
        self, said: Mapping[str, Contribution], rates: Mapping[str, float], apart: Container[str]
    ) -> dict[str, str]:
        """Whose counts no batch has, whatever the band. Learners whose batches had no tokens say
        nothing of those of others."""
        known = {actor: lower_median(each) for actor, each in self.rates.items()}
        known |= {actor_of(name): rate for name, rate in rates.items()}
        found: dict[str, str] = {}
        for name, rate in rates.items():
            others = [each for who, each in known.items() if each and who != actor_of(name)]
            limit = FAR * lower_median(others) if others else inf
            limit = STEP_TOKENS_MAX if actor_of(name) in apart else min(limit, STEP_TOKENS_MAX)
            if rate > limit or said[name].tokens > TOKENS_MAX:
                found[name] = (
                    f"more tokens than steps allow: {said[name].tokens} in {said[name].steps}; "
                    f"beside the other learners' at most {limit:.4g} a step are believed"
                )
        return found

    def _is_usual(self, actor: str, rate: float, band: float, usual: float) -> bool:
        """Whether a learner's tokens per step are within the band, or as much as in each of its
        last few contributions: those are its history then."""
        if rate <= band * usual:
            self.doubted.pop(actor, None)
            return True
        doubted = [*self.doubted.pop(actor, []), rate][-FEW:]
        if len(doubted) == FEW and max(doubted) <= band * min(doubted):
            self.rates[actor] = doubted
            return True
        self.doubted[actor] = doubted
        return False

    def learn(self, merged: FragmentMerged, said: Mapping[str, Contribution], before: int) -> None:
        """Add the accepted contributions of a finished merge to the history. Those from versions
        older than ``before`` do not add norms or cosines, because their differences include the
        changes that others made."""
        fragment, t = next((each.fragment, each.t) for each in said.values())
        usual = self.fragments[fragment]
        if not merged.accepted:
            # Contributions with NaN or Inf were not measured; clearing the history would not help.
            usual.vain += len(merged.measured) == len(said)
            if usual.vain >= PATIENCE:
                self.fragments[fragment] = Usual(moves=usual.moves)
            return
        usual.vain = 0
        level = {name for name in merged.accepted if said[name].base == before}
        for each in merged.measured:
            if each.name in level:
                _remember(usual.norms, [(each.norm, said[each.name].steps)])
                _remember(usual.cosines, [each.cosine] if each.cosine is not None else [])
        for name in merged.accepted:
            actor, rate = actor_of(name), said[name].tokens / said[name].steps
            self.rates[actor] = [*self.rates.get(actor, []), rate][-RATES:]
        usual.moves[t] = before, merged.moved
        for old in list(usual.moves)[:-WINDOW]:
            del usual.moves[old]


def _remember(known: list[T], newer: Sequence[T]) -> None:
    known += newer
    del known[:-WINDOW]
