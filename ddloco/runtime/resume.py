"""Where actors go on from: a snapshot read back, everybody as they were at the cut."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from clocks import actor_of, number_of
from ddloco.actors.actor import Actor
from ddloco.actors.events import WorkResult
from ddloco.config.run_folder import SNAPSHOTS
from ddloco.runtime.array_table import Arrays
from ddloco.runtime.driver import Arrived
from ddloco.runtime.snapshot_writer import FROZEN, Tensors
from snapshot import BLOBS, NEWEST, Part, SnapshotError, Store, thaw
from transport import (
    PROTOCOL_VERSION,
    Header,
    Message,
    MessageArrived,
    Payload,
    payload_of,
)

RESTORED, RESTORED_PLACE = "snapshot", "place of the snapshot"
"""Facts in the header of a tape that goes on from one."""

Passed = tuple[str, str, int, int]
"""A message in a lane: sender, lane, session, number."""


def passed(event: MessageArrived[Any]) -> Passed:
    """What names a message at its receiver."""
    return (event.sender, event.lane, event.session, event.seq)


@dataclass
class Start:
    """Where one actor goes on from.

    Attributes:
        part: what the manifest says of it.
        actor: as it was after its last event before the cut.
        arrays: what it held, by handle.
        flight: messages that were in flight to it, in the order in which they came.
        brought: the arrays of those.
        blobs: what else was written of it, by kind and name.
    """

    part: Part
    actor: Actor
    arrays: dict[str, Tensors]
    flight: list[MessageArrived[Any]]
    brought: dict[str, Tensors]
    blobs: dict[tuple[str, str], str]

    def lay_out(self, arrays: Arrays) -> None:
        """Put everything where the actor's work looks for it."""
        for handle, tensors in self.arrays.items():
            arrays.put(handle, payload_from(tensors))

    def results(self) -> Sequence[WorkResult]:
        """What work had brought that ran at the cut, where the snapshot has it."""
        return []

    def arrivals(self, job_id: str) -> list[Arrived]:
        """What was in flight, as it comes in once more."""
        arrived: list[Arrived] = []
        for event in self.flight:
            header = Header(
                PROTOCOL_VERSION, job_id, event.sender, event.session, event.seq, event.clock,
                event.body,
            )  # fmt: skip
            message = Message(header, self.payload(event))
            arrived.append(Arrived(event.peer, event.lane, message))
        return arrived

    def payload(self, event: MessageArrived[Any]) -> Payload | None:
        """What a message in flight had brought."""
        return payload_from(self.brought[event.handle]) if event.handle else None


def load_start(
    store: Store,
    part: Part,
    packages: Collection[str],
    given: Mapping[type, object] | None = None,
) -> Start:
    """Read all that one participant needs.

    Args:
        store: where it is.
        part: what the manifest says of it.
        packages: whose classes its state may consist of.
        given: structs that take the place of those in the state; see ``snapshot.thaw``.

    Raises:
        SnapshotError: something is missing, damaged, or of another version of this program.
        StorageError: the place cannot be read.
    """
    blobs: dict[tuple[str, str], str] = {}
    arrays: dict[str, dict[str, Tensors]] = {"state": {}, "flight": {}}
    for digest in part.contents:
        entries = store.read_piece(digest)
        found = {(each.kind, each.name): each.digest for each in entries if each.kind != "array"}
        blobs.update(found)
        held = arrays["flight" if ("flight", FROZEN) in found else "state"]
        held.update((e.name, store.read_tensors(e.digest)) for e in entries if e.kind == "array")

    def thawed(kind: str) -> Any:
        digest = blobs.get((kind, FROZEN))
        if digest is None:
            raise SnapshotError(f"{store.name}: the part of {part.who} has no {FROZEN} {kind}")
        try:
            return thaw(bytes(store.read_bytes(digest)), packages, given or {})
        except ValueError as error:
            said = f"{store.name}: blob {digest[:12]} of {part.who}: {error}"
            raise SnapshotError(f"{said}; it may be of another version of ddloco") from None

    return Start(part, thawed("state"), arrays["state"], thawed("flight"), arrays["flight"], blobs)


