"""Where an actor's part of a snapshot goes: to a store; in a replay, through the digests only."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from ddloco.config import Job
from snapshot import Blob, Entry, Manifest, Part, SnapshotError, Store, encode_piece, pack

SNAPSHOTS = "snapshots"
"""The folder of a run folder in which snapshots are, unless the job names another place."""


class Album(Protocol):
    """Where snapshots are written. All of it blocks, and raises what a store does."""

    def write_bytes(self, data: bytes) -> Blob:
        """Write a blob."""
        ...

    def write_tensors(self, arrays: Mapping[str, NDArray[Any]]) -> Blob:
        """Write named arrays as one blob."""
        ...

    def write_piece(self, entries: Sequence[Entry]) -> str:
        """Write what lists them; its sha256."""
        ...

    def commit(self, snapshot: str, parts: Sequence[Part], absent: Mapping[str, str]) -> None:
        """Let a snapshot stand."""
        ...


def place_of(job: Job, folder: Path) -> str | Path:
    """Where the snapshots of a run are."""
    return job.snapshot.place or folder / SNAPSHOTS


class Stored:
    """Snapshots of a job, in a store.

    Args:
        job: the resolved job; it says how many stay.
        store: where.
    """

    def __init__(self, job: Job, store: Store) -> None:
        self._job = job
        self._store = store

    def write_bytes(self, data: bytes) -> Blob:
        """Write a blob."""
        return self._store.write_bytes(data)

    def write_tensors(self, arrays: Mapping[str, NDArray[Any]]) -> Blob:
        """Write named arrays as one blob."""
        return self._store.write_tensors(arrays)

    def write_piece(self, entries: Sequence[Entry]) -> str:
        """Write what lists them; its sha256."""
        return self._store.write_piece(entries)

    def commit(self, snapshot: str, parts: Sequence[Part], absent: Mapping[str, str]) -> None:
        """Let a snapshot stand, after all that stand already; then let the oldest go."""
        there = (each.manifest for each in self._store.snapshots())
        newest = max((manifest.order for manifest in there if manifest is not None), default=0)
        facts = {"job": self._job.id, "name": self._job.job.name}
        self._store.commit(Manifest(snapshot, newest + 1, facts, tuple(parts), absent))
        table = self._job.snapshot
        # It stands, whatever becomes of older ones: what is damaged there stops retention, and is
        # what `ddloco snapshot list` and `verify` are for.
        with suppress(OSError, SnapshotError):
            self._store.retain(table.keep, table.keep_every)


class Digested:
    """Takes the same digests, and keeps nothing."""

    def write_bytes(self, data: bytes) -> Blob:
        """The blob that it would be."""
        return _blob([memoryview(data)])

    def write_tensors(self, arrays: Mapping[str, NDArray[Any]]) -> Blob:
        """The blob that they would be."""
        return _blob(pack(arrays))

    def write_piece(self, entries: Sequence[Entry]) -> str:
        """The digest that it would have."""
        return self.write_bytes(encode_piece(entries)).sha256

    def commit(self, snapshot: str, parts: Sequence[Part], absent: Mapping[str, str]) -> None:
        """It stood."""


def _blob(views: Sequence[memoryview]) -> Blob:
    summed = hashlib.sha256()
    for view in views:
        summed.update(view)
    return Blob(summed.hexdigest(), sum(view.nbytes for view in views), new=False)
