"""Finds where a training loss left its band, and the contributions that stand out from the others.
A loss *breaks* at the first step from which it stays far above what it was just before; the first
break is in the causal past of the others. A norm stands out for the steps and the base that it is
of.

A learner is suspected on evidence alone: its loss broke first, for good, and nothing that stands
out had arrived; or its contribution stands out that came just before, and no other learner went on
with it for long unharmed; or it is beyond any doubt; or it counts tokens otherwise than all others.
"""

import math
from collections import deque
from collections.abc import Sequence
from itertools import islice
from statistics import median
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from clocks import actor_of
from ddloco.debugger.drawn_batches import twins_of
from ddloco.debugger.merge_history import Merge, MergeAnswer
from ddloco.debugger.recorded_job import RecordedJob
from ddloco.debugger.recorded_run import parse_event
from ddloco.job.protocol.messages import GlobalFragment
from ddloco.job.protocol.work import StepFinished
from ddloco.machines.outer.weights import usual_norm
from ddloco.machines.syncer.apart import LEAST_SHARE, counts_otherwise, own_batches
from transport import MessageArrived

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

STANDS_OUT = 4.0
"""How many times the norm that is expected from the others' contributions stands out."""

NOTHING = 0.01
"""A norm below this share of the largest of the first merges of its fragment moves the model by
next to nothing: where losses are that of noise, its norm is not compared with that of noise."""

BEYOND_DOUBT = 30.0
"""From so many times on, a contribution is suspect though no loss broke: it may have been refused,
or merged with little weight. Contributions of sound learners stay below a tenth of it."""

RISE_SHARE, RISE_TIMES = 0.05, 10.0
"""By what share of a learner's first losses, or to how many times the usual one, its loss rises for
which alone it is suspect: by itself a learner's loss drifts by less."""

LEAP_TIMES, LEAP_USUAL_TIMES = 10.0, 100.0
"""How many times the largest of its first losses, and the usual one, a loss is that needs no other
evidence."""

LONG_MIN, OTHERS_TIMES = 8, 4
"""So many contributions of a learner stand out, most of those since the first, and so many times as
many as of any other: then it is suspect though none is beyond doubt and no loss broke."""

LASTS_STEPS, LASTS_STEPS_MIN, LASTS_SHARE = 64, 6, 0.5
"""A break is for good if this share of the losses of so many steps is outside the band; near a
tape's end of fewer, but not below the least number, which would tell nothing."""

FORMER_MIN, FORMER_MAX = 2, 8
"""With how many former contributions to a fragment one is compared that is alone in its merge, or
whose others are of older versions."""

WENT_BACK = 1.25
"""A loss that rises at the installation of a version goes back to what it was when the learner had
trained what is in that version; to so many times that, for batches differ."""

JUST_BEFORE_STEPS = 12
"""A contribution may have led to a break within so many steps of the learner that broke."""

LISTED_MAX = 5


class LossStep(NamedTuple):
    number: int
    step: int
    loss: float


class Break(Struct, frozen=True):
    """Where a learner's loss left its band.

    Attributes:
        event: its event, the first step outside the band.
        usual: the median of the losses before.
        first: whether no other break is in its causal past.
        lasts: whether it is for good.
        after: the median of the losses after it.
        began: the largest of the learner's first losses.
    """

    learner: str
    event: str
    step: int
    loss: float
    usual: float
    first: bool = False
    lasts: bool = False
    after: float = math.inf
    began: float = 0.0

    @property
    def is_large(self) -> bool:
        """Whether it is more than losses do by themselves."""
        rise = RISE_SHARE * self.began
        return not self.after < min(self.usual + rise, RISE_TIMES * abs(self.usual) + rise / 10)


