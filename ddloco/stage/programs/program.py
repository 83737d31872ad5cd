"""A program of a user's actors: the actors, their messages, and their work; ``ddloco perform`` runs
it. See examples/parameter_server.py for an example and ``ddloco docs own-actors`` for an
explanation."""

import hashlib
import inspect
import platform
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, final, get_args, get_type_hints

import msgspec
import numpy as np
import tomli_w
import trio

from clocks import actor_of
from ddloco.stage.actors.actor import ACTOR_SEMANTICS, ActorStates, Machine, new_actor
from ddloco.stage.actors.effects import AskedByAll, Finish, Work
from ddloco.stage.actors.events import Begun, HappensToAll
from ddloco.stage.actors.messages import ActorBody
from ddloco.stage.actors.timers import TimerOfAll
from ddloco.stage.arrays.array_table import ArrayTable
from ddloco.stage.driver.resume import Start, absolute_place, load_start
from ddloco.stage.files.faults import Faults, impossible
from ddloco.stage.files.keys import load_curve
from ddloco.stage.files.settings import SnapshotTable, TapeTable
from ddloco.stage.files.span import unbounded
from ddloco.stage.files.toml import ConfigError, convert, read_toml
from ddloco.stage.files.trust import leave_place
from ddloco.stage.nodes.node import HostedActor, OpenedActor
from ddloco.stage.nodes.runnable import Runnable
from ddloco.stage.process.entry_point import NamedError, called, in_one_line, parted
from ddloco.stage.process.entry_sources import source_digests
from ddloco.stage.process.errors import raised_at
from ddloco.stage.programs import user_actor
from ddloco.stage.programs.executor import ComputationExecutor, Compute
from ddloco.stage.programs.user_actor import (
    Call,
    Done,
    Over,
    Returned,
    UserActor,
    UserTimer,
    array_field,
    compute_call,
    handler_of,
    needs_array,
)
from replay import TapeError
from snapshot import Part, SnapshotError, Store
from transport import Body, Header, MessageArrived, RemoteProtocolError, TimerFired
from transport.curve_auth import Curve
from transport.payload import payload_bytes

PLACE = "place of snapshots"
"""The fact in a tape's header with the place of the run's own snapshots."""


@dataclass(frozen=True)
class Role:
    """One actor.

    Attributes:
        machine: creates the actor's state machine, once per incarnation. Its first event is
            ``Begun``.
        dials: the actors that it connects to. A machine that is no ``UserActor`` requests each link
            with ``Dial``, and theirs accept it with ``Listen``.
        compute: does the work that its machine requests; the default is for a ``UserActor``.
    """

    machine: Callable[[], Machine]
    dials: tuple[str, ...] = ()
    compute: Compute = compute_call


@dataclass(frozen=True)
class Program:
    """The return value of a user's function.

    Attributes:
        roles: the actors, by name.
        said: the union of message bodies, subclasses of ``transport.Body``; by default those that
            the actors have methods for.
        happened: the union of work results, subclasses of ``Computed``; ``Returned`` is included.
        asked: the union of the work that machines request, subclasses of ``Calculation``; ``Call``
            is included. Snapshots hold the work that is under way.
        payload_bytes_max: the largest payload of a message; memory for it is allocated when its
            header arrives.
        tape: what is recorded, and whether tapes are shipped and bounded.
        snapshot: how often snapshots are taken, where they are, and how many are kept.
    """

    roles: Mapping[str, Role]
    said: Any = None
    happened: Any = Returned
    asked: Any = Call
    payload_bytes_max: int = 2**28
    tape: TapeTable = TapeTable()
    snapshot: SnapshotTable = SnapshotTable()


def star(
    hub: str, machine: Callable[[], Machine], **leaves: Sequence[Callable[[], Machine]]
) -> Program:
    """A program in which all others dial one actor.

    Args:
        hub: the name of the actor in the middle.
        machine: creates its machine.
        leaves: what creates the machines of the others, by the beginning of their names:
            ``trainer=[...]`` makes ``trainer-0`` and so on.
    """
    roles = {hub: Role(machine)}
    for name, makers in leaves.items():
        roles.update((f"{name}-{n}", Role(each, dials=(hub,))) for n, each in enumerate(makers))
    return Program(roles)


