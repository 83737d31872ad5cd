"""When the next sync may be launched: floor, quorum, grace window (paper 3.2 and 3.3).

A sync of global step t may be launched when three things hold:

* floor: the steps since the last launch have had their time, ``(t - t_last) * step_s``. Without it
  a quorum of one would launch at every learner's every report, and the interval between two syncs
  of a fragment would shrink by the number of learners;
* quorum: K learners may contribute;
* grace: after that, a window for the others, which the overlap hides; cut short when nobody is
  missing any more.

``step_s`` is the median of the live learners' smoothed step times (the lower one of two): one
learner that is ten times slower neither slows the schedule nor stretches the window.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ddloco.config.job import Sync
from ddloco.machines.syncer.estimates import Smoothed, grace_window

PULL_S_MIN = 0.25
PULL_S_UNKNOWN = 10.0
PULL_S_MAX = 3600.0
"""Deadline of a pull: four times what an answer of those pulled usually takes (their lower median)
plus a step, and ten seconds while no answer was ever seen (a first transfer connects). It doubles
for each sync in a row that ended without any answer. An hour moves 2 GB over 5 Mbit/s."""

VAIN_DOUBLINGS_MAX = 12
"""More than lead from the first deadline to the longest."""


@dataclass(slots=True)
class Waiting:
    """The sync that is to be launched next."""

    t: int
    fragment: int
    floor_at: float
    since: float
    quorum_at: float | None = None
    grace_s: float = 0.0


@dataclass(slots=True)
class Pacing:
    """The schedule's running estimates and its next launch. Seconds."""

    sync: Sync
    step_s: float | None = None
    quorum_s: Smoothed = field(default_factory=Smoothed)
    sync_s: Smoothed = field(default_factory=Smoothed)
    launched_at: float = 0.0
    launched_t: int = 0
    vain: int = 0
    """Syncs in a row that ended without any answer."""

    def observe_steps(self, step_times: Sequence[float]) -> None:
        """Take the live learners' step times; those of none (0) do not count."""
        known = sorted(seconds for seconds in step_times if seconds > 0)
        self.step_s = known[(len(known) - 1) // 2] if known else None

    def await_sync(self, at: float, t: int, fragment: int) -> Waiting:
        """Begin to wait for sync ``t``; a repeated one has no floor of its own."""
        steps = max(t - self.launched_t, 0)
        floor = self.launched_at + steps * (self.step_s or 0.0) if self.launched_t else at
        return Waiting(t, fragment, max(floor, at), since=at)

    def wait_until(
        self, at: float, waiting: Waiting, *, able: int, missing: Callable[[float], bool]
    ) -> float | None:
        """When to look again: now or earlier means launch, None means that the quorum must come.

        Args:
            at: now.
            waiting: the sync; its quorum and grace are noted on it.
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
        """Note the launch; returns the deadline of its pulls.

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
        """How long learners have to answer a pull; see ``PULL_S_MAX``."""
        known = sorted(answers_s)
        usual_s = PULL_S_UNKNOWN
        if known and self.step_s is not None:
            usual_s = max(4 * known[(len(known) - 1) // 2] + self.step_s, PULL_S_MIN)
        return min(usual_s * 2 ** min(self.vain, VAIN_DOUBLINGS_MAX), PULL_S_MAX)
