"""Retention: which snapshots are removed, and which blobs with them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from clocks import actor_of
from snapshot.blob_reader import read_all
from snapshot.integrity import Inventory, take_inventory
from snapshot.manifest import BEGAN_FROM, Manifest, file_of
from snapshot.storage import (
    BLOBS,
    MANIFESTS,
    PARTIAL,
    File,
    Place,
    SnapshotError,
    StorageError,
    blob_name,
)


@dataclass(frozen=True, slots=True)
class Removed:
    """What retention removed.

    Attributes:
        snapshots: names of removed snapshots, oldest first.
        files: number of removed blobs and partial files.
        nbytes: bytes of those.
        aside: for each damaged manifest that was set aside, what is wrong with it.
    """

    snapshots: tuple[str, ...]
    files: int
    nbytes: int
    aside: tuple[str, ...] = ()


def retain(place: Place, *, run: str, keep: int, every: int, grace_s: float) -> Removed:
    """Remove old snapshots, then the blobs that no snapshot names; see ``Store.retain``."""
    if not place.exists():
        return Removed((), 0, 0)
    # Blobs are listed before manifests. A snapshot committed later has blobs that are young now or
    # were made young since. A file that has changed since the listing is not removed.
    files = {**place.files(BLOBS), **_partials(place)}
    now = place.now()
    listed = read_all(place)
    inventories: dict[str, Inventory] = {}
    for each in listed:
        if each.manifest is not None:
            inventories[each.id] = take_inventory(place, each.manifest)
    damaged = [each for each in listed if each.damaged]
    unread = [each.id for each in listed if each.manifest is None and not each.damaged]
    _stop_unless_read(place, unread, inventories)
    manifests = [each.manifest for each in listed if each.manifest is not None]
    needed = _begun_from(manifests)
    own = [each for each in manifests if run in ("", each.run) and each.id not in needed]
    kept, going = _divided(own, inventories, files, keep, every)
    kept += [each for each in manifests if each not in own]
    for each in damaged:
        place.set_aside(file_of(each.id))
    for manifest in going:
        place.remove(file_of(manifest.id))
    # The removal must be durable first: after a crash no manifest may name a removed blob.
    place.settle([file_of(each.id) for each in going])
    wanted = {
        blob_name(digest)
        for each in kept
        for named in (inventories[each.id].blobs, *(part.contents for part in each.parts))
        for digest in named
    }
    old = [
        name
        for name, file in files.items()
        if name not in wanted and _is_old(file, now, grace_s) and place.stat(name) == file
    ]
    for name in old:
        place.remove(name)
    nbytes = sum(files[name].size for name in old)
    aside = tuple(each.problem for each in damaged)
    return Removed(tuple(each.snapshot for each in going), len(old), nbytes, aside)


def _begun_from(manifests: list[Manifest]) -> set[str]:
    """Snapshots from which runs in this store were resumed; replaying their tapes needs them."""
    return {str(each.facts[BEGAN_FROM]) for each in manifests if each.facts.get(BEGAN_FROM)}


def _partials(place: Place) -> dict[str, File]:
    return {name: file for name, file in place.files(MANIFESTS).items() if PARTIAL in name}


def _stop_unless_read(
    place: Place, unreadable: list[str], inventories: Mapping[str, Inventory]
) -> None:
    """Stop if anything could not be read: the cause may be temporary, such as a missing disk."""
    unread = [problem for each in inventories.values() for problem in each.unread]
    if unread:
        raise StorageError(f"{unread[0]}; nothing was removed")
    if unreadable:
        name = place.path(file_of(unreadable[0]))
        raise SnapshotError(
            f"{name}: cannot be read, so its blobs are unknown and nothing was removed; move it "
            "away to give it up"
        )


def _divided(
    manifests: list[Manifest],
    inventories: Mapping[str, Inventory],
    files: Mapping[str, File],
    keep: int,
    every: int,
) -> tuple[list[Manifest], list[Manifest]]:
    """The snapshots to keep, and those to remove, oldest first.

    A snapshot is removed when ``keep`` newer ones have all that it has: the kinds of actors, and
    all blobs. So one of a syncer alone does not drive out those from which learners can continue.
    """
    kept: list[Manifest] = []
    going: list[Manifest] = []
    newer: list[frozenset[str]] = []
    for manifest in manifests:
        kinds = _kinds(manifest)
        covered = sum(kinds <= each for each in newer)
        stays = covered < keep or (every > 0 and manifest.order % every == 0)
        (kept if stays else going).append(manifest)
        if _is_whole(inventories[manifest.id], files):
            newer.append(kinds)
    return kept, going[::-1]


def _kinds(manifest: Manifest) -> frozenset[str]:
    """What kinds of actors a snapshot has: ``learner`` for learner-3.2."""
    return frozenset(re.sub(r"-[0-9]+$", "", actor_of(part.who)) for part in manifest.parts)


def _is_whole(inventory: Inventory, files: Mapping[str, File]) -> bool:
    return not inventory.problems and all(
        (file := files.get(blob_name(digest))) is not None and file.size == needed.size
        for digest, needed in inventory.blobs.items()
    )


def _is_old(file: File, now: float, grace_s: float) -> bool:
    return grace_s <= 0 or (file.written_at is not None and now - file.written_at > grace_s)
