"""Where numbers of a run first stopped being finite, as far as tapes say: losses of steps,
contributions that merges refused for it, and held-out losses."""

import math
from collections.abc import Iterator

from msgspec import Struct

from ddloco.debugger.recorded_job import RecordedJob
from ddloco.debugger.wording import listed
from ddloco.job.protocol.work import STATE_STEPS
from ddloco.machines.outer.merge import NOT_FINITE


class Sign(Struct, frozen=True):
    """The first sign of one kind of one actor, in words.

    Attributes:
        whose: the learner, or the syncer that evaluated.
        learner: whether its own steps showed it.
    """

    event: str
    whose: str
    what: str
    learner: bool = False


class NotFinite(Struct, frozen=True):
    """What is not finite in a run.

    Attributes:
        firsts: signs of which nobody had heard of another one; ``later`` are the others.
        steps: inner steps that were looked at; ``merges`` and ``held_out`` likewise.
    """

    firsts: tuple[Sign, ...]
    later: tuple[Sign, ...]
    steps: int
    merges: int
    held_out: int

    def lines(self) -> list[str]:
        looked = f"{self.steps:,} losses, {self.merges:,} merges, {self.held_out:,} held-out losses"
        if not self.firsts:
            return [f"every number on the tapes is finite: {looked}"]
        found = [f"first: {each.whose}: {each.what} ({each.event})" for each in self.firsts]
        found += [f"later: {each.whose}: {each.what} ({each.event})" for each in self.later]
        if len(self.firsts) > 1:
            names = ", ".join(dict.fromkeys(each.whose for each in self.firsts))
            found.append(f"{names}: none of these had heard of the others")
        return found


def not_finite_in(run: RecordedJob) -> NotFinite:
    signs = [*signs_of_learners(run), *_of_merges(run), *_of_evaluations(run)]
    before = run.unheard([each.event for each in signs])
    order = run.clock_sums(each.event for each in signs)
    signs.sort(key=lambda each: (order[each.event], each.event))
    return NotFinite(
        tuple(each for each in signs if each.event in before),
        tuple(each for each in signs if each.event not in before),
        sum(each.count for who in run.learners for _, each in run.finished(who)),
        sum(1 for _ in run.merges()),
        sum(len(run.held_out(who)) for who in run.syncers),
    )


def signs_of_learners(run: RecordedJob) -> Iterator[Sign]:
    """The first loss of each learner that is not finite, with what came before and after; and the
    first time that its state had a NaN."""
    for who in run.learners:
        seen = [(record, event) for record, event in run.finished(who) if event.nan]
        if seen:
            record, event = seen[0]
            first = event.step // STATE_STEPS * STATE_STEPS
            said = f"{listed(event.nan)} has a NaN after inner step {first}"
            said += f", and had none {STATE_STEPS} steps before" if first > STATE_STEPS else ""
            yield Sign(f"{who}:{record.n}", who, said, learner=True)
        steps = run.steps_of(who)
        wrong = [at for at, (*_, each) in enumerate(steps) if not math.isfinite(each.loss)]
        if not wrong:
            continue
        record, step, each = steps[wrong[0]]
        said = [f"its loss is {each.loss} at inner step {step}"]
        if wrong[1:]:
            said.append(f"the first of {len(wrong)} such steps of {len(steps)}")
        if wrong[0]:
            said.append(
                f"that of step {steps[wrong[0] - 1][1]} was {steps[wrong[0] - 1][2].loss:.4g}"
            )
        back = next((at for at in range(wrong[0], len(steps)) if at not in {*wrong}), None)
        if back is not None:
            said.append(f"from step {steps[back][1]} on it was finite again")
        yield Sign(f"{who}:{record.n}", who, ", ".join(said), learner=True)


def _of_merges(run: RecordedJob) -> Iterator[Sign]:
    """The first contribution of each learner that a merge refused for it."""
    seen: set[str] = set()
    for merge in run.merges():
        for each in merge.absent:
            if each.kind == "refused" and NOT_FINITE in each.reason and each.learner not in seen:
                seen.add(each.learner)
                yield Sign(each.event, each.learner, f"merge {merge.t} refused it: {each.reason}")


def _of_evaluations(run: RecordedJob) -> Iterator[Sign]:
    for who in run.syncers:
        for record, event in run.held_out(who):
            if event.loss is not None and not math.isfinite(event.loss):
                yield Sign(f"{who}:{record.n}", who, f"the held-out loss is {event.loss}")
                break
