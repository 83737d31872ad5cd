"""The order in which a syncer synchronises global steps; ``pacing`` decides when."""

from collections.abc import Sequence

from msgspec import Struct

from ddloco.job.protocol.fragment_plan import FragmentPlan


class Schedule(Struct, forbid_unknown_fields=True):
    """Which global steps were launched (``t`` is the newest, or what an earlier syncer had merged),
    and which must be repeated, in order."""

    t: int = 0
    again: list[int] = []

    def recover(self, t: int) -> None:
        """Continue after ``t``; fragments not merged before it are due again an interval later."""
        self.t = t

    def next(self, plan: FragmentPlan, owned: Sequence[int], steps: int) -> int | None:
        """Return the global step of the next sync; None when all syncs are launched."""
        if self.again:
            return self.again[0]
        t = self.t
        for _ in plan.fragments:
            t = plan.next_due(t, steps)
            if t is None or plan.fragment_due(t) in owned:
                return t
        return None

    def launched(self, t: int) -> None:
        self.again = [each for each in self.again if each != t]
        self.t = max(self.t, t)

    def repeat(self, t: int) -> None:
        """Repeat the sync of ``t``, which failed, before any later one."""
        self.again = sorted([*self.again, t])


def due_at(plan: FragmentPlan, t: int) -> int:
    fragment = plan.fragment_due(t)
    assert fragment is not None, "the schedule names steps at which one is due"
    return fragment
