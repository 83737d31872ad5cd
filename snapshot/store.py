"""A store of snapshots: blobs are written first and the manifest last, so commits are atomic."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from numpy.typing import NDArray

from snapshot.blob_reader import Listed, Progress, read_all, read_blob, read_manifest, read_piece
from snapshot.integrity import (
    Verifier,
    is_complete,
    lacking,
    manifest_problem,
    no_progress,
    take_inventory,
)
from snapshot.manifest import Entry, Manifest, encode_manifest, encode_piece, file_of, id_of
from snapshot.packing import PackingError, memoryview_of, pack, unpack
from snapshot.retention import Removed, retain
from snapshot.storage import (
    GRACE_S,
    LATEST,
    Blob,
    DamagedError,
    SnapshotError,
    StorageError,
    blob_name,
    open_place,
)

T = TypeVar("T")

NEWEST = "latest"

SHOWN_MAX = 3
"""Problems named in one error line; ``verify`` reports all of them."""


class Store:
    """Snapshots in storage that all participants share.

    Any number of processes and threads may write to it at once. All methods block. Nothing is
    created before the first blob is written.

    Args:
        place: a path, or a URL that fsspec supports.
        run: in a store that several runs share, the run whose snapshots are listed, searched for
            the newest, and removed; empty for all runs.

    Raises:
        SnapshotError: there is no support for such a URL.
    """

    def __init__(self, place: str | Path, run: str = "") -> None:
        self._place = open_place(place)
        self.name = str(place)
        self.run = run

    # Writing. These methods raise StorageError on failure, and then leave nothing half visible.

    def write_tensors(self, arrays: Mapping[str, NDArray[Any]]) -> Blob:
        """Write named arrays as one blob in safetensors format.

        They are not copied, and must not change before this returns.

        Raises:
            PackingError: a name or a dtype that the format does not support.
        """
        return self._place.add(pack(arrays))

    def write_bytes(self, data: bytes | memoryview) -> Blob:
        """Write bytes as one blob."""
        return self._place.add([memoryview(data).cast("B")] if len(data) else [])

    def write_piece(self, entries: Collection[Entry]) -> str:
        """Write the list of a participant's blobs; returns its digest, for ``Part.contents``."""
        return self.write_bytes(encode_piece(entries)).digest

    def commit(self, manifest: Manifest) -> Manifest:
        """Commit a snapshot durably; returns its manifest with the number of bytes filled in.

        The operation is idempotent, so a caller that does not know whether it succeeded repeats it.

        Raises:
            SnapshotError: the snapshot is incomplete or inconsistent, or another one of this name
                exists.
            StorageError: it was not committed, or possibly was, if the last step failed.
        """
        file = file_of(manifest.id)
        path = self._place.path(file)
        inventory = take_inventory(self._place, manifest)
        if inventory.unread:
            raise StorageError(inventory.unread[0])
        absent = lacking(self._place, inventory)
        wrong = manifest_problem(manifest)
        problems = absent if wrong is None else [wrong, *absent]
        if problems:
            helps = "not all actors write their parts to this place: " if absent else ""
            raise SnapshotError(f"{path}: is not committed: {helps}{_some(problems)}")
        whole = msgspec.structs.replace(manifest, nbytes=inventory.nbytes)
        self._place.settle([blob_name(digest) for digest in inventory.blobs])
        data = encode_manifest(whole)
        if not self._place.create(file, data):
            if encode_manifest(read_manifest(self._place, manifest.id)) != data:
                raise SnapshotError(f"{path}: another snapshot of this name exists")
            self._place.settle([file])
        self._point_at(manifest.id)
        return whole

    def _point_at(self, id_: str) -> None:
        """Update the pointer for users; its failure does not affect the commit."""
        with suppress(StorageError):
            self._place.put(LATEST, f"{id_}\n".encode())

    # Reading.

    def exists(self) -> bool:
        """Whether anything was ever written here."""
        return self._place.exists()

    def snapshots(self) -> list[Listed]:
        """All snapshots, newest first, then those whose manifests cannot be read, with reasons."""
        listed = read_all(self._place)
        return [each for each in listed if not self.run or _run_of(each) == self.run]

    def _check_one_run(self) -> None:
        """Raise unless the snapshots belong to one run, so that the newest is well defined."""
        if self.run:
            return
        runs = sorted({_run_of(each) for each in self.snapshots() if each.manifest is not None})
        if len(runs) > 1:
            first = next(filter(None, runs))
            said = f"holds snapshots of {len(runs)} runs: {_some([each or '-' for each in runs])}"
            raise SnapshotError(
                f"{self.name}: {said}; choose a snapshot by its id, such as {first}_syncer.1-1042"
            )

    def load(self, snapshot: str = NEWEST, progress: Progress = no_progress) -> Manifest:
        """Find a snapshot by name or id, verify every byte of it, and return its manifest.

        ``latest`` is the newest intact snapshot.

        Raises:
            SnapshotError: it is not intact; says what is wrong, and names the newest intact one.
            StorageError: the storage cannot be read.
        """
        verifier = self.verifier(progress)
        if snapshot == NEWEST:
            self._check_one_run()
            newest = self._newest_intact(verifier)
            if newest is None:
                raise SnapshotError(f"{self.name}: holds no intact snapshot")
            return newest
        problems = verifier.verify(snapshot)
        if not problems:
            return read_manifest(self._place, snapshot)
        newest = self._newest_intact(verifier)
        hint = (
            f"the newest intact snapshot is {newest.id}"
            if newest is not None
            else "no other snapshot is intact"
        )
        raise SnapshotError(f"{_some(problems)}; {hint}")

    def restore(self, read: Callable[[Manifest], T], snapshot: str = NEWEST) -> T:
        """Return what ``read`` makes of a snapshot, which is read once.

        Blobs are verified as ``read`` reads them; of the others only the sizes are checked. So
        ``latest`` is the newest snapshot whose blobs are all there, and of which ``read`` finds
        none damaged or unreadable.

        Raises:
            SnapshotError: as ``load``.
            StorageError: the storage cannot be read.
        """
        for manifest in self._candidates(snapshot):
            if is_complete(self._place, manifest):
                with suppress(DamagedError, StorageError):
                    return read(manifest)
        return read(self.load(snapshot))

    def _candidates(self, snapshot: str) -> list[Manifest]:
        """The manifest of a snapshot, if it can be read; of ``latest`` all, newest first."""
        if snapshot == NEWEST:
            self._check_one_run()
            return [each.manifest for each in self.snapshots() if each.manifest is not None]
        with suppress(SnapshotError, StorageError):
            return [self.manifest(snapshot)]
        return []

    def manifest(self, snapshot: str) -> Manifest:
        """Read a manifest and nothing else.

        Raises:
            SnapshotError: it is missing or damaged.
            StorageError: it cannot be read.
        """
        return read_manifest(self._place, snapshot)

    def _newest_intact(self, verifier: Verifier) -> Manifest | None:
        for each in self.snapshots():
            if each.manifest is not None and not verifier.verify(each.id):
                return each.manifest
        return None

    def read_tensors(self, digest: str) -> dict[str, NDArray[Any]]:
        """Read the arrays of a blob.

        Raises:
            SnapshotError: it is missing, damaged, or holds no arrays; names the file.
            StorageError: it cannot be read.
        """
        data = read_blob(self._place, digest)
        try:
            return unpack(data)
        except PackingError as error:
            raise SnapshotError(f"{self._place.path(blob_name(digest))}: {error}") from None

    def read_bytes(self, digest: str) -> memoryview:
        """Read the bytes of a blob; raises as ``read_tensors`` does."""
        return memoryview_of(read_blob(self._place, digest))

    def read_piece(self, digest: str) -> tuple[Entry, ...]:
        """Read a participant's list of blobs; raises as ``read_tensors`` does."""
        return read_piece(self._place, digest)

    def sizes(self, manifest: Manifest) -> dict[str, int]:
        """Sizes in bytes of a snapshot's blobs by digest, as far as its pieces can be read."""
        blobs = take_inventory(self._place, manifest).blobs
        return {digest: needed.size for digest, needed in blobs.items()}

    # Maintenance.

    def verify(self, snapshot: str, progress: Progress = no_progress) -> list[str]:
        """The problems of a snapshot, one line per file; empty if it is intact.

        Checks that the clocks form a consistent cut, and that every piece and blob exists with the
        right size and digest. For several snapshots that share blobs, use one ``verifier``.
        """
        return self.verifier(progress).verify(snapshot)

    def verifier(self, progress: Progress = no_progress) -> Verifier:
        """A verifier for several snapshots, which reads shared blobs once."""
        return Verifier(self._place, progress)

    def retain(self, keep: int = 5, every: int = 0, *, grace_s: float = GRACE_S) -> Removed:
        """Remove old snapshots, then the blobs that no snapshot names.

        Manifests are removed first, durably, so that a crash leaves too many blobs, never too few.
        A blob younger than ``grace_s`` is kept, since it may belong to a snapshot in progress;
        writing a blob that exists resets its age. The grace period is far longer than a snapshot
        may take, and a commit checks that all its blobs exist. So no coordination with other hosts
        or processes is needed. The same rule removes partial files of writers that died, and blobs
        that only a damaged piece or manifest named; a damaged manifest is set aside. Snapshots from
        which a run of this store was resumed are kept. A caller that restores a snapshot must make
        sure that it is kept meanwhile.

        Args:
            keep: how many of the newest snapshots are kept; incomplete ones do not count.
            every: snapshots whose ``order`` is a multiple of this are kept for ever; 0 for none.
            grace_s: in seconds; use 0 only if no snapshot is in progress.

        Raises:
            SnapshotError: a manifest was written by another version; its blobs are unknown, so
                nothing was removed.
            StorageError: the storage cannot be read or written.
        """
        if keep < 1 or every < 0:
            raise ValueError(f"keep {keep}, every {every}: want at least 1, and 0 or more")
        return retain(self._place, run=self.run, keep=keep, every=every, grace_s=grace_s)

    def find(self, snapshot: str) -> str:
        """The id of an existing snapshot, given a name, an id, or ``latest`` for the newest
        readable one.

        Raises:
            SnapshotError: there is no such snapshot; names the existing ones.
        """
        there = self.snapshots()
        if snapshot == NEWEST:
            self._check_one_run()
            if there and there[0].manifest is not None:
                return there[0].id
            raise SnapshotError(f"{self.name}: holds no snapshot that can be read")
        id_ = id_of(snapshot)
        ids = [each.id for each in there]
        of_runs = [each for each in ids if each.endswith(f"_{id_}")]
        if id_ not in ids and len(of_runs) == 1:
            return of_runs[0]  # Only one run has such a snapshot, so its name may be left out.
        if id_ not in ids:
            raise SnapshotError(f"{self.name}: no snapshot {id_}; there is {_some(ids) or 'none'}")
        return id_


def _run_of(each: Listed) -> str:
    """The run of a snapshot; if its manifest cannot be read, as in the file's name."""
    if each.manifest is not None:
        return each.manifest.run
    run, _, _ = each.id.rpartition("_")
    return run


def _some(problems: Sequence[str]) -> str:
    more = len(problems) - SHOWN_MAX
    return "; ".join(problems[:SHOWN_MAX]) + (f"; and {more} more" if more > 0 else "")