class Outlier(Struct, frozen=True):
    """A contribution that stands out.

    Attributes:
        event: the syncer's event.
        times: how many times the norm that is expected of so many steps from that base.
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
    steps: int
    breaks: tuple[Break, ...]
    outliers: tuple[Outlier, ...]
    doubted: tuple[tuple[str, int], ...] = ()
    """Learners by how many of their contributions stand out, most first."""
    suspect: str = ""
    """The learner that the evidence points to; empty if it points to none."""
    because: str = ""
    """Why, in words; without a suspect, why the evidence does not suffice; empty if nothing has to
    be explained."""

    def lines(self) -> list[str]:
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
                f"norm {each.norm:.4g}, {each.times:.1f} times what is usual for as many "
                f"steps{cosine}"
            )
        if self.suspect:
            lines.append(f"most suspect: {self.suspect}: {self.because}")
        elif self.because:
            lines.append(f"nobody is suspected: {self.because}")
        lines += [
            f"{learner}: {count} {'contribution stands' if count == 1 else 'contributions stand'} "
            "out in norm"
            for learner, count in self.doubted
        ]
        return lines


def analyse_losses(run: RecordedJob) -> LossFindings:
    breaks: list[Break] = []
    leaps: list[Break] = []
    steps = 0
    counted: dict[str, float] = {}
    own = own_batches(run.job)
    for learner in run.learners:
        finished = run.steps_of(learner)
        losses = [LossStep(record.n, step, each.loss) for record, step, each in finished]
        steps += len(losses)
        if finished and actor_of(learner) not in own:
            counted[learner] = median(each.tokens for *_, each in finished)
        leap = find_leap(losses)
        if leap is not None:
            at, usual = leap
            leaps.append(Break(learner, f"{learner}:{at.number}", at.step, at.loss, usual))
        found = find_break(losses)
        if found is not None:
            at, usual = found
            later = [each.loss for each in losses if each.number >= at.number][:LASTS_STEPS]
            told = Break(learner, f"{learner}:{at.number}", at.step, at.loss, usual)
            breaks.append(
                replace(
                    told,
                    lasts=_lasts(later, at, usual),
                    after=median(later),
                    began=max(each.loss for each in losses[:BEFORE_STEPS_MIN]),
                )
            )
    outliers = sorted(_outliers(run), key=lambda each: (-each.times, each.t, each.learner))
    counts: dict[str, int] = {}
    for each in outliers:
        counts[each.learner] = counts.get(each.learner, 0) + 1
    doubted = tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    ordered = _ordered(run, breaks)
    suspect, because = _suspect(run, ordered, outliers, counted, _first_of(run, leaps, breaks))
    listed = tuple(outliers[:LISTED_MAX])
    return LossFindings(steps, ordered, listed, doubted, suspect, because)


def _suspect(
    run: RecordedJob,
    breaks: Sequence[Break],
    outliers: Sequence[Outlier],
    counted: dict[str, float],
    leaps: Sequence[Break],
) -> tuple[str, str]:
    """Return the learner that the evidence points to, and why; or nobody, and why not."""
    learner, otherwise = counts_otherwise(counted)
    if learner:  # By its tokens it is weighed, so they explain what stands out.
        return learner, otherwise
    beyond = [each for each in outliers if each.times >= BEYOND_DOUBT]
    if beyond:
        first = min(beyond, key=lambda each: (each.t, -each.times))  # Others may follow from it.
        said = f"its contribution to merge {first.t} has {first.times:.3g} times the usual norm"
        return first.learner, said
    if len({actor_of(each.learner) for each in leaps}) == 1:
        said = f"its loss was {leaps[0].loss:.4g} at inner step {leaps[0].step}, usually "
        said += f"{leaps[0].usual:.4g}; no model that has just begun is so wrong"
        return leaps[0].learner, said
    persistent = _stands_out_for_long(run, outliers)
    # Where two have the same data, these weigh twice, and whoever has other data stands out.
    if persistent[0] and (run.is_simulated or not any(twins_of(run))):
        return persistent
    firsts = [each for each in breaks if each.first]
    if not firsts:
        return "", ""
    if not any(each.lasts for each in firsts):
        return "", "the losses came back, or there are too few of them after that"
    counts: dict[str, int] = {}
    known = [_heard_just_before(run, first) for first in firsts] if outliers else []
    unharmed = _heard_by_unharmed(run, breaks) if outliers else []
    for each in outliers:
        syncer, number = parse_event(each.event)
        led = any(then.get(syncer, 0) < number <= now.get(syncer, 0) for then, now in known)
        harmless = any(heard.get(syncer, 0) >= number for heard in unharmed)
        if led and not each.refused and not harmless:
            counts[each.learner] = counts.get(each.learner, 0) + 1
    if len(counts) == 1:
        [(learner, count)] = counts.items()
        said = (
            f"{count} of its contributions that were merged just before the first break stand out"
        )
        return learner, said
    if counts:
        return "", f"contributions of {', '.join(sorted(counts))} stand out before the first break"
    if len(firsts) > 1:
        said = "and no contribution before that stands out"
        if not run.job.sync.band:
            said = "and with sync.band = 0 no contribution's norm is measured"
        return "", f"several losses broke at once, {said}"
    [first] = firsts
    if went_back(run, first):
        return "", "that loss rose where a version without its newest steps took their place"
    if not first.is_large:
        return "", "that loss rose by little beside what it began with"
    return first.learner, "its loss broke first, and nothing that it had received stands out"


def _stands_out_for_long(run: RecordedJob, outliers: Sequence[Outlier]) -> tuple[str, str]:
    """Return the one learner of which contribution after contribution stands out, and that in
    words; nobody if it is not most of them, or others have such, too."""
    by_learner: dict[str, list[Outlier]] = {}
    for each in outliers:
        by_learner.setdefault(each.learner, []).append(each)
    if not by_learner:
        return "", ""
    learner = max(by_learner, key=lambda each: len(by_learner[each]))
    own = by_learner.pop(learner)
    others = max(map(len, by_learner.values()), default=0)
    since = min(each.t for each in own)
    whole = sum(
        each.learner == learner
        for merge in run.merges()
        if merge.t >= since
        for each in (*merge.contributions, *merge.refused)
    )
    if len(own) < LONG_MIN or 2 * len(own) < whole or OTHERS_TIMES * others > len(own):
        return "", ""
    times = median(each.times for each in own)
    said = f"{len(own)} of its {whole} contributions since merge {since} have {times:.3g} times"
    return learner, f"{said} the usual norm (the median)"


def went_back(run: RecordedJob, found: Break) -> bool:
    """Whether a loss rose because a version took the place of steps that are not in it: those after
    the learner's last contribution to it, or all of its work."""
    versions = _installed_before(run, found)
    losses = {step: each.loss for _, step, each in run.steps_of(found.learner)}
    # A version without any of its work is no worse than what it began with.
    begun = max(islice(losses.values(), BEFORE_STEPS_MIN), default=0.0)
    for merge in run.merges():
        if (merge.fragment, merge.t) not in versions:
            continue
        own = [each.step for each in merge.contributions if each.learner == found.learner]
        then = losses.get(own[0] + 1, 0.0) if own else begun
        if found.loss <= WENT_BACK * then:
            return True
    return False


