"""What is believed of a merge's contributions: their norms and directions, held against bands.

A pure function of the values. A norm is that of the whole change, theta - contribution, as the
merge's first pass has it anyway. A direction is looked at in a sample: runs of 16 elements, a cache
line, evenly spread over every tensor. That is enough for a sign, which no chance turns (the cosine
of two random vectors of n elements is about 1 / sqrt(n)), and costs a hundredth of the merge.
Sums are plain `einsum` and additions row by row in float64: no BLAS, whose results may depend on
the number of threads.

Whom can one believe? With three contributions or more the majority: a cosine is that of one
against the sum of the others, each with one vote, however long it is and whatever it weighs; where
the others do not agree among themselves either, nobody is doubted. With two, both see the same
cosine, and the outer momentum says which of them turned; if it sides with neither, both are taken.
With one there is nobody to ask: momentum alone cannot tell a turned sign from the day on which an
outer step went too far, when everybody turns.

What changes neither norm nor direction is not noticed: a bit in a mantissa, an exponent's bit that
makes one number of millions smaller, a sign in one tensor of many, the majority's errors.
"""

from collections.abc import Sequence
from math import inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddloco.outer.merge import F32, F64, Contribution, Segment
from ddloco.outer.weights import lower_median, usual_norm
from ddloco.protocol.effects import MergeFragment
from ddloco.protocol.events import Measured
from transport import DTYPES

SAMPLE = 16 * 1024
"""Elements whose direction is looked at, at least, where there are so many, and twice at most."""

RUN = 16
COSINE_SLACK = 0.2
SIGMAS = 4.0
"""A cosine may be so far below the usual one, and below zero: by a fifth, and by four times what
chance makes of random vectors of that many elements. Honest learners pull at right angles at worst;
a turned sign makes of the usual cosine its negative."""

MAJORITY = 3
"""Fewer contributions than this have no median that one wrong one cannot move."""


