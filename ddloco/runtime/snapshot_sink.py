"""Where an actor's part of a snapshot goes: to a store; in a replay, through the digests only."""

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


class Album(Protocol):
    """Where snapshots are written. All of it blocks, and raises what a store does."""

    def write_bytes(self, data: bytes) -> Blob:
        """Write a blob."""
        ...

    def write_tensors(self, arrays: Mapping[str, NDArray[Any]]) -> Blob:
        """Write named arrays as one blob."""
        ...

    def write_piece(self, entries: Sequence[Entry]) -> str:
        """Write what lists them; its digest."""
        ...

    def commit(self, snapshot: str, parts: Sequence[Part], absent: Mapping[str, str]) -> None:
        """Let a snapshot stand."""
        ...


class Stored:
    """Snapshots of a run, in a store.

    Args:
        store: where.
        facts: what a manifest tells of the run, such as its job; and which run it is, in a place
            that several share.
        keep: how many stay.
        keep_every: every so many stay for ever, 0 for none.
        warn: told, in a thread, of what is wrong with older ones, once.
    """

    def __init__(
        self,
        store: Store,
        facts: Mapping[str, str],
        *,
        keep: int = 5,
        keep_every: int = 0,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._warn = warn
        self._warned: set[str] = set()
        self._facts = dict(facts)
        self._keep = keep
        self._keep_every = keep_every

    def write_bytes(self, data: bytes) -> Blob:
        """Write a blob."""
        return self._store.write_bytes(data)

    def write_tensors(self, arrays: Mapping[str, NDArray[Any]]) -> Blob:
        """Write named arrays as one blob."""
        return self._store.write_tensors(arrays)

    def write_piece(self, entries: Sequence[Entry]) -> str:
        """Write what lists them; its digest."""
        return self._store.write_piece(entries)

    def commit(self, snapshot: str, parts: Sequence[Part], absent: Mapping[str, str]) -> None:
        """Let a snapshot stand, after all that stand already; then let the oldest go."""
        there = (each.manifest for each in self._store.snapshots())
        newest = max((manifest.order for manifest in there if manifest is not None), default=0)
        self._store.commit(Manifest(snapshot, newest + 1, self._facts, tuple(parts), absent))
        # It stands, whatever becomes of older ones.
        try:
            wrong = self._store.retain(self._keep, self._keep_every).aside
            wrong = tuple(f"{each}; it was set aside" for each in wrong)
        except (OSError, SnapshotError) as error:
            wrong = (f"old snapshots are not removed: {error}",)
        for said in wrong:
            if said not in self._warned:
                self._warned.add(said)
                self._warn(said)


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
        return self.write_bytes(encode_piece(entries)).digest

    def commit(self, snapshot: str, parts: Sequence[Part], absent: Mapping[str, str]) -> None:
        """It stood."""


def _blob(views: Sequence[memoryview]) -> Blob:
    return Blob(digest_of(views), sum(map(len, views)), new=False)
