"""A recorded run, opened for questions: its tapes, and its actors at any of their events.

Nothing is executed but machines, so no JAX process is started and nothing is written.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from clocks import VectorClock, actor_of, number_of
from ddloco.debugger.merge_history import Merge, MergeHistory, tokens_merged
from ddloco.debugger.timeline import clock_offsets
from ddloco.job.config import SYNCER, Job
from ddloco.job.job_folder import place_of
from ddloco.job.protocol.effects import RunStep
from ddloco.job.protocol.events import Happened, Started, StepFinished
from ddloco.job.protocol.fragment_plan import FragmentPlan
from ddloco.job.protocol.status import Numbers
from ddloco.machines.registry import machine_for, states_for
from ddloco.replayer.gaps import begins_said, gaps_of, listed
from ddloco.replayer.recording import job_of, open_recording, permit_of, run_folder_of
from ddloco.replayer.start_point import choose_start_point
from ddloco.roles.resume import JobStartPoint, plan_of, read_job_start_point
from ddloco.stage.actors.actor import Actor, new_actor
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.programs.program import is_program
from replay import Step, Stepper, Tape, TapeError, tape


class RecordedRun:
    """The tapes of one run.

    Args:
        path: the run folder, a folder of tapes, or one tape.
        salvage: whether to read damaged tapes up to the damage.
        wanted: whether an incarnation's tape is needed; by default all are. Where tapes continue
            from a snapshot, all are opened, since together they tell which.
        trust: whether the user trusts the author of a run of another user. Its machines then begin
            with the states in its snapshots, and ``arrays`` calls its task.

    Attributes:
        salvage: as given.
        trust: as given.
        tapes: by incarnation, sorted by actor and incarnation number.
        job: the resolved job.

    Raises:
        TapeError: a tape cannot be read, or is of another run than the others.
        ConfigError: the tapes are of a program of the user's own.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        salvage: bool = False,
        wanted: Callable[[str], bool] | None = None,
        trust: bool = False,
    ) -> None:
        self.path = Path(path)
        tapes = open_recording(self.path, salvage=salvage, wanted=wanted)
        if wanted is not None and any(each.header.after for each in tapes):
            tapes = open_recording(self.path, salvage=salvage)
        if is_program(tapes[0].header.job):
            raise ConfigError(f"{path}: of a program of your own; this command explains jobs")
        ordered = sorted(tapes, key=lambda each: _order(each.incarnation))
        self.tapes: dict[str, Tape] = {each.incarnation: each for each in ordered}
        self.job: Job = job_of(tapes[0])
        self.salvage, self.trust = salvage, trust
        self._merges: dict[str, list[Merge]] = {}
        self._histories: dict[str, Iterator[Merge]] = {}
        self._walked: dict[str, MergeHistory] = {}
        self._walkers: dict[str, Stepper[Actor]] = {}
        self._decode = msgspec.msgpack.Decoder(Happened).decode

    @cached_property
    def gaps(self) -> list[str]:
        """What is missing or damaged, a line for each; see ``gaps_of``."""
        return gaps_of(list(self.tapes.values()), self.path)

    def preface(self) -> list[str]:
        """Return what people must know before any answer: gaps, and where the tapes begin."""
        return [*listed(self.gaps), *begins_said(list(self.tapes.values()))]

    @property
    def syncers(self) -> list[str]:
        """The incarnations of syncers that have tapes."""
        names = self.job.syncer_names()
        return [each for each in self.tapes if actor_of(each) in names]

    @property
    def learners(self) -> list[str]:
        """The incarnations of learners that have tapes."""
        return [each for each in self.tapes if each not in self.syncers]

    @property
    def restored(self) -> bool:
        """Whether machines have begun with the states in a snapshot."""
        return vars(self).get("_start_point") is not None

    @property
    def syncer(self) -> str:
        """The first incarnation of the first syncer that has a tape.

        Raises:
            ConfigError: no syncer has one.
        """
        if not self.syncers:
            raise ConfigError(
                f"{self.path}: no tape of a syncer; there are {', '.join(self.tapes)}"
            )
        return self.syncers[0]

    @cached_property
    def plan(self) -> FragmentPlan | None:
        """How the parameters are cut into fragments; None if no tape and no snapshot tells."""
        for incarnation, each in self.tapes.items():
            if not each.header.after:
                for _, event in self.events(incarnation, Started):
                    if isinstance(event, Started):
                        return self.job.plan(event.leaves)
        return _plan_in(self._start_point) if self._start_point is not None else None

    @cached_property
    def tokens_merged(self) -> int:
        """The tokens in merges, on average over the fragments; see ``tokens_merged``."""
        return tokens_merged(list(self.merges()), len(self.plan.fragments) if self.plan else 0)

    @property
    def numbers(self) -> Numbers:
        """The job's numbers at its end, as the newest incarnation of its syncer counted them; with
        shards, those of the leading one.

        Raises:
            TapeError, Divergence: see ``merges``.
        """
        for _ in self.merges():
            pass
        lead = self.job.syncer_names()[0]
        ended = [self._walked[each] for each in self.syncers if actor_of(each) == lead]
        return ended[-1].numbers if ended else Numbers()

    @cached_property
    def offsets(self) -> dict[str, float]:
        """What to add to each actor's times to get those of one axis; see ``clock_offsets``."""
        return clock_offsets(self.tapes.values())

    def common(self, incarnation: str, at: float) -> float:
        """Return what a time of an actor is on the one axis of the run, in seconds."""
        return at + self.offsets.get(incarnation, 0.0)

    def tape_of(self, incarnation: str) -> Tape:
        """Return the tape of an incarnation.

        Raises:
            ConfigError: there is none.
        """
        found = self.tapes.get(incarnation)
        if found is None:
            there = ", ".join(self.tapes)
            raise ConfigError(f"{self.path}: no tape of {incarnation}; there are {there}")
        return found

    def stepper(self, incarnation: str) -> Stepper[Actor]:
        """Return a new stepper along the tape of an incarnation; it is at the beginning.

        Raises:
            ConfigError: there is no such tape.
            SnapshotError: the tape continues from a snapshot that is not there.
        """
        found = self.tape_of(incarnation)
        actor, after = self._begun(found)
        return Stepper(
            found,
            Happened,
            actor,
            Actor.write,
            states_for(self.job, incarnation).read,
            after=after,
        )

    def walker(self, incarnation: str) -> Stepper[Actor]:
        """Return this run's own stepper along a tape; it is where it was left.

        Raises:
            ConfigError, SnapshotError: see ``stepper``.
        """
        if incarnation not in self._walkers:
            self._walkers[incarnation] = self.stepper(incarnation)
        return self._walkers[incarnation]

    def at(self, incarnation: str, number: int) -> Step:
        """Go to an event; the actor as it was then is ``walker(incarnation).actor``.

        Raises:
            ConfigError: there is no such event.
            Divergence: this program decides otherwise than the tape says.
        """
        try:
            return self.walker(incarnation).goto(number)
        except LookupError as error:
            raise ConfigError(error.args[0]) from None

    def beginning(self, incarnation: str) -> Actor:
        """Go to where a tape begins; returns the actor as it was there."""
        self._walkers[incarnation] = self.stepper(incarnation)
        return self._walkers[incarnation].actor

    def first(self, incarnation: str) -> int:
        """Return the number of the first event that can be stepped to."""
        return self.walker(incarnation).first

    def events(self, incarnation: str, *mentioned: type) -> Iterator[tuple[tape.Event, Any]]:
        """Yield the events of a tape, decoded; no machine handles them.

        Args:
            incarnation: whose tape.
            mentioned: types of events, or of bodies of messages. With any, only events that name
                one of them are decoded and yielded, which takes less time; there may be others
                among them that have such a name in their text.

        Raises:
            TapeError: the tape cannot be read.
        """
        found = self.tape_of(incarnation)
        names = re.compile(b"|".join(each.__name__.encode() for each in mentioned)).search
        for record in found.records():
            if type(record) is tape.Event and names(bytes(record.event)):
                yield record, self._decoded(found, record)

    def event(self, incarnation: str, number: int) -> tuple[float, Any]:
        """Return the time of an event, in seconds since its actor's start, and the event, decoded.

        Raises:
            ConfigError: there is no such event.
            TapeError: the tape cannot be read.
        """
        found = self.tape_of(incarnation)
        if not found.header.after < number <= found.events:
            raise _no_event(found, number)
        record = next(each for each in found.records(number - 1) if type(each) is tape.Event)
        return record.at, self._decoded(found, record)

    def steps_of(self, learner: str) -> Iterator[tuple[tape.Event, StepFinished]]:
        """Yield a learner's finished inner steps, each with its record.

        Raises:
            TapeError: the tape cannot be read.
        """
        for record, event in self.events(learner, StepFinished):
            if isinstance(event, StepFinished):
                yield record, event

    def first_step(self, learner: str) -> Step | None:
        """Return the event at which a learner asked for its first inner step, None if it never did.

        Raises:
            TapeError, SnapshotError: the beginning of the tape is not there.
            Divergence: this program decides otherwise than the tape says.
        """
        for step in self.stepper(learner).steps():
            if any(isinstance(effect, RunStep) for effect in step.effects):
                return step
        return None

    def merges(self) -> Iterator[Merge]:
        """Yield the merges of every syncer, syncer after syncer, in the order of their tapes.

        They are computed once, as far as they have been asked for.

        Raises:
            TapeError, Divergence: see ``MergeHistory.merges``.
        """
        for syncer in self.syncers:
            known = self._merges.setdefault(syncer, [])
            if syncer not in self._histories:
                history = MergeHistory(self.stepper(syncer), self.job.learner_names())
                self._walked[syncer], self._histories[syncer] = history, history.merges()
            for position in count():
                if position == len(known):
                    following = next(self._histories[syncer], None)
                    if following is None:
                        break
                    known.append(following)
                yield known[position]

    def merges_of(self, syncer: str) -> Iterator[Merge]:
        """Compute and yield the merges of one syncer, in the order of its tape.

        Raises:
            TapeError, Divergence: see ``MergeHistory.merges``.
        """
        return MergeHistory(self.stepper(syncer), self.job.learner_names()).merges()

    def merge(self, t: int) -> Merge:
        """Return the merge of a global step.

        Raises:
            ConfigError: there is none.
        """
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
        """Return the incarnation and the number of an event that is named in one of three ways.

        Args:
            target: an event, ``syncer.1:540``; a merge, ``merge:40``; or an inner step,
                ``step:learner-1:120``.

        Raises:
            ConfigError: there is no such event.
        """
        kind, _, rest = target.partition(":")
        if kind == "merge" and rest.isdecimal():
            return parse_event(self.merge(int(rest)).event)
        if kind == "step":
            learner, _, number = rest.rpartition(":")
            wanted = int(number) if number.isdecimal() else -1
            for incarnation in self.learners:
                if learner in {incarnation, actor_of(incarnation)}:
                    for record, event in self.steps_of(incarnation):
                        if event.step == wanted:
                            return incarnation, record.n
            raise ConfigError(f"{target}: no such step; want step:LEARNER:NUMBER")
        incarnation, number_of_event = parse_event(target)
        self.clock(incarnation, number_of_event)
        return incarnation, number_of_event

    def clock(self, incarnation: str, number: int) -> VectorClock:
        """Return all that an actor had heard of at one of its events, itself included.

        Raises:
            ConfigError: there is no such event.
        """
        found = self.tape_of(incarnation)
        if not found.header.after < number <= found.events:
            raise _no_event(found, number)
        known = dict(found.header.clock)
        for record in found.records():
            if isinstance(record, tape.Event):
                known.update(record.clock)
                if record.n == number:
                    break
        return VectorClock({**known, incarnation: number})

    def clock_sums(self, events: Iterable[str]) -> dict[str, int]:
        """Return the sum of the clock's entries of each event, given as ``syncer.1:540``.

        An event has a larger sum than every event in its causal past, so sorting by the sum gives
        a causal order that depends on nothing but the tapes.
        """
        wanted: dict[str, set[int]] = {}
        for event in events:
            incarnation, number = parse_event(event)
            wanted.setdefault(incarnation, set()).add(number)
        sums: dict[str, int] = {}
        for incarnation, numbers in wanted.items():
            found = self.tape_of(incarnation)
            known = dict(found.header.clock)
            for record in found.records():
                if isinstance(record, tape.Event):
                    known.update(record.clock)
                    if record.n in numbers:
                        others = sum(n for who, n in known.items() if who != incarnation)
                        sums[f"{incarnation}:{record.n}"] = others + record.n
        return sums

    def _decoded(self, found: Tape, record: tape.Event) -> Any:
        try:
            return self._decode(record.event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            problem = f"event {record.n} is unknown to this version: {error}"
            raise TapeError(found.path, 0, problem) from None

    def _begun(self, each: Tape) -> tuple[Actor, int]:
        """An actor as it was when its tape began, or at the snapshot that its tape continues from;
        and the number of the last event that is in this state."""
        start_point = self._start_point
        start = start_point.start(each.incarnation) if start_point is not None else None
        if start is None:
            if not each.header.after:
                return new_actor(each.incarnation, machine_for(self.job, each.incarnation)), 0
            said = f"begins after event {each.header.after}, and no snapshot here has that state"
            raise TapeError(each.path, 16, said)
        states = states_for(self.job, each.incarnation)
        return states.read(start.actor.write()), start.part.number

    @cached_property
    def _start_point(self) -> JobStartPoint | None:
        """The snapshot that the tapes continue from, if they do."""

        def read(place: str | Path, snapshot: str) -> JobStartPoint:
            return read_job_start_point(place, snapshot, self.job)

        place = place_of(self.job, run_folder_of(self.path))
        tapes = list(self.tapes.values())
        permit = permit_of(tapes, self.path, trust=self.trust)
        found = choose_start_point(tapes, place, read, "", permit)
        plan = _plan_in(found) if found is not None else None
        if found is None or plan is None:
            return found
        for start in found.starts.values():
            each = self.tapes.get(start.part.who)
            # As the run did that began there, whose job may have other settings.
            if each is not None and each.header.after == start.part.number and not each.dropped:
                start.adopt(self.job, plan)
        return found


def _plan_in(start_point: JobStartPoint) -> FragmentPlan | None:
    """How the parameters were cut into fragments when a snapshot was taken."""
    machines = (each.actor.machine for each in start_point.starts.values())
    plans = map(plan_of, machines)
    return next((each for each in plans if each is not None), None)


def parse_event(text: str) -> tuple[str, int]:
    """Split ``syncer.1:540`` into incarnation and event number.

    Raises:
        ConfigError: it is no event.
    """
    incarnation, _, number = text.rpartition(":")
    if not incarnation or not number.isdecimal():
        raise ConfigError(f"{text!r} is no event; want INCARNATION:NUMBER, as in syncer.1:540")
    return incarnation, int(number)


def _no_event(found: Tape, number: int) -> ConfigError:
    span = f"{found.header.after + 1} to {found.events}"
    return ConfigError(f"{found.incarnation}:{number}: the tape has events {span}")


def is_syncer(incarnation: str) -> bool:
    """Whether an incarnation is one of a syncer, by its name."""
    return actor_of(incarnation).partition("-")[0] == SYNCER


def _order(incarnation: str) -> tuple[str, int]:
    return actor_of(incarnation), number_of(incarnation)
