"""What can be run, recorded and resumed: a job, or a program of a user's actors. What differs
between them is here: who the actors are, and what is opened for each."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ddloco.stage.actors.actor import ActorStates, Machine
from ddloco.stage.actors.effects import Finish
from ddloco.stage.driver import resume
from ddloco.stage.driver.resume import Start, StartPoint
from ddloco.stage.files.faults import Faults
from ddloco.stage.files.run_folder import SNAPSHOTS
from ddloco.stage.files.settings import SnapshotTable, TapeTable
from snapshot import Part, Store
from transport.curve_auth import Curve

if TYPE_CHECKING:
    from ddloco.stage.nodes.node import HostedActor, OpenedActor


SILENT_S = 60.0
"""An actor of a user's program that has had no message for so many seconds may stand still."""


class Runnable(ABC):
    """Actors that run together, and their settings.

    Attributes:
        interrupt_stops: whether Ctrl-C at one actor's process stops the program; otherwise this
            actor leaves, and the others go on.
    """

    settings_name: ClassVar[str]
    interrupt_stops: ClassVar[bool]

    @property
    @abstractmethod
    def id(self) -> str:
        """Name and digest, which identify it in messages and tapes."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name, for people."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """All actors, in their order."""

    @property
    @abstractmethod
    def source_name(self) -> str:
        """What user code it runs, for people."""

    @property
    @abstractmethod
    def tape(self) -> TapeTable:
        """What is recorded of it."""

    @property
    @abstractmethod
    def snapshot(self) -> SnapshotTable:
        """When its snapshots are taken, and where they are."""

    @property
    @abstractmethod
    def chaos(self) -> Faults:
        """The faults that are applied to its processes."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether its actors may listen to everyone: it has keys, or the user says so."""

    @property
    @abstractmethod
    def how_to_close(self) -> str:
        """How it gets keys, for errors."""

    @abstractmethod
    def dials(self, name: str) -> tuple[str, ...]:
        """The actors that an actor connects to."""

    @abstractmethod
    def curve(self, name: str) -> Curve | None:
        """The keys of an actor; None without keys. ``ConfigError`` if they cannot be used."""

    @abstractmethod
    def as_plain(self) -> dict[str, Any]:
        """Plain data from which it can be made again, for a tape's header."""

    @abstractmethod
    def sources(self, folder: Path | None = None) -> Mapping[str, str]:
        """The SHA-256 of the user's source files by path, as they are pinned in a run folder."""

    def flags(self, name: str) -> Mapping[str, str]:
        """Entries of an actor's identity that its variables on this host decide, and in which
        actors of its kind should not differ."""
        del name
        return {}

    @abstractmethod
    def live_faults(self) -> None:
        """Check that its faults can be applied to processes; ``ConfigError`` if one cannot."""

    @property
    @abstractmethod
    def semantics(self) -> tuple[str, ...]:
        """The behaviours that its tapes name."""

    @property
    @abstractmethod
    def events(self) -> Any:
        """The union of all events that its tapes may hold."""

    @abstractmethod
    def machine(self, incarnation: str) -> Machine:
        """Make the machine of an actor, as it is before its first event."""

    @abstractmethod
    def states(self, incarnation: str) -> ActorStates[Any]:
        """Return what reads the states of an actor; it admits no other machine than its own."""

    @abstractmethod
    def load_start(self, store: Store, part: Part) -> Start:
        """Read the state of one of its actors in a snapshot; see ``restored``."""

    def restored(
        self, place: str | Path, snapshot: str, only: str | None = None
    ) -> StartPoint[Any]:
        """Read the states of its actors in a snapshot of a known place. Raises ``SnapshotError`` if
        it is not there, not intact, or of another program, ``StorageError`` if the place cannot be
        read."""
        return resume.read_start_point(place, snapshot, self.load_start, only)

    @abstractmethod
    def open(self, hosted: "HostedActor") -> "AbstractAsyncContextManager[OpenedActor | None]":
        """Open everything that an actor is driven with, and close it in reverse; None if it was
        asked to leave meanwhile."""

    @abstractmethod
    def failure(self, error: BaseException, incarnation: str) -> Finish:
        """Return how an incarnation of an actor ended that an exception ended."""

    def place_said(self, said: str) -> tuple[str, str]:
        """Split what is given to ``--from`` into the place and the snapshot."""
        return resume.existing_place(said)

    def checked(self, found: StartPoint[Any], only: str | None) -> StartPoint[Any]:
        """What is continued from, with its notes; ``SnapshotError`` if it cannot be used."""
        del only
        return found

    def start_point(self, said: str, only: str | None = None, *, trust: bool) -> StartPoint[Any]:
        """Read what is continued from, as given to ``--from``; of the actor ``only``, if given.
        ``SnapshotError`` if it cannot be used, ``ConfigError`` if another user may have written
        it."""
        place, snapshot = self.place_said(said)
        resume.check_said(said, place, self.snapshot.place, trust=trust)
        return self.checked(self.restored(place, snapshot, only), only)

    def whole_start_point(self, said: str, folder: Path, *, trust: bool) -> StartPoint[Any] | None:
        """What all its actors continue from, as ``start_point``; None if nothing is given.
        ``SnapshotError`` also if that is in the folder that the run will write to."""
        if not said:
            return None
        resume.place_outside(said, folder, self.place_said)
        return self.start_point(said, trust=trust)

    @abstractmethod
    def command(self, name: str, folder: Path) -> list[str]:
        """The arguments of ``ddloco`` that run one actor in a process of its own, without where it
        listens and whom it dials."""

    @abstractmethod
    def address_arguments(self, name: str, addresses: Mapping[str, str]) -> list[str]:
        """The arguments that say where an actor itself listens, and the others that listen."""

    @abstractmethod
    def address_option(self, name: str, address: str, *, listens: bool) -> str:
        """The option and its value that gave an address, for errors."""

    @abstractmethod
    def asked_to_stop(self) -> tuple[str, ...]:
        """The actors that hear a request to stop; they tell the others."""

    @abstractmethod
    def ends_all(self, name: str, finish: Finish) -> bool:
        """Whether an actor's end is the end of all others."""

    @abstractmethod
    def is_over(self, running: Sequence[str], failed: Collection[str]) -> str:
        """Why those that still run, or will again, cannot go on, now that some have failed for
        good; empty if they can."""

    def awaits(self, name: str, machine: Machine, linked: set[str], met: set[str]) -> Sequence[str]:
        """Return the peers that an actor cannot do without and waits for, of those that it dials
        and those that dial it: by default whom it has not met yet. The machine is only read."""
        del machine, linked
        dialling = [other for other in self.names if name in self.dials(other)]
        return [other for other in (*self.dials(name), *dialling) if other not in met]

    def stands(self, machine: Machine, silent_s: float) -> str:
        """Return in words what an actor waits for that has the peers that it needs; empty for
        nothing. The machine is only read."""
        del machine
        return "a message" if silent_s >= SILENT_S else ""

    def untold(self, machine: Machine) -> Sequence[str]:
        """The actors that the lead has lost, and that may not know that it has ended; by default
        none."""
        del machine
        return ()

    def peers_said(self, name: str) -> str:
        del name
        return "other actor"

    def advised(self, finish: Finish, traceback: Path | None) -> Finish:
        """Add advice for people to how an actor ended; its tape has it without."""
        del traceback
        return finish

    @property
    def listeners(self) -> tuple[str, ...]:
        """The actors that others dial, in their order; the first one leads."""
        dialled = {other for name in self.names for other in self.dials(name)}
        return tuple(name for name in self.names if name in dialled)

    @property
    def lead(self) -> str:
        """The actor that grants incarnation numbers, and to which tapes are shipped."""
        return (self.listeners or self.names)[0]

    @property
    def followers(self) -> tuple[str, ...]:
        """The actors that nobody dials."""
        listeners = self.listeners
        return tuple(name for name in self.names if name not in listeners and name != self.lead)

    def place(self, folder: Path) -> str | Path:
        return self.snapshot.place or folder / SNAPSHOTS
