"""How a learner keeps step with the schedule, with ``sync.blocking``, as in DiLoCo (arXiv
2311.08105) and Streaming DiLoCo (arXiv 2501.18512): it contributes a fragment as it is at the
global step at which that is due, and waits for the answer exactly ``overlap`` steps later."""

from collections.abc import Sequence

from msgspec import Struct

from ddloco.job.config import Job
from ddloco.job.protocol.fragment_plan import FragmentPlan
from ddloco.machines.clients import clients


class Stand(Struct, forbid_unknown_fields=True):
    """All parameters at a position: the handle of the copy, and the steps and tokens until then."""

    handle: str
    step: int
    tokens: int


class Lockstep(Struct, forbid_unknown_fields=True):
    """Where a learner is in the schedule.

    Attributes:
        position: the global step that its parameters have come to; -1 after it has started over,
            until its next step begins.
        began: the position at which it began. It does not wait for syncs of before: nobody may be
            left to contribute to them but learners that have begun since.
        waits_since: the time since which it waits for a version, in seconds; None if it trains.
    """

    position: int = 0
    began: int | None = None
    stands: dict[int, Stand] = {}
    waits_since: float | None = None

    def must_wait(self, job: Job, plan: FragmentPlan, name: str, newest: Sequence[int]) -> bool:
        """Whether no step may begin: a version is missing, others train in this round, or the last
        global step is reached. ``newest`` has versions that are installed or have arrived."""
        position = self.after(newest)
        if position >= job.job.last_step:
            return True  # The job has as many steps as it says.
        began = position if self.began is None else self.began
        for p, offset in enumerate(plan.offsets):
            since_due = (position - job.sync.overlap - offset) % plan.interval
            due = position - job.sync.overlap - since_due
            if due > began and newest[p] < due:
                return True
        if job.sync.clients == 1.0:
            return False
        t = plan.next_due(position, job.job.last_step)
        return t is not None and name not in clients(job, t)

    def after(self, versions: Sequence[int]) -> int:
        return max(self.position, *versions)

    def installs(self, version: int, overlap: int) -> bool:
        """Whether a version that has arrived is installed before the next step, and not later: when
        it arrives decides nothing. Who is behind it, or has not begun, takes it at once."""
        begun = self.position >= 0 and self.began is not None
        return not (begun and version <= self.position < version + overlap)

    def begin_step(self, versions: Sequence[int]) -> None:
        self.position = self.after(versions)
        self.began = self.position if self.began is None else self.began

    def copies(self, job: Job, plan: FragmentPlan, position: int) -> bool:
        """Whether all parameters are copied at a position: a fragment is due, or any may be
        pulled, since the schedule is over."""
        return position >= job.job.last_step or plan.fragment_due(position) is not None

    def finish(self, position: int, stand: Stand) -> list[str]:
        """Keep the copy of all parameters after a finished step, if any; returns its handle if it
        is of no use, because the learner has started over meanwhile."""
        if self.position < 0:
            return [stand.handle] if stand.handle else []
        self.position = position
        if stand.handle:
            self.stands[position] = stand
        return []

    def at(self, t: int, last: int) -> Stand | None:
        """Return the copy that answers a pull of global step ``t``: that of this position, or the
        next one if it began later; after the ``last`` one the newest copy."""
        if t > last:
            return self.stands.get(max(self.stands, default=-1))
        return self.stands.get(min((each for each in self.stands if each >= t), default=-1))

    def start_over(self) -> list[str]:
        """Go back to the newest version, because a contribution was refused; returns the handles of
        the copies that are forgotten with it."""
        self.position, dropped = -1, [each.handle for each in self.stands.values()]
        self.stands.clear()
        return dropped

    def release(self, versions: Sequence[int], plan: FragmentPlan) -> list[str]:
        """Forget the copies that no pull may ask for any more; returns their handles."""
        newest = max(self.stands, default=0)
        done = [t for t in self.stands if t < newest and _answered(t, versions, plan)]
        return [self.stands.pop(t).handle for t in done]


def _answered(t: int, versions: Sequence[int], plan: FragmentPlan) -> bool:
    p = plan.fragment_due(t)
    return p is None or versions[p] >= t
