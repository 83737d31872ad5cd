"""Which files a snapshot consists of, and whether they are all intact."""

from dataclasses import dataclass, field

from clocks import ClockError
from snapshot.blob_reader import Progress, blob_problem, read_manifest, read_piece
from snapshot.coordinator import cut_disagreement
from snapshot.manifest import Entry, Manifest, encode_piece, file_of
from snapshot.storage import Place, SnapshotError, StorageError, blob_name


@dataclass(frozen=True, slots=True)
class Needed:
    """A blob that a snapshot needs."""

    size: int
    what: str
    """What the blob is and who wrote it, as text for users."""


@dataclass(slots=True)
class Inventory:
    """The blobs of a snapshot by digest, including its pieces, as far as pieces can be read."""

    blobs: dict[str, Needed] = field(default_factory=dict[str, Needed])
    pieces: dict[str, tuple[Entry, ...]] = field(default_factory=dict[str, tuple[Entry, ...]])
    problems: list[str] = field(default_factory=list[str])
    unread: list[str] = field(default_factory=list[str])
    """Problems that may be temporary, such as an unreachable disk; they prove nothing."""

    @property
    def nbytes(self) -> int:
        """The bytes of all blobs, each counted once."""
        return sum(needed.size for needed in self.blobs.values())


def take_inventory(place: Place, manifest: Manifest) -> Inventory:
    """Read all pieces of a snapshot, and no other blobs."""
    found = Inventory()
    for part in manifest.parts:
        for digest in part.contents:
            try:
                entries = read_piece(place, digest)
            except SnapshotError as error:
                found.problems.append(f"{error} (a piece of {part.who})")
                continue
            except StorageError as error:
                found.problems.append(str(error))
                found.unread.append(str(error))
                continue
            found.pieces[digest] = entries
            found.blobs[digest] = Needed(len(encode_piece(entries)), f"piece of {part.who}")
            for entry in entries:
                _add(place, found, part.who, entry)
    return found


def _add(place: Place, found: Inventory, who: str, entry: Entry) -> None:
    what = f"{entry.kind} {entry.name} of {who}"
    known = found.blobs.setdefault(entry.digest, Needed(entry.size, what))
    if known.size != entry.size:
        name = place.path(blob_name(entry.digest))
        said = f"{known.size} bytes for {known.what}, {entry.size} for {what}"
        found.problems.append(f"{name}: has two sizes: {said}")


def lacking(place: Place, inventory: Inventory) -> list[str]:
    """Describe blobs that are missing or have a wrong size, one line each; no blob is read."""
    problems = list(inventory.problems)
    for digest, needed in inventory.blobs.items():
        name = blob_name(digest)
        file = place.stat(name)
        if file is None:
            problems.append(f"{place.path(name)}: is missing ({needed.what})")
        elif file.size != needed.size:
            said = f"has {file.size} bytes, not {needed.size}"
            problems.append(f"{place.path(name)}: {said} ({needed.what})")
    return problems


def manifest_problem(manifest: Manifest) -> str | None:
    """Why a manifest's parts are not those of a consistent cut; None if they are."""
    clocks = {part.who: part.clock for part in manifest.parts}
    if len(clocks) != len(manifest.parts):
        return "two of its parts are of one participant"
    for part in manifest.parts:
        if part.failed:
            return f"the part of {part.who} was not written: {part.failed}"
        if part.who in manifest.absent:
            return f"{part.who} is listed as absent but has a part"
        if part.who not in part.clock:
            return f"the clock of {part.who} lacks its own entry"
    if not clocks:
        return "it has no parts"
    try:
        return cut_disagreement(clocks)
    except ClockError as error:
        return str(error)


def outline(place: Place, manifest: Manifest) -> tuple[Inventory, list[str]]:
    inventory = take_inventory(place, manifest)
    problems = list(inventory.problems)
    wrong = manifest_problem(manifest)
    if wrong is None and not problems and manifest.nbytes != inventory.nbytes:
        wrong = f"says {manifest.nbytes} bytes, its blobs have {inventory.nbytes}"
    if wrong is not None:
        problems.insert(0, f"{place.path(file_of(manifest.id))}: {wrong}")
    return inventory, problems


def is_complete(place: Place, manifest: Manifest) -> bool:
    """Whether a snapshot is a consistent cut, and its blobs have their sizes; they are not read."""
    inventory, problems = outline(place, manifest)
    return not problems and not lacking(place, inventory)


def no_progress(_: int) -> None:
    """Ignore progress reports."""


class Verifier:
    """Checks every byte of snapshots; reads a blob that several share only once."""

    def __init__(self, place: Place, progress: Progress = no_progress) -> None:
        self._place = place
        self._progress = progress
        self._verdicts: dict[tuple[str, int], str | None] = {}
        self.nbytes = 0
        self.files = 0

    def verify(self, snapshot: str) -> list[str]:
        """The problems of a snapshot, one line per file; empty if it is intact."""
        place = self._place
        try:
            manifest = read_manifest(place, snapshot)
        except (SnapshotError, StorageError) as error:
            return [str(error)]
        self.files += 1
        inventory, problems = outline(place, manifest)
        for digest, needed in inventory.blobs.items():
            verdict = self._verdict(digest, needed.size)
            if verdict is not None:
                problems.append(f"{verdict} ({needed.what})")
        return problems

    def _verdict(self, digest: str, size: int) -> str | None:
        key = (digest, size)
        if key not in self._verdicts:
            self._verdicts[key] = blob_problem(self._place, digest, size, self._read)
            self.files += 1
        return self._verdicts[key]

    def _read(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self._progress(nbytes)
