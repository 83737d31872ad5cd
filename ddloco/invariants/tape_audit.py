"""The invariants of a run, looked at on its tapes: machines decide again, and nobody works.

A tape has events and the digests of what they led to, not the effects themselves. Machines are
pure, so handing them the same events brings the same effects; where a digest differs, this program
is not the one that was recorded, and says so. The checks are those of simulated worlds
(``ddloco.invariants.training``, ``launches``), which look at nothing but events and effects.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from clocks import actor_of, number_of
from ddloco.actors.actor import Actor
from ddloco.config.job import Job, job_from
from ddloco.invariants.base import Books, PerSyncer, Violation
from ddloco.invariants.launches import PULLED, Launches
from ddloco.invariants.merged_tokens import MergedTokens, Share
from ddloco.invariants.training import Causal, Durable, Learning, Merging
from ddloco.machines.registry import machine_for
from ddloco.protocol.events import Happened, Started
from ddloco.protocol.fragment_plan import FragmentPlan
from replay import Divergence, Player, Tape

SAME = "same-decisions"
"""Every event led to what the tape says that it led to."""

CLOCK = "clock-causal"

INVARIANTS = (
    SAME, CLOCK, "merge-once", "token-conservation", "outer-monotone", "weights-valid",
    "staleness-bound", "merge-order-canonical", "no-zombie", "quorum-or-grace", "overlap",
    PULLED, "no-unhealed-donor", "no-learner-waits-on-learner", "inner-steps-never-block",
    "ack-after-durable",
)  # fmt: skip
"""In the order in which they are told."""

LATE_MAX = 1
"""Live, one arrival may come in while a deadline passes; its timer comes before the next one."""


@dataclass
class Finding:
    """What came of one invariant: held where there is no ``violation``.

    ``looked`` is how often there was something to look at; ``ref`` the event where it is violated;
    ``until`` the event of another violation, after which this invariant was not looked at.
    """

    invariant: str
    looked: int = 0
    violation: str | None = None
    ref: str | None = None
    until: str | None = None

    def line(self) -> str:
        """One line for people."""
        if self.violation is not None:
            return f"{self.invariant:<28} VIOLATED at {self.ref}: {self.violation}"
        if self.until is not None:
            return f"{self.invariant:<28} looked at {self.looked} times, not after {self.until}"
        held = f"held, looked at {self.looked} times" if self.looked else "nothing to look at"
        return f"{self.invariant:<28} {held}"


class TapeStage:
    """A set of tapes, as checks see the place where events happen."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.now = 0.0
        self._plan: FragmentPlan | None = None

    @property
    def plan(self) -> FragmentPlan:
        """How the parameters are cut; every actor's first event says what they are."""
        assert self._plan is not None, "an actor's first event is its start"
        return self._plan

    def begin(self, started: Started) -> None:
        """An actor says of what leaves the parameters are."""
        self._plan = self._plan or self.job.plan(started.leaves)


class TapeRole:
    """The incarnation behind a tape, as checks see it."""

    def __init__(self, job: Job, incarnation: str) -> None:
        self.incarnation = incarnation
        self.actor_name = actor_of(incarnation)
        self.actor = Actor(incarnation, machine_for(job, incarnation))
        self.at = 0.0


class Audit:
    """Looks at tapes of one run, one after the other; the same actor's in order.

    Args:
        tapes: of one run, or of a part of it.

    Raises:
        ConfigError: the recorded job is none that this version can run.
    """

    def __init__(self, tapes: Sequence[Tape]) -> None:
        self._tapes = sorted(
            tapes, key=lambda each: (actor_of(each.incarnation), number_of(each.incarnation))
        )
        first = self._tapes[0]
        self._stage = TapeStage(job_from(first.header.job, f"{first.path} (header)"))
        self._checks: list[Books[Any, Any]] = [
            Merging(), PerSyncer(partial(Launches, LATE_MAX)), Learning(), Causal(), Durable()
        ]  # fmt: skip
        self._tokens = MergedTokens()
        self._looking = [*self._checks, self._tokens]
        self._stopped: dict[str, str] = {}
        self._played = 0
        self._violations: dict[str, Finding] = {}

    def run(self) -> list[Finding]:
        """Look at everything; what came of each invariant.

        Raises:
            TapeError: a tape cannot be read.
        """
        for each in self._tapes:
            self._look_at(each)
        looked: Counter[str] = Counter({SAME: self._played})
        for check in self._checks:
            looked += check.looked
        findings: list[Finding] = []
        for name in INVARIANTS:
            found = self._violations.get(name) or Finding(name, until=self._stopped.get(name))
            found.looked = looked[name]
            findings.append(found)
        return findings

    def share(self) -> Share:
        """What share of the trained tokens reached a merge, once ``run`` has looked."""
        return self._tokens.share(len(self._stage.plan.fragments))

    def _look_at(self, tape: Tape) -> None:
        stage, role = self._stage, TapeRole(self._stage.job, tape.incarnation)
        player: Player[Any] = Player(tape, Happened, role.actor)
        for check in self._looking:
            check.started(stage, role)
        for record, event, outcome in player.moments():
            ref = f"{tape.incarnation}:{record.n}"
            stage.now = role.at = record.at
            if isinstance(event, Started):
                stage.begin(event)
            try:
                effects = player.play(record, event, outcome)
            except Divergence as found:
                said = f"recorded {found.expected[:200]}, this program has {found.actual[:200]}"
                self._violated(CLOCK if found.aspect == "clock" else SAME, ref, said)
                break
            self._played += 1
            for check in list(self._looking):
                try:
                    check.see(stage, role, event, effects)
                except Violation as violation:
                    self._violated(violation.invariant, ref, violation.said)
                    self._stop(check, ref)
        for check in self._looking:
            check.died(stage, role)

    def _violated(self, invariant: str, ref: str, said: str) -> None:
        """The first violation of an invariant is told; what follows may follow from it."""
        self._violations.setdefault(invariant, Finding(invariant, violation=said, ref=ref))

    def _stop(self, check: Books[Any, Any], ref: str) -> None:
        """A check whose books are wrong looks no further."""
        self._looking.remove(check)
        for name in check.invariants:
            if not any(name in each.invariants for each in self._looking):
                self._stopped.setdefault(name, ref)
