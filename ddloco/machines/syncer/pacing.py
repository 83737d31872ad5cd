"""When the next sync may be launched (paper 3.2 and 3.3): the median live learner has done its
steps since the last launch (*floor*; without it a quorum of one would launch at every report), K
learners may contribute (*quorum*), and a window for the others is over, which the overlap hides
(*grace*).

Steps are counted and not estimated from time, so that no wrong estimate lets learners run on
unmerged; time only decides who is worth waiting for. ``step_s`` and ``report_s`` are lower medians,
so that one learner that is ten times slower does not extend the window.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec import Struct, field

from ddloco.job.config import SyncTable
from ddloco.machines.syncer.estimates import Recent, grace_window
from ddloco.machines.syncer.members import Member

PULL_S_MIN = 0.25
PULL_S_UNKNOWN = 10.0
PULL_S_MAX = 3600.0
"""Deadline of a pull: four times the lower median of the pulled learners' answer times, plus a
step; ten seconds before the first answer. It doubles for each consecutive sync that ended without
an answer. In an hour, 2 GB arrive over 5 Mbit/s."""

LIVE_STEPS = 4.0
"""Median times between reports, without one, after which the floor waits for no learner."""

LOOKS_PER_STEP = 2
"""How often between two reports it is checked which learners have not reported for long."""

VAIN_DOUBLINGS_MAX = 12
"""The most doublings of a deadline; nine lead from ``PULL_S_UNKNOWN`` to ``PULL_S_MAX``."""


def lower_median(times: Iterable[float]) -> float | None:
    known = sorted(seconds for seconds in times if seconds > 0)
    return known[(len(known) - 1) // 2] if known else None


class NextSync(Struct, forbid_unknown_fields=True):
    """The sync that will be launched next.

    Attributes:
        steps: the steps that the median learner must have done since the last launch.
        since: the time since which it has been waiting, in seconds.
        floor_at: the time at which it had done them, in seconds; None before that.
        quorum_at: the time at which the quorum was reached, in seconds; None before that.
        grace_s: the grace window, in seconds.
    """

    t: int
    fragment: int
    steps: int
    since: float
    floor_at: float | None = None
    quorum_at: float | None = None
    grace_s: float = 0.0


class Pacing(Struct, forbid_unknown_fields=True):
    """The estimates, in seconds, from which launch times and deadlines are computed."""

    step_s: float | None = None
    report_s: float | None = None
    quorum_s: Recent = field(default_factory=Recent)
    sync_s: Recent = field(default_factory=Recent)
    launched_t: int = 0
    look_at: float = 0.0
    """The time from which learners are looked at again, in seconds; see ``LOOKS_PER_STEP``."""
    vain: int = 0
    """Syncs in a row that ended without any answer."""

    def observe(self, members: Collection[Member]) -> None:
        """Take the members' step times, and the times between their reports; unknown ones are left
        out."""
        known = [each.progress for each in members if each.progress is not None]
        self.step_s = lower_median(each.step_s for each in known)
        self.report_s = lower_median(each.report_s for each in known)

    def await_sync(self, at: float, t: int, fragment: int) -> NextSync:
        """Start to wait for the sync of ``t``; the first and a repeated one have no floor."""
        steps = max(t - self.launched_t, 0) if self.launched_t else 0
        return NextSync(t, fragment, steps, since=at, floor_at=None if steps else at)

    def have_done(self, at: float, done: int, members: Collection[Member]) -> bool:
        """Whether ``done`` of the members, as many as have done some number of steps since the last
        launch, are half or more of the live ones: then the median live learner has done them."""
        if not done or 2 * done >= len(members):
            return done > 0
        return self.looks(at) and self.live(at, members) <= 2 * done

    def live(self, at: float, members: Collection[Member]) -> int:
        """How many members train: their pace is known, and they have reported in the last
        ``LIVE_STEPS`` median steps."""
        oldest = at - LIVE_STEPS * (self.report_s or math.inf)
        return sum(each.report_s > 0 and each.heard_at >= oldest for each in members)

    def is_live(self, at: float, member: Member) -> bool:
        """Whether a member has reported in the last ``LIVE_STEPS`` steps, its own or the median's,
        whichever are longer."""
        report_s = max(self.report_s or math.inf, member.report_s)
        return member.heard_at >= at - LIVE_STEPS * report_s

    def looks(self, at: float) -> bool:
        """Whether to look at all learners now; then not again for ``1 / LOOKS_PER_STEP`` steps."""
        if at < self.look_at:
            return False
        self.look_at = at + (self.report_s or 0.0) / LOOKS_PER_STEP
        return True

    def wait_until(
        self,
        at: float,
        waiting: NextSync,
        sync: SyncTable,
        *,
        able: int,
        missing: Callable[[float], bool],
    ) -> float | None:
        """Return when to check again; launch if that is not after ``at``. None without a quorum, or
        before the floor: then only a report changes anything. ``missing`` says whether a learner
        that has not reported is worth waiting for until a time, in seconds."""
        if able < sync.quorum:
            waiting.quorum_at = None
            return None
        if waiting.quorum_at is None:
            waiting.quorum_at = at
            waiting.grace_s = grace_window(
                step_s=self.step_s,
                quorum_s=self.quorum_s.value or 0.0,
                sync_s=self.sync_s.value,
                overlap=sync.overlap,
                safety=sync.grace,
                steps_max=sync.grace_steps_max,
            )
        if waiting.floor_at is None:
            return None
        graced = waiting.quorum_at + waiting.grace_s
        return graced if graced > at and missing(graced) else at

    def launch(self, at: float, waiting: NextSync, answers_s: Sequence[float]) -> float:
        """Note the launch; returns the deadline of its pulls, in seconds."""
        floor_at = waiting.floor_at if waiting.floor_at is not None else at
        quorum_at = waiting.quorum_at if waiting.quorum_at is not None else at
        self.quorum_s.add(max(quorum_at - floor_at, 0.0))
        self.launched_t, self.look_at = max(waiting.t, self.launched_t), at
        return at + self.deadline_s(answers_s)

    def deadline_s(self, answers_s: Sequence[float]) -> float:
        known = sorted(answers_s)
        usual_s = PULL_S_UNKNOWN
        if known and self.report_s is not None:
            usual_s = max(4 * known[(len(known) - 1) // 2] + self.report_s, PULL_S_MIN)
        return min(usual_s * 2 ** min(self.vain, VAIN_DOUBLINGS_MAX), PULL_S_MAX)
