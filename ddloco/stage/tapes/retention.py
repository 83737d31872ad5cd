"""A tape that is bounded by snapshots: its recorder begins a new file after each cut, and its
beginnings are deleted once enough snapshots have been committed after them. This never delays the
recorder: it inspects the folder in a thread, now and then, and an error here costs only disk space.
A replay starts from a snapshot that all remaining tapes cover."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import trio

from clocks import actor_of, number_of
from ddloco.stage.actors.effects import CaptureState
from ddloco.stage.process.log import Note
from replay import OnError, Recorder, TapeWriter, files_of
from replay.tape import SUFFIX
from replay.tape_files import whose
from snapshot import Manifest, SnapshotError, Store

LOOK_S = 2.0
"""Interval between checks, in seconds. A snapshot is committed some time after its cuts."""

FINISH_S = 10.0
"""How long, in seconds, an actor that has ended waits for a last check if storage is slow."""

NOT_DROPPED = "tape not dropped"


class ChainRecorder(Recorder):
    """Writes one incarnation's tape as a chain of files. A cut is at the end of the event that
    requests the capture of the state. That event's effects are the last record of a file, and the
    next file begins with the clock of the cut, all entries of it."""

    def __init__(
        self, writer: TapeWriter, on_error: OnError, clock: Callable[[], dict[str, int]]
    ) -> None:
        super().__init__(writer, on_error)
        self._clock = clock

    def effects(self, n: int, effects: Sequence[Any]) -> None:
        super().effects(n, effects)
        if any(type(each) is CaptureState for each in effects):
            self.go_on(n, self._clock())


class TapeRetention:
    """Deletes tape files that end before the oldest of an actor's newest committed cuts."""

    def __init__(
        self,
        folder: Path,
        incarnation: str,
        place: str | Path,
        note: Note,
        *,
        count: int,
        program: str,
    ) -> None:
        self._folder = folder
        self._incarnation = incarnation
        self._count = count
        self._job_id = program
        self._place = place
        self._note = note
        self._noted = ""

    async def run(self) -> None:
        while True:
            await trio.sleep(LOOK_S)
            await self._look()

    async def finish(self, within_s: float) -> None:
        """Check once more after the end, since the last snapshot may be committed by now."""
        with trio.move_on_after(min(FINISH_S, within_s)):
            await self._look()

    async def _look(self) -> None:
        try:
            await trio.to_thread.run_sync(self.drop, abandon_on_cancel=True)
        except (OSError, SnapshotError) as error:
            if str(error) != self._noted:
                self._note(NOT_DROPPED, {"reason": str(error)})
            self._noted = str(error)

    def drop(self) -> list[Path]:
        """Delete what is no longer needed, oldest first, so that the rest is always a chain.
        ``OSError`` or ``SnapshotError`` if files or the storage cannot be read."""
        files = files_of(self._folder, self._incarnation)
        former = self._former()
        if len(files) <= self._count and not former:
            return []  # There is nothing to delete, so the store is not read.
        listed = Store(self._place).snapshots()
        standing = (each.manifest for each in listed if each.manifest is not None)
        begins = {after for after, _ in files}
        cuts = cuts_of(standing, self._job_id, self._incarnation, begins)
        if len(cuts) < self._count:
            return []
        going = [*before(files, cuts[self._count - 1]), *former]
        for path in going:
            path.unlink(missing_ok=True)
        return going

    def _former(self) -> list[Path]:
        """The files of this actor's earlier incarnations, oldest first."""
        actor, number = actor_of(self._incarnation), number_of(self._incarnation)
        found: list[tuple[int, int, Path]] = []
        for path in self._folder.glob(f"{actor}.*{SUFFIX}"):
            who, after = whose(path)
            if actor_of(who) == actor and number_of(who) < number:
                found.append((number_of(who), after, path))
        return [path for *_, path in sorted(found)]


def cuts_of(
    standing: Iterable[Manifest], job_id: str, incarnation: str, begins: set[int]
) -> list[int]:
    """Return an incarnation's cuts in committed snapshots that bound its tape, in their order. Not
    those of other jobs; those with absent participants, which can only be replayed from another
    snapshot; and those at whose cut no file begins, which belong to another run with the same
    names."""
    return [
        part.number
        for manifest in standing
        if manifest.facts.get("job") == job_id and not manifest.absent
        for part in manifest.parts
        if part.who == incarnation and part.number in begins
    ]


def before(files: Sequence[tuple[int, Path]], cut: int) -> list[Path]:
    ends = [after for after, _ in files[1:]]
    return [path for (_, path), end in zip(files, ends, strict=False) if end <= cut]
