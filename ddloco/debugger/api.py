"""The Python interface to recorded runs: ``ddloco.open("runs/first")``. Nothing is executed but
machines, until arrays are asked for."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from clocks import VectorClock, actor_of
from ddloco.debugger.causes import Cause, chain
from ddloco.debugger.cluster_status import ClusterStatus, cluster_at
from ddloco.debugger.detectors import Found, detect
from ddloco.debugger.learner_time import LearnerTime, times_of
from ddloco.debugger.merge_history import Merge
from ddloco.debugger.merge_without import MergeWithout, merge_without
from ddloco.debugger.not_finite import NotFinite, not_finite_in
from ddloco.debugger.one_step import StepAnswer, step_of
from ddloco.debugger.recorded_job import RecordedJob, job_in, open_run
from ddloco.debugger.recorded_run import RecordedRun, parse_event
from ddloco.debugger.run_diff import RunDiff, compare
from ddloco.debugger.stopped_replay import Tensors, arrays_at
from ddloco.debugger.story import story_of
from ddloco.debugger.story_line import Line
from ddloco.debugger.stuck import Stuck, stuck_at_end
from ddloco.debugger.version_travel import Travel, travels_of
from ddloco.debugger.watch import Watched, watch
from ddloco.debugger.wording import phrase
from ddloco.stage.actors.actor import Machine
from ddloco.stage.files.toml import ConfigError

CAUSES_MAX = 16
"""Causes that ``Position.causes`` returns unless more are asked for."""


class InnerStep(Struct, frozen=True):
    """One finished inner step.

    Attributes:
        learner: its incarnation.
        step: the inner step.
        loss: of its batch, before the update.
        tokens: in its batch.
        event: the event, as ``learner-0.1:57``.
        at: the time of the event, in seconds since the learner's start.
    """

    learner: str
    step: int
    loss: float
    tokens: int
    event: str
    at: float


class Run:
    """A recorded run.

    Args:
        path: the run folder, a folder of tapes, or one tape.
        salvage: whether to read damaged tapes up to the damage.
        trust: whether to let the task and the states of a run act that another user recorded.

    Raises:
        TapeError: a tape cannot be read, or is of another run than the others.
        ConfigError: another user recorded the program that the tapes name.
        NamedError: it cannot be used here.
    """

    def __init__(self, path: Path | str, *, salvage: bool = False, trust: bool = False) -> None:
        self.path = Path(path)
        self._salvage, self._trust = salvage, trust
        _ = self.recorded  # Tapes that cannot be read are reported now.

    def __repr__(self) -> str:
        tapes = self.recorded.tapes.values()
        events = sum(each.events - each.header.after for each in tapes)
        gaps = f", {len(self.gaps)} gaps" if self.gaps else ""
        return f"<run {self.recorded.path}: {len(tapes)} tapes, {events:,} events{gaps}>"

    @cached_property
    def recorded(self) -> RecordedRun:
        """The tapes, for the questions of the ``ddloco.debugger`` modules."""
        return open_run(self.path, salvage=self._salvage, trust=self._trust)

    @property
    def _training(self) -> RecordedJob:
        return job_in(self.recorded)

    @property
    def gaps(self) -> tuple[str, ...]:
        """What is missing of the tapes, or damaged, a line for each."""
        return tuple(self.recorded.gaps)

    @property
    def actors(self) -> tuple[str, ...]:
        """The incarnations that have tapes."""
        return tuple(self.recorded.tapes)

    @cached_property
    def merges(self) -> tuple[Merge, ...]:
        """All merges, in the order in which they were done."""
        return tuple(self._training.merges())

    def merge(self, t: int) -> Merge:
        """Return the merge of global step ``t``.

        Raises:
            ConfigError: there is none.
        """
        return self._training.merge(t)

    def steps(self, learner: str = "") -> list[InnerStep]:
        """Return all inner steps, or those of one learner (by name or incarnation).

        Raises:
            TapeError: a tape cannot be read.
        """
        return [
            InnerStep(who, step, each.loss, each.tokens, f"{who}:{record.n}", record.at)
            for who in self._training.learners
            if learner in {"", who, actor_of(who)}
            for record, step, each in self._training.steps_of(who)
        ]

    def at(self, event: str) -> "Position":
        """Go to an event, such as ``syncer.1:782``.

        Raises:
            ConfigError: there is no such event.
            Divergence: this program decides otherwise than the tape says.
        """
        return Position(self, *parse_event(event))

    def until(
        self,
        predicate: "Callable[[Position], bool]",
        start: "Position | None" = None,
        actor: str = "",
    ) -> "Position | None":
        """Return the first event after ``start`` for which ``predicate`` holds, None if none does.

        Args:
            predicate: called with each event of one actor, in order.
            start: where to begin; by default at the beginning of the actor's tape.
            actor: whose events, by incarnation; by default those of ``start``, or of the actor
                that leads.
        """
        return next(filter(predicate, self._positions(start, actor, 1)), None)

    def back_until(
        self,
        predicate: "Callable[[Position], bool]",
        start: "Position | None" = None,
        actor: str = "",
    ) -> "Position | None":
        """As ``until``, backwards from ``start`` or from the end of the tape."""
        return next(filter(predicate, self._positions(start, actor, -1)), None)

    def _positions(self, start: "Position | None", actor: str, stride: int) -> "Iterator[Position]":
        run = self.recorded
        who = actor or (start.actor if start is not None else run.lead)
        first, last = run.first(who), run.tape_of(who).events
        if start is not None and start.actor == who:
            begin = start.number + stride
        else:
            begin = first if stride > 0 else last
        for number in range(begin, last + 1 if stride > 0 else first - 1, stride):
            yield Position(self, who, number)

    def what_if(self, t: int, without: str | Sequence[str]) -> MergeWithout:
        """Compute the merge of global step ``t`` again without some learners' contributions.

        The run is replayed up to the merge, its task included.

        Args:
            t: the global step.
            without: one or more learners, by name or incarnation.

        Raises:
            ConfigError: there is no such merge, they are not in it, or no other contribution is.
            TapeError, WorkerRequestError: the run cannot be replayed.
        """
        names = [without] if isinstance(without, str) else without
        return merge_without(self._training, t, names, trust=self.recorded.trust)

    def watch(self, condition: str, *, last: bool = False) -> Watched | None:
        """Replay the run until a condition holds of a learner's state; None if it never does.

        Args:
            condition: such as "learner-1 second/w norm > 1"; see ``ddloco replay --help``.
            last: whether to find when it began to hold for the last time.

        Raises:
            ConfigError: the condition cannot be read, or names what is not there.
            TapeError, WorkerRequestError: the run cannot be replayed.
        """
        return watch(self._training, condition, last=last, trust=self.recorded.trust)[0]

    def detect(self) -> list[Found]:
        """Return all that stands out in a run of a job, as ``ddloco why RUN`` says it.

        Raises:
            ConfigError: it is a program of the user's own.
        """
        found, _ = detect(self._training)
        return found

    def step(self, learner: str, number: int) -> StepAnswer:
        """Return what tapes say of an inner step of a learner, by name or incarnation.

        Raises:
            ConfigError: there is no such step.
        """
        return step_of(self._training, learner, number)

    def not_finite(self) -> NotFinite:
        """Return where a number on the tapes first was no finite one.

        Raises:
            ConfigError: it is a program of the user's own.
        """
        return not_finite_in(self._training)

    def times(self) -> list[LearnerTime]:
        """Return how each incarnation of a learner spent its time, as it told its syncer last.

        Raises:
            ConfigError: it is a program of the user's own.
        """
        return times_of(self._training)

    def travels(self) -> list[Travel]:
        """Return how long the versions of merges travelled to each learner, the slowest first.

        Raises:
            ConfigError: it is a program of the user's own.
        """
        return travels_of(self._training)

    def stuck(self) -> Stuck:
        """Return what the run waits for where its tapes end, if it does."""
        return stuck_at_end(self.recorded)

    def story(self, what: str) -> list[Line]:
        """Return what happened to an actor, ``learner-1``, or to one incarnation, ``learner-1.2``;
        to a merge, ``merge:40``, to a fragment, ``fragment:3``, or to the messages of an event,
        ``message:syncer.1:540``.

        Raises:
            ConfigError: there is none.
        """
        return story_of(self.recorded, what)

    def diff(self, other: "Run | Path | str") -> RunDiff:
        """Compare this run with another one by what their items mean.

        Raises:
            TapeError, ConfigError: the other run cannot be read or compared.
        """
        theirs = other if isinstance(other, Run) else Run(other, trust=self.recorded.trust)
        return compare(self.recorded, theirs.recorded)

    def frame(self, what: str, library: str = "pandas") -> Any:
        """Return steps or merges as a dataframe.

        Args:
            what: ``steps``, ``merges``, or ``contributions``, with a row for each contribution.
            library: ``pandas`` or ``polars``; it must be installed.

        Raises:
            ConfigError: there is no such table, or the library is not installed.
        """
        tables: dict[str, Callable[[], Sequence[Any]]] = {
            "steps": self.steps,
            "merges": lambda: [_flat(each) for each in self.merges],
            "contributions": self._contributions,
        }
        if what not in tables:
            raise ConfigError(f"{what!r} is no table; there are {', '.join(tables)}")
        if library not in {"pandas", "polars"}:
            raise ConfigError(f"{library!r}: want pandas or polars")
        try:
            frames = __import__(library)
        except ImportError:
            raise ConfigError(f"{library} is not installed: pip install {library}") from None
        return frames.DataFrame([msgspec.to_builtins(each) for each in tables[what]()])

    def _contributions(self) -> list[dict[str, Any]]:
        return [
            {"t": merge.t, "fragment": merge.fragment, **msgspec.to_builtins(each)}
            for merge in self.merges
            for each in merge.contributions
        ]


class Position:
    """One event of a run, after its actor has handled it.

    Attributes:
        at: the time of the event, in seconds since the actor's start.
        event: the event itself.
        effects: what the actor asked for, in order.
        failure: the exception that handling it raised, as on the tape; None if it raised none.
    """

    def __init__(self, run: Run, actor: str, number: int) -> None:
        self.run, self.actor, self.number = run, actor, number
        step = run.recorded.at(actor, number)
        self.at, self.event, self.effects = step.at, step.event, step.effects
        self.failure = step.failure

    def __repr__(self) -> str:
        return f"<{self.ref} at {self.at:.4f} s: {phrase(self.event)}>"

    @property
    def ref(self) -> str:
        """The event's name, such as ``syncer.1:782``."""
        return f"{self.actor}:{self.number}"

    @property
    def clock(self) -> VectorClock:
        """All that the actor had heard of, this event included."""
        return self.run.recorded.clock(self.actor, self.number)

    @property
    def machine(self) -> Machine:
        """The actor's machine as it was after this event. Another position may move it."""
        self.run.recorded.at(self.actor, self.number)
        return self.run.recorded.walker(self.actor).actor.machine

    @property
    def cluster(self) -> ClusterStatus:
        """Every actor at what this event knew of it."""
        return cluster_at(self.run.recorded, self.actor, self.number)

    def state(self, actor: str = "") -> dict[str, Any]:
        """Return the status of an actor, by name or incarnation, at what this event knew of it.

        Raises:
            ConfigError: this event knew nothing of that actor, or there is no tape.
        """
        wanted = actor or self.actor
        told = self.cluster
        shown: dict[str, Any] = {each.incarnation: each for each in (*told.syncers, *told.actors)}
        shown |= {each.learner: each for each in told.learners}
        for who, status in shown.items():
            if wanted in {who, actor_of(who)}:
                return msgspec.to_builtins(status)
        raise ConfigError(f"{self.ref} knows nothing of {wanted}, or there is no tape of it")

    def array(self, handle: str) -> "Tensors":
        """Return the tensors under one of the actor's handles, as they were after this event.

        The run is replayed up to here, its task included; this takes as long as the run took.

        Raises:
            ConfigError: there is no such array, or the replay parts from the tapes before.
        """
        return arrays_at(self.run.recorded, self.actor, self.number, handle)

    def causes(self, most: int = CAUSES_MAX) -> list[Cause]:
        """Return the chain of causes of this event, this event first."""
        return chain(self.run.recorded, self.actor, self.number, most)

    def forward(self) -> "Position":
        """Return the actor's next event.

        Raises:
            ConfigError: this is the last one.
        """
        return Position(self.run, self.actor, self.number + 1)

    def back(self) -> "Position":
        """Return the actor's event before this one.

        Raises:
            ConfigError: this is the first one.
        """
        return Position(self.run, self.actor, self.number - 1)


def _flat(merge: Merge) -> dict[str, Any]:
    plain = msgspec.to_builtins(merge)
    plain["learners"] = [each.learner for each in merge.contributions]
    plain["tokens"] = sum(each.tokens for each in merge.contributions)
    plain["absent"] = [each.learner for each in merge.absent]
    plain["refused"] = [each.learner for each in merge.refused]
    plain.update(plain.pop("wait"))
    del plain["contributions"]
    return plain
