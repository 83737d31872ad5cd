"""The second run of a user's program; see ``ddloco.replayer.replay``."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from clocks import actor_of
from ddloco.actors.actor import Actor
from ddloco.actors.events import Computed
from ddloco.actors.snapshot_adapter import packages_of
from ddloco.config.run_folder import SNAPSHOTS
from ddloco.programs.executor import ComputationExecutor
from ddloco.programs.program import LoadedProgram, program_from
from ddloco.programs.runner import PLACE, SOURCE, fingerprint
from ddloco.replayer.replay import Replay
from ddloco.replayer.start_point import begin_tapes
from ddloco.replayer.tape_runner import TapeRunner
from ddloco.runtime.array_table import Arrays
from ddloco.runtime.resume import Beginning, Start, begin_with, load_start
from ddloco.runtime.snapshot_sink import DigestSink
from replay import Tape, TapeError, open_tapes
from snapshot import Part, Store


def beginning_of(place: str | Path, snapshot: str, loaded: LoadedProgram) -> Beginning[Start]:
    """Where everybody in a loaded stood in a snapshot.

    Raises:
        SnapshotError: it is not there, not intact, or of another program.
        StorageError: the place cannot be read.
    """

    def load(store: Store, part: Part) -> Start:
        role = loaded.program.roles.get(actor_of(part.who))
        packages = packages_of(role.machine()) if role is not None else ()
        return load_start(store, part, packages)

    return begin_with(place, snapshot, load)


class ProgramTapeRunner(TapeRunner[ComputationExecutor]):
    """One tape's part in the replay of a program."""

    def __init__(self, replaying: "ProgramReplay", tape: Tape) -> None:
        loaded = replaying.loaded
        role = loaded.program.roles.get(actor_of(tape.incarnation))
        if role is None:
            raise TapeError(tape.path, 16, f"{tape.incarnation} is not an actor of the program now")
        super().__init__(replaying, tape, Actor(tape.incarnation, role.machine()), loaded.events)
        self._arrays = Arrays()
        self._workers = ComputationExecutor(role.compute, self._arrays, DigestSink())
        self._warn = replaying.warn
        self._source = loaded.source

    async def run(self) -> None:
        """Execute the tape.

        Raises:
            Divergence: at the first difference.
            TapeError: the tape cannot be read.
        """
        for difference in self._differences():
            self._warn(difference)
        if self._begun is not None:
            self._begun.lay_out(self._arrays)
        await self.execute()

    def _differences(self) -> list[str]:
        """What can change arithmetic and is not as it was recorded."""
        header = self._tape.header
        then = {**header.fingerprint, SOURCE: header.facts.get(SOURCE, "")}
        now = {**fingerprint(), SOURCE: self._source}
        return [
            f"{self._name}: {key} was {then.get(key, 'not set')}, is {now.get(key, 'not set')}"
            for key in sorted({*then, *now})
            if then.get(key) != now.get(key)
        ]


class ProgramReplay(Replay):
    """Replays the tapes of a user's program.

    Args:
        folder: the run folder, or any set of its tapes.
        progress: called with the number of events played so far.
        warn: called with what differs before the replay starts.
        snapshot: one to begin with, by id or ``latest``; what lies before its cut is not played.
        program: what is called in place of the program that the tapes name.
        salvage: whether to read damaged tapes up to the damage.

    Raises:
        TapeError: a tape cannot be read.
        NamedError: the program cannot be used here.
        SnapshotError: the snapshot is not there, not intact, or of another version.
    """

    def __init__(
        self,
        folder: Path,
        progress: Callable[[int], None],
        warn: Callable[[str], None],
        snapshot: str = "",
        program: str = "",
        *,
        salvage: bool = False,
    ) -> None:
        tapes = open_tapes(folder, salvage=salvage)
        plain = tapes[0].header.job
        self.loaded = program_from({**plain, "program": program or plain["program"]})
        self.warn = warn
        names = list(self.loaded.program.roles)
        begin = partial(beginning_of, loaded=self.loaded)
        # A run folder may have been copied; what is in it is where it is now.
        inner = folder / SNAPSHOTS
        place = inner if inner.is_dir() else tapes[0].header.facts.get(PLACE) or inner
        super().__init__(tapes, names, begin_tapes(tapes, place, begin, snapshot), progress)
        self.report.counts = {"results of work": 0}

    def runner(self, each: Tape, folder: Path) -> ProgramTapeRunner:
        """What plays a tape."""
        del folder
        return ProgramTapeRunner(self, each)

    def count(self, event: Any) -> None:
        """What was computed."""
        self.report.counts["results of work"] += isinstance(event, Computed)
