"""The outlier test: compares the norms and directions of a merge's contributions with bands. It is
a pure function of the values, without BLAS, whose results may depend on the number of threads. A
norm is that of the whole change. A direction is computed from runs of 16 elements, one cache line,
spread evenly: enough to detect a flipped sign (the cosine of two random vectors of n elements is
about 1 / sqrt(n)), at a hundredth of the merge's cost.

With three or more contributions each is compared with the sum of the others' unit vectors; if the
others do not agree among themselves, none is rejected. With two, the outer optimizer's usual
direction decides which one is flipped; if it agrees with both or with neither, or there is none,
both are accepted. With one there is no test: a flipped sign looks like an outer step that overshot,
after which all learners turn.

Errors that change neither norm nor direction are not detected: a bit in a mantissa, an exponent bit
that makes one number among millions smaller, a sign in one tensor of many, errors of the majority.
"""

from collections.abc import Sequence
from math import inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddloco.job.protocol.messages import Measured
from ddloco.job.protocol.work import MergeFragment, SumContributions
from ddloco.machines.outer.block_kernel import F32
from ddloco.machines.outer.merge import F64, TensorSegment, WeightedFragment
from ddloco.machines.outer.weights import lower_median, usual_norm
from transport import DTYPES

SAMPLE = 16 * 1024
"""Elements sampled for the direction: at least this many if there are as many, at most twice
that."""

RUN = 16
COSINE_SLACK = 0.2
SIGMAS = 4.0
"""How far a cosine may be below both the usual one and zero: a fifth, plus four standard deviations
of the cosine of random vectors of that length. Directions of correct learners are orthogonal at
worst; a flipped sign negates the usual cosine."""

DIRECTED_MIN = 128
"""Elements that have a direction: of fewer, correct contributions may be opposed by chance."""

MAJORITY = 3
"""With fewer contributions, a single wrong one can be what is usual."""


