"""The work of writing one's own part of a snapshot, in the background.

Arrays are held by handles and never change, so nothing is copied.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import trio
from numpy.typing import NDArray

from ddloco.actors.effects import CaptureFlight, CaptureState, CommitSnapshot
from ddloco.actors.events import Captured, Committed, WorkFailed
from ddloco.runtime.array_table import Arrays
from ddloco.runtime.background import in_background
from ddloco.runtime.snapshot_sink import Album
from snapshot import Entry, Kind, SnapshotError
from transport import Payload, tensors_of

FROZEN = "frozen"
"""The name of what ``freeze`` wrote."""

AT_ONCE = 2
"""Arrays that one actor writes at a time: one is hashed while the other becomes durable."""

Tensors = Mapping[str, NDArray[Any]]

Held = list[tuple[Kind, str, Tensors]]
"""Arrays that are written, and as what."""


class Capture:
    """Does it for one actor whose work has no state of its own.

    Args:
        arrays: its arrays.
        album: where to write.
    """

    def __init__(self, arrays: Arrays, album: Album) -> None:
        self._arrays = arrays
        self._album = album

    def state(self, work: CaptureState) -> Awaitable[Captured | WorkFailed]:
        """The actor as it stood at the cut, and the arrays that it held."""
        return self._caught(work.work, partial(self._write_state, work, self._held(work.handles)))

    def flight(self, work: CaptureFlight) -> Awaitable[Captured | WorkFailed]:
        """What was in flight."""
        return self._caught(work.work, partial(self._write_flight, work, self._held(work.handles)))

    async def commit(self, work: CommitSnapshot) -> Committed | WorkFailed:
        """The manifest."""
        try:
            commit = partial(self._album.commit, work.snapshot, work.parts, work.absent)
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
        """What to write, looked up now: in the replay of a failed write nobody waits for this, and
        the handles may be gone by then."""
        return [("array", name, self._tensors(name)) for name in dict.fromkeys(handles)]

    def _tensors(self, handle: str) -> Tensors:
        return payload_tensors(self._arrays.get(handle))

    # In a thread.

    def _write_state(self, work: CaptureState, held: Held) -> str:
        return self._album.write_piece(self._state_entries(work, held))

    def _state_entries(self, work: CaptureState, held: Held) -> list[Entry]:
        blob = self._album.write_bytes(work.state)
        return [Entry("state", FROZEN, blob.digest, blob.size), *self._write_arrays(held)]

    def _write_flight(self, work: CaptureFlight, held: Held) -> str:
        blob = self._album.write_bytes(work.messages)
        entries = [Entry("flight", FROZEN, blob.digest, blob.size), *self._write_arrays(held)]
        return self._album.write_piece(entries)

    def _write_arrays(self, held: Held) -> list[Entry]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            blobs = list(pool.map(self._album.write_tensors, (tensors for _, _, tensors in held)))
        return [
            Entry(kind, name, blob.digest, blob.size)
            for (kind, name, _), blob in zip(held, blobs, strict=True)
        ]


def _failed(work: int, error: Exception) -> WorkFailed:
    """The place's doing: in a replay, where nothing is written, a fact like the time."""
    return WorkFailed(work, "worker", str(error))


def payload_tensors(payload: Payload) -> dict[str, NDArray[Any]]:
    """The tensors of a payload, by name; their order is in the names."""
    named = enumerate(tensors_of(payload).items())
    return {f"{index:04d}/{name}": tensor for index, (name, tensor) in named}
