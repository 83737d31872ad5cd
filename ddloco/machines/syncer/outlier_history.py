"""The history of accepted contributions, from which outliers with finite values are detected.

This machine is part of the syncer machine. It keeps the history; the worker that merges measures
contributions and rejects outliers.

Only accepted contributions enter the history, so a rejected one has no effect on the limits. While
the history is short, every contribution is accepted and added. The limits are upper limits only:
too small a change or too few tokens do no harm, and learning rates decay.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import TypeVar

from msgspec import Struct

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

PATIENCE = 32
"""Consecutive rejections without an accepted contribution after which the history is cleared. The
learners have started over several times by then, so the history is wrong, for example after a jump
of the learning rate. Without this limit a job of one learner would never merge again."""


class Usual(Struct, forbid_unknown_fields=True):
    """The history of one fragment.

    Attributes:
        norms: (norm, steps) of the last accepted contributions.
        cosines: cosines of the last accepted contributions.
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
        fragments: the history of each fragment of the model.
        tokens: tokens per step of the last accepted contributions.
        vain: consecutive contributions that were rejected for their tokens.
    """

    fragments: list[Usual]
    tokens: list[float] = []
    vain: int = 0

    def norm(self, fragment: int, steps: int) -> float:
        """Return the usual norm of a contribution of ``steps`` steps; 0 while that is unknown."""
        known = self.fragments[fragment].norms
        return usual_norm(known, steps) if len(known) >= FEW else 0.0

    def cosine(self, fragment: int) -> float | None:
        """Return the usual cosine between a contribution and the others; None while unknown."""
        known = self.fragments[fragment].cosines
        return lower_median(known) if len(known) >= FEW else None

    def moved(self, fragment: int, base: int, version: int) -> float:
        """Return an upper bound of the distance between the versions ``base`` and ``version``.

        It is the sum of the norms of the outer steps; infinity if an earlier incarnation of this
        syncer took some of them.
        """
        moves, total = self.fragments[fragment].moves, 0.0
        while version > base:
            version, far = moves.get(version, (base, inf))
            total += far
        return total

    def objection(self, said: Contribution, band: float) -> str | None:
        """Return why a contribution's token count is too high, or None if it is not.

        Args:
            said: the contribution.
            band: the limit as a multiple of the median; 0 accepts everything.
        """
        if not band or len(self.tokens) < FEW:
            return None
        usual = lower_median(self.tokens)
        if said.tokens <= band * usual * said.steps:
            return None
        self.vain += 1
        if self.vain >= PATIENCE:
            self.tokens, self.vain = [], 0
        return (
            f"more tokens than steps allow: {said.tokens} in {said.steps}, "
            f"usual are {usual:.4g} a step, {band:g} times that is taken"
        )

    def learn(self, merged: FragmentMerged, said: Mapping[str, Contribution], before: int) -> None:
        """Add the accepted contributions of a finished merge to the history.

        Contributions from versions older than ``before`` do not add norms or cosines, because
        their differences include the changes that others made.

        Args:
            merged: the result of the merge.
            said: the merged contributions by learner.
            before: the version that they were merged into.
        """
        fragment, t = next((each.fragment, each.t) for each in said.values())
        usual = self.fragments[fragment]
        if not merged.accepted:
            # Contributions with NaN or Inf were not measured; clearing the history would not help.
            usual.vain += len(merged.measured) == len(said)
            if usual.vain >= PATIENCE:
                self.fragments[fragment] = Usual(moves=usual.moves)
            return
        usual.vain = self.vain = 0
        level = {name for name in merged.accepted if said[name].base == before}
        for each in merged.measured:
            if each.name in level:
                _remember(usual.norms, [(each.norm, said[each.name].steps)])
                _remember(usual.cosines, [each.cosine] if each.cosine is not None else [])
        taken = [said[name] for name in merged.accepted]
        _remember(self.tokens, [each.tokens / each.steps for each in taken])
        usual.moves[t] = before, merged.moved
        for old in list(usual.moves)[:-WINDOW]:
            del usual.moves[old]


def _remember(known: list[T], newer: Sequence[T]) -> None:
    known += newer
    del known[:-WINDOW]
