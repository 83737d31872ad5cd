"""The status of a whole job at one event: every actor at what that event knew of it.

The causal past of an event is a consistent cut: each actor is shown at its own entry in the event's
clock. Actors of which the event knew nothing are left out.
"""

from msgspec import Struct
from msgspec.structs import asdict
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from clocks import actor_of, number_of
from ddloco.debugger.recorded_run import RecordedRun
from ddloco.debugger.wording import phrase
from ddloco.job.protocol.status import LearnerStatus, Status
from ddloco.machines.learner.machine import Learner
from ddloco.machines.syncer.machine import Syncer
from ddloco.monitoring.status_view import picture, seconds


class RecordedLearnerStatus(LearnerStatus, frozen=True, kw_only=True):
    """One learner at an event.

    Attributes:
        learner: its incarnation.
        event: its newest event in the causal past.
        at: the time of that event in seconds, since the learner's start.
    """

    learner: str
    event: str
    at: float

    @property
    def state(self) -> str:
        """In words: what it does."""
        if self.stopping:
            return f"stopping: {self.stopping}"
        if self.running_s is not None:
            return f"runs step {self.step + 1}, for {seconds(self.running_s)}"
        return "waits between steps" if self.step else "waits for its first parameters"


class ClusterStatus(Struct, frozen=True):
    """A whole job at one event.

    Attributes:
        event: the event.
        what: what happened there, in words.
        syncers: the syncers in its causal past, at their newest events there.
        learners: likewise the learners.
        missing: incarnations in its causal past that are not shown, each with the reason.
    """

    event: str
    what: str
    syncers: tuple[Status, ...]
    learners: tuple[RecordedLearnerStatus, ...]
    missing: tuple[str, ...] = ()

    def picture(self) -> Group:
        """Return it as people read it: each syncer as in the live status, then the learners."""
        table = Table("learner", "event", "inner step", "step time", "versions", "state")
        for each in self.learners:
            step_s = seconds(each.step_s) if each.step_s is not None else "-"
            span = f"{min(each.versions)} to {max(each.versions)}" if each.versions else "-"
            row = (each.learner, each.event, str(each.step), step_s, span, each.state)
            table.add_row(*map(escape, row))
        title = f"[bold]{escape(self.event)}[/bold]: {escape(self.what)}"
        missing = [f"gap: {escape(each)}" for each in self.missing]
        return Group(title, *missing, *(picture(each) for each in self.syncers), table)


def cluster_at(run: RecordedRun, incarnation: str, number: int) -> ClusterStatus:
    """Return the status of the job at the causal past of an event.

    Raises:
        ConfigError: there is no such event.
        Divergence: this program decides otherwise than a tape says.
    """
    known = run.clock(incarnation, number).wire()
    newest: dict[str, str] = {}
    for who in known:
        former = newest.get(actor_of(who))
        if former is None or number_of(who) > number_of(former):
            newest[actor_of(who)] = who
    syncers: list[Status] = []
    learners: list[RecordedLearnerStatus] = []
    missing: list[str] = []
    for who in sorted(newest.values(), key=str.encode):
        absent = _not_on_tape(run, who, known[who])
        if absent:
            missing.append(f"{who}: {absent}")
            continue
        told = _status_of(run, who, known[who])
        if isinstance(told, Status):
            syncers.append(told)
        elif told is not None:
            learners.append(told)
    what = phrase(run.at(incarnation, number).event)
    ref = f"{incarnation}:{number}"
    return ClusterStatus(ref, what, tuple(syncers), tuple(learners), tuple(missing))


def _not_on_tape(run: RecordedRun, who: str, number: int) -> str:
    """Why an actor cannot be shown at one of its events, in words; empty if it can."""
    found = run.tapes.get(who)
    if found is None:
        return "no tape"
    if number > found.events:
        return f"its tape ends with event {found.events}, before event {number}"
    if number < run.first(who) - 1:
        return f"its tape begins after event {run.first(who) - 1}; this is of event {number}"
    return ""


def _status_of(run: RecordedRun, who: str, number: int) -> Status | RecordedLearnerStatus | None:
    # One event before the first that can be stepped to is the cut that the tape continues from.
    at = run.at(who, number).at if number >= run.first(who) else run.beginning(who).at
    machine = run.walker(who).actor.machine
    if isinstance(machine, Syncer):
        job = run.job
        return Status(
            **asdict(machine.status(at)),
            name=job.job.name,
            job=job.id,
            steps=job.job.steps,
            tokens=job.job.tokens,
            lead=job.syncer_names()[0],
            quorum=job.sync.quorum,
            incarnation=who,
            address=f"{who}:{number}",
            uptime_s=at,
            events=number,
            tape_bytes=run.tape_of(who).path.stat().st_size,
        )
    if isinstance(machine, Learner):
        told = asdict(machine.status(at))
        return RecordedLearnerStatus(**told, learner=who, event=f"{who}:{number}", at=at)
    return None
