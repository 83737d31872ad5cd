"""Where actors go on from: a snapshot read back, arrays and workers as they were at the cut."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from clocks import actor_of, number_of
from ddloco import chores
from ddloco.capture_work import FROZEN, LAST, STATE, theta_of
from ddloco.config import Job
from ddloco.effects import RunStep
from ddloco.events import Kept, StepFinished
from ddloco.fragments import FragmentPlan
from ddloco.keeping import Found, Keep
from ddloco.process import ChoreError, fitting
from ddloco.sections import ConfigError, Section
from ddloco.stage.actor import Actor
from ddloco.stage.album import SNAPSHOTS
from ddloco.stage.arrays import Arrays, HostCopy, Stored
from ddloco.stage.cutting import PACKAGES
from ddloco.stage.driver import Arrived
from ddloco.syncer import Syncer
from ddloco.syncs import WIRE, names
from ddloco.workers import Workers
from snapshot import BLOBS, NEWEST, Manifest, Part, SnapshotError, Store, thaw
from transport import (
    PROTOCOL_VERSION,
    Bytes,
    Header,
    Message,
    MessageArrived,
    Payload,
    aligned,
    describe,
)

RESTORED, RESTORED_PLACE = "snapshot", "place of the snapshot"
"""Facts in the header of a tape that goes on from one."""

Tensors = Mapping[str, NDArray[Any]]

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
        worker: its worker's state as it was when the step was done that ran at the cut; None where
            there was none.
        flight: messages that were in flight to it, in the order in which they came.
        brought: the arrays of those.
        last: what the worker's last step had brought; None before the first.
    """

    part: Part
    actor: Actor
    arrays: dict[str, Tensors]
    worker: Bytes | None
    flight: list[MessageArrived[Any]]
    brought: dict[str, Tensors]
    last: chores.Trained | None

    async def take_up(self, workers: Workers, arrays: Arrays) -> None:
        """Put everything where the actor's work looks for it.

        Raises:
            ChoreError: the task's parameters are others, or the worker cannot take its state over.
            WorkerDiedError: the worker process ended.
        """
        machine: Any = self.actor.machine
        if machine._plan is not None and machine._plan.digest != workers.plan.digest:
            said = (
                f"the task's parameters are cut in another way than in the part of {self.part.who}"
            )
            raise ChoreError(chores.Failed("task", said))
        for handle, tensors in self.arrays.items():
            arrays.put(handle, stored_from(tensors, workers.plan, handle, arrays))
        for handle in sorted(self.actor.handles.names()):
            if handle.startswith(WIRE) and theta_of(handle) in self.arrays:
                fragment = int(handle.split("/")[1])
                arrays.put(handle, workers.layouts.sent(fragment, arrays.get(theta_of(handle))))
        if self.worker is not None:
            await workers.state.restore(self.worker, machine.drawn)
            for step in self.running():
                size = workers.plan.total_bytes
                arrays.put(step.out, HostCopy(arrays.lend(self.worker[:size])))

    def adopt(self, job: Job, plan: FragmentPlan) -> None:
        """Go on in a run whose job is another one."""
        machine: Any = self.actor.machine
        self.actor.links.renew(job.agreement(plan))
        if isinstance(machine, Syncer) and machine.rounds is not None:
            machine.rounds.schedule.extend(job.job.steps)

    def keep(self, arrays: Arrays, keep: Keep) -> None:
        """A syncer that starts again goes on from its merges: keep those of this one anew."""
        machine: Any = self.actor.machine
        rounds = machine.rounds if isinstance(machine, Syncer) else None
        for fragment, version, spent, batches in rounds.kept() if rounds is not None else ():
            theta, momentum, _ = names(fragment, version)
            flat, velocity = arrays.get(theta), arrays.get(momentum)
            digest = xxhash.xxh3_128_digest(flat.data) + xxhash.xxh3_128_digest(velocity.data)
            keep.put(Found(Kept(fragment, version, spent, batches, digest), flat, velocity))

    def results(self) -> list[StepFinished]:
        """What the step that ran at the cut has brought."""
        last = self.last
        if last is None:
            return []
        return [
            StepFinished(work.work, work.step, last.loss, last.tokens, last.batch)
            for work in self.running()
        ]

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

    def running(self) -> list[RunStep]:
        """The step that ran at the cut, which is done in what was written."""
        works = self.actor.under_way.values()
        return [work for work in works if isinstance(work, RunStep)]

    def payload(self, event: MessageArrived[Any]) -> Payload | None:
        """What a message in flight had brought."""
        return payload_from(self.brought[event.handle]) if event.handle else None


def load_starts(
    store: Store, manifest: Manifest, job: Job, only: str | None = None
) -> dict[str, Start]:
    """Read all that a snapshot's participants need, by incarnation; or one of them alone.

    Args:
        store: where it is.
        manifest: of the snapshot.
        job: what the machines' settings are now.
        only: an actor's name.

    Raises:
        SnapshotError: something is missing, damaged, or of another version of this program.
        StorageError: the place cannot be read.
    """
    given = {type(each): each for each in settings(job)}
    wanted = (part for part in manifest.parts if only in {None, actor_of(part.who)})
    return {part.who: _start(store, part, given) for part in wanted}


def settings(job: Job) -> list[object]:
    """A job and its tables: what a machine refers to, and is not its state."""
    tables = (getattr(job, name) for name in job.__struct_fields__)
    return [job, *(each for each in tables if isinstance(each, Section))]


