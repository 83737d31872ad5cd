"""Snapshots in a place: blobs first, then the manifest, so that one is whole or not there."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import NDArray

from snapshot.blob_reader import Listed, Progress, read_all, read_blob, read_manifest, read_piece
from snapshot.integrity import Verifier, lacking, manifest_problem, no_progress, take_inventory
from snapshot.manifest import (
    Entry,
    Manifest,
    encode_manifest,
    encode_piece,
    file_of,
    id_of,
)
from snapshot.packing import PackingError, memoryview_of, pack, unpack
from snapshot.retention import Removed, retain
from snapshot.storage import (
    GRACE_S,
    LATEST,
    Blob,
    SnapshotError,
    StorageError,
    blob_name,
    open_place,
)

NEWEST = "latest"

SHOWN_MAX = 3
"""Problems named in one error line; ``verify`` tells them all."""


class Store:
    """Snapshots in a place that all participants share.

    Any number of processes and threads may write to it at once. All methods block; nothing is
    written before the first blob.

    Args:
        place: a path, or a URL that fsspec knows.
        run: in a place that several runs share, the one whose snapshots are seen, taken for the
            newest, and removed; empty for all.

    Raises:
        SnapshotError: such a URL cannot be opened here.
    """

    def __init__(self, place: str | Path, run: str = "") -> None:
        self._place = open_place(place)
        self.name = str(place)
        self.run = run

    # Writing. All of these raise StorageError when the place fails; nothing half is then visible.

    def write_tensors(self, arrays: Mapping[str, NDArray[Any]]) -> Blob:
        """Write named arrays as one blob, the bytes of a safetensors file.

        They are not copied, and must not change before this returns.

        Raises:
            PackingError: a name or a type that the format does not have.
        """
        return self._place.add(pack(arrays))

    def write_bytes(self, data: bytes | memoryview) -> Blob:
        """Write bytes as one blob."""
        return self._place.add([memoryview(data).cast("B")] if len(data) else [])

    def write_piece(self, entries: Collection[Entry]) -> str:
        """Write the list of what a participant wrote; give the digest, for ``Part.contents``."""
        return self.write_bytes(encode_piece(entries)).digest

    def commit(self, manifest: Manifest) -> Manifest:
        """Make a snapshot stand, durably; give it back with its bytes counted.

        Doing it again changes nothing, so whoever does not know whether it was done does it again.

        Raises:
            SnapshotError: it is not whole and consistent, or another one of this name stands.
            StorageError: it was not committed, or perhaps was: the last step failed.
        """
        file = file_of(manifest.id)
        path = self._place.path(file)
        inventory = take_inventory(self._place, manifest)
        if inventory.unread:
            raise StorageError(inventory.unread[0])
        problems = lacking(self._place, inventory)
        wrong = manifest_problem(manifest)
        if wrong is not None:
            problems.insert(0, wrong)
        if problems:
            raise SnapshotError(f"{path}: is not committed: {_some(problems)}")
        whole = msgspec.structs.replace(manifest, nbytes=inventory.nbytes)
        self._place.settle([blob_name(digest) for digest in inventory.blobs])
        data = encode_manifest(whole)
        if not self._place.create(file, data):
            if encode_manifest(read_manifest(self._place, manifest.id)) != data:
                raise SnapshotError(f"{path}: another snapshot of this name stands there already")
            self._place.settle([file])
        self._point_at(manifest.id)
        return whole

    def _point_at(self, id_: str) -> None:
        """For people only, so a failure is none of a commit that is done."""
        with suppress(StorageError):
            self._place.put(LATEST, f"{id_}\n".encode())

    # Reading.

    def exists(self) -> bool:
        """Whether anything was ever written here."""
        return self._place.exists()

    def snapshots(self) -> list[Listed]:
        """All snapshots, newest first; then those whose manifests cannot be read, and why not."""
        listed = read_all(self._place)
        return [each for each in listed if not self.run or _run_of(each) == self.run]

    def _check_one_run(self) -> None:
        """Of several runs none is the newest."""
        if self.run:
            return
        runs = sorted({_run_of(each) for each in self.snapshots() if each.manifest is not None})
        if len(runs) > 1:
            first = next(filter(None, runs))
            said = f"holds snapshots of {len(runs)} runs: {_some([each or '-' for each in runs])}"
            raise SnapshotError(
                f"{self.name}: {said}; say which one by its id, such as {first}_syncer.1-1042"
            )

    def load(self, snapshot: str = NEWEST, progress: Progress = no_progress) -> Manifest:
        """A snapshot, by name or id, every byte of which was found as it was written.

        ``latest`` is the newest one of which that is true.

        Raises:
            SnapshotError: it is not intact; names what is wrong, and the newest one that is.
            StorageError: the place cannot be read.
        """
        if snapshot == NEWEST:
            self._check_one_run()
            newest = self.newest_intact(progress)
            if newest is None:
                raise SnapshotError(f"{self.name}: holds no intact snapshot")
            return newest
        verifier = Verifier(self._place, progress)
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

    def manifest(self, snapshot: str) -> Manifest:
        """A manifest alone; nothing else is looked at.

        Raises:
            SnapshotError: it is not there, or damaged.
            StorageError: it cannot be read.
        """
        return read_manifest(self._place, snapshot)

    def newest_intact(self, progress: Progress = no_progress) -> Manifest | None:
        """The newest snapshot every byte of which is as it was written."""
        return self._newest_intact(Verifier(self._place, progress))

    def _newest_intact(self, verifier: Verifier) -> Manifest | None:
        for each in self.snapshots():
            if each.manifest is not None and not verifier.verify(each.id):
                return each.manifest
        return None

    def read_tensors(self, digest: str) -> dict[str, NDArray[Any]]:
        """The arrays of a blob.

        Raises:
            SnapshotError: it is not there, damaged, or holds no arrays; names the file.
            StorageError: it cannot be read.
        """
        data = read_blob(self._place, digest)
        try:
            return unpack(data)
        except PackingError as error:
            raise SnapshotError(f"{self._place.path(blob_name(digest))}: {error}") from None

    def read_bytes(self, digest: str) -> memoryview:
        """The bytes of a blob; raises what ``read_tensors`` does."""
        return memoryview_of(read_blob(self._place, digest))

    def read_piece(self, digest: str) -> tuple[Entry, ...]:
        """What a participant wrote; raises what ``read_tensors`` does."""
        return read_piece(self._place, digest)

    def sizes(self, manifest: Manifest) -> dict[str, int]:
        """The blobs of a snapshot, as far as its pieces can be read, and their bytes."""
        blobs = take_inventory(self._place, manifest).blobs
        return {digest: needed.size for digest, needed in blobs.items()}

    # Care.

    def verify(self, snapshot: str, progress: Progress = no_progress) -> list[str]:
        """What is wrong with a snapshot, one line for each file; empty when it is intact.

        Clocks are those of a consistent cut; every piece and blob is there, with the right size
        and digest. For several snapshots that share blobs, use one ``verifier``.
        """
        return self.verifier(progress).verify(snapshot)

    def verifier(self, progress: Progress = no_progress) -> Verifier:
        """Verifies several snapshots; reads what they share once."""
        return Verifier(self._place, progress)

    def retain(self, keep: int = 5, every: int = 0, *, grace_s: float = GRACE_S) -> Removed:
        """Remove old snapshots, then the blobs that no snapshot names.

        Manifests go first, durably, so that a crash leaves blobs too many, never too few. A blob
        that is younger than ``grace_s`` is left alone, for it may belong to a snapshot under way;
        writing one that is there already makes it young again. The grace is far longer than a
        snapshot may take, and a commit looks whether all its blobs are there; so nobody needs to
        be asked, whichever host or process writes. Partial files of writers that died go by the
        same rule, and so does what only a damaged piece or manifest named; such a manifest is set
        aside. What a run of this place began from stays. Who restores a snapshot sees to it that it
        is kept meanwhile.

        Args:
            keep: how many of the newest stay; those that lack a blob do not count.
            every: snapshots whose ``order`` is a multiple of it stay for ever; 0 for none.
            grace_s: 0 when it is certain that no snapshot is under way.

        Raises:
            SnapshotError: a manifest is of another version; which blobs are its own is unknown, so
                nothing was removed.
            StorageError: the place cannot be read or written.
        """
        if keep < 1 or every < 0:
            raise ValueError(f"keep {keep}, every {every}: want at least 1, and 0 or more")
        return retain(self._place, run=self.run, keep=keep, every=every, grace_s=grace_s)

    def find(self, snapshot: str) -> str:
        """The id of a snapshot that is there, by name, id or ``latest``: the newest readable one.

        Raises:
            SnapshotError: there is none; names those that there are.
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
            return of_runs[0]  # Of one run only, so there is no need to say which.
        if id_ not in ids:
            raise SnapshotError(f"{self.name}: no snapshot {id_}; there is {_some(ids) or 'none'}")
        return id_


def _run_of(each: Listed) -> str:
    """Of one that cannot be read, as its file's name says."""
    if each.manifest is not None:
        return each.manifest.run
    run, _, _ = each.id.rpartition("_")
    return run


def _some(problems: Sequence[str]) -> str:
    more = len(problems) - SHOWN_MAX
    return "; ".join(problems[:SHOWN_MAX]) + (f"; and {more} more" if more > 0 else "")
