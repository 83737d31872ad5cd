"""The metadata of a snapshot: manifests, and pieces that list blobs.

A manifest is sealed: the file contains the manifest's digest, so that no change of a byte goes
unnoticed. A piece is a blob, named by its digest. Both are readable JSON, and equal contents have
equal bytes.
"""

import re
from collections.abc import Collection, Mapping
from typing import Literal

import msgspec

from clocks import actor_of, number_of
from snapshot.record import Part, split
from snapshot.storage import MANIFESTS, SUFFIX, DamagedError, SnapshotError, digest_of

FORMAT = 2

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*:[0-9]+")
"""Valid snapshot names: they become file names, and arrive over the network."""

RUN = "run"
"""The fact that names the run that a snapshot belongs to, in a store that several runs share."""

BEGAN_FROM = "from"
"""The fact that names the snapshot of the same store from which the run was resumed."""

Kind = Literal["state", "flight", "array", "worker"]
"""A frozen machine; messages in flight, with their payloads; an array held by a machine; other
state of a worker."""

Fact = str | int | float | bool | None


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One blob that a participant wrote."""

    kind: Kind
    name: str
    digest: str
    size: int


class Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Blobs that a participant wrote together; ``Part.contents`` holds its digest."""

    entries: tuple[Entry, ...]
    format: int = FORMAT


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot.

    Attributes:
        snapshot: its name, ``syncer.1:1042``.
        order: a count kept by the committer; the newer of two snapshots has the greater one.
        facts: metadata from the committer, such as the job's name and digest.
        parts: the parts of the participants, with their clocks.
        absent: the participants that are left out, and why.
        nbytes: bytes of all its blobs, each counted once; ``Store.commit`` fills it in.
        format: the format of this file.
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
        """The name in files, prefixed with the run in a store that several runs share."""
        return f"{self.run}_{id_of(self.snapshot)}" if self.run else id_of(self.snapshot)

    @property
    def left(self) -> tuple[str, ...]:
        """The newest incarnation of every actor that its participants have heard of, and that is
        neither in it nor absent: it had left before."""
        heard = {who for part in self.parts for who in part.clock}
        here = {actor_of(who) for who in (*(part.who for part in self.parts), *self.absent)}
        newest: dict[str, str] = {}
        for who in sorted(heard, key=number_of):
            newest[actor_of(who)] = who
        return tuple(sorted(who for actor, who in newest.items() if actor not in here))

    @property
    def run(self) -> str:
        """The run it belongs to, in a store that several runs share; otherwise empty."""
        said = self.facts.get(RUN)
        return said if isinstance(said, str) else ""


class _Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    digest: str
    manifest: msgspec.Raw


def id_of(snapshot: str) -> str:
    """A snapshot's name as used in files, ``syncer.1-1042``; also accepts such an id.

    Raises:
        SnapshotError: it is not the name of a snapshot.
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
    """The file of a snapshot's manifest, given its name or id."""
    return f"{MANIFESTS}/{id_of(snapshot)}{SUFFIX}"


def encode_manifest(manifest: Manifest) -> bytes:
    raw = msgspec.json.encode(manifest, order="deterministic")
    return msgspec.json.encode(_Sealed(digest_of([memoryview(raw)]), msgspec.Raw(raw)))


def decode_manifest(data: bytes, id: str) -> Manifest:  # noqa: A002, an id is what it is
    """Read what ``encode_manifest`` wrote; raises SnapshotError if it is something else, or another
    snapshot's manifest. The caller adds the file's name."""
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
        raise DamagedError(f"is not a manifest: {error}") from None
    except RecursionError:
        raise DamagedError("is not a manifest: nested too deep") from None
    if manifest.id != id:
        raise DamagedError(f"is the manifest of {manifest.snapshot}")
    return manifest


def encode_piece(entries: Collection[Entry]) -> bytes:
    """The bytes of a piece; the order of the entries does not matter.

    Raises:
        SnapshotError: two entries have the same kind and name.
    """
    named = {(entry.kind, entry.name): entry for entry in entries}
    if len(named) != len(entries):
        raise SnapshotError("two entries of a piece have the same kind and name")
    return msgspec.json.encode(Piece(tuple(named[key] for key in sorted(named))))


def decode_piece(data: bytes) -> tuple[Entry, ...]:
    try:
        piece = msgspec.json.decode(data, type=Piece)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotError(f"is not a list of blobs: {error}") from None
    if piece.format != FORMAT:
        raise SnapshotError(f"has format {piece.format}, this is {FORMAT}")
    return piece.entries