def _start(store: Store, part: Part, given: Mapping[type, object]) -> Start:
    kinds: dict[str, str] = {}
    arrays: dict[str, dict[str, Tensors]] = {"state": {}, "flight": {}}
    for sha256 in part.contents:
        entries = store.read_piece(sha256)
        found = {
            LAST if entry.name == LAST else entry.kind: entry.sha256
            for entry in entries
            if entry.kind != "array"
        }
        kinds.update(found)
        held = arrays["flight" if "flight" in found else "state"]
        held.update((e.name, store.read_tensors(e.sha256)) for e in entries if e.kind == "array")
    for kind in ("state", "flight"):
        if kind not in kinds:
            raise SnapshotError(f"{store.name}: the part of {part.who} has no {FROZEN} {kind}")
    return Start(
        part,
        _thawed(store, kinds["state"], part.who, given),
        arrays["state"],
        store.read_tensors(kinds["worker"])[STATE] if "worker" in kinds else None,
        _thawed(store, kinds["flight"], part.who, given),
        arrays["flight"],
        _trained(store, kinds[LAST]) if LAST in kinds else None,
    )


def _trained(store: Store, sha256: str) -> chores.Trained | None:
    data = bytes(store.read_bytes(sha256))
    return fitting(chores.decode_answer(data), chores.Trained) if data else None


def _thawed(store: Store, sha256: str, who: str, given: Mapping[type, object]) -> Any:
    try:
        return thaw(bytes(store.read_bytes(sha256)), PACKAGES, given)
    except ValueError as error:
        said = f"{store.name}: blob {sha256[:12]} of {who}: {error}"
        raise SnapshotError(f"{said}; it may be of another version of ddloco") from None


def stored_from(tensors: Tensors, plan: FragmentPlan, handle: str, arrays: Arrays) -> Stored:
    """An array as it was held, from the tensors that were written of it."""
    if STATE in tensors and len(tensors) == 1:
        return HostCopy(arrays.lend(tensors[STATE]))
    if all("/" in name and name.partition("/")[0].isdigit() for name in tensors):
        return payload_from(tensors)
    leaves = plan.fragments[int(handle.split("/")[1])]
    return np.concatenate([tensors[leaf.name].reshape(-1) for leaf in leaves])


def payload_from(tensors: Tensors) -> Payload:
    """A payload from its tensors, whose names begin with their places."""
    named = sorted(tensors.items())
    layout = tuple((name.partition("/")[2], array.shape, array.dtype.name) for name, array in named)
    data = np.zeros(sum(aligned(array.nbytes) for _, array in named), np.uint8)
    at = 0
    for _, array in named:
        data[at : at + array.nbytes] = array.reshape(-1).view(np.uint8)
        at += aligned(array.nbytes)
    return Payload(describe(data, layout), data)


@dataclass(frozen=True)
class Beginning:
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
    starts: Mapping[str, Start]

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
        """Whether the snapshot has a later incarnation of the same actor."""
        name, number = actor_of(incarnation), number_of(incarnation)
        return any(actor_of(who) == name and number < number_of(who) for who in self.starts)

    def heard(self, incarnation: str) -> int:
        """Of an incarnation's events the newest that anybody in the snapshot had heard of."""
        return max(part.clock.get(incarnation, 0) for part in self.parts)

    def incarnation(self, name: str) -> str:
        """Under which number an actor goes on, or begins: above all that anybody has heard of."""
        present = [who for who in self.starts if actor_of(who) == name]
        known = [who for part in self.parts for who in part.clock if actor_of(who) == name]
        return present[0] if present else f"{name}.{max(map(number_of, known), default=0) + 1}"

    def missing(self, start: Start, job: Job) -> tuple[str, ...]:
        """Links of an actor whose other ends do not come along, into a job as it is now."""
        links, names = start.actor.links, job.names()
        come = {part.who for part in self.parts if actor_of(part.who) in names}
        return tuple(peer for peer in links.peers() if links.incarnation(peer) not in come)


def begin_with(place: str | Path, snapshot: str, job: Job, only: str | None = None) -> Beginning:
    """Where everybody stood in a snapshot, every byte of which is as it was written.

    Args:
        place: where it is.
        snapshot: its id, or ``latest``.
        job: what is run now.
        only: an actor, where the others go on elsewhere.

    Raises:
        SnapshotError: it is not there, not intact, or of another version of this program.
        StorageError: the place cannot be read.
    """
    store = Store(place)
    manifest = store.load(snapshot)
    starts = load_starts(store, manifest, job, only)
    return Beginning(manifest.id, str(place), manifest.parts, starts)


def place_and_id(said: str) -> tuple[str, str]:
    """What people say of a snapshot: ``PLACE/ID``, ``PLACE/latest``; the place alone or a run
    folder for the newest one there."""
    for place in (Path(said), Path(said) / SNAPSHOTS):
        if (place / BLOBS).is_dir():
            return str(place.absolute()), NEWEST
    place, _, snapshot = said.rstrip("/").rpartition("/")
    return (place if "://" in place else str(Path(place).absolute())), snapshot


def beginning_of(job: Job, said: str, folder: Path) -> Beginning | None:
    """What a whole job goes on from, as people say it; None for a job that begins.

    Raises:
        ConfigError: it lies in the folder that the job would write to.
        SnapshotError: it cannot be used.
    """
    if not said:
        return None
    place, snapshot = place_and_id(said)
    if "://" not in place and Path(place).is_relative_to(folder.absolute()):
        raise ConfigError(
            f"--from {said}: lies in --dir {folder}; choose another folder to go on in"
        )
    return begin_with(place, snapshot, job)
