"""Writes an actor's part of a snapshot, in a thread that uses otherwise idle CPU time. Arrays are
referenced by handles and never change, so nothing is copied."""

import os
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import trio
from numpy.typing import NDArray

from ddloco.stage.actors.effects import CaptureFlight, CaptureState, CommitSnapshot
from ddloco.stage.actors.events import Captured, Committed, WorkFailed
from ddloco.stage.actors.work_table import Doer, does
from ddloco.stage.arrays.array_table import ArrayTable
from ddloco.stage.driver.snapshot_sink import SnapshotSink
from snapshot import Entry, Kind, SnapshotError
from transport import Payload, tensors_of

T = TypeVar("T")

NICE = 5
"""Added to the thread's nice value: it gets about a quarter of a busy core, or all of a free one.
The priority is not lower, because the thread sometimes holds the GIL, and a snapshot must complete
within minutes."""

NICE_MAX = 19

FROZEN = "frozen"
"""The name of the blob that ``freeze`` wrote."""

AT_ONCE = 2
"""Arrays that one actor writes at a time: one is hashed while the other is synced to disk."""

Tensors = Mapping[str, NDArray[Any]]

Held = list[tuple[Kind, str, Tensors]]


class ActorCapture(Doer):
    """Performs the snapshot work of an actor whose worker has no state."""

    def __init__(self, arrays: ArrayTable, sink: SnapshotSink) -> None:
        self._arrays = arrays
        self._sink = sink

    @does(CaptureState)
    def state(self, work: CaptureState) -> Awaitable[Captured | WorkFailed]:
        return self._caught(work.work, partial(self._write_state, work, self._held(work.handles)))

    @does(CaptureFlight)
    def flight(self, work: CaptureFlight) -> Awaitable[Captured | WorkFailed]:
        return self._caught(work.work, partial(self._write_flight, work, self._held(work.handles)))

    @does(CommitSnapshot)
    async def commit(self, work: CommitSnapshot) -> Committed | WorkFailed:
        try:
            commit = partial(self._sink.commit, work.snapshot, work.parts, work.absent)
            await trio.to_thread.run_sync(in_background, commit)
        except (OSError, SnapshotError) as error:
            return _failed(work.work, error)
        return Committed(work.work)

    async def _caught(self, work: int, write: Callable[[], str]) -> Captured | WorkFailed:
        try:
            return Captured(work, await trio.to_thread.run_sync(in_background, write))
        except (OSError, SnapshotError) as error:
            return _failed(work, error)

    def _held(self, handles: Sequence[str]) -> Held:
        """Look up the arrays to write, before the write is awaited. The replay of a failed write
        does not await it, and the handles may be released by then."""
        return [("array", name, self._tensors(name)) for name in dict.fromkeys(handles)]

    def _tensors(self, handle: str) -> Tensors:
        return payload_tensors(self._arrays.get(handle))

    # In a thread.

    def _write_state(self, work: CaptureState, held: Held) -> str:
        return self._sink.write_piece(self._state_entries(work, held))

    def _state_entries(self, work: CaptureState, held: Held) -> list[Entry]:
        blob = self._sink.write_bytes(work.state)
        return [Entry("state", FROZEN, blob.digest, blob.size), *self._write_arrays(held)]

    def _write_flight(self, work: CaptureFlight, held: Held) -> str:
        blob = self._sink.write_bytes(work.messages)
        entries = [Entry("flight", FROZEN, blob.digest, blob.size), *self._write_arrays(held)]
        return self._sink.write_piece(entries)

    def _write_arrays(self, held: Held) -> list[Entry]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            blobs = list(pool.map(self._sink.write_tensors, (tensors for _, _, tensors in held)))
        return [
            Entry(kind, name, blob.digest, blob.size)
            for (kind, name, _), blob in zip(held, blobs, strict=True)
        ]


def _failed(work: int, error: Exception) -> WorkFailed:
    """A failure of the store; a replay writes nothing and takes it from the tape."""
    return WorkFailed(work, "worker", str(error))


def payload_tensors(payload: Payload) -> dict[str, NDArray[Any]]:
    """Return the tensors of a payload by name; each name begins with the tensor's index."""
    named = enumerate(tensors_of(payload).items())
    return {f"{index:04d}/{name}": tensor for index, (name, tensor) in named}


def in_background(work: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1, "background", _step_back) as pool:
        return pool.submit(work).result()


def _step_back() -> None:
    if sys.platform == "linux":  # Elsewhere a thread has no priority of its own.
        thread = threading.get_native_id()
        before = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, min(before + NICE, NICE_MAX))
