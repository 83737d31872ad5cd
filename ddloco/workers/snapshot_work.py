"""Writes a learner's or a syncer's part of a snapshot. Only the state of a worker that trains is
copied, once, between two steps, as it is after the step or update under way at the cut. Arrays that
can be computed from others are left out: a syncer's ``wire/p/v`` from its ``theta/p/v``."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from ddloco.job.protocol.fragment_plan import FragmentPlan
from ddloco.machines.outer.optimizers.optimizer import STEPS, State
from ddloco.machines.syncer.global_fragments import OUTER, WIRE
from ddloco.stage.actors.effects import CaptureState
from ddloco.stage.actors.events import Captured, WorkFailed
from ddloco.stage.arrays.array_table import F32, ArrayTable, HostCopy
from ddloco.stage.arrays.shared_memory import Region
from ddloco.stage.driver.snapshot_sink import SnapshotSink
from ddloco.stage.driver.snapshot_writer import ActorCapture, Held, Tensors, payload_tensors
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
"""The result of the worker's last step or, of a coordinator's, its last update."""

Last = rpc.Trained | rpc.Updated | None


class SnapshotWork(ActorCapture):
    """Writes the parts of one actor.

    Attributes:
        nbytes: size of a learner's whole state; 0 if it cannot be copied.
        trains: whether the worker has begun to train, and so has a state to save.
    """

    def __init__(self, arrays: ArrayTable, process: WorkerProcess, sink: SnapshotSink) -> None:
        super().__init__(arrays, sink)
        self.nbytes = 0
        self.trains = False
        self.plan: FragmentPlan | None = None
        self._averaging = False
        self._after_update: list[_LaterCopy] = []
        self._process = process

    def state(self, work: CaptureState) -> Awaitable[Captured | WorkFailed]:
        """Capture the actor's state. The request is sent to the worker before this returns, so the
        copy is made before the next step. Whether there is a worker state is also decided now,
        although the worker may have one by the time the result is awaited."""
        if not self.trains:
            return super().state(work)
        if not self.nbytes:
            return _refused(work.work, UNCOPIED)
        region = self._arrays.shared.allocate(self.nbytes)
        ask = partial(self._process.expect, rpc.CopyOut(rpc.span_of(region)), rpc.Copied)
        copied = self._later(ask) if self._averaging else ask()
        stored = (self._arrays.get(handle) for handle in work.handles)
        copies = [each for each in stored if isinstance(each, HostCopy)]
        return self._with_copy(work, self._held(work.handles), copies, region, copied)

    def averages(self) -> None:
        """A coordinator's update has been requested, and is not yet asked of its worker."""
        self.trains = self._averaging = True

    def updates(self) -> None:
        """The update has been asked of the worker: the copies that wait for it come after it."""
        self._averaging = False
        waiting, self._after_update = self._after_update, []
        for each in waiting:
            each.ask()

    def _later(self, ask: Callable[[], Awaitable[rpc.Copied]]) -> Awaitable[rpc.Copied]:
        """A copy that is made after the update under way. What a snapshot holds thus depends on
        the order of events alone, and not on how far the update has come at the cut."""
        copy = _LaterCopy(ask)
        self._after_update.append(copy)
        return copy.made()

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
        times as long."""
        if self.nbytes:
            region = self._arrays.shared.allocate(self.nbytes)
            await self._process.expect(rpc.Touch(rpc.span_of(region)), rpc.Ready)
            self._arrays.shared.free(region)

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

    def _write_copy(self, entries: list[Entry], region: Region, last: Last) -> str:
        entries += self._write_arrays([("worker", STATE, {STATE: region.data})])
        blob = self._sink.write_bytes(rpc.encode(last) if last else b"")
        entries.append(Entry("worker", LAST, blob.digest, blob.size))
        return self._sink.write_piece(entries)


class _LaterCopy:
    def __init__(self, ask: Callable[[], Awaitable[rpc.Copied]]) -> None:
        self._ask = ask
        self._asked = trio.Event()
        self._answer: Awaitable[rpc.Copied] | None = None

    def ask(self) -> None:
        self._answer = self._ask()
        self._asked.set()

    async def made(self) -> rpc.Copied:
        await self._asked.wait()
        assert self._answer is not None, "asked"
        return await self._answer


async def _refused(work: int, reason: str) -> Captured:
    await trio.lowlevel.checkpoint()
    return Captured(work, failed=reason)


def is_flat(handle: str) -> bool:
    return handle.partition("/")[0] in FLAT


def is_copied(handle: str) -> bool:
    return handle.partition("/")[0] in COPIED


def _wanted(handle: str) -> type[Any]:
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
