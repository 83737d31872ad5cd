"""The second run of a user's program; see ``ddloco.replayer.replay_of``."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import trio

from clocks import actor_of
from ddloco.replayer.comparer import difference_of, open_comparison
from ddloco.replayer.replay_state import ReplayState
from ddloco.replayer.tape_runner import Difference, TapeRunner
from ddloco.stage.actors.actor import new_actor
from ddloco.stage.actors.effects import Work
from ddloco.stage.actors.events import Computed, WorkResult
from ddloco.stage.arrays.array_table import ArrayTable
from ddloco.stage.driver.resume import Start, StartPoint
from ddloco.stage.driver.snapshot_sink import DigestSink
from ddloco.stage.process.run_identity import changes, said_of_sources
from ddloco.stage.programs.executor import ComputationExecutor
from ddloco.stage.programs.program import LoadedProgram, program_fingerprint
from replay import Player, Tape


@dataclass
class ProgramTapes:
    loaded: LoadedProgram
    warn: Callable[[str], None]
    start_point: StartPoint[Start] | None = None

    @property
    def counted(self) -> Mapping[str, type]:
        return {"results of work": Computed}

    @property
    def optional(self) -> Sequence[str]:
        """Every actor belongs to the run."""
        return ()

    @asynccontextmanager
    async def open(self, state: ReplayState, each: Tape, folder: Path) -> AsyncIterator[TapeRunner]:
        del folder  # Its work leaves no files.
        header, incarnation = each.header, each.incarnation
        role = self.loaded.program.roles[actor_of(incarnation)]
        now = program_fingerprint() | said_of_sources(self.loaded.digests)
        for change in changes(header.fingerprint, now):
            self.warn(f"{incarnation}: {change}")
        start = self.start_point.start(incarnation) if self.start_point is not None else None
        arrays = ArrayTable()
        actor = new_actor(incarnation, self.loaded.machine(incarnation))
        if start is not None:
            start.lay_out(arrays)
            actor = start.actor
        work = ComputationExecutor(role.compute, self.loaded.asked, arrays, DigestSink())
        executor = ProgramExecutor(work, arrays)
        player = Player(each, self.loaded.events, actor, actor.number)
        async with open_comparison(state, player, actor, executor, start) as runner:
            yield runner


@final
@dataclass
class ProgramExecutor:
    executor: ComputationExecutor
    arrays: ArrayTable

    def begin(self, work: Work) -> Awaitable[WorkResult] | None:
        """Begin a piece of work; None if an array that it reads is missing."""
        return self.executor.do(work) if self.arrays.known(*work.reads) else None

    def is_repeated(self, work: Work) -> bool:
        """Return True: all work depends on nothing but arrays."""
        del work
        return True

    async def finish(self) -> None:
        await trio.lowlevel.checkpoint()

    def check_fact(self, event: Any) -> bool:
        del event
        return False

    def difference(self, recorded: WorkResult, found: WorkResult) -> Difference | None:
        return difference_of(recorded, found)
