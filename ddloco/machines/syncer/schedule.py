"""The order in which a syncer synchronises global steps; ``pacing`` decides when."""

from collections.abc import Sequence

from ddloco.job.protocol.fragment_plan import FragmentPlan


class Schedule:
    """The global steps at which a fragment is due, and those that must be repeated.

    Args:
        plan: the plan that says which fragment is due at which global step.
        owned: the fragments that this syncer owns.
        steps: the job's last global step.

    Attributes:
        t: the newest global step that was launched, or that an earlier syncer had merged.
    """

    def __init__(self, plan: FragmentPlan, owned: Sequence[int], steps: int) -> None:
        self._plan = plan
        self._owned: frozenset[int] = frozenset(owned)
        self._steps = steps
        self._again: list[int] = []
        self.t = 0

    def recover(self, t: int) -> None:
        """Continue after ``t``; fragments not merged before it are due again an interval later."""
        self.t = t

    def extend(self, steps: int) -> None:
        """Change the job's last global step to ``steps``."""
        self._steps = steps

    def next(self) -> int | None:
        """Return the global step of the next sync; None when all syncs are launched."""
        if self._again:
            return self._again[0]
        t = self._plan.next_due(self.t, self._steps)
        while t is not None and self.fragment(t) not in self._owned:
            t = self._plan.next_due(t, self._steps)
        return t

    def fragment(self, t: int) -> int:
        """Return the fragment that is due at ``t``, a global step that ``next`` returned."""
        fragment = self._plan.fragment_due(t)
        assert fragment is not None, "the schedule names steps at which one is due"
        return fragment

    def launched(self, t: int) -> None:
        """Note that the sync of ``t`` was launched."""
        self._again = [each for each in self._again if each != t]
        self.t = max(self.t, t)

    def repeat(self, t: int) -> None:
        """Repeat the sync of ``t``, which failed, before any later one."""
        self._again = sorted([*self._again, t])
