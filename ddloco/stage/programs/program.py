"""A program of a user's actors: the actors, their messages, and their work.

A program needs nothing else to be run over ZeroMQ, recorded, replayed and snapshotted:
``ddloco perform`` runs it, and all other commands accept its run folders. See
examples/parameter_server.py for an example and ``ddloco docs own-actors`` for an explanation.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec
from numpy.typing import NDArray

from ddloco.stage.actors.actor import ActorStates, Machine
from ddloco.stage.actors.events import Begun, HappensToAll, WorkResult
from ddloco.stage.actors.messages import SaidByAll
from ddloco.stage.process.entry_point import NamedError, called, parted, source_digest
from ddloco.stage.programs.user_actor import Call, Returned, compute_call
from transport import Header, MessageArrived, RemoteProtocolError
from transport.payload import payload_bytes

Tensors = Mapping[str, NDArray[Any]]

Compute = Callable[[Any, Sequence[Tensors]], tuple[WorkResult, Sequence[Tensors]]]
"""Does a piece of work. Its arguments are the effect and the arrays that the effect ``reads``, in
that order; it returns the result event and the arrays that the effect ``makes``. It is called in a
thread, and again in every replay, so it must be deterministic: no clock, no files, and randomness
only from a seed in the effect."""


@dataclass(frozen=True)
class Role:
    """One actor.

    Attributes:
        machine: creates the actor's state machine, once per incarnation. Its first event is
            ``Begun``.
        dials: the actors that it connects to; its machine requests each link with ``Dial``, and
            theirs accept it with ``Listen``.
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
        said: the union of message bodies, subclasses of ``transport.Body``.
        happened: the union of work results, subclasses of ``Computed``; ``Returned`` is included.
        asked: the union of the work that machines request, subclasses of ``Calculation``; ``Call``
            is included. Snapshots hold the work that is under way.
        payload_bytes_max: the largest payload of a message; memory for it is allocated when its
            header arrives.
    """

    roles: Mapping[str, Role]
    said: Any
    happened: Any = Returned
    asked: Any = Call
    payload_bytes_max: int = 2**28


@dataclass(frozen=True)
class LoadedProgram:
    """A program with its options, as recorded on tapes.

    Attributes:
        spec: ``module:function``.
        options: the function's arguments; plain data.
        program: what the function returned.
    """

    spec: str
    options: Mapping[str, Any]
    program: Program
    source: str = field(compare=False, default="")
    """The SHA-256 of its source file."""

    @property
    def name(self) -> str:
        """The name of the function, for display."""
        return parted("program", self.spec)[1]

    @property
    def id(self) -> str:
        """Name and digest, which identify the job in messages and tapes."""
        content = msgspec.json.encode(self.as_plain(), order="deterministic")
        return f"{self.name}-{hashlib.sha256(content).hexdigest()[:12]}"

    @property
    def bodies(self) -> Any:
        """The union of all message bodies."""
        return SaidByAll | self.program.said

    def states(self, machine: Machine) -> ActorStates[Any]:
        """What reads the states of actors with such a machine."""
        return ActorStates(type(machine), self.bodies, Call | self.program.asked)

    @property
    def events(self) -> Any:
        """The union of all events that a tape may contain."""
        arrived = MessageArrived[self.bodies]
        return arrived | HappensToAll | Begun | Returned | self.program.happened

    def listeners(self) -> tuple[str, ...]:
        """The actors that others dial, in their order in the program."""
        dialled = {name for role in self.program.roles.values() for name in role.dials}
        return tuple(name for name in self.program.roles if name in dialled)

    def as_plain(self) -> dict[str, Any]:
        """The spec and options as plain data, for a tape's header."""
        return {"program": self.spec, "options": dict(self.options)}

    def admits(self, header: Header[Any]) -> None:
        """Check the size of a message's payload.

        Raises:
            RemoteProtocolError: it is too large.
        """
        nbytes, most = payload_bytes(header.tensors), self.program.payload_bytes_max
        if nbytes > most:
            raise RemoteProtocolError(f"$.tensors: {nbytes} bytes; this program takes {most}")


def is_program(plain: Mapping[str, Any]) -> bool:
    """Whether a tape's header describes a user's program rather than a job."""
    return "program" in plain


def program_from(plain: Mapping[str, Any]) -> LoadedProgram:
    """Load the loaded that a tape's header describes.

    Raises:
        NamedError: it cannot be loaded here.
    """
    return load_program(plain["program"], plain["options"])


def load_program(spec: str, options: Mapping[str, Any]) -> LoadedProgram:
    """Import ``module:function``, call it with ``options``, and check what it returns.

    Raises:
        NamedError: with one line that says what is wrong.
    """
    program = called("program", spec, options)
    problem = _problem(program)
    if problem is not None:
        raise NamedError(f"program {spec!r}: {problem}")
    return LoadedProgram(spec, options, program, source_digest("program", spec))


def _problem(program: Any) -> str | None:
    if not isinstance(program, Program):
        return f"returns {type(program).__name__}, want a ddloco.stage.programs.Program"
    if not program.roles:
        return "it has no actors"
    for name, role in program.roles.items():
        if not name or "." in name or "/" in name:
            return f"{name!r} is not an actor's name; want one without '.' and '/'"
        for other in role.dials:
            if other not in program.roles or other == name:
                return f"{name} dials {other}, which is not another actor of the program"
    return _taken(program.said, SaidByAll, "message") or _taken(
        program.happened, HappensToAll | Begun, "result"
    )


def _taken(own: Any, ours: Any, kind: str) -> str | None:
    """What is wrong if a class of the user's has the name of one that every actor has."""
    names = {each.__name__: each for each in get_args(ours)}
    for each in get_args(own) or (own,):
        if names.get(each.__name__, each) is not each:
            return f"{kind} {each.__name__}: ddloco has one of that name; choose another"
    return None
