"""A recorded run of a job: what its learners and syncers did, besides what any actors do."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from clocks import actor_of
from ddloco.debugger.merge_history import Merge, MergeHistory
from ddloco.debugger.recorded_run import RecordedRun, parse_event
from ddloco.job.config import SYNCER
from ddloco.job.protocol.events import Started
from ddloco.job.protocol.fragment_plan import FragmentPlan
from ddloco.job.protocol.messages import GlobalFragment, Progress
from ddloco.job.protocol.status import Numbers
from ddloco.job.protocol.tape_facts import is_simulated
from ddloco.job.protocol.work import Evaluated, OneStep, RunStep, StepFinished
from ddloco.replayer.recording import named_settings, open_recording, program_in
from ddloco.roles.job_program import JobProgram
from ddloco.roles.resume import JobStartPoint, plan_of
from ddloco.stage.actors.actor import Actor
from ddloco.stage.actors.effects import Observe
from ddloco.stage.files.toml import ConfigError
from replay import Step, Stepper, Tape, tape
from transport import MessageArrived


class RecordedJob(RecordedRun):
    """The tapes of one run of a job; see ``RecordedRun``."""

    def __init__(
        self, path: Path, tapes: Sequence[Tape], program: JobProgram, **options: bool
    ) -> None:
        super().__init__(path, tapes, program, **options)
        self.job = program.job
        self._histories: dict[str, MergeHistory] = {}
        self._told: dict[str, list[tuple[tape.Event, StepFinished | int]]] = {}
        self._steps: dict[str, list[tuple[tape.Event, int, OneStep]]] = {}
        self._held_out: dict[str, list[tuple[tape.Event, Evaluated]]] = {}

    def settings(self) -> dict[str, Any]:
        """Return all settings, also those that say nothing and are left out of tapes."""
        return named_settings(to_builtins(self.job))

    def identity(self, incarnation: str) -> dict[str, str]:
        """Return an actor's identity, with what its task has read while it trained."""
        found = super().identity(incarnation)
        for _, step in self.finished(incarnation):
            found |= step.reads
        return found

    @cached_property
    def syncers(self) -> list[str]:
        names = self.job.syncer_names()
        return [each for each in self.tapes if actor_of(each) in names]

    @cached_property
    def learners(self) -> list[str]:
        return [each for each in self.tapes if each not in self.syncers]

    @cached_property
    def plan(self) -> FragmentPlan | None:
        """How the parameters are cut into fragments; None if no tape and no snapshot tells."""
        for incarnation, each in self.tapes.items():
            if not each.header.after:
                for _, event in self.events(incarnation, Started):
                    if isinstance(event, Started):
                        return self.job.plan(event.leaves)
        return _plan_in(self._start_point) if self._start_point is not None else None

    @property
    def is_simulated(self) -> bool:
        return any(is_simulated(each.header) for each in self.tapes.values())

    @property
    def numbers(self) -> Numbers:
        """The job's numbers at its end, as the newest incarnation of its syncer counted them; with
        shards, those of the leading one."""
        lead = self._lead
        return lead.numbers if lead is not None else Numbers()

    @property
    def disregarded(self) -> dict[str, str]:
        lead = self._lead
        return lead.disregarded if lead is not None else {}

    @property
    def _lead(self) -> MergeHistory | None:
        walked = {each: self.history(each).walk() for each in self.syncers}
        name = self.job.syncer_names()[0]
        return next((walked[each] for each in reversed(walked) if actor_of(each) == name), None)

    def told(self, learner: str) -> list[tuple[tape.Event, StepFinished | int]]:
        """Return what a learner was told, in order: the results of its requests of steps, and the
        fragments of which a version arrived, each with its record. They are decoded once."""
        if learner not in self._told:
            found = self._told[learner] = []
            for record, event in self.events(learner, StepFinished, GlobalFragment):
                if isinstance(event, StepFinished):
                    found.append((record, event))
                elif isinstance(event, MessageArrived) and isinstance(event.body, GlobalFragment):
                    found.append((record, event.body.fragment))
        return self._told[learner]

    def finished(self, learner: str) -> list[tuple[tape.Event, StepFinished]]:
        """Return the results of a learner's requests of steps, with their records."""
        return [(r, each) for r, each in self.told(learner) if isinstance(each, StepFinished)]

    def steps_of(self, learner: str) -> list[tuple[tape.Event, int, OneStep]]:
        """Return a learner's inner steps, with their numbers, and the records of their results."""
        if learner not in self._steps:
            self._steps[learner] = [
                (record, step, each)
                for record, event in self.finished(learner)
                for step, each in event.steps()
            ]
        return self._steps[learner]

    def held_out(self, syncer: str) -> list[tuple[tape.Event, Evaluated]]:
        """Return the results of evaluations, with their records; they are looked for once."""
        if syncer not in self._held_out:
            found = self.events(syncer, Evaluated)
            self._held_out[syncer] = [each for each in found if isinstance(each[1], Evaluated)]
        return self._held_out[syncer]

    def reports(self, syncer: str) -> dict[str, Progress]:
        """Return the newest report of each learner that a syncer has heard."""
        return {
            event.sender: event.body
            for _, event in self.events(syncer, Progress)
            if isinstance(event, MessageArrived) and isinstance(event.body, Progress)
        }

    def first_step(self, learner: str) -> Step | None:
        """Return the event at which a learner asked for its first inner step; None without one."""
        for step in self.stepper(learner).steps():
            if any(isinstance(effect, RunStep) for effect in step.effects):
                return step
        return None

    def history(self, syncer: str) -> MergeHistory:
        if syncer not in self._histories:
            stepper = self.stepper(syncer)
            self._histories[syncer] = MergeHistory(stepper, self.job.learner_names())
        return self._histories[syncer]

    def walker(self, incarnation: str) -> Stepper[Actor]:
        """Return this run's own stepper along a tape; of a syncer whose merges are all known, that
        which has walked to them."""
        history = self._histories.get(incarnation)
        if history is not None and history.is_whole and incarnation not in self._walkers:
            self._walkers[incarnation] = history.stepper
        return super().walker(incarnation)

    def merges(self) -> Iterator[Merge]:
        """Yield the merges of every syncer, syncer after syncer, in the order of their tapes."""
        for syncer in self.syncers:
            yield from self.history(syncer).merges()

    def observed(self) -> Iterator[tuple[str, int, float, Observe]]:
        """Yield what the syncers observed of learners: the syncer, the number of its event, its
        time in seconds, and the observation."""
        for syncer in self.syncers:
            for number, at, seen in self.history(syncer).walk().told:
                yield syncer, number, at, seen

    def merge(self, t: int) -> Merge:
        """Return the merge of a global step; ``ConfigError`` names the nearest ones."""
        before, after = 0, 0
        for merge in self.merges():
            if merge.t == t:
                return merge
            if merge.t < t:
                before = max(before, merge.t)
            elif not after or merge.t < after:
                after = merge.t
        near = [str(each) for each in (before, after) if each]
        verb = "are" if len(near) > 1 else "is"
        there = f"; the nearest {verb} {' and '.join(near)}" if near else "; it has no merges"
        raise ConfigError(f"{self.path}: no merge at global step {t}{there}")

    def resolve(self, target: str) -> tuple[str, int]:
        """Return the incarnation and the number of an event: ``syncer.1:540``, ``merge:40``, or
        ``step:learner-1:120`` for an inner step."""
        kind, _, rest = target.partition(":")
        if kind == "merge" and rest.isdecimal():
            return parse_event(self.merge(int(rest)).event)
        if kind == "step":
            learner, _, number = rest.rpartition(":")
            wanted = int(number) if number.isdecimal() else -1
            there: list[int] = []
            for incarnation in self.learners:
                if learner in {incarnation, actor_of(incarnation)}:
                    for record, step, _ in self.steps_of(incarnation):
                        if step == wanted:
                            return incarnation, record.n
                        there.append(step)
            has = f"it has {min(there)} to {max(there)}" if there else "want step:LEARNER:NUMBER"
            raise ConfigError(f"{target}: no such step; {has}")
        return super().resolve(target)

    @cached_property
    def _start_point(self) -> JobStartPoint | None:
        found = super()._start_point
        plan = _plan_in(found) if found is not None else None
        if found is None or plan is None:
            return found
        for start in found.starts.values():
            each = self.tapes.get(start.part.who)
            # As the run did that began there, whose job may have other settings.
            if each is not None and each.header.after == start.part.number and not each.dropped:
                start.adopt(self.job, plan)
        return found


