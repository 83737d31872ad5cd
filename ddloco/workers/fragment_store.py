"""The fragments that a syncer stores on disk, for its next incarnation and for replays. A merge is
complete only once it is stored; it is broadcast after that. So a restarted syncer has every version
that any learner has received (paper: 3.1, the shard persists)."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from clocks import open_regular, read_regular, replace_file
from ddloco.job.protocol.work import Kept
from ddloco.machines.outer.optimizers.optimizer import State, state_digest
from ddloco.machines.syncer.global_fragments import OUTER
from ddloco.stage.arrays.array_table import F32
from snapshot import load_metadata, load_tensors, save_tensors

THETA = "theta"
DONE = "done"
"""The file that says that the job has ended as done; it holds the job's id."""

VERSIONS = 2
"""Merges per fragment that a replay remembers: the last one that the machine has received as an
event, and one stored after it, in case the process died in between."""


class FragmentStoreError(Exception):
    """A stored fragment cannot be used; the text names the file and the problem."""


@dataclass(frozen=True, slots=True)
class StoredFragment:
    """A stored fragment: its parameters, flat float32, and its outer optimizer's state."""

    kept: Kept
    theta: F32
    state: State


class FragmentStore(Protocol):
    """Storage for merged fragments; ``run`` tells this run from other runs of the job."""

    run: str

    def put(self, found: StoredFragment) -> None:
        """Store a merge in place of the fragment's previous one, which stays valid if it raises
        ``OSError``."""
        ...

    def find(self) -> Sequence[StoredFragment]:
        """Return the fragments that an earlier incarnation stored, sorted by number;
        ``FragmentStoreError`` if a file is damaged, or belongs to another job."""
        ...

    def done(self) -> bool:
        """Whether an earlier incarnation ended this job as done."""
        ...

    def note_done(self) -> None:
        """Note that the job has ended as done, for the next incarnation."""
        ...


class FragmentFolder:
    """Merges in files, one per fragment, written atomically. ``confirm`` is called before each
    write; it raises ``OSError`` if another process acts as this syncer."""

    def __init__(
        self, folder: Path, job_id: str, run: str = "", confirm: Callable[[], None] = lambda: None
    ) -> None:
        self.run = run
        self._confirm = confirm
        self._folder = folder
        self._job_id = job_id

    def put(self, found: StoredFragment) -> None:
        kept = found.kept
        said = {
            "job": self._job_id,
            "fragment": str(kept.fragment),
            "version": str(kept.version),
            "spent": json.dumps(kept.spent, sort_keys=True),
            "batches": json.dumps(kept.batches, sort_keys=True),
            "digest": kept.digest.hex(),
        }
        if kept.tokens:
            said["tokens"] = str(kept.tokens)
        said["sum"] = _sum(said)
        path = self._folder / _file_of(kept.fragment)
        self._confirm()
        save_tensors(path, {THETA: found.theta, **_prefixed(found.state)}, said)

    def find(self) -> Sequence[StoredFragment]:
        return [self._read(path) for path in sorted(self._folder.glob("fragment-*.safetensors"))]

    def done(self) -> bool:
        """Whether the job was ended as done; what cannot be read says nothing."""
        try:
            return read_regular(self._folder / DONE).decode() == self._job_id
        except (OSError, ValueError):
            return False

    def note_done(self) -> None:
        self._confirm()
        replace_file(self._folder / DONE, [self._job_id.encode()])

    def _read(self, path: Path) -> StoredFragment:
        try:
            open_regular(path).close()  # On a FIFO the library would block.
            tensors, said = load_tensors(path), load_metadata(path)
            kept = Kept(
                fragment=int(said["fragment"]),
                version=int(said["version"]),
                spent=json.loads(said["spent"]),
                batches=json.loads(said["batches"]),
                digest=bytes.fromhex(said["digest"]),
                tokens=int(said.get("tokens", "0")),
            )
            theta = tensors.pop(THETA)
            state = {name.removeprefix(OUTER): array for name, array in tensors.items()}
            found = StoredFragment(kept, theta, state)
            whole, job_id = said.pop("sum") == _sum(said), said["job"]
        except (ValueError, KeyError, OSError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or error
            raise FragmentStoreError(f"{path}: cannot be read: {reason}") from None
        if not whole or theta_digest(found.theta, found.state) != kept.digest:
            raise FragmentStoreError(f"{path}: damaged: its digests do not match its contents")
        if path.name != _file_of(kept.fragment):
            raise FragmentStoreError(
                f"{path}: holds fragment {kept.fragment}, whose file has another name"
            )
        if job_id != self._job_id:
            raise FragmentStoreError(f"{path}: of job {job_id}, this is {self._job_id}")
        return found


def _file_of(fragment: int) -> str:
    return f"fragment-{fragment:04d}.safetensors"


@dataclass
class FragmentHistory:
    """The merges of one actor's incarnations in a replay: the newest ones of each fragment."""

    run: str = ""
    merges: dict[int, list[StoredFragment]] = field(default_factory=dict[int, list[StoredFragment]])
    brought: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """Fragments and versions that were loaded from a snapshot, and merged before it."""

    def put(self, found: StoredFragment) -> None:
        newest = self.merges.setdefault(found.kept.fragment, [])
        newest.append(found)
        del newest[:-VERSIONS]

    def find(self) -> Sequence[StoredFragment]:
        """Not available: what the disk held is a fact of the recording; see ``at``."""
        raise AssertionError("a replay asks for what was recorded")

    def done(self) -> bool:
        raise AssertionError("a replay asks for what was recorded")

    def note_done(self) -> None:
        """Nothing is to be noted: no incarnation follows."""

    def at(self, fragment: int, version: int) -> StoredFragment | None:
        merges = self.merges.get(fragment, [])
        return next((each for each in merges if each.kept.version == version), None)

    def bring(self) -> None:
        """Mark all merges as loaded from a snapshot: their data positions are facts of the
        recording and cannot be compared, only what was merged can."""
        self.brought.update((p, each.kept.version) for p in self.merges for each in self.merges[p])

    def agrees(self, kept: Kept) -> bool:
        """Whether the recorded description of a merge agrees with the merge found here."""
        found = self.at(kept.fragment, kept.version)
        if found is None:
            return False
        if (kept.fragment, kept.version) in self.brought:
            return found.kept.digest == kept.digest
        return found.kept == kept


def theta_digest(theta: F32, state: State) -> bytes:
    """xxh3-128 of the parameters, then of the outer optimizer's state; 32 bytes."""
    return xxhash.xxh3_128_digest(np.ascontiguousarray(theta).data) + state_digest(state)


def _prefixed(state: State) -> dict[str, NDArray[Any]]:
    return {f"{OUTER}{name}": array for name, array in state.items()}


def _sum(said: dict[str, str]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(said, sort_keys=True).encode())
