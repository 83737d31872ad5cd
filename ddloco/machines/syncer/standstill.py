"""Warnings of a job that merges nothing: for how long, and what it waits for. They come at growing
intervals, the first after a minute, or a few steps more than are due if these take longer; nothing
that a syncer decides makes them wait longer."""

from msgspec import Struct

from clocks import actor_of
from ddloco.job.config import Job
from ddloco.job.protocol.fragment_plan import FragmentPlan
from ddloco.job.protocol.timers import StandstillDue
from ddloco.machines.clients import clients
from ddloco.machines.syncer.rounds import Rounds
from ddloco.stage.actors.effects import Observe
from transport import Effect, SetTimer

STANDSTILL_S = 60.0
STANDSTILL_STEPS = 5
"""Time without a merge until the first warning: so many seconds, or steps beyond those that are due
before the next launch, whichever are longer."""

STARTING_S = 180.0
"""The same while no learner has finished two steps. The first one compiles, for minutes where the
model is large."""

REPEAT_S_MAX = 600.0
"""The longest time between two warnings in seconds; the time doubles until then."""

NAMES_MAX = 8
"""Learners that are named in one line."""


class Standstill(Struct, forbid_unknown_fields=True):
    """Checks whether merges are done, and warns otherwise.

    Attributes:
        since: since when merges are expected, or the time of the last one, in seconds.
    """

    since: float = 0.0
    merges: int = 0
    warnings: int = 0

    def begin(self, at: float) -> list[Effect]:
        self.since = at
        return [SetTimer(StandstillDue(), at + STANDSTILL_S)]

    def look(self, at: float, rounds: Rounds, job: Job, plan: FragmentPlan) -> list[Effect]:
        if rounds.over(job, plan):
            return []
        if rounds.merges != self.merges:
            self.merges, self.since, self.warnings = rounds.merges, rounds.merged_at, 0
        patience_s = self._patience_s(rounds, job)
        due = self.since + patience_s
        if not self.warnings and at < due:
            return [SetTimer(StandstillDue(), max(due, at + 1.0))]
        again = at + min(patience_s * 2**self.warnings, max(REPEAT_S_MAX, patience_s))
        self.warnings = min(self.warnings + 1, 10)
        fields = {
            "level": "warning",
            "since_s": round(at - self.since, 3),
            "t": rounds.schedule.t,
            "reason": waits_for(rounds, job),
        }
        return [Observe("no merge", fields), SetTimer(StandstillDue(), again)]

    def words(self, at: float, rounds: Rounds, job: Job, plan: FragmentPlan) -> str:
        """Return a description if nothing was merged for too long, else an empty string."""
        merged_at = max(self.since, rounds.merged_at)
        if rounds.over(job, plan) or at - merged_at < self._patience_s(rounds, job):
            return ""
        return f"no merge for {at - merged_at:.0f} s: waits for {waits_for(rounds, job)}"

    def _patience_s(self, rounds: Rounds, job: Job) -> float:
        report_s, waiting = rounds.pacing.report_s, rounds.waiting
        if report_s is None:
            return STARTING_S
        due = 0
        if waiting is not None:
            paced = waiting.t - rounds.pacing.launched_t if job.sync.blocking else 0
            due = max(waiting.steps, paced)
        return max(STANDSTILL_S, (due + STANDSTILL_STEPS) * report_s)


def waits_for(rounds: Rounds, job: Job) -> str:
    membership = rounds.membership
    linked = len(membership.members)
    if rounds.syncs:
        t, sync = min(rounds.syncs.items())
        late = [peer for peer in sync.pulled if peer not in sync.parts]
        if sync.work:
            return f"the merge of global step {t}, which is being computed"
        if sync.sums_awaited:
            names = first_names(list(sync.sums_awaited))
            return f"the sums of contributions to global step {t}: {names}"
        return f"answers to the pull of global step {t}: {first_names(late)}"
    waiting = rounds.waiting
    if waiting is None:
        return f"a next sync; {linked} learners are linked"
    if job.sync.blocking:
        return _waits_in_round(rounds, job, waiting.t)
    able = membership.able(waiting.fragment, rounds.oldest(waiting.fragment))
    there = {each.incarnation for each in able}
    idle = [each.incarnation for each in membership.members.values()]
    idle = [each for each in idle if each not in there]
    said = f"a quorum of {job.sync.quorum} for global step {waiting.t}: {len(able)} of {linked} "
    said += "linked learners have finished a step with something to merge"
    return f"{said}; nothing new from {first_names(idle)}" if idle else said


def _waits_in_round(rounds: Rounds, job: Job, t: int) -> str:
    train = clients(job, t)
    found = {actor_of(m.incarnation): m for m in rounds.membership.members.values()}
    late = [name for name in train if name not in found or found[name].position < t]
    said = f"a quorum of {job.sync.quorum} for global step {t}: {len(train) - len(late)} of "
    return f"{said}{len(train)} learners of the round have come to it, not {first_names(late)}"


def first_names(incarnations: list[str]) -> str:
    more = len(incarnations) - NAMES_MAX
    shown = ", ".join(incarnations[:NAMES_MAX])
    return f"{shown} and {more} more" if more > 0 else shown
