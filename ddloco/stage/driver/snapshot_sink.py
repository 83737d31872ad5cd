"""Snapshot sinks: a live run writes snapshots to a store, a replay only computes the digests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from snapshot import (
    Blob,
    Entry,
    Manifest,
    Part,
    SnapshotError,
    Store,
    digest_of,
    encode_piece,
    pack,
)


class SnapshotSink(Protocol):
    """The target of snapshots. Every method blocks, and raises the errors of ``snapshot.Store``."""

    def write_bytes(self, data: bytes) -> Blob:
        """Write a blob."""
        ...

    def write_tensors(self, arrays: Mapping[str, NDArray[Any]]) -> Blob:
        """Write named arrays as one blob."""
        ...

    def write_piece(self, entries: Sequence[Entry]) -> str:
        """Write the list of the blobs; returns its digest in hex."""
        ...

    def commit(self, snapshot: str, parts: Sequence[Part], absent: Mapping[str, str]) -> None:
        """Write the manifest, which completes the snapshot."""
        ...


class StoreSink:
    """Writes the snapshots of a run to a store. ``facts`` go into the manifest; every
    ``keep_every``-th snapshot is retained forever. ``warn`` is called in a thread, once for each
    problem with an older snapshot, ``confirm`` before a commit: it raises ``OSError`` if another
    process acts as this actor."""

    def __init__(
        self,
        store: Store,
        facts: Mapping[str, str],
        *,
        keep: int = 5,
        keep_every: int = 0,
        warn: Callable[[str], None] = lambda _: None,
        confirm: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._confirm = confirm
        self._warn = warn
        self._warned: set[str] = set()
        self._facts = dict(facts)
        self._keep = keep
        self._keep_every = keep_every

    def write_bytes(self, data: bytes) -> Blob:
        return self._store.write_bytes(data)

    def write_tensors(self, arrays: Mapping[str, NDArray[Any]]) -> Blob:
        return self._store.write_tensors(arrays)

    def write_piece(self, entries: Sequence[Entry]) -> str:
        return self._store.write_piece(entries)

    def commit(self, snapshot: str, parts: Sequence[Part], absent: Mapping[str, str]) -> None:
        """Write the manifest as the newest one; then remove the oldest snapshots."""
        self._confirm()
        there = (each.manifest for each in self._store.snapshots())
        newest = max((manifest.order for manifest in there if manifest is not None), default=0)
        self._store.commit(Manifest(snapshot, newest + 1, self._facts, tuple(parts), absent))
        # The snapshot is complete; a failure to remove older ones only causes a warning.
        try:
            wrong = self._store.retain(self._keep, self._keep_every).aside
            wrong = tuple(f"{each}; it was set aside" for each in wrong)
        except (OSError, SnapshotError) as error:
            wrong = (f"old snapshots are not removed: {error}",)
        for said in wrong:
            if said not in self._warned:
                self._warned.add(said)
                self._warn(said)


class DigestSink:
    """Computes the digests that ``StoreSink`` would return, and writes nothing."""

    def write_bytes(self, data: bytes) -> Blob:
        return _blob([memoryview(data)])

    def write_tensors(self, arrays: Mapping[str, NDArray[Any]]) -> Blob:
        return _blob(pack(arrays))

    def write_piece(self, entries: Sequence[Entry]) -> str:
        return self.write_bytes(encode_piece(entries)).digest

    def commit(self, snapshot: str, parts: Sequence[Part], absent: Mapping[str, str]) -> None:
        """Do nothing."""


def _blob(views: Sequence[memoryview]) -> Blob:
    return Blob(digest_of(views), sum(map(len, views)), new=False)
