"""What is written of a snapshot beside its blobs: manifests, and pieces that list blobs.

A manifest is sealed: it stands beside its own digest, so that no byte of it can change unnoticed.
A piece is a blob, named by its digest. Both are JSON for people who look, and equal contents have
equal bytes.
"""

import re
from collections.abc import Collection, Mapping
from typing import Literal

import msgspec

from snapshot.record import Part, split
from snapshot.storage import MANIFESTS, SUFFIX, DamagedError, SnapshotError, digest_of

FORMAT = 2

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*:[0-9]+")
"""A snapshot's name becomes a file's, and comes over the network."""

RUN = "run"
"""The fact that says which run a snapshot is of, in a place that several share."""

BEGAN_FROM = "from"
"""The fact that says from which snapshot of the same place its run began."""

Kind = Literal["state", "flight", "array", "worker"]
"""A frozen machine; messages in flight, with their payloads; an array that a machine holds; what a
worker knows beside those."""

Fact = str | int | float | bool | None


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One blob that a participant wrote."""

    kind: Kind
    name: str
    digest: str
    size: int


class Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Blobs that a participant wrote together; its digest stands in ``Part.contents``."""

    entries: tuple[Entry, ...]
    format: int = FORMAT


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot.

    Attributes:
        snapshot: its name, ``syncer.1:1042``.
        order: a count of the committer's; of two snapshots the newer one has the greater.
        facts: what the committer wants to be known, such as the job's name and digest.
        parts: what it consists of, with clocks.
        absent: who is not part of it, and why.
        nbytes: of all its blobs, each counted once; ``Store.commit`` fills it in.
        format: of this file.
    """

    snapshot: str
    order: int
    facts: Mapping[str, Fact]
    parts: tuple[Part, ...]
    absent: Mapping[str, str]
    nbytes: int = 0
    format: int = FORMAT

    @property
    def id(self) -> str:
        """The name as files have it; in a place that several runs share, after the run's."""
        return f"{self.run}_{id_of(self.snapshot)}" if self.run else id_of(self.snapshot)

    @property
    def run(self) -> str:
        """Which of the runs that share a place it is of; empty where a run has one for itself."""
        said = self.facts.get(RUN)
        return said if isinstance(said, str) else ""


class _Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    digest: str
    manifest: msgspec.Raw


def id_of(snapshot: str) -> str:
    """A snapshot's name as files have it, ``syncer.1-1042``; such an id is taken as well.

    Raises:
        SnapshotError: it is no snapshot's name.
    """
    first, dash, number = snapshot.rpartition("-")
    name = f"{first}:{number}" if dash and ":" not in snapshot else snapshot
    try:
        split(name)
    except ValueError as error:
        raise SnapshotError(str(error)) from None
    if not NAME.fullmatch(name):
        raise SnapshotError(f"{snapshot!r}: a name of letters, digits, '_', '.' and '-' is wanted")
    return name.replace(":", "-")


def file_of(snapshot: str) -> str:
    """Where the manifest of a snapshot, by name or id, lies in a place."""
    return f"{MANIFESTS}/{id_of(snapshot)}{SUFFIX}"


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest, sealed."""
    raw = msgspec.json.encode(manifest, order="deterministic")
    return msgspec.json.encode(_Sealed(digest_of([memoryview(raw)]), msgspec.Raw(raw)))


def decode_manifest(data: bytes, id: str) -> Manifest:  # noqa: A002, an id is what it is
    """Read what ``encode_manifest`` wrote.

    Raises:
        SnapshotError: it is anything else, or another snapshot's; the caller knows the file.
    """
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
        raw = bytes(sealed.manifest)
        if digest_of([memoryview(raw)]) != sealed.digest or data != msgspec.json.encode(sealed):
            raise DamagedError("is not what was written: its digest differs")
        version = msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).get("format")
        if version is None or bytes(version) != b"%d" % FORMAT:
            raise SnapshotError(f"has another format than {FORMAT}")
        manifest = msgspec.json.decode(raw, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedError(f"is no manifest: {error}") from None
    except RecursionError:
        raise DamagedError("is no manifest: nested too deep") from None
    if manifest.id != id:
        raise DamagedError(f"is the manifest of {manifest.snapshot}")
    return manifest


def encode_piece(entries: Collection[Entry]) -> bytes:
    """The bytes of a piece; the order of the entries does not matter.

    Raises:
        SnapshotError: two entries of one kind have the same name.
    """
    named = {(entry.kind, entry.name): entry for entry in entries}
    if len(named) != len(entries):
        raise SnapshotError("two entries of a piece have the same kind and name")
    return msgspec.json.encode(Piece(tuple(named[key] for key in sorted(named))))


def decode_piece(data: bytes) -> tuple[Entry, ...]:
    """Read what ``encode_piece`` wrote.

    Raises:
        SnapshotError: it is something else.
    """
    try:
        piece = msgspec.json.decode(data, type=Piece)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SnapshotError(f"is no list of blobs: {error}") from None
    if piece.format != FORMAT:
        raise SnapshotError(f"has format {piece.format}, this is {FORMAT}")
    return piece.entries
