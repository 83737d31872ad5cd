"""The second run of a user's program; see ``ddloco.replayer.replay``."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import trio

from clocks import actor_of
from ddloco.replayer.comparer import changed_facts, difference_of, open_comparison
from ddloco.replayer.recording import permit_of
from ddloco.replayer.replay import Replay
from ddloco.replayer.replay_state import ReplayState
from ddloco.replayer.start_point import choose_start_point
from ddloco.replayer.tape_runner import TapeRunner
from ddloco.stage.actors.actor import new_actor
from ddloco.stage.actors.effects import Work
from ddloco.stage.actors.events import Computed, WorkResult
from ddloco.stage.arrays.array_table import Arrays
from ddloco.stage.driver.resume import Start, StartPoint, load_start, read_start_point
from ddloco.stage.driver.snapshot_sink import DigestSink
from ddloco.stage.files.run_folder import SNAPSHOTS
from ddloco.stage.programs.executor import ComputationExecutor
from ddloco.stage.programs.program import LoadedProgram, program_from
from ddloco.stage.programs.runner import PLACE, SOURCE, fingerprint
from replay import Player, Tape, TapeError, open_tapes
from snapshot import Part, SnapshotError, Store


def program_start_point(
    place: str | Path, snapshot: str, loaded: LoadedProgram
) -> StartPoint[Start]:
    """Read the states of a program's actors in a snapshot.

    Raises:
        SnapshotError: it is not there, not intact, or of another program.
        StorageError: the place cannot be read.
    """

    def load(store: Store, part: Part) -> Start:
        role = loaded.program.roles.get(actor_of(part.who))
        if role is None:
            raise SnapshotError(f"{store.name}: {part.who} is no actor of this program")
        return load_start(store, part, loaded.states(role.machine()))

    return read_start_point(place, snapshot, load)


def replay_of_program(
    folder: Path,
    progress: Callable[[int], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
    snapshot: str = "",
    program: str = "",
    *,
    salvage: bool = False,
    trust: bool = False,
) -> Replay:
    """Prepare the replay of the tapes of a user's program.

    Args:
        folder: the run folder, or any set of its tapes.
        progress: called with the number of events played so far.
        warn: called with what differs before the replay starts.
        snapshot: one to begin with, by id or ``latest``; what is before its cut is not played.
        program: what is called in place of the program that the tapes name.
        salvage: whether to read damaged tapes up to the damage.
        trust: whether the user allows states of another user to act.

    Raises:
        TapeError: a tape cannot be read.
        NamedError: the program cannot be used here.
        SnapshotError: the snapshot is not there, not intact, or of another version.
    """
    tapes = open_tapes(folder, salvage=salvage)
    plain = tapes[0].header.job
    loaded = program_from({**plain, "program": program or plain["program"]})
    read = partial(program_start_point, loaded=loaded)
    # A run folder may have been copied; what is in it is where it is now.
    inner = folder / SNAPSHOTS
    place = inner if inner.is_dir() else tapes[0].header.facts.get(PLACE) or inner
    permit = permit_of(tapes, folder, trust=trust)
    start_point = choose_start_point(tapes, place, read, snapshot, permit)
    return Replay(
        tapes,
        list(loaded.program.roles),
        ProgramRunners(loaded, start_point, warn).open,
        {"results of work": Computed},
        start_point=start_point,
        progress=progress,
    )


@dataclass(frozen=True)
class ProgramRunners:
    """Opens what plays the tapes of a program; see ``replay_of_program``."""

    loaded: LoadedProgram
    start_point: StartPoint[Start] | None
    warn: Callable[[str], None]

    @asynccontextmanager
    async def open(self, state: ReplayState, each: Tape, folder: Path) -> AsyncIterator[TapeRunner]:
        """Open what plays a tape.

        Raises:
            TapeError: it is of an actor that the program does not have.
        """
        del folder  # Its work leaves no files.
        header, incarnation = each.header, each.incarnation
        role = self.loaded.program.roles.get(actor_of(incarnation))
        if role is None:
            raise TapeError(each.path, 16, f"{incarnation} is not an actor of the program now")
        then = {**header.fingerprint, SOURCE: header.facts.get(SOURCE, "")}
        for difference in changed_facts(
            incarnation, then, {**fingerprint(), SOURCE: self.loaded.source}
        ):
            self.warn(difference)
        start = self.start_point.start(incarnation) if self.start_point is not None else None
        arrays = Arrays()
        actor = new_actor(incarnation, role.machine())
        if start is not None:
            start.lay_out(arrays)
            actor = start.actor
        work = ComputationExecutor(role.compute, arrays, DigestSink())
        executor = ProgramExecutor(work, arrays)
        player = Player(each, self.loaded.events, actor, actor.number)
        async with open_comparison(state, player, actor, executor, start) as runner:
            yield runner


@final
@dataclass
class ProgramExecutor:
    """Does the work of a user's actor again.

    Attributes:
        executor: what does it, live as well.
        arrays: the actor's arrays, by handle.
    """

    executor: ComputationExecutor
    arrays: Arrays

    def begin(self, work: Work) -> Awaitable[WorkResult] | None:
        """Begin a piece of work; None if an array that it reads is missing."""
        return self.executor.do(work) if self.arrays.known(*work.reads) else None

    def is_repeated(self, work: Work) -> bool:
        """All work is: it depends on nothing but arrays."""
        del work
        return True

    async def finish(self) -> None:
        """Nothing outlasts the process."""
        await trio.lowlevel.checkpoint()

    def check_fact(self, event: Any) -> bool:
        """There are no facts but those of every actor."""
        del event
        return False

    def difference(self, recorded: WorkResult, found: WorkResult) -> str | None:
        """Return what kind of difference two results have, in words; None if they are equal."""
        return difference_of(recorded, found)
