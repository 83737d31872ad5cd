"""What the syncer knows of one learner: what it holds, what it lacks, what may be merged of it."""

import math

from ddloco.machines.syncer.estimates import Smoothed
from ddloco.protocol.messages import Contribution, Progress

RESEND_S_MIN = 30.0
RESEND_STEPS = 10
"""A version that was sent and that a learner still does not show after ten of its steps, at least
half a minute, while it takes in nothing more of what is sent to it, has been lost with nothing
after it that would leave a gap: it is sent again."""


STEP_S_MAX = 1e7
"""Seconds of one step that are believed: four months. Deadlines are made of it."""

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
        unanswered: it left a pull unanswered until the deadline, and has said nothing since.
        sent: per fragment the newest version sent in this session, -1 for none.
        heard_at: seconds; when its last report came.
        spoke_at: seconds; when its last report or contribution came.
        moved_at: seconds; when it was last known to take in more of what is sent to it.
        answer_s: seconds from a pull to the arrival of its answer, smoothed.
        joined_at: seconds; when this link came up.
        stepped: steps that it has reported since then.
        strikes: contributions refused in a row by those who merge.
    """

    __slots__ = (
        "_fastest_s", "_first_step", "_told", "answer_s", "fresh", "heard_at", "incarnation",
        "joined_at", "merged", "moved_at", "peer", "progress", "sent", "sent_at", "spoke_at",
        "strikes", "unanswered",
    )  # fmt: skip

    def __init__(
        self, peer: str, incarnation: str, fragments: int, merged: list[int], at: float
    ) -> None:
        self.peer = peer
        self.incarnation = incarnation
        self.merged = merged
        self.sent = [-1] * fragments
        self.sent_at = [at] * fragments
        self.heard_at = self.spoke_at = self.moved_at = self.joined_at = at
        self.answer_s = Smoothed()
        self._first_step = 0
        self._fastest_s = math.inf
        self._told = [(-1, at, 0)] * fragments
        self.strikes = 0
        self.progress: Progress | None = None
        self.fresh = self.unanswered = False

    @property
    def step_s(self) -> float:
        """Seconds that one of its steps takes; 0 while that is unknown."""
        return self.progress.step_s if self.progress is not None else 0.0

    @property
    def due_at(self) -> float:
        """Seconds; when its next report of a step is to be expected, at once where its pace is
        unknown."""
        return self.heard_at + self.step_s

    @property
    def stepped(self) -> int:
        """Steps reported over this link, but for those of the first report."""
        return self.progress.step - self._first_step if self.progress is not None else 0

    def speak(self, at: float) -> None:
        """It has said something, so it may be pulled again."""
        self.spoke_at, self.unanswered = at, False

    def report(self, at: float, progress: Progress) -> str | None:
        """Take a report; returns what is wrong with one that cannot be true."""
        fragments = len(self.sent)
        if not len(progress.versions) == len(progress.steps) == len(progress.tokens) == fragments:
            lengths = sorted({len(progress.versions), len(progress.steps), len(progress.tokens)})
            return f"report of {lengths} fragments, the plan has {fragments}"
        if not progress.step_s <= STEP_S_MAX:
            return f"report of steps of {progress.step_s} s, at most {STEP_S_MAX:g}"
        if self.progress is None:
            self._first_step = progress.step
        before = self.progress.step if self.progress is not None else 0
        if progress.step < before:
            return f"report of step {progress.step} after step {before}"
        self.fresh = self.fresh or progress.step > before
        self.progress = progress
        self.heard_at = at
        self.speak(at)
        if progress.step_s:
            self._fastest_s = min(self._fastest_s, progress.step_s)
        return None

    def lacks(self, at: float, fragment: int, version: int) -> bool:
        """Whether the newest ``version`` is neither held nor, by all appearances, on its way."""
        held = self.progress.versions[fragment] if self.progress is not None else -1
        if held >= version:
            return False
        patience = max(RESEND_STEPS * self.step_s, RESEND_S_MIN)
        since = max(self.sent_at[fragment], self.moved_at)
        return self.sent[fragment] < version or at - since > patience

    def tell(self, at: float, fragment: int, version: int) -> None:
        """Note that ``version`` is on its way, and when and after which step it was first so."""
        progress = self.progress
        held, step = (progress.versions[fragment], progress.step) if progress else (-1, 0)
        if held < version != self._told[fragment][0]:
            self._told[fragment] = version, at, step
        self.sent[fragment] = version
        self.sent_at[fragment] = at

    def may_contribute(self, fragment: int, oldest: int) -> bool:
        """Whether a pull would bring something new: trained, not stale, not merged already.

        A learner that contributed a fragment and still shows the version it started from would
        have the same tokens merged twice; it needs the newest version, not another pull. So does
        one whose version is older than ``oldest``: its difference to the newest would be mostly
        what the others have learned since, taken back.
        """
        progress = self.progress
        if progress is None or not progress.steps[fragment]:
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
