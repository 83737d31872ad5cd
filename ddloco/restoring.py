"""Where actors go on from: a snapshot read back, arrays and workers as they were at the cut."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from clocks import actor_of, number_of
from ddloco.actor import Actor
from ddloco.arrays import Arrays, HostCopy, Stored
from ddloco.capture_work import FROZEN, STATE, theta_of
from ddloco.cutting import PACKAGES
from ddloco.effects import RunStep
from ddloco.fragments import FragmentPlan
from ddloco.learner import Learner
from ddloco.syncs import WIRE
from ddloco.workers import Workers
from snapshot import Manifest, Part, SnapshotError, Store, thaw
from transport import Bytes, MessageArrived, Payload, aligned, describe

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
    """

    part: Part
    actor: Actor
    arrays: dict[str, Tensors]
    worker: Bytes | None
    flight: list[MessageArrived[Any]]
    brought: dict[str, Tensors]

    async def take_up(self, workers: Workers, arrays: Arrays) -> None:
        """Put everything where the actor's work looks for it.

        Raises:
            ChoreError: the worker cannot take its state over.
            WorkerDiedError: the worker process ended.
        """
        for handle, tensors in self.arrays.items():
            arrays.put(handle, stored_from(tensors, workers.plan, handle, arrays))
        for handle in sorted(self.actor.handles.names()):
            if handle.startswith(WIRE) and theta_of(handle) in self.arrays:
                fragment = int(handle.split("/")[1])
                arrays.put(handle, workers.sent(fragment, arrays.get(theta_of(handle))))
        if self.worker is not None:
            machine = cast("Learner", self.actor.machine)
            await workers.state.restore(self.worker, machine.drawn)
            for step in self.running():
                size = workers.plan.total_bytes
                arrays.put(step.out, HostCopy(arrays.lend(self.worker[:size])))

    def running(self) -> list[RunStep]:
        """The step that ran at the cut, which is done in what was written."""
        works = self.actor.under_way.values()
        return [work for work in works if isinstance(work, RunStep)]

    def payload(self, event: MessageArrived[Any]) -> Payload | None:
        """What a message in flight had brought."""
        return payload_from(self.brought[event.handle]) if event.handle else None


def load_starts(store: Store, manifest: Manifest) -> dict[str, Start]:
    """Read all that a snapshot's participants need, by incarnation.

    Raises:
        SnapshotError: something is missing, damaged, or of another version of this program.
        StorageError: the place cannot be read.
    """
    return {part.who: _start(store, part) for part in manifest.parts}


def _start(store: Store, part: Part) -> Start:
    kinds: dict[str, str] = {}
    arrays: dict[str, dict[str, Tensors]] = {"state": {}, "flight": {}}
    for sha256 in part.contents:
        entries = store.read_piece(sha256)
        found = {entry.kind: entry.sha256 for entry in entries if entry.kind != "array"}
        kinds.update(found)
        held = arrays["flight" if "flight" in found else "state"]
        held.update((e.name, store.read_tensors(e.sha256)) for e in entries if e.kind == "array")
    for kind in ("state", "flight"):
        if kind not in kinds:
            raise SnapshotError(f"{store.name}: the part of {part.who} has no {FROZEN} {kind}")
    return Start(
        part,
        _thawed(store, kinds["state"], part.who),
        arrays["state"],
        store.read_tensors(kinds["worker"])[STATE] if "worker" in kinds else None,
        _thawed(store, kinds["flight"], part.who),
        arrays["flight"],
    )


def _thawed(store: Store, sha256: str, who: str) -> Any:
    try:
        return thaw(bytes(store.read_bytes(sha256)), PACKAGES)
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
    """A snapshot that a replay begins with: where everybody stood. It is used up by that."""

    snapshot: str
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
        return max(start.part.clock.get(incarnation, 0) for start in self.starts.values())


def begin_with(store: Store, snapshot: str) -> Beginning:
    """Where everybody stood in a snapshot, every byte of which is as it was written.

    Raises:
        SnapshotError: it is not there, not intact, or of another version of this program.
        StorageError: the place cannot be read.
    """
    manifest = store.load(snapshot)
    return Beginning(manifest.snapshot, load_starts(store, manifest))
