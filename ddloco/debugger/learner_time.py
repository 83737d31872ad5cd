"""Where the time of each learner went, as it last told its syncer (``TimeSpent``), and for whom
merges waited."""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct
from msgspec.structs import astuple

from clocks import actor_of
from ddloco.debugger.merge_history import Merge
from ddloco.debugger.recorded_job import RecordedJob
from ddloco.debugger.recorded_run import order_of
from ddloco.job.protocol.time_spent import TimeSpent
from ddloco.monitoring.status_view import seconds

Part = Literal["computing", "compiling", "data", "parameters", "stopped", "versions"]

WORDS: dict[Part, str] = {
    "computing": "computing",
    "compiling": "compiling",
    "data": "waiting for data",
    "parameters": "waiting for its first parameters",
    "stopped": "stopped",
    "versions": "waiting for versions",
}

LEAST_SHARE = 0.005
"""The least share of a learner's time that is said."""

APART_TIMES, APART_SHARE = 1.5, 0.1
"""From so many times on, or from so much of all time on, two runs are said to differ in time."""


class LearnerTime(Struct, frozen=True):
    """How an incarnation of a learner spent its time.

    Attributes:
        step_s: how long a step took, the median of its newest, in seconds.
    """

    learner: str
    steps: int
    step_s: float
    spent: TimeSpent

    @property
    def sum_s(self) -> float:
        return sum(astuple(self.spent))

    @property
    def stepping_s(self) -> float:
        """Without what comes once: compiling, and the wait for the first parameters."""
        return self.sum_s - self.spent.compiling - self.spent.parameters

    @property
    def data_share(self) -> float:
        return self.spent.data / self.stepping_s if self.stepping_s > 0 else 0.0

    def line(self) -> str:
        parts: list[Part] = [each for each in WORDS if self.share(each) >= LEAST_SHARE]
        ordered = sorted(parts, key=lambda each: -self.share(each))
        said = ", ".join(f"{self.share(each):.0%} {WORDS[each]}" for each in ordered)
        return f"{self.learner}: {self.steps:,} steps, a step {seconds(self.step_s)}; {said}"

    def share(self, part: Part) -> float:
        return getattr(self.spent, part) / self.sum_s if self.sum_s else 0.0


def times_apart(one: RecordedJob, other: RecordedJob) -> list[str]:
    """Return in words for which learners a step took far longer in one run than in the other, and
    which part of their time then differs most."""
    theirs = {each.learner: each for each in times_of(other)}
    found: list[str] = []
    for mine in times_of(one):
        its = theirs.get(mine.learner)
        if its is None or not mine.step_s or not its.step_s:
            continue
        gaps = {part: abs(mine.share(part) - its.share(part)) for part in WORDS}
        part = max(WORDS, key=lambda each: gaps[each])
        times = max(mine.step_s, its.step_s) / min(mine.step_s, its.step_s)
        if times >= APART_TIMES or (gaps[part] >= APART_SHARE and part in {"data", "stopped"}):
            steps = f"a step {seconds(mine.step_s)} and {seconds(its.step_s)}"
            shares = f"{WORDS[part]} {mine.share(part):.0%} and {its.share(part):.0%}"
            found.append(f"time of {mine.learner}: {steps}; {shares} of it")
    return found


class Held(Struct, frozen=True):
    """How often a learner's contribution was the last one of a merge, and how long, in seconds, it
    was waited for alone, of the time ``of_s`` from launches to last contributions."""

    learner: str
    merges: int
    alone_s: float
    of_s: float

    def line(self) -> str:
        share = f"{seconds(self.alone_s)}, {self.alone_s / self.of_s:.0%} of their time"
        said = f"merges waited for {self.learner} alone for {share}"
        return f"{said}; its contribution was the last of {self.merges:,}"


def held_back(merges: Iterable[Merge]) -> list[Held]:
    """Return for whom merges waited, longest first. Merges with one contribution, or begun before
    the tape, say nothing, and the longest wait for each learner is left out: in it, the learner may
    have compiled."""
    alone: dict[str, list[tuple[float, float]]] = {}
    for merge in merges:
        told = [(each.wait_s, actor_of(each.learner)) for each in merge.contributions]
        came = sorted((wait, who) for wait, who in told if wait is not None)
        if len(came) == len(told) > 1:
            (before, _), (wait, who) = came[-2:]
            alone.setdefault(who, []).append((wait - before, wait))
    usual = {who: sorted(waits)[:-1] for who, waits in alone.items()}
    of_s = sum(wait for waits in usual.values() for _, wait in waits)
    found = [Held(who, len(alone[who]), sum(a for a, _ in usual[who]), of_s) for who in alone]
    return sorted(found, key=lambda each: (-each.alone_s, each.learner))


def times_of(run: RecordedJob) -> list[LearnerTime]:
    newest = {who: told for each in run.syncers for who, told in run.reports(each).items()}
    return [
        LearnerTime(who, told.step, told.step_s, told.spent)
        for who, told in sorted(newest.items(), key=lambda each: order_of(each[0]))
        if told.step
    ]