def mesh(**makers: Sequence[Callable[[], Machine]]) -> Program:
    """A program in which all are linked: each actor dials those before it.

    Args:
        makers: what creates their machines, by the beginning of their names, as in ``star``.
    """
    roles: dict[str, Role] = {}
    for name, machines in makers.items():
        for n, each in enumerate(machines):
            roles[f"{name}-{n}"] = Role(each, dials=tuple(roles))
    return Program(roles)


@final
@dataclass(frozen=True)
class LoadedProgram(Runnable):
    """A program with its options, as recorded on tapes; see ``Runnable``.

    Attributes:
        spec: ``module:function``.
        snapshot_said: what its processes continue from, as given to ``--from``.
        trust: whether the user trusts who writes there.
    """

    settings_name = "program"
    interrupt_stops = True

    spec: str
    options: Mapping[str, Any]
    program: Program
    digests: Mapping[str, str] = field(compare=False, default_factory=dict)
    keys: Path | None = field(compare=False, default=None)
    chaos_file: Path | None = field(compare=False, default=None)
    snapshot_said: str = field(compare=False, default="")
    trust: bool = field(compare=False, default=False)

    @property
    def name(self) -> str:
        return parted("program", self.spec)[1]

    @property
    def id(self) -> str:
        content = msgspec.json.encode(self.as_plain(), order="deterministic")
        return f"{self.name}-{hashlib.sha256(content).hexdigest()[:12]}"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.program.roles)

    @property
    def listeners(self) -> tuple[str, ...]:
        """The actors that others dial, each after those that it dials itself, if possible."""
        return self._listeners

    @cached_property
    def _listeners(self) -> tuple[str, ...]:
        dials = {name: self.dials(name) for name in self.names}
        dialled = {other for each in dials.values() for other in each}
        listening = [name for name in self.names if name in dialled]
        try:
            graph = {name: [o for o in dials[name] if o in dialled] for name in listening}
            return tuple(TopologicalSorter(graph).static_order())
        except CycleError:
            return tuple(listening)

    @property
    def source_name(self) -> str:
        return f"program {self.spec}"

    @property
    def tape(self) -> TapeTable:
        return self.program.tape

    @property
    def snapshot(self) -> SnapshotTable:
        return self.program.snapshot

    @property
    def chaos(self) -> Faults:
        """Return the faults in ``chaos_file``; ``ConfigError`` if one is of another actor."""
        if self.chaos_file is None:
            return Faults()
        faults = convert(read_toml(self.chaos_file), Faults, str(self.chaos_file))
        problem = impossible(faults, self.followers, (self.lead, *self.listeners))
        if problem is not None:
            raise ConfigError(f"{self.chaos_file}: {problem}")
        return faults

    @property
    def is_open(self) -> bool:
        return self.keys is not None

    @property
    def how_to_close(self) -> str:
        names = ",".join(self.names)
        return f"make keys with `ddloco keys DIR --names {names}` and pass them with --keys DIR"

    @property
    def bodies(self) -> Any:
        return ActorBody | Over | Done | self.program.said

    @property
    def asked(self) -> Any:
        return Call | self.program.asked

    def machine(self, incarnation: str) -> Machine:
        name = actor_of(incarnation)
        machine = self.program.roles[name].machine()
        if isinstance(machine, UserActor):
            dialled = self.dials(name)
            others = (each for each in self.names if name in self.dials(each))
            linked = tuple(sorted({*dialled, *others}, key=str.encode))
            machine.link(dialled, listens=name in self.listeners, linked=linked)
        return machine

    def states(self, incarnation: str) -> ActorStates[Any]:
        machine = self.machine(incarnation)
        return ActorStates(machine, self.bodies, self.asked, UserTimer)

    @property
    def semantics(self) -> tuple[str, ...]:
        return ACTOR_SEMANTICS

    @property
    def events(self) -> Any:
        arrived = MessageArrived[self.bodies]
        timed = TimerFired[TimerOfAll | UserTimer]
        return arrived | timed | HappensToAll | Begun | Returned | self.program.happened

    def dials(self, name: str) -> tuple[str, ...]:
        return self.program.roles[name].dials

    def curve(self, name: str) -> Curve | None:
        return load_curve(self.keys, name, self.listeners) if self.keys is not None else None

    def as_plain(self) -> dict[str, Any]:
        return {"program": self.spec, "options": dict(self.options)}

    def sources(self, folder: Path | None = None) -> Mapping[str, str]:
        del folder
        return self.digests

    def live_faults(self) -> None:
        """All faults can be applied."""

    def load_start(self, store: Store, part: Part) -> Start:
        if actor_of(part.who) not in self.names:
            raise SnapshotError(f"{store.name}: {part.who} is no actor of this program")
        return load_start(store, part, self.states(part.who))

    def command(self, name: str, folder: Path) -> list[str]:
        options = [f"{key}={said_of_option(value)}" for key, value in self.options.items()]
        said = ["perform", self.spec, "--dir", str(folder), "--only", name, "--with-parent"]
        said += [word for each in options for word in ("--set", each)]
        said += ["--from", self.snapshot_said] if self.snapshot_said else []
        said += ["--keys", str(self.keys)] if self.keys is not None else []
        place = self.snapshot.place
        return [*said, *(["--trust"] if self.trust else []), *(["--place", place] if place else [])]

    def address_arguments(self, name: str, addresses: Mapping[str, str]) -> list[str]:
        needed = [*self.dials(name), *{self.lead, name}]
        at = [f"{each}={addresses[each]}" for each in sorted({*needed}) if each in self.listeners]
        return ["--at", *at] if at else []

    def address_option(self, name: str, address: str, *, listens: bool) -> str:
        del listens
        return f"--at {name}={address}"

    def asked_to_stop(self) -> tuple[str, ...]:
        return self.names

    def ends_all(self, name: str, finish: Finish) -> bool:
        del name
        return finish.status in ("failed", "bad-input")

    def is_over(self, running: Sequence[str], failed: Collection[str]) -> str:
        """Actors end by themselves."""
        del running, failed
        return ""

    def failure(self, error: BaseException, incarnation: str) -> Finish:
        del incarnation
        if isinstance(error, TapeError):
            return Finish("failed", str(error))
        said = f"{in_one_line(error)} ({raised_at(error, user_actor.__file__)})"
        return Finish("failed", f"{said}; the tape ends with that event")

    def admits(self, header: Header[Any]) -> None:
        """Check that a message has the array that its body needs, and no larger payload than is
        taken; else ``RemoteProtocolError``."""
        kind = type(header.body)
        if header.tensors and not array_field(kind):
            raise RemoteProtocolError(f"$.tensors: a {kind.__name__} carries no array")
        if not header.tensors and needs_array(kind):
            raise RemoteProtocolError(f"$.tensors: a {kind.__name__} carries an array")
        nbytes, most = payload_bytes(header.tensors), self.program.payload_bytes_max
        if nbytes > most:
            raise RemoteProtocolError(f"$.tensors: {nbytes} bytes; this program takes {most}")

    @asynccontextmanager
    async def open(self, hosted: HostedActor) -> AsyncIterator[OpenedActor]:
        role, incarnation = self.program.roles[hosted.name], hosted.incarnation
        arrays = ArrayTable()
        actor = new_actor(incarnation, self.machine(incarnation))
        first, pending = Begun(incarnation), []
        start_point = hosted.start_point
        start = start_point.start(incarnation) if start_point is not None else None
        if start is not None and start_point is not None:
            start.lay_out(arrays)
            actor = start.actor
            first, pending = start_point.first(start, self.names, self.id)
        leave_place(hosted.folder, place := absolute_place(self.place(hosted.folder)))
        facts = {PLACE: place}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._snapshots, hosted)
            yield OpenedActor(
                actor,
                first,
                pending,
                said=self.bodies,
                executor=ComputationExecutor(role.compute, self.asked, arrays, hosted.sink()),
                arrays=arrays,
                recorder=hosted.recorder(program_fingerprint(), facts, actor.clock.wire),
                admits=self.admits,
                facts=lambda: {"name": self.name},
            )
            nursery.cancel_scope.cancel()

    async def _snapshots(self, hosted: HostedActor) -> None:
        every_s = self.snapshot.every_s
        while every_s and hosted.name == self.lead:
            await trio.sleep(every_s)
            hosted.request_snapshot()

    def placed(self, place: str) -> "LoadedProgram":
        snapshot = msgspec.structs.replace(self.snapshot, place=place)
        return replace(self, program=replace(self.program, snapshot=snapshot))


