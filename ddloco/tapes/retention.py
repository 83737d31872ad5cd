"""Who lets the beginnings of a tape go, once enough snapshots stand behind them.

It never holds the pen up: it looks at the folder from outside, in a thread, now and then, and what
goes wrong with it costs room and nothing else. It looks after one actor's files only, so nobody
needs to know where the others' are; a replay begins where all that is left can begin.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import trio

from clocks import actor_of, number_of
from ddloco.config.job import Job
from replay import files_of
from replay.tape import SUFFIX
from replay.tape_files import whose
from snapshot import Manifest, SnapshotError, Store

LOOK_S = 2.0
"""How often it is looked whether something can go. A snapshot stands some time after its cuts."""

FINISH_S = 10.0
"""How long an actor that has ended stays for a last look, at a place that does not answer."""

NOT_DROPPED = "tape not dropped"

Note = Callable[[str, dict[str, Any]], None]


class Dropper:
    """Drops what lies before the oldest of an actor's newest cuts that stand.

    Args:
        folder: of tapes.
        incarnation: whose; former ones of the same actor are looked after, too.
        job: says how many cuts stay; others may have their snapshots in the same place.
        place: where snapshots stand.
        note: the log.
    """

    def __init__(
        self, folder: Path, incarnation: str, job: Job, place: str | Path, note: Note
    ) -> None:
        self._folder = folder
        self._incarnation = incarnation
        self._count = job.tape.bound
        self._job_id = job.id
        self._place = place
        self._note = note
        self._noted = ""

    async def run(self) -> None:
        """While the actor runs."""
        while True:
            await trio.sleep(LOOK_S)
            await self._look()

    async def finish(self, within_s: float) -> None:
        """When it has ended: once more, since the last snapshot may stand by now."""
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
        """Let go of what can go; the oldest first, so that what is left is a chain at any moment.

        Raises:
            OSError: a file or the place cannot be looked at.
            SnapshotError: the place cannot be opened here.
        """
        files = files_of(self._folder, self._incarnation)
        former = self._former()
        if len(files) <= self._count and not former:
            return []  # Nothing can go, whatever stands: nobody is asked.
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
        """The files of this actor's former incarnations, the oldest first."""
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
    """An incarnation's cuts in snapshots that bound its tape, in their order.

    Not bounding are those of other jobs; those from which anybody is absent, since whoever goes on
    without having been in one can only be replayed from another; and those at whose cut no file of
    the tape begins, which are of another run under the same name.
    """
    return [
        part.number
        for manifest in standing
        if manifest.facts.get("job") == job_id and not manifest.absent
        for part in manifest.parts
        if part.who == incarnation and part.number in begins
    ]


def before(files: Sequence[tuple[int, Path]], cut: int) -> list[Path]:
    """The files of a chain that lie wholly before a cut."""
    ends = [after for after, _ in files[1:]]
    return [path for (_, path), end in zip(files, ends, strict=False) if end <= cut]
