"""The status of a whole run at one event. The causal past of an event is a consistent cut: each
actor is shown at its own entry in the event's clock. Actors of which the event knew nothing are
left out."""

from msgspec import Struct
from msgspec.structs import asdict, replace
from rich.console import Group
from rich.table import Table

from clocks import actor_of, number_of
from ddloco.debugger.recorded_job import job_in
from ddloco.debugger.recorded_run import RecordedRun
from ddloco.debugger.wording import phrase
from ddloco.job.protocol.status import LearnerStatus, Status
from ddloco.machines.learner.machine import Learner
from ddloco.machines.syncer.machine import Syncer
from ddloco.monitoring.status_view import actor_picture, picture, seconds
from ddloco.stage.actors.events import WorkFailed
from ddloco.stage.actors.status import ActorStatus, actor_status, error_in
from transport import LaneBroken


class RecordedLearnerStatus(LearnerStatus, frozen=True, kw_only=True):
    """One learner at its newest ``event`` in the causal past; ``at`` is in seconds since the
    learner's start."""

    learner: str
    event: str
    at: float

    @property
    def state(self) -> str:
        if self.stopping:
            return f"stopping: {self.stopping}"
        if self.running_s is not None:
            return f"runs step {self.step + 1}, for {seconds(self.running_s)}"
        return "waits between steps" if self.step else "waits for its first parameters"


class ClusterStatus(Struct, frozen=True):
    """A whole run at one event.

    Attributes:
        actors: likewise the actors of a program of the user's own, and of other methods.
        missing: incarnations in its causal past that are not shown, each with the reason.
    """

    event: str
    what: str
    syncers: tuple[Status, ...]
    learners: tuple[RecordedLearnerStatus, ...]
    missing: tuple[str, ...] = ()
    actors: tuple[ActorStatus, ...] = ()

    def picture(self) -> Group:
        """Return it as people read it: each syncer as in the live status, then the learners; of any
        other actor the links, the work and the state."""
        title = f"{self.event}: {self.what}"
        missing = [f"gap: {each}" for each in self.missing]
        shown = [*map(picture, self.syncers), *map(actor_picture, self.actors)]
        return Group(title, *missing, *shown, *([self._table()] if self.learners else []))

    def _table(self) -> Table:
        table = Table("learner", "event", "inner step", "step time", "versions", "state")
        for each in self.learners:
            step_s = seconds(each.step_s) if each.step_s is not None else "-"
            span = f"{min(each.versions)} to {max(each.versions)}" if each.versions else "-"
            row = (each.learner, each.event, str(each.step), step_s, span, each.state)
            table.add_row(*row)
        return table


def cluster_at(run: RecordedRun, incarnation: str, number: int) -> ClusterStatus:
    """Return the status of all actors at the causal past of an event; ``Divergence`` if this
    program decides otherwise than a tape says."""
    known = run.clock(incarnation, number).wire()
    newest: dict[str, str] = {}
    for who in known:
        former = newest.get(actor_of(who))
        if former is None or number_of(who) > number_of(former):
            newest[actor_of(who)] = who
    syncers: list[Status] = []
    learners: list[RecordedLearnerStatus] = []
    actors: list[ActorStatus] = []
    missing: list[str] = []
    for who in sorted(newest.values(), key=str.encode):
        absent = _not_on_tape(run, who, known[who])
        if absent:
            missing.append(f"{who}: {absent}")
            continue
        told = status_of(run, who, known[who])
        if isinstance(told, Status):
            syncers.append(told)
        elif isinstance(told, ActorStatus):
            actors.append(told)
        else:
            learners.append(told)
    what = phrase(run.at(incarnation, number).event)
    ref = f"{incarnation}:{number}"
    shown = tuple(syncers), tuple(learners), tuple(missing), tuple(actors)
    return ClusterStatus(ref, what, *shown)


def _not_on_tape(run: RecordedRun, who: str, number: int) -> str:
    found = run.tapes.get(who)
    if found is None:
        return "no tape"
    if number > found.events:
        return f"its tape ends with event {found.events}, before event {number}"
    if number < run.first(who) - 1:
        return f"its tape begins after event {run.first(who) - 1}; this is of event {number}"
    return ""


def status_of(
    run: RecordedRun, who: str, number: int
) -> Status | RecordedLearnerStatus | ActorStatus:
    # One event before the first that can be stepped to is the cut that the tape continues from.
    at = run.at(who, number).at if number >= run.first(who) else run.beginning(who).at
    machine = run.walker(who).actor.machine
    if isinstance(machine, Syncer):
        job = job_in(run).job
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
    return replace(
        actor_status(run.walker(who).actor, at),
        address=f"{who}:{number}",
        name=run.program.name,
        job=run.program.id,
        error=_error_until(run, who, number),
    )


def _error_until(run: RecordedRun, who: str, number: int) -> str:
    found = ""
    for record, event in run.events(who, WorkFailed, LaneBroken):
        if record.n > number:
            break
        said = error_in(event)
        found = f"{said} (event {record.n})" if said else found
    return found
