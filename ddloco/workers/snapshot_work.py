"""The work of writing a learner's or a syncer's part of a snapshot.

Nothing is copied but a learner's own state, which its worker goes on to train: one memory copy,
between two steps. What can be made from something else that is written is left out: a syncer's
``wire/p/v`` are the bytes of its ``theta/p/v``.
"""

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

import trio
from numpy.typing import NDArray

from ddloco.actors.effects import CaptureFlight, CaptureState
from ddloco.actors.events import Captured, WorkFailed
from ddloco.machines.syncer.global_fragments import WIRE
from ddloco.protocol.fragment_plan import FragmentPlan
from ddloco.runtime.array_table import F32, Arrays, HostCopy
from ddloco.runtime.shared_memory import Region
from ddloco.runtime.snapshot_sink import Album
from ddloco.runtime.snapshot_writer import Capture, Held, Tensors, payload_tensors
from ddloco.workers import rpc
from ddloco.workers.process import ChoreError, WorkerDiedError, WorkerProcess
from snapshot import Entry
from transport import Payload

STATE = "state"
"""The one tensor of bytes whose layout somebody else knows."""

UNCOPIED = "its optimizer's state cannot be copied"

LAST = "last"
"""What the worker's last step had brought."""


class CaptureWork(Capture):
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
        super().__init__(arrays, album)
        self.nbytes = 0
        self.trains = False
        self.plan: FragmentPlan | None = None
        self._process = process
        self._refuses = refuses

    def state(self, work: CaptureState) -> Awaitable[Captured | WorkFailed]:
        """The worker is asked before this returns, so before it begins a next step; whether it has
        a state is as things stand now, too, though it may have one when this is awaited."""
        refuses = self._refuses or (UNCOPIED if self.trains and not self.nbytes else "")
        if refuses:
            return _refused(work.work, refuses)
        if not self.trains:
            return super().state(work)
        region = self._arrays.shared.allocate(self.nbytes)
        copied = self._process.expect(rpc.CopyOut(rpc.span_of(region)), rpc.Copied)
        return self._with_copy(work, self._held(work.handles), region, copied)

    async def _with_copy(
        self, work: CaptureState, held: Held, region: Region, copied: Awaitable[rpc.Copied]
    ) -> Captured | WorkFailed:
        """What is held is written while the step still runs. The worker's answer is awaited beside
        that: it answers one at a time, and the next step is waiting."""
        entries: list[Entry] = []
        answers: list[rpc.Copied | Exception] = []

        async def hear() -> None:
            try:
                answers.append(await copied)
            except (ChoreError, WorkerDiedError) as error:
                answers.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hear)
            done = await self._caught(work.work, partial(self._write_held, work, held, entries))
        try:
            (answer,) = answers
            if isinstance(answer, Exception):
                raise answer
            if isinstance(done, WorkFailed):
                return done
            write = partial(self._write_copy, entries, region, answer.last)
            return await self._caught(work.work, write)
        finally:
            self._arrays.shared.free(region)

    async def warm(self) -> None:
        """Have the memory of a first copy: pages that are new take several times as long.

        Raises:
            WorkerDiedError: the process ended.
        """
        if self.nbytes:
            region = self._arrays.shared.allocate(self.nbytes)
            await self._process.expect(rpc.Touch(rpc.span_of(region)), rpc.Ready)
            self._arrays.shared.free(region)

    def flight(self, work: CaptureFlight) -> Awaitable[Captured | WorkFailed]:
        """What was in flight."""
        return _refused(work.work, self._refuses) if self._refuses else super().flight(work)

    def _held(self, handles: Sequence[str]) -> Held:
        return super()._held([each for each in handles if theta_of(each) not in handles])

    def _tensors(self, handle: str) -> Tensors:
        stored = self._arrays.get(handle)
        if isinstance(stored, HostCopy):
            return {STATE: stored.region.data}
        if isinstance(stored, Payload):
            return payload_tensors(stored)
        assert self.plan is not None, "known before anything is merged"
        return leaf_tensors(self.plan, handle, stored)

    # In a thread.

    def _write_held(self, work: CaptureState, held: Held, entries: list[Entry]) -> str:
        entries += self._state_entries(work, held)
        return ""

    def _write_copy(self, entries: list[Entry], region: Region, last: rpc.Trained | None) -> str:
        entries += self._write_arrays([("worker", STATE, {STATE: region.data})])
        blob = self._album.write_bytes(rpc.encode(last) if last else b"")
        entries.append(Entry("worker", LAST, blob.digest, blob.size))
        return self._album.write_piece(entries)


async def _refused(work: int, reason: str) -> Captured:
    await trio.lowlevel.checkpoint()
    return Captured(work, failed=reason)


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
