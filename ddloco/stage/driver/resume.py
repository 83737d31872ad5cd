"""Reads snapshots from which actors resume in their state at the cut."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from clocks import actor_of, number_of
from ddloco.stage.actors.actor import Actor, ActorStates
from ddloco.stage.actors.events import Restored, WorkResult
from ddloco.stage.arrays.array_table import ArrayTable
from ddloco.stage.driver.driver import Arrived
from ddloco.stage.driver.snapshot_writer import FROZEN, Tensors
from ddloco.stage.files.run_folder import JOB_FILE, SNAPSHOTS, TAPES
from ddloco.stage.files.toml import ConfigError, read_toml
from ddloco.stage.files.trust import check_states
from snapshot import BLOBS, NEWEST, Manifest, Part, SnapshotError, Store
from transport import PROTOCOL_VERSION, Header, Message, MessageArrived, Payload, payload_of

R = TypeVar("R")

RESTORED, RESTORED_PLACE = "snapshot", "place of the snapshot"
"""Facts in the header of a tape that starts from a snapshot."""

Passed = tuple[str, str, int, int]
"""A message in a lane: sender, lane, session, number."""


def passed(event: MessageArrived[Any]) -> Passed:
    return (event.sender, event.lane, event.session, event.seq)


@dataclass
class Start:
    """The state from which one actor resumes.

    Attributes:
        flight: the in-flight messages to it, in order of arrival.
        brought: the tensors of the in-flight messages, by handle.
        blobs: the digests of its other blobs, by kind and name.
        results: the results, if saved, of the work that was running at the cut.
    """

    part: Part
    actor: Actor
    arrays: dict[str, Tensors]
    flight: list[MessageArrived[Any]]
    brought: dict[str, Tensors]
    blobs: dict[tuple[str, str], str]
    results: Sequence[WorkResult]

    def lay_out(self, arrays: ArrayTable) -> None:
        for handle, tensors in self.arrays.items():
            arrays.put(handle, payload_from(tensors))

    def arrivals(self, job_id: str) -> list[Arrived]:
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
        return payload_from(self.brought[event.handle]) if event.handle else None


def load_start(store: Store, part: Part, states: ActorStates[Any]) -> Start:
    """Read the state of one participant. Raises ``SnapshotError`` if a blob is missing, damaged, or
    of another version of this program, ``StorageError`` if the store cannot be read."""
    blobs: dict[tuple[str, str], str] = {}
    arrays: dict[str, dict[str, Tensors]] = {"state": {}, "flight": {}}
    for digest in part.contents:
        entries = store.read_piece(digest)
        found = {(each.kind, each.name): each.digest for each in entries if each.kind != "array"}
        blobs.update(found)
        held = arrays["flight" if ("flight", FROZEN) in found else "state"]
        held.update((e.name, store.read_tensors(e.digest)) for e in entries if e.kind == "array")

    def read(kind: str, reader: Callable[[bytes], R]) -> R:
        digest = blobs.get((kind, FROZEN))
        if digest is None:
            raise SnapshotError(f"{store.name}: the part of {part.who} has no {FROZEN} {kind}")
        data = bytes(store.read_bytes(digest))
        try:
            return reader(data)
        except ValueError as error:
            said = f"{store.name}: blob {digest[:12]} of {part.who}: {error}"
            raise SnapshotError(f"{said}; it may be of other code") from None

    actor, flight = read("state", states.read), read("flight", states.read_flight)
    if (actor.incarnation, actor.clock.number) != (part.who, part.number):
        raise SnapshotError(f"{store.name}: the part of {part.who} is not the state of {part.who}")
    return Start(part, actor, arrays["state"], flight, arrays["flight"], blobs, results=())


def payload_from(tensors: Tensors) -> Payload:
    """Build a payload from tensors whose names begin with their index; see ``payload_tensors``."""
    return payload_of({name.partition("/")[2]: array for name, array in sorted(tensors.items())})


S = TypeVar("S", bound=Start)
P = TypeVar("P", bound=Any)
"""A program: a dataclass with ``snapshot_said`` and ``trust``."""


@dataclass(frozen=True)
class StartPoint(Generic[S]):
    """A snapshot that a run or a replay starts from; it can be used only once.

    Attributes:
        place: the folder or URL of the store.
        notes: what whoever continues from it should know first, a line each.
    """

    snapshot: str
    place: str
    parts: tuple[Part, ...]
    starts: Mapping[str, S]
    notes: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """This very snapshot, as users give it to ``--from``."""
        return f"{self.place}/{self.snapshot}"

    def start(self, incarnation: str) -> S | None:
        return self.starts.get(incarnation)

    def first(
        self, start: Start, names: Collection[str], job_id: str, run: str = ""
    ) -> tuple[Restored, list[Arrived | WorkResult]]:
        restored = Restored(self.snapshot, self.missing(start, names), run)
        return restored, [*start.results, *start.arrivals(job_id)]

    def before(self, sender: str, number: int) -> bool:
        """Whether event ``number`` of ``sender`` happened before the cut."""
        start = self.starts.get(sender)
        return start is not None and number <= start.part.number

    def after(self, incarnation: str) -> int:
        """Return the number of an incarnation's last event before the cut; 0 if it began later."""
        start = self.starts.get(incarnation)
        return start.part.number if start is not None else 0

    def is_past(self, incarnation: str) -> bool:
        """Whether an incarnation that is not in the snapshot had started before it."""
        if incarnation in self.starts:
            return False
        return self.is_former(incarnation) or self.heard(incarnation) > 0

    def is_former(self, incarnation: str) -> bool:
        """Whether a participant knew a newer incarnation of the same actor, which need not be in
        the snapshot. Clocks have no entries for older ones."""
        return number_of(incarnation) < self.known(actor_of(incarnation))

    def heard(self, incarnation: str) -> int:
        """Return the number of an incarnation's newest event in any participant's clock."""
        return max(part.clock.get(incarnation, 0) for part in self.parts)

    def incarnation(self, name: str) -> str:
        """Return the incarnation under which an actor resumes; one that is not in the snapshot
        starts as a number above all known ones."""
        present = [who for who in self.starts if actor_of(who) == name]
        return present[0] if present else f"{name}.{self.known(name) + 1}"

    def known(self, name: str) -> int:
        """Return the highest known incarnation number of an actor; 0 if there is none."""
        known = (who for part in self.parts for who in part.clock if actor_of(who) == name)
        return max(map(number_of, known), default=0)

    def missing(self, start: Start, names: Collection[str]) -> tuple[str, ...]:
        links = start.actor.links
        come = {part.who for part in self.parts if actor_of(part.who) in names}
        return tuple(peer for peer in links.peers() if links.incarnation(peer) not in come)


