"""Finds where a training loss left its band, and the contributions that stand out from the others.

A learner's loss *breaks* at the first step from which it stays far above what it was just before.
Of several breaks the first one is that which is in the causal past of the others.
"""

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from msgspec import Struct

from clocks import actor_of
from ddloco.debugger.merge_history import Merge
from ddloco.debugger.recorded_run import RecordedRun

BEFORE_STEPS = 20
"""Losses that a band is made of."""

BEFORE_STEPS_MIN = 6
"""With fewer losses there is no band."""

STAYS_STEPS = 3
"""A break lasts for at least so many steps, so that one hard batch does not count."""

SPREADS = 6.0
"""How many spreads (scaled median absolute deviations) above the median a loss leaves its band."""

SPREAD_MIN = 0.02
"""The least spread, as a share of the median."""

STANDS_OUT = 3.0
"""How many times the median norm of the other learners' contributions stands out."""

LISTED_MAX = 5


class LossStep(NamedTuple):
    """One inner step on a tape."""

    number: int
    step: int
    loss: float


class Break(Struct, frozen=True):
    """Where a learner's loss left its band.

    Attributes:
        learner: its incarnation.
        event: its event, the first step outside the band.
        step: that inner step.
        loss: its loss.
        usual: the median of the losses before.
        first: whether no other break is in its causal past.
    """

    learner: str
    event: str
    step: int
    loss: float
    usual: float
    first: bool = False


class Outlier(Struct, frozen=True):
    """A contribution that stands out.

    Attributes:
        learner: its incarnation.
        t: the global step of the merge.
        fragment: the fragment.
        event: the syncer's event.
        norm: the norm of its outer gradient.
        times: how many times the median norm of the others in the same merge.
        cosine: its cosine to the others' sum.
        refused: whether the merge left it out.
    """

    learner: str
    t: int
    fragment: int
    event: str
    norm: float
    times: float
    cosine: float | None
    refused: bool


class LossFindings(Struct, frozen=True):
    """What ``analyse_losses`` found."""

    steps: int
    breaks: tuple[Break, ...]
    outliers: tuple[Outlier, ...]
    doubted: tuple[tuple[str, int], ...] = ()
    """Learners by how many of their contributions stand out, most first."""
    suspect: str = ""
    """The learner that the evidence points to; empty if it points to none."""
    because: str = ""
    """Why, in words."""

    def lines(self) -> list[str]:
        """Return the findings in words."""
        lines: list[str] = []
        if not self.breaks:
            lines.append(f"no learner's loss left its band in {self.steps:,} steps")
        for each in self.breaks:
            order = "first" if each.first else "later"
            lines.append(
                f"{order}: the loss of {each.learner} left its band at inner step {each.step} "
                f"({each.event}): {each.loss:.4g}, usually {each.usual:.4g}"
            )
        firsts = [each for each in self.breaks if each.first]
        if len(firsts) > 1:
            names = ", ".join(each.learner for each in firsts)
            lines.append(f"{names}: none of these knew of the others, so the order is not known")
        for each in self.outliers:
            cosine = "" if each.cosine is None else f", cosine {each.cosine:.3f}"
            verdict = "was refused" if each.refused else "was merged"
            lines.append(
                f"the contribution of {each.learner} to merge {each.t} ({each.event}) {verdict}: "
                f"norm {each.norm:.4g}, {each.times:.1f} times the median of the others{cosine}"
            )
        if self.suspect:
            lines.append(f"most suspect: {self.suspect}: {self.because}")
        lines += [
            f"{learner}: {count} contributions stand out in norm" for learner, count in self.doubted
        ]
        return lines


def analyse_losses(run: RecordedRun) -> LossFindings:
    """Find the breaks of all learners' losses, and the contributions that stand out.

    Raises:
        TapeError: a tape cannot be read.
        Divergence: this program decides otherwise than a tape says.
    """
    breaks: list[Break] = []
    steps = 0
    for learner in run.learners:
        losses = [LossStep(r.n, event.step, event.loss) for r, event in run.steps_of(learner)]
        steps += len(losses)
        found = find_break(losses)
        if found is not None:
            at, usual = found
            ref = f"{learner}:{at.number}"
            breaks.append(Break(learner, ref, at.step, at.loss, usual))
    outliers = sorted(_outliers(run), key=lambda each: (-each.times, each.t, each.learner))
    counts: dict[str, int] = {}
    for each in outliers:
        counts[each.learner] = counts.get(each.learner, 0) + 1
    doubted = tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    ordered = _ordered(run, breaks)
    suspect, because = _suspect(run, ordered, outliers)
    listed = tuple(outliers[:LISTED_MAX])
    return LossFindings(steps, ordered, listed, doubted, suspect, because)


