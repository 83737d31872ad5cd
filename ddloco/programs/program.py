"""A user's own actors: who takes part, what they say to each other, what they have computed.

A program needs nothing else to be carried over ZeroMQ, recorded, replayed and snapshotted:
``ddloco perform`` runs it, and every other command takes its run folders. examples/
parameter_server.py is one, and docs/own-actors.md explains it.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from numpy.typing import NDArray

from ddloco.actors.actor import Machine
from ddloco.actors.events import Begun, HappensToAll, WorkResult
from ddloco.actors.messages import SaidByAll
from ddloco.programs.user_actor import Returned, compute_call
from ddloco.runtime.entry_point import NamedError, called, parted, source_digest
from transport import Header, MessageArrived, RemoteProtocolError
from transport.payload import payload_bytes

Tensors = Mapping[str, NDArray[Any]]

Compute = Callable[[Any, Sequence[Tensors]], tuple[WorkResult, Sequence[Tensors]]]
"""Does a piece of work: given the effect and the arrays that it ``reads``, in that order; gives how
it ended and the arrays that it ``makes``. Called in a thread, and again in every replay: the same
arrays must come out of the same arrays, so no clock, no files, no randomness without a seed in the
effect."""


@dataclass(frozen=True)
class Role:
    """One actor.

    Attributes:
        machine: makes what decides, anew for every incarnation. Its first event is ``Begun``.
        dials: the actors that it connects to; its machine asks for each with ``Dial``, theirs
            welcome it with ``Listen``.
        compute: does the work that its machine asks for; of a ``UserActor`` the calls.
    """

    machine: Callable[[], Machine]
    dials: tuple[str, ...] = ()
    compute: Compute = compute_call


@dataclass(frozen=True)
class Program:
    """What a user's function returns.

    Attributes:
        cast: the actors, by name.
        said: the union of message bodies, subclasses of ``transport.Body``.
        happened: the union of how work ends, subclasses of ``Computed``; calls are among them.
        payload_bytes_max: no message brings more; what is announced is allocated.
    """

    cast: Mapping[str, Role]
    said: Any
    happened: Any = Returned
    payload_bytes_max: int = 2**28


@dataclass(frozen=True)
class Production:
    """A program with its options, as tapes name it.

    Attributes:
        spec: ``module:function``.
        options: what the function was called with; plain data.
        program: what it returned.
    """

    spec: str
    options: Mapping[str, Any]
    program: Program
    source: str = field(compare=False, default="")
    """The sha256 of its source file."""

    @property
    def name(self) -> str:
        """The function's, for people."""
        return parted("program", self.spec)[1]

    @property
    def id(self) -> str:
        """Name and digest: the run that messages and tapes belong to."""
        content = msgspec.json.encode(self.as_plain(), order="deterministic")
        return f"{self.name}-{hashlib.sha256(content).hexdigest()[:12]}"

    @property
    def bodies(self) -> Any:
        """Everything that may travel."""
        return SaidByAll | self.program.said

    @property
    def events(self) -> Any:
        """Everything that a tape may hold."""
        arrived = MessageArrived[self.bodies]
        return arrived | HappensToAll | Begun | Returned | self.program.happened

    def listeners(self) -> tuple[str, ...]:
        """The actors that others dial, in the cast's order."""
        dialled = {name for role in self.program.cast.values() for name in role.dials}
        return tuple(name for name in self.program.cast if name in dialled)

    def as_plain(self) -> dict[str, Any]:
        """For a tape's header."""
        return {"program": self.spec, "options": dict(self.options)}

    def admits(self, header: Header[Any]) -> None:
        """Refuse a message that brings too much.

        Raises:
            RemoteProtocolError: it does.
        """
        nbytes, most = payload_bytes(header.tensors), self.program.payload_bytes_max
        if nbytes > most:
            raise RemoteProtocolError(f"$.tensors: {nbytes} bytes; this program takes {most}")


def is_production(plain: Mapping[str, Any]) -> bool:
    """Whether a tape's header tells of a user's program, not of a job."""
    return "program" in plain


def production_from(plain: Mapping[str, Any]) -> Production:
    """The production of which a tape's header tells.

    Raises:
        NamedError: it cannot be used here.
    """
    return load_production(plain["program"], plain["options"])


def load_production(spec: str, options: Mapping[str, Any]) -> Production:
    """Import ``module:function``, call it with ``options``, and check what it returns.

    Raises:
        NamedError: with one line that says what is wrong.
    """
    program = called("program", spec, options)
    problem = _problem(program)
    if problem is not None:
        raise NamedError(f"program {spec!r}: {problem}")
    return Production(spec, options, program, source_digest("program", spec))


def _problem(program: Any) -> str | None:
    if not isinstance(program, Program):
        return f"returns {type(program).__name__}, want a ddloco.programs.Program"
    if not program.cast:
        return "the cast is empty"
    for name, role in program.cast.items():
        if not name or "." in name or "/" in name:
            return f"cast: {name!r} is no name; want one without '.' and '/'"
        for other in role.dials:
            if other not in program.cast or other == name:
                return f"cast: {name} dials {other}, which is not one of the others"
    return None
