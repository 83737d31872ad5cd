"""When the next sync may be launched: floor, quorum, grace window (paper 3.2 and 3.3).

A sync of global step t may be launched when three things hold:

* floor: ``(t - t_last) * step_s`` seconds have passed since the last launch. Without the floor, a
  quorum of one would launch a sync at every report of every learner, and the interval between two
  syncs of a fragment would be divided by the number of learners;
* quorum: K learners may contribute;
* grace: after the quorum, a window for the other learners, which the overlap hides; it ends early
  when no learner is missing.

``step_s`` is the lower median of the live learners' smoothed step times, so that one learner that
is ten times slower neither slows the schedule nor extends the window.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ddloco.config.job import Sync
from ddloco.machines.syncer.estimates import Smoothed, grace_window

PULL_S_MIN = 0.25
PULL_S_UNKNOWN = 10.0
PULL_S_MAX = 3600.0
"""Deadline of a pull: four times the lower median of the pulled learners' answer times, plus a
step; ten seconds before the first answer. It doubles for each consecutive sync that ended without
an answer. In an hour, 2 GB arrive over 5 Mbit/s."""

VAIN_DOUBLINGS_MAX = 12
"""The most doublings of a deadline; nine lead from ``PULL_S_UNKNOWN`` to ``PULL_S_MAX``."""


@dataclass(slots=True)
class Waiting:
    """The sync that will be launched next.

    Attributes:
        t: its global step.
        fragment: its fragment.
        floor_at: the earliest time of its launch, in seconds.
        since: the time since which it has been waiting, in seconds.
        quorum_at: the time at which the quorum was reached, in seconds; None before that.
        grace_s: the grace window, in seconds.
    """

    t: int
    fragment: int
    floor_at: float
    since: float
    quorum_at: float | None = None
    grace_s: float = 0.0


@dataclass(slots=True)
class Pacing:
    """The estimates, in seconds, from which launch times and deadlines are computed."""

    sync: Sync
    step_s: float | None = None
    quorum_s: Smoothed = field(default_factory=Smoothed)
    sync_s: Smoothed = field(default_factory=Smoothed)
    launched_at: float = 0.0
    launched_t: int = 0
    vain: int = 0
    """Syncs in a row that ended without any answer."""

    def observe_steps(self, step_times: Sequence[float]) -> None:
        """Take the live learners' step times in seconds; 0 means unknown and is left out."""
        known = sorted(seconds for seconds in step_times if seconds > 0)
        self.step_s = known[(len(known) - 1) // 2] if known else None

    def await_sync(self, at: float, t: int, fragment: int) -> Waiting:
        """Start to wait for the sync of ``t``; a repeated sync gets no new floor."""
        steps = max(t - self.launched_t, 0)
        floor = self.launched_at + steps * (self.step_s or 0.0) if self.launched_t else at
        return Waiting(t, fragment, max(floor, at), since=at)

    def wait_until(
        self, at: float, waiting: Waiting, *, able: int, missing: Callable[[float], bool]
    ) -> float | None:
        """Return when to check again; launch if that is not after ``at``, None without a quorum.

        Args:
            at: now.
            waiting: the sync; ``quorum_at`` and ``grace_s`` are updated.
            able: learners that may contribute now.
            missing: whether a learner that has not reported yet is worth waiting for until a
                given time, in seconds.
        """
        if able < self.sync.quorum:
            waiting.quorum_at = None
            return None
        if waiting.quorum_at is None:
            waiting.quorum_at = at
            waiting.grace_s = grace_window(
                step_s=self.step_s,
                quorum_s=self.quorum_s.value or 0.0,
                sync_s=self.sync_s.value,
                overlap=self.sync.overlap,
                safety=self.sync.grace,
                steps_max=self.sync.grace_steps_max,
            )
        graced = waiting.quorum_at + waiting.grace_s
        if graced <= waiting.floor_at:
            return waiting.floor_at
        return max(waiting.floor_at, graced if missing(graced) else waiting.quorum_at)

    def launch(self, at: float, waiting: Waiting, answers_s: Sequence[float]) -> float:
        """Note the launch; returns the deadline of its pulls, in seconds.

        Args:
            at: now.
            waiting: the sync.
            answers_s: seconds that the learners pulled usually take to answer, where known.
        """
        quorum_at = waiting.quorum_at if waiting.quorum_at is not None else at
        self.quorum_s.add(max(quorum_at - waiting.floor_at, 0.0))
        self.launched_at, self.launched_t = at, max(waiting.t, self.launched_t)
        return at + self.deadline_s(answers_s)

    def deadline_s(self, answers_s: Sequence[float]) -> float:
        """Return the seconds that learners have to answer a pull; see ``PULL_S_MAX``."""
        known = sorted(answers_s)
        usual_s = PULL_S_UNKNOWN
        if known and self.step_s is not None:
            usual_s = max(4 * known[(len(known) - 1) // 2] + self.step_s, PULL_S_MIN)
        return min(usual_s * 2 ** min(self.vain, VAIN_DOUBLINGS_MAX), PULL_S_MAX)