def _suspect(
    run: RecordedRun, breaks: Sequence[Break], outliers: Sequence[Outlier]
) -> tuple[str, str]:
    """Return the learner that the evidence points to, and why; empty texts if it points to none.

    A contribution that stands out and that the first break knew of may have caused it. Without one,
    the learner whose loss broke first was at fault itself: by its data or its arithmetic.
    """
    firsts = [each for each in breaks if each.first]
    if not firsts:
        if outliers:
            worst = outliers[0]
            return worst.learner, f"its contribution to merge {worst.t} stands out"
        return "", ""
    counts: dict[str, int] = {}
    for each in outliers:
        syncer, _, number = each.event.rpartition(":")
        if each.refused or not any(_knew(run, first, syncer, int(number)) for first in firsts):
            continue
        counts[each.learner] = counts.get(each.learner, 0) + 1
    if counts:
        learner = max(sorted(counts), key=lambda name: counts[name])
        said = f"{counts[learner]} of its contributions that were merged before the first break"
        return learner, f"{said} stand out"
    if len(firsts) > 1:
        return "", ""
    return firsts[0].learner, "its loss broke first, and nothing that it had received stands out"


def _knew(run: RecordedRun, first: Break, syncer: str, number: int) -> bool:
    """Whether a break had heard of an event of a syncer."""
    event = int(first.event.rpartition(":")[2])
    return run.clock(first.learner, event).wire().get(syncer, 0) >= number


def find_break(losses: Sequence[LossStep]) -> tuple[LossStep, float] | None:
    """Return the first step whose loss leaves its band for good, and the median before it.

    A step leaves its band if it and the next ``STAYS_STEPS`` - 1 are all above the band, or if its
    loss is not finite.
    """
    values = [each.loss for each in losses]
    for i, each in enumerate(losses):
        before = values[max(0, i - BEFORE_STEPS) : i]
        if not math.isfinite(each.loss):
            return each, median(before) if before else 0.0
        stays = values[i : i + STAYS_STEPS]
        if len(before) < BEFORE_STEPS_MIN or len(stays) < STAYS_STEPS:
            continue
        usual = median(before)
        spread = 1.4826 * median(abs(value - usual) for value in before)
        limit = usual + SPREADS * max(spread, SPREAD_MIN * abs(usual))
        if all(not value <= limit for value in stays):
            return each, usual
    return None


def _ordered(run: RecordedRun, breaks: list[Break]) -> tuple[Break, ...]:
    """Mark the breaks that have no other break in their causal past, and put them first."""
    marked: list[Break] = []
    for each in breaks:
        number = int(each.event.rpartition(":")[2])
        known = run.clock(each.learner, number).wire()
        knew = any(
            known.get(other.learner, 0) >= int(other.event.rpartition(":")[2])
            for other in breaks
            if actor_of(other.learner) != actor_of(each.learner)
        )
        marked.append(
            Break(each.learner, each.event, each.step, each.loss, each.usual, first=not knew)
        )
    return tuple(sorted(marked, key=lambda each: (not each.first, each.step, each.learner)))


def _outliers(run: RecordedRun) -> list[Outlier]:
    return [found for merge in run.merges() for found in _outliers_of(merge)]


def _outliers_of(merge: Merge) -> list[Outlier]:
    """Return the contributions to a merge whose norm stands out from the others'."""
    measured = [
        (each.learner, each.event, each.norm, each.cosine, False)
        for each in merge.contributions
        if each.norm is not None
    ] + [
        (each.learner, each.event, each.norm, each.cosine, True)
        for each in merge.absent
        if each.norm is not None
    ]
    found: list[Outlier] = []
    for learner, event, norm, cosine, refused in measured:
        others = [other for who, _, other, _, _ in measured if who != learner]
        usual = median(others) if others else 0.0
        if usual > 0 and norm > STANDS_OUT * usual:
            outlier = Outlier(
                learner, merge.t, merge.fragment, event, norm, norm / usual, cosine, refused
            )
            found.append(outlier)
    return found
