"""What a syncer keeps of its fragments: for the next incarnation, and for a replay of it.

A merge is done only when it is kept; its broadcast leaves after that. So whatever a learner has
received, a syncer that starts again still has (paper: 3.1, the shard persists).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import xxhash

from clocks import open_regular
from ddloco.protocol.events import Kept
from ddloco.runtime.array_table import F32
from snapshot import load_metadata, load_tensors, save_tensors

VERSIONS = 2
"""Merges of a fragment that a replay remembers: the one that its machine has heard of, and the one
that was kept when the process died before it heard."""


class KeptError(Exception):
    """What was kept cannot be used; the text names the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class Found:
    """A fragment as it was kept; flat float32 arrays of the same length."""

    kept: Kept
    theta: F32
    momentum: F32


class Keep(Protocol):
    """Where merges are kept; ``run`` tells the run that they belong to from others of its job."""

    run: str

    def put(self, found: Found) -> None:
        """Keep a merge in place of the one before it.

        Raises:
            OSError: it cannot be written; what was kept before stands.
        """
        ...

    def find(self) -> Sequence[Found]:
        """What an earlier incarnation kept, in order of fragments.

        Raises:
            KeptError: something there is damaged, or of another job.
        """
        ...


class KeptFolder:
    """Merges in files, one for each fragment, each there whole or not at all.

    Args:
        folder: ``RUN/kept/ACTOR``.
        job_id: whose fragments they are.
        run: in which of the job's runs.
    """

    def __init__(self, folder: Path, job_id: str, run: str = "") -> None:
        self.run = run
        self._folder = folder
        self._job_id = job_id

    def put(self, found: Found) -> None:
        """Write the fragment's file; the bytes are on the disk when this returns."""
        kept = found.kept
        said = {
            "job": self._job_id,
            "fragment": str(kept.fragment),
            "version": str(kept.version),
            "spent": json.dumps(kept.spent, sort_keys=True),
            "batches": json.dumps(kept.batches, sort_keys=True),
            "digest": kept.digest.hex(),
        }
        said["sum"] = _sum(said)
        path = self._folder / _file_of(kept.fragment)
        save_tensors(path, {"theta": found.theta, "momentum": found.momentum}, said)

    def find(self) -> Sequence[Found]:
        """Read what is there, and check every byte of it."""
        return [self._read(path) for path in sorted(self._folder.glob("fragment-*.safetensors"))]

    def _read(self, path: Path) -> Found:
        try:
            open_regular(path).close()  # The library would wait for a FIFO.
            tensors, said = load_tensors(path), load_metadata(path)
            kept = Kept(
                fragment=int(said["fragment"]),
                version=int(said["version"]),
                spent=json.loads(said["spent"]),
                batches=json.loads(said["batches"]),
                digest=bytes.fromhex(said["digest"]),
            )
            found = Found(kept, tensors["theta"], tensors["momentum"])
            whole, job_id = said.pop("sum") == _sum(said), said["job"]
        except (ValueError, KeyError, OSError) as error:
            reason = getattr(error, "strerror", None) or error
            raise KeptError(f"{path}: cannot be read: {reason}") from None
        if not whole or digest_of(found.theta, found.momentum) != kept.digest:
            raise KeptError(f"{path}: damaged, what it says does not fit its bytes")
        if path.name != _file_of(kept.fragment):
            raise KeptError(f"{path}: holds fragment {kept.fragment}, whose file has another name")
        if job_id != self._job_id:
            raise KeptError(f"{path}: of job {job_id}, this is {self._job_id}")
        return found


def _file_of(fragment: int) -> str:
    return f"fragment-{fragment:04d}.safetensors"


@dataclass
class KeptHistory:
    """What one actor's incarnations keep in a replay: the newest merges of every fragment."""

    run: str = ""
    merges: dict[int, list[Found]] = field(default_factory=dict[int, list[Found]])
    brought: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """Fragments and versions that a snapshot brought, and that were merged before it."""

    def put(self, found: Found) -> None:
        """Remember it."""
        newest = self.merges.setdefault(found.kept.fragment, [])
        newest.append(found)
        del newest[:-VERSIONS]

    def find(self) -> Sequence[Found]:
        """Which one the disk held is a fact of the recording: see ``at``."""
        raise AssertionError("a replay asks for what was recorded")

    def at(self, fragment: int, version: int) -> Found | None:
        """The merge that made this version, if it was made here."""
        merges = self.merges.get(fragment, [])
        return next((each for each in merges if each.kept.version == version), None)

    def bring(self) -> None:
        """All that is there comes from a snapshot: how far data had gone at its merge is a fact of
        the recording, and only what was merged can be compared."""
        self.brought.update((p, each.kept.version) for p in self.merges for each in self.merges[p])

    def agrees(self, kept: Kept) -> bool:
        """Whether what was recorded of a merge that is there is so."""
        found = self.at(kept.fragment, kept.version)
        if found is None:
            return False
        if (kept.fragment, kept.version) in self.brought:
            return found.kept.digest == kept.digest
        return found.kept == kept


def digest_of(theta: F32, momentum: F32) -> bytes:
    """xxh3-128 of the parameters, then of the momentum; 32 bytes."""
    both = (np.ascontiguousarray(theta), np.ascontiguousarray(momentum))
    return b"".join(xxhash.xxh3_128_digest(each.data) for each in both)


def _sum(said: dict[str, str]) -> str:
    """A checksum of what is said of the arrays."""
    return xxhash.xxh3_128_hexdigest(json.dumps(said, sort_keys=True).encode())
