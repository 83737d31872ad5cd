"""The order in which a syncer synchronises global steps; ``pacing`` decides when."""

from collections.abc import Sequence

from msgspec import Struct

from ddloco.job.protocol.fragment_plan import FragmentPlan


class Schedule(Struct, forbid_unknown_fields=True):
    """Which global steps were launched, and which must be repeated.

    Attributes:
        t: the newest global step that was launched, or that an earlier syncer had merged.
        again: the global steps to repeat, in order.
    """

    t: int = 0
    again: list[int] = []

    def recover(self, t: int) -> None:
        """Continue after ``t``; fragments not merged before it are due again an interval later."""
        self.t = t

    def next(self, plan: FragmentPlan, owned: Sequence[int], steps: int) -> int | None:
        """Return the global step of the next sync; None when all syncs are launched.

        Args:
            plan: the plan that says which fragment is due at which global step.
            owned: the fragments that this syncer owns.
            steps: the job's last global step.
        """
        if self.again:
            return self.again[0]
        t = self.t
        for _ in plan.fragments:
            t = plan.next_due(t, steps)
            if t is None or plan.fragment_due(t) in owned:
                return t
        return None

    def launched(self, t: int) -> None:
        """Note that the sync of ``t`` was launched."""
        self.again = [each for each in self.again if each != t]
        self.t = max(self.t, t)

    def repeat(self, t: int) -> None:
        """Repeat the sync of ``t``, which failed, before any later one."""
        self.again = sorted([*self.again, t])


def due_at(plan: FragmentPlan, t: int) -> int:
    """Return the fragment that is due at ``t``, a global step that ``Schedule.next`` returned."""
    fragment = plan.fragment_due(t)
    assert fragment is not None, "the schedule names steps at which one is due"
    return fragment
