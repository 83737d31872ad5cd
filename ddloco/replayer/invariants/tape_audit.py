"""Checks the invariants of a recorded run: machines decide again, without doing the work. A tape
has only digests of effects; the same events give the same effects again, and if a digest differs,
this version decides differently. The checks are those of simulations
(``ddloco.replayer.invariants.training``)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clocks import actor_of, number_of
from ddloco.job.config import Job, job_from
from ddloco.job.protocol.events import Happened, Started
from ddloco.job.protocol.fragment_plan import FragmentPlan
from ddloco.job.protocol.tape_facts import FROM_COPY
from ddloco.machines.registry import machine_for
from ddloco.replayer.invariants.base import InvariantCheck, Violation
from ddloco.replayer.invariants.merged_tokens import MergedShare, MergedTokens
from ddloco.replayer.invariants.training import Causal, Durable, Learning, Merging
from ddloco.stage.actors.actor import new_actor
from replay import Divergence, Player, Tape

SAME = "same-decisions"
"""The invariant that every event has the effects recorded on the tape."""

CLOCK = "clock-causal"

INVARIANTS = (
    SAME, CLOCK, "merge-once", "token-conservation", "outer-monotone", "weights-valid",
    "staleness-bound", "merge-order-canonical", "no-zombie", "no-unhealed-donor",
    "no-learner-waits-on-learner", "inner-steps-never-block", "in-step", "ack-after-durable",
)  # fmt: skip
"""In the order of the report."""


@dataclass
class InvariantResult:
    """The result for one invariant; it holds if ``violation`` is None. ``ref`` is the event that
    violates it; ``until`` is the event of another violation, after which this invariant was not
    checked."""

    invariant: str
    looked: int = 0
    violation: str | None = None
    ref: str | None = None
    until: str | None = None

    def line(self) -> str:
        if self.violation is not None:
            return f"{self.invariant:<28} VIOLATED at {self.ref}: {self.violation}"
        if self.until is not None:
            return f"{self.invariant:<28} looked at {self.looked} times, not after {self.until}"
        held = f"held, looked at {self.looked} times" if self.looked else "nothing to look at"
        return f"{self.invariant:<28} {held}"


class TapeStage:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.now = 0.0
        self._plan: FragmentPlan | None = None

    @property
    def plan(self) -> FragmentPlan:
        assert self._plan is not None, "an actor's first event is its start"
        return self._plan

    def begin(self, started: Started) -> None:
        self._plan = self._plan or self.job.plan(started.leaves)


class TapeRole:
    def __init__(self, job: Job, incarnation: str) -> None:
        self.incarnation = incarnation
        self.actor_name = actor_of(incarnation)
        self.actor = new_actor(incarnation, machine_for(job, incarnation))
        self.at = 0.0


def _began_elsewhere(tapes: Sequence[Tape]) -> list[str]:
    """The incarnations that did not begin with the folder of the one before: with a copy of it, or,
    since that one has no tape here, perhaps with an empty one."""
    known = {each.incarnation for each in tapes}
    found = []
    for each in tapes:
        actor, number = actor_of(each.incarnation), number_of(each.incarnation)
        gone = number > 1 and f"{actor}.{number - 1}" not in known
        if gone or FROM_COPY in each.header.facts:
            found.append(each.incarnation)
    return found


class Audit:
    """Audits the tapes of one run, one after the other; tapes of the same actor in order. ``more``
    checks are reported after the others. ``ConfigError`` if this version cannot run the recorded
    job."""

    def __init__(
        self, tapes: Sequence[Tape], more: Sequence[InvariantCheck[Any, Any]] = ()
    ) -> None:
        self._tapes = sorted(
            tapes, key=lambda each: (actor_of(each.incarnation), number_of(each.incarnation))
        )
        first = self._tapes[0]
        self._stage = TapeStage(job_from(first.header.job, f"{first.path} (header)"))
        self._checks: list[InvariantCheck[Any, Any]] = [
            Merging(), Learning(), Causal(), Durable(_began_elsewhere(tapes)), *more
        ]  # fmt: skip
        self._invariants = [*INVARIANTS, *(name for each in more for name in each.invariants)]
        self._tokens = MergedTokens()
        self._looking = [*self._checks, self._tokens]
        self._stopped: dict[str, str] = {}
        self._played = 0
        self._violations: dict[str, InvariantResult] = {}

    def run(self) -> list[InvariantResult]:
        for each in self._tapes:
            self._look_at(each)
        looked: Counter[str] = Counter({SAME: self._played})
        for check in self._checks:
            looked += check.looked
        findings: list[InvariantResult] = []
        for name in self._invariants:
            found = self._violations.get(name) or InvariantResult(
                name, until=self._stopped.get(name)
            )
            found.looked = looked[name]
            findings.append(found)
        return findings

    def share(self) -> MergedShare:
        """The share of trained tokens that reached a merge; valid after ``run``."""
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
        """Record the first violation of an invariant; later ones may be its consequences."""
        self._violations.setdefault(invariant, InvariantResult(invariant, violation=said, ref=ref))

    def _stop(self, check: InvariantCheck[Any, Any], ref: str) -> None:
        """Stop using a check after a violation, because its state is wrong then."""
        self._looking.remove(check)
        for name in check.invariants:
            if not any(name in each.invariants for each in self._looking):
                self._stopped.setdefault(name, ref)
