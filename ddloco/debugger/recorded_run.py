"""A recorded run, opened for questions: its tapes, and its actors at any of their events. Nothing
is executed but machines, so no JAX process is started and nothing is written."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from clocks import VectorClock, actor_of, is_in_use, number_of
from ddloco.debugger.timeline import clock_offsets
from ddloco.replayer.gaps import begins_said, gaps_of, listed
from ddloco.replayer.recording import named_settings, permit_of, run_folder_of, start_point_in
from ddloco.replayer.start_point import clock_at
from ddloco.roles.job_program import JobProgram
from ddloco.stage.actors.actor import Actor, new_actor
from ddloco.stage.driver.resume import StartPoint
from ddloco.stage.files.run_folder import LOG_FILE
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.process.run_identity import identity_of
from ddloco.stage.programs.program import LoadedProgram
from replay import Step, Stepper, Tape, TapeError, tape


class RecordedRun:
    """The tapes of one run of a job or of a user's program; see ``open_run``. They are sorted by
    actor and incarnation number. With ``trust`` the machines of a run of another user begin with
    the states in its snapshots, and ``arrays`` calls its task."""

    def __init__(
        self,
        path: Path,
        tapes: Sequence[Tape],
        program: JobProgram | LoadedProgram,
        *,
        salvage: bool = False,
        trust: bool = False,
    ) -> None:
        self.path, self.program = path, program
        ordered = sorted(tapes, key=lambda each: order_of(each.incarnation))
        self.tapes: dict[str, Tape] = {each.incarnation: each for each in ordered}
        self.salvage, self.trust = salvage, trust
        self._walkers: dict[str, Stepper[Actor]] = {}
        self._decode = msgspec.msgpack.Decoder(program.events).decode

    @cached_property
    def gaps(self) -> list[str]:
        """What is missing or damaged, a line for each; see ``gaps_of``."""
        return gaps_of(list(self.tapes.values()), self.path, self.runs)

    @cached_property
    def is_under_way(self) -> bool:
        """Whether a process here still had the run's log open when this was asked first."""
        return is_in_use(run_folder_of(self.path) / LOG_FILE)

    def runs(self, incarnation: str) -> bool:
        """Whether an actor may still write to its tape: no newer incarnation took its place."""
        newest = {actor_of(each): each for each in self.tapes}
        is_open = self.tapes[incarnation].closed is None
        return is_open and self.is_under_way and newest[actor_of(incarnation)] == incarnation

    def settings(self) -> dict[str, Any]:
        """Return the settings by their names, such as ``sync.quorum`` or ``options.trainers``."""
        return named_settings(self.program.as_plain())

    def identity(self, incarnation: str) -> dict[str, str]:
        """Return what decides what an actor computes, as far as it is known: ``run_identity``."""
        return identity_of(self.tapes[incarnation].header)

    def preface(self) -> list[str]:
        """Return what people must know before any answer: gaps, and where the tapes begin."""
        under_way = ["the run is under way: its tapes are read up to here"] * self.is_under_way
        return [*listed(self.gaps), *under_way, *begins_said(list(self.tapes.values()))]

    @property
    def restored(self) -> bool:
        """Whether machines have begun with the states in a snapshot."""
        return vars(self).get("_start_point") is not None

    @property
    def lead(self) -> str:
        lead = self.program.lead
        found = next((each for each in self.tapes if actor_of(each) == lead), None)
        if found is None:
            raise ConfigError(f"{self.path}: no tape of {lead}; there are {', '.join(self.tapes)}")
        return found

    @cached_property
    def offsets(self) -> dict[str, float]:
        return clock_offsets(self.tapes.values())

    def common(self, incarnation: str, at: float) -> float:
        return at + self.offsets.get(incarnation, 0.0)

    def tape_of(self, incarnation: str) -> Tape:
        found = self.tapes.get(incarnation)
        if found is None:
            there = ", ".join(self.tapes)
            raise ConfigError(f"{self.path}: no tape of {incarnation}; there are {there}")
        return found

    def stepper(self, incarnation: str) -> Stepper[Actor]:
        """Return a new stepper at the beginning of a tape; ``SnapshotError`` if the tape continues
        from a snapshot that is not there."""
        found = self.tape_of(incarnation)
        actor, after = self._begun(found)
        return Stepper(
            found,
            self.program.events,
            actor,
            Actor.write,
            self.program.states(incarnation).read,
            after=after,
        )

    def walker(self, incarnation: str) -> Stepper[Actor]:
        """Return this run's own stepper along a tape; it is where it was left."""
        if incarnation not in self._walkers:
            self._walkers[incarnation] = self.stepper(incarnation)
        return self._walkers[incarnation]

    def at(self, incarnation: str, number: int) -> Step:
        """Go to an event; the actor as it was then is ``walker(incarnation).actor``. ``Divergence``
        if this program decides otherwise than the tape says."""
        try:
            return self.walker(incarnation).goto(number)
        except LookupError as error:
            raise ConfigError(error.args[0]) from None

    def beginning(self, incarnation: str) -> Actor:
        self._walkers[incarnation] = self.stepper(incarnation)
        return self._walkers[incarnation].actor

    def first(self, incarnation: str) -> int:
        return self.walker(incarnation).first

    def events(self, incarnation: str, *mentioned: type) -> Iterator[tuple[tape.Event, Any]]:
        """Yield the events of a tape, decoded; no machine handles them. With ``mentioned``, types
        of events or of bodies, only events that name one of them are decoded and yielded, which
        takes less time; there may be others among them that have such a name in their text."""
        found = self.tape_of(incarnation)
        names = re.compile(b"|".join(each.__name__.encode() for each in mentioned)).search
        for record in found.records():
            if type(record) is tape.Event and names(bytes(record.event)):
                yield record, self._decoded(found, record)

    def event(self, incarnation: str, number: int) -> tuple[float, Any]:
        found = self.tape_of(incarnation)
        if not found.header.after < number <= found.events:
            raise _no_event(found, number)
        record = next(each for each in found.records(number - 1) if type(each) is tape.Event)
        return record.at, self._decoded(found, record)

    def resolve(self, target: str) -> tuple[str, int]:
        incarnation, number = parse_event(target)
        self.clock(incarnation, number)
        return incarnation, number

    def clock(self, incarnation: str, number: int) -> VectorClock:
        """Return all that an actor had heard of at one of its events, itself included."""
        found = self.tape_of(incarnation)
        if not found.header.after < number <= found.events:
            raise _no_event(found, number)
        return VectorClock(clock_at(found, number))

    def clock_sums(self, events: Iterable[str]) -> dict[str, int]:
        """Return the sum of the clock's entries of each event, given as ``syncer.1:540``. An event
        has a larger sum than every event in its causal past, so sorting by the sum gives a causal
        order that depends on nothing but the tapes."""
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

    def unheard(self, events: Iterable[str]) -> set[str]:
        """Return those of the events of which no other one, of another actor, is in the causal
        past."""
        known = {
            each: (parse_event(each), self.clock(*parse_event(each)).wire()) for each in events
        }
        return {
            each
            for each, ((own, _), heard) in known.items()
            if not any(
                actor_of(who) != actor_of(own) and heard.get(who, 0) >= number
                for (who, number), _ in known.values()
            )
        }

    def _decoded(self, found: Tape, record: tape.Event) -> Any:
        try:
            return self._decode(record.event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            problem = f"event {record.n} is unknown to this version: {error}"
            raise TapeError(found.path, 0, problem) from None

    def _begun(self, each: Tape) -> tuple[Actor, int]:
        """Return an actor as it was when its tape began, or at the snapshot that its tape continues
        from; and the number of the last event that is in this state."""
        start_point = self._start_point
        start = start_point.start(each.incarnation) if start_point is not None else None
        if start is None:
            if not each.header.after:
                return new_actor(each.incarnation, self.program.machine(each.incarnation)), 0
            said = f"begins after event {each.header.after}, and no snapshot here has that state"
            raise TapeError(each.path, 16, said)
        states = self.program.states(each.incarnation)
        return states.read(start.actor.write()), start.part.number

    @cached_property
    def _start_point(self) -> StartPoint[Any] | None:
        tapes = list(self.tapes.values())
        permit = permit_of(tapes, self.path, trust=self.trust)
        return start_point_in(self.program, tapes, self.path, permit)


def parse_event(text: str) -> tuple[str, int]:
    """Split ``syncer.1:540`` into incarnation and event number."""
    incarnation, _, number = text.rpartition(":")
    if not incarnation or not number.isdecimal():
        raise ConfigError(f"{text!r} is no event; want INCARNATION:NUMBER, as in syncer.1:540")
    return incarnation, int(number)


def _no_event(found: Tape, number: int) -> ConfigError:
    span = f"{found.header.after + 1} to {found.events}"
    return ConfigError(f"{found.incarnation}:{number}: the tape has events {span}")


def order_of(incarnation: str) -> tuple[str, int]:
    return actor_of(incarnation), number_of(incarnation)