def open_run(
    path: Path | str,
    *,
    salvage: bool = False,
    wanted: Callable[[str], bool] | None = None,
    trust: bool = False,
) -> RecordedRun:
    """Open the tapes of a run, of a job or of a program of the user's own, for questions. Only
    tapes of incarnations that are ``wanted`` are opened; but where tapes continue from a snapshot,
    all are, since together they tell which. ``TapeError`` if a tape cannot be read, or is of
    another run than the others; ``ConfigError`` if this version cannot run the job, or another user
    recorded the program; ``NamedError`` if that cannot be used here."""
    path = Path(path)
    tapes = open_recording(path, salvage=salvage, wanted=wanted)
    if wanted is not None and any(each.header.after for each in tapes):
        tapes = open_recording(path, salvage=salvage)
    program = program_in(tapes, path, trust=trust)
    if isinstance(program, JobProgram):
        return RecordedJob(path, tapes, program, salvage=salvage, trust=trust)
    return RecordedRun(path, tapes, program, salvage=salvage, trust=trust)


def open_job(path: Path | str, **options: Any) -> RecordedJob:
    """Open the tapes of a job; see ``open_run``. ``ConfigError`` if they are of a user's own
    program."""
    return job_in(open_run(path, **options))


def job_in(run: RecordedRun) -> RecordedJob:
    """Return a run that is of a job; ``ConfigError`` if it is of a program of the user's own."""
    if not isinstance(run, RecordedJob):
        said = "of a program of your own, which has no merges and losses"
        raise ConfigError(f"{run.path}: {said}; ddloco story tells of its actors")
    return run


def _plan_in(start_point: JobStartPoint) -> FragmentPlan | None:
    """How the parameters were cut into fragments when a snapshot was taken."""
    machines = (each.actor.machine for each in start_point.starts.values())
    plans = map(plan_of, machines)
    return next((each for each in plans if each is not None), None)


def is_syncer(incarnation: str) -> bool:
    return actor_of(incarnation).partition("-")[0] == SYNCER