def _installed_before(run: RecordedJob, found: Break) -> set[tuple[int, int]]:
    """The fragments, each with its version, that a learner had installed just before it broke. A
    request of steps begins when the one before it is finished, with all that has come by then."""
    came: set[tuple[int, int]] = set()
    taken: set[tuple[int, int]] = set()
    for _, event in run.events(found.learner, StepFinished, MessageArrived):
        if isinstance(event, MessageArrived) and isinstance(event.body, GlobalFragment):
            came.add((event.body.fragment, event.body.version))
        elif isinstance(event, StepFinished):
            if event.step >= found.step:
                began = event.step - len(event.before)
                return taken if found.step == began else set()
            came, taken = set(), came
    return set()


def _lasts(after: Sequence[float], at: LossStep, usual: float) -> bool:
    """Whether a loss that left its band stays outside."""
    if not math.isfinite(at.loss):
        return True
    limit = (usual + at.loss) / 2
    outside = sum(not loss <= limit for loss in after)
    return len(after) >= LASTS_STEPS_MIN and outside >= LASTS_SHARE * len(after)


def _heard_just_before(run: RecordedJob, first: Break) -> tuple[dict[str, int], dict[str, int]]:
    """The clocks of a learner ``JUST_BEFORE_STEPS`` steps before its break, and at the break: what
    led to it lies between them."""
    until = first.step - JUST_BEFORE_STEPS
    before = [record.n for record, step, _ in run.steps_of(first.learner) if step <= until]
    then = run.clock(first.learner, before[-1]).wire() if before else {}
    return then, run.clock(*parse_event(first.event)).wire()


def _heard_by_unharmed(run: RecordedJob, breaks: Sequence[Break]) -> list[dict[str, int]]:
    """The clocks of the learners whose loss did not break, ``JUST_BEFORE_STEPS`` steps before their
    end: what was merged by then is no cause of a break."""
    broken = {actor_of(each.learner) for each in breaks}
    steps = {who: [record.n for record, *_ in run.steps_of(who)] for who in run.learners}
    return [
        run.clock(who, own[-1 - JUST_BEFORE_STEPS]).wire()
        for who, own in steps.items()
        if actor_of(who) not in broken and len(own) > JUST_BEFORE_STEPS
    ]


def find_break(losses: Sequence[LossStep]) -> tuple[LossStep, float] | None:
    """Return the first step whose loss leaves its band for good, and the median before it. A step
    leaves its band if it and the next ``STAYS_STEPS`` - 1 are all above the band, or if its loss is
    not finite."""
    values = [each.loss for each in losses]
    first = [abs(value) for value in values[:BEFORE_STEPS_MIN] if math.isfinite(value)]
    least = LEAST_SHARE * median(first) if first else 0.0
    for i, each in enumerate(losses):
        before = values[max(0, i - BEFORE_STEPS) : i]
        if not math.isfinite(each.loss):
            return each, median(before) if before else 0.0
        stays = values[i : i + STAYS_STEPS]
        if len(before) < BEFORE_STEPS_MIN or len(stays) < STAYS_STEPS:
            continue
        usual = median(before)
        if any(value <= usual for value in stays):  # A limit is never below the median.
            continue
        spread = 1.4826 * median(abs(value - usual) for value in before)
        limit = usual + SPREADS * max(spread, SPREAD_MIN * abs(usual), least)
        if all(not value <= limit for value in stays):
            return each, usual
    return None