class Judge:
    """Measures the contributions of one merge, and says which of them are not believed.

    Args:
        work: the merge; its numbers are what is usual.
        theta: the global fragment, flat float32.
        momentum: the outer optimizer's state, flat float32; zeros before the first merge.
        segments: the tensors, as for the merge itself.

    Attributes:
        measured: norm and cosine of every contribution of finite numbers, once called.
        sampled: elements whose direction is looked at.
    """

    def __init__(
        self, work: MergeFragment, theta: F32, momentum: F32, segments: Sequence[Segment]
    ) -> None:
        self._work = work
        self._shares = {share.name: share for share in work.shares}
        self._places = _places(segments)
        self._segments = segments
        self._theta = self._sample(theta)
        self._momentum = self._sample(momentum)
        self._size = theta.size
        self.sampled = self._theta.size
        self.measured: tuple[Measured, ...] = ()

    def __call__(
        self, candidates: Sequence[Contribution], norms: Sequence[float], faults: Sequence[str]
    ) -> list[str]:
        """The faults of all candidates, those that were known and those that are found here."""
        found = list(faults)
        sound = [i for i, fault in enumerate(faults) if not fault]
        usual = self._usual(candidates, norms, sound)
        for i in sound:
            # Of a share from an older version, the difference holds what was merged since.
            most = self._work.band * (usual[i] + self._shares[candidates[i].name].moved)
            if usual[i] > 0.0 and norms[i] > most:
                found[i] = f"norm {norms[i]:.4g}, this fragment's band ends at {most:.4g}"
        level = [i for i in sound if not found[i] and self._is_level(candidates[i])]
        cosines = self._directions(candidates, level, found)
        self.measured = tuple(Measured(candidates[i].name, norms[i], cosines.get(i)) for i in sound)
        return found

    def moved(self, theta: F32) -> float:
        """How far a step to ``theta`` goes, estimated from the sample."""
        step = self._sample(theta) - self._theta
        return _length(step) * sqrt(self._size / step.size)

    def _is_level(self, candidate: Contribution) -> bool:
        """Whether it started from the version that it is merged into."""
        return self._shares[candidate.name].moved == 0.0

    def _usual(
        self, candidates: Sequence[Contribution], norms: Sequence[float], sound: Sequence[int]
    ) -> dict[int, float]:
        """Per share the usual norm, of earlier merges or of this one's majority: the longer one,
        since what happens to most of them at once is no error of one. 0 where nobody knows."""
        level = [i for i in sound if self._is_level(candidates[i])]
        steps = [self._shares[candidates[i].name].steps for i in range(len(candidates))]
        section = [(norms[i], steps[i]) for i in level] if len(level) >= MAJORITY else []
        return {
            i: max(self._shares[candidates[i].name].usual, usual_norm(section, steps[i]))
            for i in sound
        }

    def _directions(
        self, candidates: Sequence[Contribution], level: Sequence[int], faults: list[str]
    ) -> dict[int, float]:
        """Refuse the one that is most at odds with the others, until nobody is; what is left."""
        units = {i: _unit(self._theta - self._view(candidates[i])) for i in level}
        live = [i for i in level if units[i] is not None]
        along = _unit(self._momentum)
        slack = COSINE_SLACK + SIGMAS / sqrt(self.sampled)
        while len(live) > 1:
            rows = np.array([units[i] for i in live])
            cosines = _against_others(rows)
            lowest = min(0.0, self._work.cosine or 0.0) - slack
            worst = self._most_at_odds(rows, cosines, along, slack)
            if worst is None or cosines[worst] >= lowest:
                return dict(zip(live, cosines, strict=True))
            faults[live[worst]] = (
                f"cosine {cosines[worst]:.3f} to the others, "
                f"this fragment's band begins at {lowest:.3f}"
            )
            del live[worst]
        return {}

    def _most_at_odds(
        self, rows: F64, cosines: Sequence[float], along: F64 | None, slack: float
    ) -> int | None:
        """Who is to be doubted; nobody where the others do not agree among themselves either."""
        if len(rows) < MAJORITY:
            return _turned(rows, along, slack) if self._work.cosine is not None else None
        worst = min(range(len(rows)), key=lambda k: cosines[k])
        others = _against_others(np.delete(rows, worst, axis=0))
        return worst if lower_median(others) > slack else None

    def _sample(self, flat: F32) -> F64:
        parts = [flat[segment.start : segment.stop] for segment in self._segments]
        return self._gather(parts)

    def _view(self, candidate: Contribution) -> F64:
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


def _places(segments: Sequence[Segment]) -> list[int]:
    """Per tensor, of how many elements the first 16 are taken; an odd number of runs, so that rows
    of a matrix, whose lengths are powers of two, are met at other columns each time."""
    total = sum(segment.stop - segment.start for segment in segments)
    return [RUN * (max(total // SAMPLE - 1, 0) | 1)] * len(segments)


def _unit(vector: F64) -> F64 | None:
    length = _length(vector)
    return vector / length if 0.0 < length < inf else None


def _length(vector: F64) -> float:
    return sqrt(float(np.einsum("i,i->", vector, vector)))


def _against_others(units: F64) -> list[float]:
    """The cosine of each unit vector, (M, n), and the sum of all the others; 0 if that is zero."""
    total = units.sum(0)
    dots = np.einsum("ij,j->i", units, total) - 1.0
    square = float(np.einsum("i,i->", total, total))
    lengths = [square - 2.0 * float(dot) - 1.0 for dot in dots]
    return [
        float(dot) / sqrt(length) if length > 1e-12 else 0.0
        for dot, length in zip(dots, lengths, strict=True)
    ]


def _turned(pair: F64, along: F64 | None, slack: float) -> int | None:
    """Which of two goes against the outer momentum, when the other goes with it."""
    if along is None:
        return None
    first, second = (float(each) for each in np.einsum("ij,j->i", pair, along))
    if min(first, second) >= -slack or max(first, second) <= slack:
        return None
    return 0 if first < second else 1