def said_of_option(value: Any) -> str:
    """An option's value as ``--set`` takes it: a value of TOML."""
    return tomli_w.dumps({"v": value}).removeprefix("v = ").rstrip("\n")


def program_fingerprint() -> dict[str, str]:
    """What can change the arithmetic of a program."""
    return {
        "machine": platform.machine(),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def find_programs() -> Path:
    """Make programs importable from the current folder; returns it. Programs are built on ddloco's
    packages, which are imported already and so take precedence over modules of the same name."""
    here = Path.cwd()
    if str(here) not in sys.path:
        sys.path.insert(0, str(here))
    return here


def is_program(plain: Mapping[str, Any]) -> bool:
    return "program" in plain


def load_program(spec: str, options: Mapping[str, Any]) -> LoadedProgram:
    """Import ``module:function``, call it with ``options``, and check what it returns;
    ``NamedError`` says what is wrong."""
    program = called("program", spec, options)
    problem = _problem(program)
    if problem is None:
        try:
            program = replace(program, said=handled(program))
            problem = _problem_of_messages(program)
        except (TypeError, NameError) as error:
            problem = in_one_line(error)
    if problem is not None:
        raise NamedError(f"program {spec!r}: {problem}")
    return LoadedProgram(spec, options, program, source_digests("program", spec))


def _problem(program: Any) -> str | None:
    if not isinstance(program, Program):
        return f"returns {type(program).__name__}, want a ddloco.stage.Program"
    if not program.roles:
        return "it has no actors"
    for name, role in program.roles.items():
        if not name or "." in name or "/" in name:
            return f"{name!r} is not an actor's name; want one without '.' and '/'"
        for other in role.dials:
            if other not in program.roles or other == name:
                return f"{name} dials {other}, which is not another actor of the program"
    table, taken = program.tape, program.snapshot
    if taken.every_steps:
        return "snapshot.every_steps: only jobs have steps; want every_s"
    unbound = unbounded(table.keep, wanted=taken.wanted, stay=taken.keep, ships=table.ships)
    if unbound is not None:
        return unbound
    for each in get_args(program.asked) or (program.asked,):
        if not (isinstance(each, type) and issubclass(each, Work)):
            return f"asked: {each!r} is not a subclass of Calculation"
    return _taken(program.happened, HappensToAll | Begun | TimerFired, "result") or _taken(
        program.asked, AskedByAll | Call, "work"
    )


def handled(program: Program) -> Any:
    """Return the union of message bodies: ``said``, or those that the actors have methods for.
    ``TypeError`` if a method for a message does not annotate it, or has another name."""
    if program.said is not None:
        return program.said
    found: Any = Over | Done
    for role in program.roles.values():
        for name, method in inspect.getmembers(type(role.machine()), inspect.isfunction):
            if not name.startswith("on_"):
                continue
            body = get_type_hints(method).get("message")
            if not isinstance(body, type) or not issubclass(body, Body):
                raise TypeError(f"{method.__qualname__}: annotate message with its class")
            if handler_of(body) != name:
                said = f"takes {body.__name__}, which arrives at {handler_of(body)}"
                raise TypeError(f"{method.__qualname__}: {said}")
            found |= body
    return found


def _problem_of_messages(program: Program) -> str | None:
    for each in get_args(program.said) or (program.said,):
        array_field(each)
    return _taken(program.said, ActorBody | Over | Done, "message")


def _taken(own: Any, ours: Any, kind: str) -> str | None:
    """What is wrong if a class of the user's has the name of one that every actor has."""
    names = {each.__name__: each for each in get_args(ours)}
    for each in get_args(own) or (own,):
        if names.get(each.__name__, each) is not each:
            return f"{kind} {each.__name__}: ddloco has one of that name; choose another"
    return None
