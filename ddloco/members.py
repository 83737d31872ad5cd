"""What the syncer knows of one learner: what it holds, what it lacks, what may be merged of it."""

import math

from ddloco.messages import Contribution, Progress

RESEND_S_MIN = 30.0
RESEND_STEPS = 10
"""A version that was sent and that a learner still does not show after ten of its steps, at least
half a minute, has been lost with nothing after it that would leave a gap: it is sent again."""


HASTE = 1000.0
HASTE_STEPS = 32
"""How many times faster than its own fastest word, after so many steps, a learner may have been.
Its word is a smoothed step time, and the first one may have held a stall of hours: after 32 steps
a thirtieth of that is left in it, after 60 a six-hundredth. Nothing honest ever comes near."""


class Member:
    """One linked learner.

    Args:
        peer: its link.
        incarnation: its name with number.
        fragments: how many there are.
        merged: per fragment the base version of its last merged contribution, -1 for none; the
            membership's own list, which outlives this link.
        at: seconds; when it joined.

    Attributes:
        progress: its newest report, None before the first.
        fresh: it has reported a finished step since the last sync was launched (paper 3.3 b).
        sent: per fragment the newest version sent in this session, -1 for none.
        heard_at: seconds; when it last said anything.
        joined_at: seconds; when this link came up.
        stepped: steps that it has reported since then.
        strikes: contributions refused in a row by those who merge.
    """

    __slots__ = (
        "_fastest_s", "_first_step", "_told", "fresh", "heard_at", "incarnation", "joined_at",
        "merged", "peer", "progress", "sent", "sent_at", "strikes",
    )  # fmt: skip

    def __init__(
        self, peer: str, incarnation: str, fragments: int, merged: list[int], at: float
    ) -> None:
        self.peer = peer
        self.incarnation = incarnation
        self.merged = merged
        self.sent = [-1] * fragments
        self.sent_at = [at] * fragments
        self.heard_at = self.joined_at = at
        self._first_step = 0
        self._fastest_s = math.inf
        self._told = [(-1, at, 0)] * fragments
        self.strikes = 0
        self.progress: Progress | None = None
        self.fresh = False

    @property
    def step_s(self) -> float:
        """Seconds that one of its steps takes; 0 while that is unknown."""
        return self.progress.step_s if self.progress is not None else 0.0

    @property
    def stepped(self) -> int:
        """Steps reported over this link, but for those of the first report."""
        return self.progress.step - self._first_step if self.progress is not None else 0

    def report(self, at: float, progress: Progress) -> str | None:
        """Take a report; returns what is wrong with one that cannot be true."""
        fragments = len(self.sent)
        if not len(progress.versions) == len(progress.steps) == len(progress.tokens) == fragments:
            lengths = sorted({len(progress.versions), len(progress.steps), len(progress.tokens)})
            return f"report of {lengths} fragments, the plan has {fragments}"
        if self.progress is None:
            self._first_step = progress.step
        before = self.progress.step if self.progress is not None else 0
        if progress.step < before:
            return f"report of step {progress.step} after step {before}"
        self.fresh = self.fresh or progress.step > before
        self.progress = progress
        self.heard_at = at
        if progress.step_s:
            self._fastest_s = min(self._fastest_s, progress.step_s)
        return None

    def lacks(self, at: float, fragment: int, version: int) -> bool:
        """Whether the newest ``version`` is neither held nor, by all appearances, on its way."""
        held = self.progress.versions[fragment] if self.progress is not None else -1
        if held >= version:
            return False
        patience = max(RESEND_STEPS * self.step_s, RESEND_S_MIN)
        return self.sent[fragment] < version or at - self.sent_at[fragment] > patience

    def tell(self, at: float, fragment: int, version: int) -> None:
        """Note that ``version`` is on its way, and when and after which step it was first so."""
        progress = self.progress
        held, step = (progress.versions[fragment], progress.step) if progress else (-1, 0)
        if held < version != self._told[fragment][0]:
            self._told[fragment] = version, at, step
        self.sent[fragment] = version
        self.sent_at[fragment] = at

    def may_contribute(self, fragment: int, oldest: int) -> bool:
        """Whether a pull would bring something new: fresh, trained, not stale, not merged already.

        A learner that contributed a fragment and still shows the version it started from would
        have the same tokens merged twice; it needs the newest version, not another pull. So does
        one whose version is older than ``oldest``: its difference to the newest would be mostly
        what the others have learned since, taken back.
        """
        progress = self.progress
        if not self.fresh or progress is None or not progress.steps[fragment]:
            return False
        return progress.versions[fragment] > self.merged[fragment] and (
            progress.versions[fragment] >= oldest
        )

    def objection(self, said: Contribution, version: int, oldest: int) -> str | None:
        """Why a contribution cannot be merged into a fragment whose newest is ``version``."""
        if said.base <= self.merged[said.fragment]:
            return f"tokens since version {said.base} are merged already"
        if said.base > version:
            return f"trained from version {said.base}, which does not exist yet"
        if said.base < oldest:
            return f"trained from version {said.base}, the oldest that is taken is {oldest}"
        if said.steps == 0 or said.tokens == 0:
            return "nothing was trained"
        return None

    def doubt(self, at: float, said: Contribution) -> str | None:
        """Why it cannot have taken the steps that it says: time, and its own count of steps.

        Whatever it does with a version happens after it was told of it, however slow, stopped or
        cut off anybody was in between.
        """
        version, told_at, told_step = self._told[said.fragment]
        if said.steps > said.step:
            return f"more steps than it has taken: {said.steps} of {said.step}"
        if said.base != version:
            return None  # It may have had that one from an earlier link.
        since = f"since it was told of version {version}"
        if said.steps > said.step - told_step:
            return f"more steps than it has taken: {said.steps} of {said.step - told_step} {since}"
        fastest, elapsed = self._fastest_s, at - told_at
        if fastest < math.inf and (said.steps - HASTE_STEPS) * fastest > HASTE * elapsed:
            return (
                f"more steps than time allows: {said.steps} in {elapsed:.3g} s {since}, "
                f"its fastest was {fastest:.3g} s"
            )
        return None