def read_start_point(
    place: str | Path, snapshot: str, load: Callable[[Store, Part], S], only: str | None = None
) -> StartPoint[S]:
    """Read a snapshot, by id or ``latest``, and verify the digests of what is read; of the actor
    ``only``, if the others resume elsewhere. Raises ``SnapshotError`` and ``StorageError`` as
    ``load_start`` does."""
    store = Store(place)
    if only is not None and snapshot == NEWEST:
        # All actors must find the same one, so each of them reads all of it.
        snapshot = store.load().id

    def read(manifest: Manifest) -> StartPoint[S]:
        wanted = (part for part in manifest.parts if only in {None, actor_of(part.who)})
        starts = {part.who: load(store, part) for part in wanted}
        return StartPoint(manifest.id, str(place), manifest.parts, starts)

    return store.restore(read, snapshot)


def continuing(program: P, start_point: StartPoint[Any] | None) -> P:
    """Return the program whose processes continue from this very snapshot, whatever is the newest
    then, and need not check its place again."""
    if start_point is None:
        return program
    return replace(program, snapshot_said=start_point.said, trust=True)


def place_and_id(said: str) -> tuple[str, str]:
    """Split a user's name of a snapshot into store and id: ``PLACE/ID`` or ``PLACE/latest``, or the
    store or a run folder alone, which means its newest snapshot. A run folder stands for its
    store."""
    for place in (Path(said), Path(said) / SNAPSHOTS):
        if (place / BLOBS).is_dir():
            return str(place.absolute()), NEWEST
    place, _, snapshot = said.rstrip("/").rpartition("/")
    if (Path(place) / SNAPSHOTS / BLOBS).is_dir():
        return absolute_place(Path(place) / SNAPSHOTS), snapshot
    return absolute_place(place), snapshot


def absolute_place(place: str | Path) -> str:
    """A place of snapshots as tapes name it: a URL, or the absolute path of a folder."""
    return str(place) if "://" in str(place) else str(Path(place).absolute())


MOVED_PARTS_MAX, MOVED_UP_MAX = 4, 4
"""How many of the last parts of a place's path are looked for, in how many folders above a tape."""


def place_now(place: str, tape: Path) -> str:
    """Return where a place of snapshots is that a tape names: there, or, if it was moved or copied
    together with the run, under the same last parts of its path in a folder above the tape."""
    if "://" in place or Store(place).exists():
        return place
    parts = Path(place).parts[1:]
    above = tape.absolute().parents[:MOVED_UP_MAX]
    for count in range(min(len(parts), MOVED_PARTS_MAX), 0, -1):
        for folder in above:
            found = folder.joinpath(*parts[-count:])
            if Store(found).exists():
                return str(found)
    return place


def existing_place(said: str) -> tuple[str, str]:
    """As ``place_and_id``, for a folder that must hold snapshots; ``SnapshotError`` if it holds
    none."""
    place, snapshot = place_and_id(said)
    if "://" in place or Store(place).exists():
        return place, snapshot
    folder = Path(said)
    if not folder.exists() and (snapshot == NEWEST or "." in snapshot):  # An id, as syncer.1-1042.
        folder = folder.parent
    if not folder.exists():
        raise SnapshotError(f"{folder}: no such folder")
    want = (
        "want a run folder, RUN/snapshots/ID or RUN/snapshots/latest; snapshot.every_steps or "
        "snapshot.every_s in a job file has them taken"
    )
    raise SnapshotError(f"{folder}: there are no snapshots; {want}")


def check_said(said: str, place: str, own: str, *, trust: bool) -> None:
    """Refuse, with ``ConfigError``, to continue from states that another user may have written: the
    place is neither that of a run that this user recorded, nor the new run's."""
    if trust:
        return
    for folder in (Path(said), Path(place).parent):
        is_run = (folder / JOB_FILE).is_file() and (folder / TAPES).is_dir()
        if "://" not in str(said) and is_run:
            check_states(folder, read_toml(folder / JOB_FILE), place, trust=False)
            return
    if place != own:
        raise ConfigError(
            f"--from {said}: this user did not record a run there on this machine, and it is not "
            "the snapshot.place of this job; use --trust if you trust who writes there"
        )


def place_outside(
    said: str, folder: Path, find: Callable[[str], tuple[str, str]] = existing_place
) -> tuple[str, str]:
    """Split a user's name of a snapshot with ``find``, for a run that will write to ``folder``;
    ``SnapshotError`` if the store is in that folder."""
    place, snapshot = find(said)
    if "://" not in place and Path(place).is_relative_to(folder.absolute()):
        raise SnapshotError(
            f"--from {said}: is in --dir {folder}; choose another folder for the new run"
        )
    return place, snapshot
