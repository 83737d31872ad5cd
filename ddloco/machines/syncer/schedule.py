"""Which global step is synchronised next: the order of a syncer's work, apart from its pace."""

from collections.abc import Sequence

from ddloco.protocol.fragment_plan import FragmentPlan


class Schedule:
    """The global steps at which a fragment is due, and those that must be tried again.

    Args:
        plan: which fragment is due when.
        owned: the fragments that are one's own.
        steps: the job's last global step.

    Attributes:
        t: the newest global step that was launched, or that an earlier syncer had merged.
    """

    def __init__(self, plan: FragmentPlan, owned: Sequence[int], steps: int) -> None:
        self._plan = plan
        self._owned = frozenset(owned)
        self._steps = steps
        self._again: list[int] = []
        self.t = 0

    def recover(self, t: int) -> None:
        """Go on behind ``t``: what lay before it and was not merged is due an interval later."""
        self.t = t

    def extend(self, steps: int) -> None:
        """The job has another last global step than it had."""
        self._steps = steps

    def next(self) -> int | None:
        """The global step of the next sync, None when the schedule is through."""
        if self._again:
            return self._again[0]
        t = self._plan.next_due(self.t, self._steps)
        while t is not None and self.fragment(t) not in self._owned:
            t = self._plan.next_due(t, self._steps)
        return t

    def fragment(self, t: int) -> int:
        """The fragment that is synchronised at a global step that ``next`` has named."""
        fragment = self._plan.fragment_due(t)
        assert fragment is not None, "the schedule names steps at which one is due"
        return fragment

    def launched(self, t: int) -> None:
        """The sync of ``t`` is under way."""
        self._again = [each for each in self._again if each != t]
        self.t = max(self.t, t)

    def repeat(self, t: int) -> None:
        """The sync of ``t`` came to nothing; it comes before whatever is later."""
        self._again = sorted([*self._again, t])
