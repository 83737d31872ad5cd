"""What a syncer knows of one learner: the versions it holds and what it may contribute."""

import math

from msgspec import Struct, field

from ddloco.job.protocol.messages import Contribution, Progress
from ddloco.machines.syncer.estimates import Recent

RESEND_S_MIN = 30.0
RESEND_STEPS = 10
"""A version is sent again if the learner still does not report it after ten of its steps, at least
half a minute, and has acknowledged nothing in that time. The message was then lost without a later
one that would reveal the gap."""


STEP_S_MAX = 1e7
"""The longest accepted step time in seconds, about four months; deadlines are computed from it."""

HASTE = 1000.0
HASTE_STEPS = 32
"""How many times faster than its fastest reported step time a learner may have been, from the
32nd step on. The report is the median of the newest step times, which several stalls of hours may
lengthen for the first eight steps. No honest learner comes near this limit."""


class Member(Struct, forbid_unknown_fields=True, eq=False):
    """One connected learner; made by ``new_member``.

    Attributes:
        sent: for each fragment, the newest version sent over this link; -1 for none.
        sent_at: for each fragment, the time at which that was sent, in seconds.
        told: for each fragment, the newest version that was sent, with the time and the learner's
            step at its first send.
        moved_at: the time at which it last acknowledged more of what was sent to it, in seconds.
        answer_s: seconds from a pull to the arrival of its answer, the median of the newest.
        fresh: it has reported a finished step since the last sync was launched (paper 3.3 b), or
            several together, more than were launched since.
        ahead: the steps that it has done since then, less one if it had reported one step less than
            the schedule at the launch: learners of one speed finish their steps in turns. Of steps
            that it takes together, those that were left then count, too.
        unanswered: it left a pull unanswered until the deadline and has sent nothing since.
        spoken: the number of its reports and contributions over this link.
        strikes: the number of consecutive contributions that the merge has rejected.
    """

    peer: str
    incarnation: str
    sent: list[int]
    sent_at: list[float]
    told: list[tuple[int, float, int]]
    heard_at: float
    moved_at: float
    joined_at: float
    answer_s: Recent = field(default_factory=Recent)
    progress: Progress | None = None
    fresh: bool = False
    ahead: int = 0
    unanswered: bool = False
    spoken: int = 0
    strikes: int = 0
    first_step: int = 0
    fastest_s: float = math.inf

    @property
    def report_s(self) -> float:
        """The expected seconds from one of its reports to the next: those of a step, or of the
        steps that it takes together; 0 while that is unknown."""
        return self.progress.report_s if self.progress is not None else 0.0

    @property
    def position(self) -> int:
        """With ``sync.blocking``, the global step that its parameters have come to."""
        return self.progress.position if self.progress is not None else 0

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens that it trains on per second while it trains; None if that is unknown."""
        progress = self.progress
        if progress is None or not progress.step_s or not progress.step:
            return None
        return progress.trained / progress.step / progress.step_s

    @property
    def due_at(self) -> float:
        """The expected time of its next report, in seconds; its last one if its pace is unknown."""
        return self.heard_at + self.report_s

    @property
    def stepped(self) -> int:
        return self.progress.step - self.first_step if self.progress is not None else 0

    def speak(self) -> None:
        """Note a report or a contribution, so that it may be pulled again."""
        self.spoken, self.unanswered = self.spoken + 1, False

    def report(self, at: float, progress: Progress) -> str | None:
        fragments = len(self.sent)
        if not len(progress.versions) == len(progress.steps) == len(progress.tokens) == fragments:
            lengths = sorted({len(progress.versions), len(progress.steps), len(progress.tokens)})
            return f"report of {lengths} fragments, the plan has {fragments}"
        if not progress.report_s <= STEP_S_MAX:
            return f"report of steps of {progress.report_s} s, at most {STEP_S_MAX:g}"
        if self.progress is None:
            self.first_step = progress.step
        before = self.progress.step if self.progress is not None else 0
        if progress.step < before:
            return f"report of step {progress.step} after step {before}"
        steps, elapsed = progress.step - self.first_step, at - self.joined_at
        if self._in_haste(steps, elapsed):
            return f"report of {steps} steps in {elapsed:.3g} s, {self._fastest()}"
        self.fresh = self.fresh or progress.step > before
        self.ahead += progress.step - before if self.progress is not None else 0
        self.progress = progress
        self.heard_at = at
        self.speak()
        if progress.step_s:
            self.fastest_s = min(self.fastest_s, progress.step_s)
        return None

    def launched(self, steps: int) -> None:
        surplus = self.progress.together - 1 if self.progress is not None else 0
        self.ahead = max(min(self.ahead - steps, surplus), -1)
        self.fresh = self.fresh and self.ahead > 0

    def holds(self, fragment: int) -> int:
        """The version of a fragment that it last reported; -1 before the first report."""
        return self.progress.versions[fragment] if self.progress is not None else -1

    def lacks(self, at: float, fragment: int, version: int) -> bool:
        """Whether the newest ``version`` is neither installed at the learner nor in flight."""
        if self.holds(fragment) >= version:
            return False
        if self.sent[fragment] < version:
            return True
        quiet_s = at - max(self.sent_at[fragment], self.moved_at)
        return quiet_s > RESEND_S_MIN and quiet_s > RESEND_STEPS * self.report_s

    def tell(self, at: float, fragment: int, version: int) -> None:
        """Note that ``version`` is sent, with the time and the learner's step at its first send."""
        progress = self.progress
        held, step = (progress.versions[fragment], progress.step) if progress else (-1, 0)
        if held < version != self.told[fragment][0]:
            self.told[fragment] = version, at, step
        self.sent[fragment] = version
        self.sent_at[fragment] = at

    def resend(self) -> None:
        """Note that nothing which it has not reported is still on its way."""
        self.sent = [self.holds(p) for p in range(len(self.sent))]

    def may_contribute(self, fragment: int, oldest: int, merged: int) -> bool:
        """Whether a pull would return new training that is neither stale nor already merged. A
        learner that still reports the version of its last merged contribution (``merged``; -1 for
        none) would have tokens merged twice. The difference of a version older than ``oldest``
        would mostly undo what the others have learned since."""
        progress = self.progress
        if progress is None or not progress.steps[fragment]:
            return False
        return progress.versions[fragment] > merged and progress.versions[fragment] >= oldest

    def may_be_pulled(self, fragment: int, oldest: int, merged: int) -> bool:
        """Whether it may contribute, and has spoken since it left a pull unanswered."""
        return not self.unanswered and self.may_contribute(fragment, oldest, merged)

    def absence(self, fragment: int, oldest: int, merged: int) -> str | None:
        """Return in words why ``may_contribute`` is false, or None where it is true."""
        progress = self.progress
        if progress is None:
            return "has reported no step"
        version = progress.versions[fragment]
        if version < 0:
            return "has not received the fragment"
        if version <= merged:
            return f"holds version {version}, whose tokens are merged already"
        if version < oldest:
            return f"holds version {version}, the oldest that is taken is {oldest}"
        if not progress.steps[fragment]:
            return f"has finished no step since it received version {version}"
        return None

    def objection(self, said: Contribution, version: int, oldest: int, merged: int) -> str | None:
        """Return why a contribution cannot be merged, or None if it can."""
        if said.base <= merged:
            return f"tokens since version {said.base} are merged already"
        if said.base > version:
            return f"trained from version {said.base}, which does not exist yet"
        if said.base < oldest:
            return f"trained from version {said.base}, the oldest that is taken is {oldest}"
        if said.steps == 0 or said.tokens == 0:
            return "nothing was trained"
        return None

    def doubt(self, at: float, said: Contribution, *, carries: bool = False) -> str | None:
        """Return why the number of steps of a contribution is impossible by the elapsed time or the
        learner's own step count, or None. Both limits hold however slow or suspended it was: it can
        train from a version only after that was sent to it, unless it ``carries`` over steps since
        its contribution to it."""
        version, told_at, told_step = self.told[said.fragment]
        if said.steps > said.step:
            return f"more steps than it has taken: {said.steps} of {said.step}"
        if said.base != version or carries:
            return None  # It may have received that version over an earlier link.
        since = f"since it was told of version {version}"
        if said.steps > said.step - told_step:
            return f"more steps than it has taken: {said.steps} of {said.step - told_step} {since}"
        elapsed = at - told_at
        if self._in_haste(said.steps, elapsed):
            took = f"{said.steps} in {elapsed:.3g} s {since}"
            return f"more steps than time allows: {took}, {self._fastest()}"
        return None

    def _in_haste(self, steps: int, elapsed: float) -> bool:
        """Whether so many steps are impossible in so many seconds."""
        known = self.fastest_s < math.inf
        return known and (steps - HASTE_STEPS) * self.fastest_s > HASTE * elapsed

    def _fastest(self) -> str:
        return f"its fastest was {self.fastest_s:.3g} s"


def new_member(peer: str, incarnation: str, fragments: int, at: float) -> Member:
    sent, told = [-1] * fragments, [(-1, at, 0)] * fragments
    return Member(peer, incarnation, sent, [at] * fragments, told, at, at, at)
