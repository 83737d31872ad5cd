"""Writes a learner's or a syncer's part of a snapshot.

Only a learner's state is copied, once, between two steps, since its worker continues to train it.
Arrays that can be computed from others in the snapshot are left out: a syncer's ``wire/p/v`` from
its ``theta/p/v``.
"""

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from ddloco.job.protocol.fragment_plan import FragmentPlan
from ddloco.machines.outer.optimizers.optimizer import STEPS, State
from ddloco.machines.syncer.global_fragments import OUTER, WIRE
from ddloco.stage.actors.effects import CaptureFlight, CaptureState
from ddloco.stage.actors.events import Captured, WorkFailed
from ddloco.stage.arrays.array_table import F32, ArrayTable, HostCopy
from ddloco.stage.arrays.shared_memory import Region
from ddloco.stage.driver.snapshot_sink import SnapshotSink
from ddloco.stage.driver.snapshot_writer import Capture, Held, Tensors, payload_tensors
from ddloco.workers import rpc
from ddloco.workers.process import WorkerDiedError, WorkerProcess, WorkerRequestError
from snapshot import Entry
from transport import Payload

STATE = "state"
"""The name of a tensor that holds a learner's state as bytes, with a layout defined elsewhere."""

FLAT = frozenset({"theta", "error"})
"""How the handles of arrays that are flat float32 begin: parameters of a version, and what
compression has lost. They are stored tensor by tensor, under the tensors' own names; and so is each
array of an outer optimizer's state, with its name before that of the tensor."""

COPIED = frozenset({"host", "state", "own"})
"""How the handles of host copies begin: those of parameters, and of a learner's whole state. They
are stored as one tensor, ``STATE``. What all other handles stand for is a message's payload."""

UNCOPIED = "its optimizer's state cannot be copied"

LAST = "last"
"""The result of the worker's last step."""


class SnapshotWork(Capture):
    """Writes the parts of one actor.

    Args:
        arrays: its arrays, with an arena.
        process: its JAX worker process.
        sink: where to write.
        refuses: why this job does not support snapshots; empty if it does.

    Attributes:
        nbytes: size of a learner's whole state; 0 if it cannot be copied.
        trains: whether the worker has begun to train, and so has a state to save.
        plan: how parameters are laid out; set once that is known.
    """

    def __init__(
        self, arrays: ArrayTable, process: WorkerProcess, sink: SnapshotSink, refuses: str = ""
    ) -> None:
        super().__init__(arrays, sink)
        self.nbytes = 0
        self.trains = False
        self.plan: FragmentPlan | None = None
        self._process = process
        self._refuses = refuses

    def state(self, work: CaptureState) -> Awaitable[Captured | WorkFailed]:
        """Capture the actor's state. The request is sent to the worker before this returns, so the
        copy is made before the next step. Whether there is a worker state is also decided now,
        although the worker may have one by the time the result is awaited."""
        refuses = self._refuses or (UNCOPIED if self.trains and not self.nbytes else "")
        if refuses:
            return _refused(work.work, refuses)
        if not self.trains:
            return super().state(work)
        region = self._arrays.shared.allocate(self.nbytes)
        copied = self._process.expect(rpc.CopyOut(rpc.span_of(region)), rpc.Copied)
        stored = (self._arrays.get(handle) for handle in work.handles)
        copies = [each for each in stored if isinstance(each, HostCopy)]
        return self._with_copy(work, self._held(work.handles), copies, region, copied)

    async def _with_copy(
        self,
        work: CaptureState,
        held: Held,
        copies: Sequence[HostCopy],
        region: Region,
        copied: Awaitable[rpc.Copied],
    ) -> Captured | WorkFailed:
        """Write the held arrays while the step is still running, and concurrently await the
        worker's answer: the worker answers one request at a time, and the next step waits."""
        entries: list[Entry] = []
        answers: list[rpc.Copied | Exception] = []

        async def hear() -> None:
            try:
                answers.append(await copied)
            except (WorkerRequestError, WorkerDiedError) as error:
                answers.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hear)
            for copy in copies:
                await copy.written.wait()  # The worker makes them before it begins the step.
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
        """Allocate the memory of the first copy in advance: writing to new pages takes several
        times as long.

        Raises:
            WorkerDiedError: the process ended.
        """
        if self.nbytes:
            region = self._arrays.shared.allocate(self.nbytes)
            await self._process.expect(rpc.Touch(rpc.span_of(region)), rpc.Ready)
            self._arrays.shared.free(region)

    def flight(self, work: CaptureFlight) -> Awaitable[Captured | WorkFailed]:
        """Write the messages that were in flight."""
        return _refused(work.work, self._refuses) if self._refuses else super().flight(work)

    def _held(self, handles: Sequence[str]) -> Held:
        return super()._held([each for each in handles if theta_of(each) not in handles])

    def _tensors(self, handle: str) -> Tensors:
        stored = self._arrays.get(handle)
        wanted = _wanted(handle)
        assert isinstance(stored, wanted), f"{handle}: a snapshot's reader takes it for {wanted}"
        if isinstance(stored, HostCopy):
            return {STATE: stored.region.data}
        if isinstance(stored, Payload):
            return payload_tensors(stored)
        assert self.plan is not None, "known before anything is merged"
        if isinstance(stored, dict):
            return state_tensors(self.plan, handle, stored)
        return leaf_tensors(self.plan, handle, stored)

    # The methods below run in a thread.

    def _write_held(self, work: CaptureState, held: Held, entries: list[Entry]) -> str:
        entries += self._state_entries(work, held)
        return ""

    def _write_copy(self, entries: list[Entry], region: Region, last: rpc.Trained | None) -> str:
        entries += self._write_arrays([("worker", STATE, {STATE: region.data})])
        blob = self._sink.write_bytes(rpc.encode(last) if last else b"")
        entries.append(Entry("worker", LAST, blob.digest, blob.size))
        return self._sink.write_piece(entries)


