"""Reading blobs and manifests; everything is checked before it is returned."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from snapshot.manifest import Entry, Manifest, decode_manifest, decode_piece, file_of, id_of
from snapshot.packing import LENGTH_BYTES, memoryview_of, packed_start
from snapshot.storage import (
    MANIFESTS,
    PARTIAL,
    SUFFIX,
    DamagedError,
    Place,
    SnapshotError,
    StorageError,
    blob_name,
    cannot,
)

Progress = Callable[[int], None]
"""Called with the number of bytes read since the last call."""

ALIGNMENT = 64
"""With it JAX on a CPU takes an array as it is, and does not copy it."""

PART_BYTES = 2**20
"""Bytes read at a time, and then hashed where they are still in the cache."""

DAMAGED = "is not what was written: its digest differs"


def read_manifest(place: Place, snapshot: str) -> Manifest:
    """Read a manifest by its snapshot's name or id; raises SnapshotError, which names the file."""
    name = file_of(snapshot)
    try:
        return decode_manifest(_whole(place, name).tobytes(), id_of(snapshot))
    except FileNotFoundError:
        raise SnapshotError(f"{place.path(name)}: is missing") from None
    except SnapshotError as error:
        kind = DamagedError if isinstance(error, DamagedError) else SnapshotError
        where = place.path(name)
        raise kind(str(error) if str(error).startswith(where) else f"{where}: {error}") from None


@dataclass(frozen=True, slots=True)
class Listed:
    """A manifest in a store; if it cannot be read, the reason."""

    id: str
    manifest: Manifest | None
    problem: str = ""
    damaged: bool = False
    """Whether the file was read and is not a manifest; False if the store does not answer, or if
    another version wrote the file."""


def read_all(place: Place) -> list[Listed]:
    """All manifests, newest first; unreadable ones come last, sorted by name."""
    good: list[tuple[int, str, Manifest]] = []
    bad: list[Listed] = []
    for name in place.files(MANIFESTS):
        id_ = name.removeprefix(f"{MANIFESTS}/").removesuffix(SUFFIX)
        if PARTIAL in name or not name.endswith(SUFFIX):
            continue
        try:
            manifest = read_manifest(place, id_)
            good.append((manifest.order, id_, manifest))
        except (SnapshotError, StorageError) as error:
            bad.append(Listed(id_, None, str(error), isinstance(error, DamagedError)))
    good.sort(key=lambda each: each[:2], reverse=True)
    return [*(Listed(id_, manifest) for _, id_, manifest in good), *bad]


def read_blob(place: Place, digest: str) -> NDArray[np.uint8]:
    """Read a blob and check its digest; raises SnapshotError, which names the file, if it is
    missing or damaged."""
    name, summed = blob_name(digest), blake3()
    try:
        data = _whole(place, name, summed.update)
    except FileNotFoundError:
        raise SnapshotError(f"{place.path(name)}: is missing") from None
    if summed.hexdigest() != digest:
        raise DamagedError(f"{place.path(name)}: {DAMAGED}")
    return data


def read_piece(place: Place, digest: str) -> tuple[Entry, ...]:
    """Read the list of blobs that a participant wrote together; raises as ``read_blob`` does."""
    data = read_blob(place, digest).tobytes()
    try:
        entries = decode_piece(data)
        for entry in entries:
            blob_name(entry.digest)
    except SnapshotError as error:
        raise SnapshotError(f"{place.path(blob_name(digest))}: {error}") from None
    return entries


def blob_problem(place: Place, digest: str, size: int, progress: Progress) -> str | None:
    """Read a whole blob and return what is wrong with it; None if it is intact."""
    name = blob_name(digest)
    try:
        found = place.stat(name)
        if found is None:
            return f"{place.path(name)}: is missing"
        if found.size != size:
            return f"{place.path(name)}: has {found.size} bytes, not {size}"
        summed = blake3()
        room = memoryview(bytearray(PART_BYTES))
        with place.open(name) as file:
            while nbytes := file.readinto(room):
                summed.update(room[:nbytes])
                progress(nbytes)
    except Exception as error:  # noqa: BLE001, a store's library may raise anything
        return str(_named(place, name, error))
    return None if summed.hexdigest() == digest else f"{place.path(name)}: {DAMAGED}"


def _whole(
    place: Place, name: str, take: Callable[[memoryview], Any] = lambda _: None
) -> NDArray[np.uint8]:
    """A file's bytes, in memory of which arrays can be views; ``take`` is given each part of them
    while it is in the cache."""
    found = place.stat(name)
    if found is None:
        raise FileNotFoundError(name)
    # Longer than the file, so that the arrays in it can begin at a multiple of ``ALIGNMENT``.
    memory, head = np.empty(found.size + ALIGNMENT, np.uint8), bytearray(LENGTH_BYTES)
    try:
        with place.open(name) as file:
            filled = min(file.readinto(memoryview(head)) or 0, found.size)
            start = -(memory.ctypes.data + packed_start(head)) % ALIGNMENT
            data = memory[start : start + found.size]
            whole = memoryview_of(data)
            whole[:filled] = head[:filled]
            take(whole[:filled])
            while nbytes := file.readinto(whole[filled : filled + PART_BYTES]):
                take(whole[filled : filled + nbytes])
                filled += nbytes
    except (FileNotFoundError, SnapshotError):
        raise
    except Exception as error:  # noqa: BLE001, a store's library may raise anything
        raise _named(place, name, error) from None
    return data[:filled]


def _named(place: Place, name: str, error: Exception) -> StorageError | SnapshotError:
    return (
        error
        if isinstance(error, StorageError | SnapshotError)
        else cannot(place.path(name), "read", error)
    )