def payload_from(tensors: Tensors) -> Payload:
    """A payload from its tensors, whose names begin with their places."""
    return payload_of({name.partition("/")[2]: array for name, array in sorted(tensors.items())})


S = TypeVar("S", bound=Start)


@dataclass(frozen=True)
class Beginning(Generic[S]):
    """A snapshot that a run or a replay begins with: where everybody stood. It is used up by that.

    Attributes:
        snapshot: its id.
        place: where it is.
        parts: of all participants.
        starts: of those that go on here.
    """

    snapshot: str
    place: str
    parts: tuple[Part, ...]
    starts: Mapping[str, S]

    def before(self, sender: str, number: int) -> bool:
        """Whether an event came before the cut."""
        start = self.starts.get(sender)
        return start is not None and number <= start.part.number

    def after(self, incarnation: str) -> int:
        """The last event of an incarnation that is not played; 0 for one that began later."""
        start = self.starts.get(incarnation)
        return start.part.number if start is not None else 0

    def is_past(self, incarnation: str) -> bool:
        """Whether an incarnation that is not in the snapshot had begun before it."""
        if incarnation in self.starts:
            return False
        return self.is_former(incarnation) or self.heard(incarnation) > 0

    def is_former(self, incarnation: str) -> bool:
        """Whether anybody in the snapshot had heard of a later incarnation of the same actor, be it
        in the snapshot or absent from it; of a former one clocks say nothing any more."""
        return number_of(incarnation) < self.known(actor_of(incarnation))

    def heard(self, incarnation: str) -> int:
        """Of an incarnation's events the newest that anybody in the snapshot had heard of."""
        return max(part.clock.get(incarnation, 0) for part in self.parts)

    def incarnation(self, name: str) -> str:
        """Under which number an actor goes on, or begins: above all that anybody has heard of."""
        present = [who for who in self.starts if actor_of(who) == name]
        return present[0] if present else f"{name}.{self.known(name) + 1}"

    def known(self, name: str) -> int:
        """The highest number of an actor's incarnations that anybody has heard of."""
        known = (who for part in self.parts for who in part.clock if actor_of(who) == name)
        return max(map(number_of, known), default=0)

    def missing(self, start: Start, names: Collection[str]) -> tuple[str, ...]:
        """Links of an actor whose other ends do not come along, into a run with these actors."""
        links = start.actor.links
        come = {part.who for part in self.parts if actor_of(part.who) in names}
        return tuple(peer for peer in links.peers() if links.incarnation(peer) not in come)


def begin_with(
    place: str | Path, snapshot: str, load: Callable[[Store, Part], S], only: str | None = None
) -> Beginning[S]:
    """Where everybody stood in a snapshot, every byte of which is as it was written.

    Args:
        place: where it is.
        snapshot: its id, or ``latest``.
        load: reads what one participant needs.
        only: an actor, where the others go on elsewhere.

    Raises:
        SnapshotError: it is not there, not intact, or of another version of this program.
        StorageError: the place cannot be read.
    """
    store = Store(place)
    manifest = store.load(snapshot)
    wanted = (part for part in manifest.parts if only in {None, actor_of(part.who)})
    starts = {part.who: load(store, part) for part in wanted}
    return Beginning(manifest.id, str(place), manifest.parts, starts)


def place_and_id(said: str) -> tuple[str, str]:
    """What people say of a snapshot: ``PLACE/ID``, ``PLACE/latest``; the place alone or a run
    folder for the newest one there."""
    for place in (Path(said), Path(said) / SNAPSHOTS):
        if (place / BLOBS).is_dir():
            return str(place.absolute()), NEWEST
    place, _, snapshot = said.rstrip("/").rpartition("/")
    return (place if "://" in place else str(Path(place).absolute())), snapshot


def place_outside(
    said: str, folder: Path, find: Callable[[str], tuple[str, str]] = place_and_id
) -> tuple[str, str]:
    """As ``find`` says, for a run that will write to ``folder``.

    Raises:
        SnapshotError: the place lies in that folder.
    """
    place, snapshot = find(said)
    if "://" not in place and Path(place).is_relative_to(folder.absolute()):
        raise SnapshotError(
            f"--from {said}: lies in --dir {folder}; choose another folder to go on in"
        )
    return place, snapshot