async def _refused(work: int, reason: str) -> Captured:
    await trio.lowlevel.checkpoint()
    return Captured(work, failed=reason)


def is_flat(handle: str) -> bool:
    """Whether a handle stands for flat float32."""
    return handle.partition("/")[0] in FLAT


def is_copied(handle: str) -> bool:
    """Whether a handle stands for a host copy."""
    return handle.partition("/")[0] in COPIED


def _wanted(handle: str) -> type[Any]:
    """What a snapshot's reader takes a handle to stand for."""
    if handle.startswith(OUTER):
        return dict
    return HostCopy if is_copied(handle) else np.ndarray if is_flat(handle) else Payload


def theta_of(handle: str) -> str:
    """The handle from which a fragment's wire form can be computed; empty for other handles."""
    return f"theta/{handle.removeprefix(WIRE)}" if handle.startswith(WIRE) else ""


def state_tensors(plan: FragmentPlan, handle: str, state: State) -> dict[str, NDArray[Any]]:
    """The leaves of each array of an outer optimizer's state, as NAME/LEAF, and its steps."""
    tensors: dict[str, NDArray[Any]] = {}
    for name, flat in state.items():
        leaves = {} if name == STEPS else leaf_tensors(plan, handle, flat)
        tensors |= {f"{name}/{leaf}": array for leaf, array in leaves.items()}
    return {**tensors, STEPS: state[STEPS]}


def leaf_tensors(plan: FragmentPlan, handle: str, flat: F32) -> dict[str, NDArray[Any]]:
    """The leaves of a flat array of a fragment, by name; float32 views."""
    tensors: dict[str, NDArray[Any]] = {}
    at = 0
    for leaf in plan.fragments[int(handle.split("/")[1])]:
        tensors[leaf.name] = flat[at : at + leaf.size].reshape(leaf.shape)
        at += leaf.size
    return tensors
