"""What the syncer knows of each learner, and who may be pulled for which fragment."""

from dataclasses import dataclass

from ddloco.messages import Contribution, Progress


@dataclass(slots=True)
class Member:
    """One linked learner.

    Attributes:
        peer: its link; ``incarnation`` its name with number.
        progress: its newest report, None before the first.
        fresh: it has reported a finished step since the last sync was launched (paper 3.3 b).
        sent: per fragment the newest version sent in this session, -1 for none.
        merged: per fragment the base version of its last merged contribution, -1 for none.
    """

    peer: str
    incarnation: str
    sent: list[int]
    merged: list[int]
    progress: Progress | None = None
    fresh: bool = False

    def report(self, progress: Progress) -> str | None:
        """Take a report; returns what is wrong with one that cannot be true."""
        lengths = {len(progress.versions), len(progress.steps), len(progress.tokens)}
        if lengths != {len(self.sent)}:
            return f"report of {sorted(lengths)} fragments, the plan has {len(self.sent)}"
        before = self.progress.step if self.progress is not None else 0
        if progress.step < before:
            return f"report of step {progress.step} after step {before}"
        self.fresh = self.fresh or progress.step > before
        self.progress = progress
        return None

    def lacks(self, fragment: int, version: int) -> bool:
        """Whether the newest ``version`` is neither held nor on its way."""
        held = self.progress.versions[fragment] if self.progress is not None else -1
        return held < version and self.sent[fragment] < version

    def may_contribute(self, fragment: int) -> bool:
        """Whether a pull would bring something new: fresh, trained, and not merged already.

        A learner that contributed a fragment and still shows the version it started from would
        have the same tokens merged twice; it needs the newest version, not another pull.
        """
        progress = self.progress
        return (
            self.fresh
            and progress is not None
            and progress.steps[fragment] > 0
            and progress.versions[fragment] > self.merged[fragment]
        )

    def objection(self, said: Contribution, version: int) -> str | None:
        """Why a contribution cannot be merged into a fragment whose newest is ``version``."""
        if said.base <= self.merged[said.fragment]:
            return f"tokens since version {said.base} are merged already"
        if said.base > version:
            return f"trained from version {said.base}, which does not exist yet"
        if said.steps == 0 or said.tokens == 0:
            return "nothing was trained"
        return None
