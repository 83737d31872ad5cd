"""The work of writing one's own part of a snapshot, in the background.

Arrays are held by handles and never change, so nothing is copied but a learner's own state, which
its worker goes on to train: one memory copy, between two steps. What can be made from something
else that is written is left out: a syncer's ``wire/p/v`` are the bytes of its ``theta/p/v``.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio
from numpy.typing import NDArray

from ddloco import chores
from ddloco.fragments import FragmentPlan
from ddloco.process import WorkerProcess
from ddloco.stage.album import Album
from ddloco.stage.arena import Region
from ddloco.stage.arrays import F32, Arrays, HostCopy
from ddloco.stage.effects import CaptureFlight, CaptureState, CommitSnapshot
from ddloco.stage.events import Captured, Committed, WorkFailed
from ddloco.syncs import WIRE
from snapshot import Entry, SnapshotError
from transport import SENDABLE, Payload, aligned, tensor_bytes

STATE = "state"
"""The one tensor of bytes whose layout somebody else knows."""

LAST = "last"
"""What the worker's last step had brought."""

FROZEN = "frozen"
"""The name of what ``freeze`` wrote."""


Tensors = Mapping[str, NDArray[Any]]

Held = list[tuple[str, Tensors]]
"""Arrays that are written, by handle."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A worker's state, and what its last step had brought."""

    region: Region
    last: chores.Trained | None


class CaptureWork:
    """Does it for one actor.

    Args:
        arrays: its arrays; they need an arena.
        process: its JAX worker process.
        album: where to write.
        refuses: why this job cannot be captured, if it cannot.

    Attributes:
        nbytes: of a learner's whole state; 0 where it cannot be copied.
        trains: whether the worker has a state that a learner could not do without.
        plan: how parameters are laid out; set once that is known.
    """

    def __init__(
        self, arrays: Arrays, process: WorkerProcess, album: Album, refuses: str = ""
    ) -> None:
        self.nbytes = 0
        self.trains = False
        self.plan: FragmentPlan | None = None
        self._arrays = arrays
        self._process = process
        self._album = album
        self._refuses = refuses

    def state(self, work: CaptureState) -> Awaitable[Captured | WorkFailed]:
        """The worker is asked before this returns, so before it begins a next step."""
        if self._refuses:
            return self._refused(work.work)
        copying, held = self._copy_state(), self._held(work.handles)

        async def finish() -> Captured | WorkFailed:
            copy = await copying
            if self.trains and copy is None:
                return Captured(work.work, failed="its optimizer's state cannot be copied")
            try:
                return await self._caught(work.work, partial(self._write_state, work, held, copy))
            finally:
                if copy is not None:
                    self._arrays.shared.free(copy.region)

        return finish()

    def _copy_state(self) -> Awaitable["Copy | None"]:
        wanted = self.trains and self.nbytes > 0
        region = self._arrays.shared.allocate(self.nbytes) if wanted else None
        if region is None:
            return _nothing()
        copied = self._process.expect(chores.CopyOut(chores.span_of(region)), chores.Copied)

        async def finish() -> Copy:
            return Copy(region, (await copied).last)

        return finish()

    def flight(self, work: CaptureFlight) -> Awaitable[Captured | WorkFailed]:
        """What was in flight."""
        if self._refuses:
            return self._refused(work.work)
        held = self._held(work.handles)
        return self._caught(work.work, partial(self._write_flight, work, held))

    async def commit(self, work: CommitSnapshot) -> Committed | WorkFailed:
        """The manifest."""
        try:
            commit = partial(self._album.commit, work.snapshot, work.parts, work.absent)
            await trio.to_thread.run_sync(commit)
        except (OSError, SnapshotError) as error:
            return _failed(work.work, error)
        return Committed(work.work)

    async def _refused(self, work: int) -> Captured:
        await trio.lowlevel.checkpoint()
        return Captured(work, failed=self._refuses)

    async def _caught(self, work: int, write: Callable[[], str]) -> Captured | WorkFailed:
        try:
            return Captured(work, await trio.to_thread.run_sync(write))
        except (OSError, SnapshotError) as error:
            return _failed(work, error)

    def _held(self, handles: tuple[str, ...]) -> Held:
        """What to write, looked up now: in the replay of a failed write nobody waits for this, and
        the handles may be gone by then."""
        names = [each for each in dict.fromkeys(handles) if theta_of(each) not in handles]
        return [(name, self._tensors(name)) for name in names]

    # In a thread.

    def _write_state(self, work: CaptureState, held: Held, copy: Copy | None) -> str:
        blob = self._album.write_bytes(work.state)
        entries = [Entry("state", FROZEN, blob.sha256, blob.size), *self._write_held(held)]
        if copy is not None:
            blob = self._album.write_tensors({STATE: copy.region.data})
            entries.append(Entry("worker", STATE, blob.sha256, blob.size))
            blob = self._album.write_bytes(chores.encode(copy.last) if copy.last else b"")
            entries.append(Entry("worker", LAST, blob.sha256, blob.size))
        return self._album.write_piece(entries)

    def _write_flight(self, work: CaptureFlight, held: Held) -> str:
        blob = self._album.write_bytes(work.messages)
        entries = [Entry("flight", FROZEN, blob.sha256, blob.size), *self._write_held(held)]
        return self._album.write_piece(entries)

    def _write_held(self, held: Held) -> list[Entry]:
        entries: list[Entry] = []
        for handle, tensors in held:
            blob = self._album.write_tensors(tensors)
            entries.append(Entry("array", handle, blob.sha256, blob.size))
        return entries

    def _tensors(self, handle: str) -> Tensors:
        stored = self._arrays.get(handle)
        if isinstance(stored, HostCopy):
            return {STATE: stored.region.data}
        if isinstance(stored, Payload):
            return payload_tensors(stored)
        assert self.plan is not None, "known before anything is merged"
        return leaf_tensors(self.plan, handle, stored)


def _failed(work: int, error: Exception) -> WorkFailed:
    """The place's doing: in a replay, where nothing is written, a fact like the time."""
    return WorkFailed(work, "worker", str(error))


async def _nothing() -> None:
    await trio.lowlevel.checkpoint()


def theta_of(handle: str) -> str:
    """What a fragment is made of again as it is sent; empty for other handles."""
    return f"theta/{handle.removeprefix(WIRE)}" if handle.startswith(WIRE) else ""


def leaf_tensors(plan: FragmentPlan, handle: str, flat: F32) -> dict[str, NDArray[Any]]:
    """The leaves of a global fragment, or of its momentum, by name; float32, without a copy."""
    tensors: dict[str, NDArray[Any]] = {}
    at = 0
    for leaf in plan.fragments[int(handle.split("/")[1])]:
        tensors[leaf.name] = flat[at : at + leaf.size].reshape(leaf.shape)
        at += leaf.size
    return tensors


def payload_tensors(payload: Payload) -> dict[str, NDArray[Any]]:
    """The tensors of a payload, by name; their order is in the names."""
    tensors: dict[str, NDArray[Any]] = {}
    at = 0
    for index, meta in enumerate(payload.tensors):
        size = tensor_bytes(meta)
        view = payload.data[at : at + size].view(SENDABLE[meta.dtype])
        tensors[f"{index:04d}/{meta.name}"] = view.reshape(meta.shape)
        at += aligned(size)
    return tensors