class OutlierTest:
    """Measures the contributions of one merge and decides which ones are rejected. ``usual`` is the
    outer optimizer's usual direction; zeros, as before the first merge, are none. Changes are
    measured from ``anchor``; None if that is theta. Once called, ``measured`` has norm and cosine
    of every finite contribution."""

    def __init__(
        self,
        work: MergeFragment | SumContributions,
        theta: F32,
        usual: F32 | None,
        segments: Sequence[TensorSegment],
        anchor: F32 | None = None,
    ) -> None:
        self._work = work
        self._shares = {share.name: share for share in work.shares}
        self._segments = [segment for segment in segments if not segment.state]
        self._places = _places(self._segments)
        self._theta = self._sample(theta)
        self._anchor = self._theta if anchor is None else self._sample(anchor)
        self._along = None if usual is None else _unit(self._sample(usual))
        self._size = sum(each.stop - each.start for each in self._segments)
        self.sampled = self._theta.size
        self.measured: tuple[Measured, ...] = ()
        self._section: list[tuple[float, int]] = []
        """Norm and steps of the contributions of this merge that say what is usual."""

    def __call__(
        self, candidates: Sequence[WeightedFragment], norms: Sequence[float], faults: Sequence[str]
    ) -> list[str]:
        found = list(faults)
        sound = [i for i, fault in enumerate(faults) if not fault]
        usual = self._usual(candidates, norms, sound)
        for i in sound:
            # With an older base version, the difference includes the merges since then.
            most = self._work.band * (usual[i] + self._shares[candidates[i].name].moved)
            if usual[i] > 0.0 and norms[i] > most:
                found[i] = f"norm {norms[i]:.4g}, this fragment's band ends at {most:.4g}"
        level = [i for i in sound if not found[i] and self._is_level(candidates[i])]
        cosines = self._directions(candidates, level, found)
        self.measured = tuple(Measured(candidates[i].name, norms[i], cosines.get(i)) for i in sound)
        return found

    def fault_of_sum(self, names: Sequence[str], length: float) -> str:
        """Why a relay's sum of these contributions cannot be merged; empty if it can. Nobody here
        has measured them: their mean ``length``, which the relay says, is no longer than the
        longest that would be taken if it had come directly."""
        shares = [self._shares[name] for name in names if name in self._shares]
        usual = [max(each.usual, usual_norm(self._section, each.steps)) for each in shares]
        pairs = zip(usual, shares, strict=True)
        most = max((self._work.band * (norm + each.moved) for norm, each in pairs), default=0.0)
        if not all(usual) or length <= most:
            return ""
        return f"norm {length:.4g} of a relay's sum, this fragment's band ends at {most:.4g}"

    def moved(self, theta: F32) -> float:
        """The length of a step to ``theta``, estimated from the sample."""
        step = self._sample(theta) - self._theta
        return _length(step) * sqrt(self._size / max(step.size, 1))

    def _is_level(self, candidate: WeightedFragment) -> bool:
        return self._shares[candidate.name].moved == 0.0

    def _usual(
        self, candidates: Sequence[WeightedFragment], norms: Sequence[float], sound: Sequence[int]
    ) -> dict[int, float]:
        """The usual norm per share: from earlier merges or from the majority of this one, whichever
        is larger, since a change that affects most learners is not a fault; 0 if unknown. Two are a
        majority where a norm is known: a single wrong one, which is too large, does not move the
        lower median."""
        level = [i for i in sound if self._is_level(candidates[i])]
        steps = [self._shares[candidates[i].name].steps for i in range(len(candidates))]
        known = any(share.usual for share in self._shares.values())
        enough = len(level) >= (2 if known else MAJORITY)
        self._section = [(norms[i], steps[i]) for i in level] if enough else []
        return {
            i: max(self._shares[candidates[i].name].usual, usual_norm(self._section, steps[i]))
            for i in sound
        }

    def _directions(
        self, candidates: Sequence[WeightedFragment], level: Sequence[int], faults: list[str]
    ) -> dict[int, float]:
        """Reject the contribution most opposed to the others, and repeat until none is; returns the
        cosines of the remaining ones."""
        units = {i: _unit(self._anchor - self._view(candidates[i])) for i in level}
        live = [i for i in level if units[i] is not None]
        slack = COSINE_SLACK + SIGMAS / sqrt(max(self.sampled, 1))  # A fragment may be empty.
        while len(live) > 1:
            rows = np.array([units[i] for i in live])
            cosines = _against_others(rows)
            lowest = min(0.0, self._work.cosine or 0.0) - slack
            worst = self._most_at_odds(rows, cosines, slack)
            if worst is None or cosines[worst] >= lowest or self._size < DIRECTED_MIN:
                return dict(zip(live, cosines, strict=True))
            faults[live[worst]] = (
                f"cosine {cosines[worst]:.3f} to the others, "
                f"this fragment's band begins at {lowest:.3f}"
            )
            del live[worst]
        return {}

    def _most_at_odds(self, rows: F64, cosines: Sequence[float], slack: float) -> int | None:
        """The candidate for rejection; None if the others do not agree among themselves either."""
        if len(rows) < MAJORITY:
            return _turned(rows, self._along, slack) if self._work.cosine is not None else None
        worst = min(range(len(rows)), key=lambda k: cosines[k])
        others = _against_others(np.delete(rows, worst, axis=0))
        return worst if lower_median(others) > slack else None

    def _sample(self, flat: F32) -> F64:
        parts = [flat[segment.start : segment.stop] for segment in self._segments]
        return self._gather(parts)

    def _view(self, candidate: WeightedFragment) -> F64:
        parts: list[NDArray[Any]] = []
        for segment in self._segments:
            dtype = DTYPES[segment.dtype]
            stop = segment.offset + (segment.stop - segment.start) * dtype.itemsize
            parts.append(candidate.buffer[segment.offset : stop].view(dtype))
        return self._gather(parts)

    def _gather(self, parts: Sequence[NDArray[Any]]) -> F64:
        taken: list[NDArray[Any]] = []
        for part, every in zip(parts, self._places, strict=True):
            whole = part.size // every * every
            taken.append(part[:whole].reshape(-1, every)[:, :RUN].ravel())
            taken.append(part[whole : whole + RUN])
        return np.concatenate([each.astype(np.float64) for each in taken])


def _places(segments: Sequence[TensorSegment]) -> list[int]:
    """For each tensor, the distance between sampled runs. It is an odd number of runs, so that in
    matrices, whose rows are often powers of two long, the sampled columns vary."""
    total = sum(segment.stop - segment.start for segment in segments)
    return [RUN * (max(total // SAMPLE - 1, 0) | 1)] * len(segments)


def _unit(vector: F64) -> F64 | None:
    length = _length(vector)
    return vector / length if 0.0 < length < inf else None


def _length(vector: F64) -> float:
    return sqrt(float(np.einsum("i,i->", vector, vector)))


def _against_others(units: F64) -> list[float]:
    """The cosine of each unit vector, (M, n), with the sum of the others; 0 if that is zero."""
    total = units.sum(0)
    dots = np.einsum("ij,j->i", units, total) - 1.0
    square = float(np.einsum("i,i->", total, total))
    lengths = [square - 2.0 * float(dot) - 1.0 for dot in dots]
    return [
        float(dot) / sqrt(length) if length > 1e-12 else 0.0
        for dot, length in zip(dots, lengths, strict=True)
    ]


def _turned(pair: F64, along: F64 | None, slack: float) -> int | None:
    """Which of two goes against the usual direction while the other goes with it; None if
    neither."""
    if along is None:
        return None
    first, second = (float(each) for each in np.einsum("ij,j->i", pair, along))
    if min(first, second) >= -slack or max(first, second) <= slack:
        return None
    return 0 if first < second else 1