def find_leap(losses: Sequence[LossStep]) -> tuple[LossStep, float] | None:
    """Return the first step whose loss is beyond all that a model has at its beginning, and the
    median before it; one is enough, for the next version may mend it."""
    values = [each.loss for each in losses]
    first = [abs(value) for value in values[:BEFORE_STEPS_MIN] if math.isfinite(value)]
    worst = max(first, default=0.0)
    for i, each in enumerate(losses):
        if not worst or i < BEFORE_STEPS_MIN or not each.loss > LEAP_TIMES * worst:
            continue
        usual = median(values[max(0, i - BEFORE_STEPS) : i])
        if each.loss > LEAP_USUAL_TIMES * abs(usual):
            return each, usual
    return None


def _first_of(run: RecordedJob, some: Sequence[Break], others: Sequence[Break]) -> list[Break]:
    """Those of some breaks that no break of another learner, of these or others, led to."""
    firsts = run.unheard(each.event for each in (*some, *others))
    return [each for each in some if each.event in firsts]


def _ordered(run: RecordedJob, breaks: list[Break]) -> tuple[Break, ...]:
    """Mark the breaks that have no other break in their causal past, and put them first."""
    firsts = run.unheard(each.event for each in breaks)
    marked = [replace(each, first=each.event in firsts) for each in breaks]
    return tuple(sorted(marked, key=lambda each: (not each.first, each.step, each.learner)))


class _Former:
    """The former merges of a fragment, as far as they are known: what is usual, and how far it has
    moved. One expectation with the merge itself; see ``machines.outer.outlier_test``."""

    def __init__(self) -> None:
        self._norms: deque[tuple[float, int]] = deque(maxlen=FORMER_MAX)
        self._first: list[float] = []
        self._moves: list[tuple[int, float]] = []
        self._begun = 0

    def expected(self, each: MergeAnswer, others: Sequence[MergeAnswer]) -> float:
        """Return the norm that is usual after so many steps from such a base; 0 if nothing is
        known. It is that of the others of the merge that were trained from its version, or of
        former merges, whichever is larger; and as much more as the fragment has moved since the
        base."""
        version = max(other.base for other in (each, *others))
        level = [(other.norm, other.steps) for other in others if other.base == version]
        known = [(norm, steps) for norm, steps in level if norm is not None]
        former = list(self._norms) if len(self._norms) >= FORMER_MIN else []
        usual = max(usual_norm(some, max(each.steps, 1)) for some in (known, former))
        least = NOTHING * max(self._first, default=0.0)
        return max(usual, least) + self._moved(each.base, version) if usual else 0.0

    def _moved(self, base: int, version: int) -> float:
        if base < version and (not self._moves or base < self._begun):
            return math.inf  # The tapes do not say.
        return sum(moved for t, moved in self._moves if t > base)

    def add(self, merge: Merge) -> None:
        bases = [each.base for each in (*merge.contributions, *merge.refused)]
        if not self._moves:
            self._begun = max(bases, default=merge.t)
        self._moves.append((merge.t, merge.moved))
        level = [each for each in merge.contributions if each.base == max(bases)]
        self._norms += [(each.norm, each.steps) for each in level if each.norm is not None]
        norms = [each.norm for each in merge.contributions if each.norm is not None]
        if norms and len(self._first) < FORMER_MAX:
            self._first.append(median(norms))


def _outliers(run: RecordedJob) -> list[Outlier]:
    found: list[Outlier] = []
    former: dict[int, _Former] = {}
    for merge in run.merges():
        known = former.setdefault(merge.fragment, _Former())
        found += _outliers_of(merge, known)
        known.add(merge)
    return found


def _outliers_of(merge: Merge, former: _Former) -> list[Outlier]:
    answers = [(each, each in merge.refused) for each in (*merge.contributions, *merge.refused)]
    found: list[Outlier] = []
    for each, refused in answers:
        expected = former.expected(each, [other for other, _ in answers if other is not each])
        if each.norm is None or not expected or each.norm <= STANDS_OUT * expected:
            continue
        found.append(
            Outlier(
                learner=each.learner,
                t=merge.t,
                fragment=merge.fragment,
                event=merge.event,
                norm=each.norm,
                times=each.norm / expected,
                cosine=each.cosine,
                refused=refused,
            )
        )
    return found
