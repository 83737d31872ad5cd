"""The second run of a job; see ``ddloco.replayer.replay_of``."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from clocks import actor_of
from ddloco.job.config import Job
from ddloco.job.protocol.events import Happened, OwnState, Started
from ddloco.job.protocol.tape_facts import STATE_PIECES, is_simulated
from ddloco.job.protocol.work import FragmentMerged, StepFinished
from ddloco.machines.registry import machine_for
from ddloco.replayer.comparer import open_comparison
from ddloco.replayer.job_executor import JobExecutor, StepWatch, open_executor
from ddloco.replayer.recording import run_folder_of
from ddloco.replayer.replay_state import ReplayState
from ddloco.replayer.start_point import Permit
from ddloco.replayer.tape_runner import TapeRunner
from ddloco.replayer.what_if import change_of
from ddloco.roles.job_program import program_of
from ddloco.roles.resume import OWN_STATE, JobStart, JobStartPoint
from ddloco.stage.actors.actor import new_actor
from ddloco.stage.arrays.array_table import ArrayTable
from ddloco.stage.driver.resume import place_and_id
from ddloco.stage.process.code_version import code_version
from ddloco.stage.process.run_identity import (
    DDLOCO,
    SOURCE,
    changes,
    identity_of,
    said_of_sources,
    sources_in,
)
from ddloco.workers import rpc
from ddloco.workers.executor import WorkExecutor
from ddloco.workers.fragment_store import FragmentHistory
from ddloco.workers.simulated.executor import SimulatedWorkExecutor
from ddloco.workers.simulated.work import FragmentMemory
from ddloco.workers.task import task_digests
from ddloco.workers.task_sources import changed_lines, kept_sources
from replay import Player, Tape

COUNTED = {"steps": StepFinished, "merges": FragmentMerged}


@dataclass
class JobTapes:
    job: Job
    task: str
    warn: Callable[[str], None]
    turns: Path | None
    permit: Permit
    watch: StepWatch | None = None
    start_point: JobStartPoint | None = None
    _histories: dict[str, FragmentHistory] = field(default_factory=dict[str, FragmentHistory])
    _memories: dict[str, FragmentMemory] = field(default_factory=dict[str, FragmentMemory])

    @property
    def optional(self) -> list[str]:
        """Learners speak with syncers only; one that is in the snapshot has taken part."""
        begun = self.start_point.parts if self.start_point is not None else ()
        there = {actor_of(part.who) for part in begun}
        return [name for name in self.job.learner_names() if name not in there]

    @property
    def counted(self) -> Mapping[str, type]:
        return COUNTED

    @asynccontextmanager
    async def open(self, state: ReplayState, each: Tape, folder: Path) -> AsyncIterator[TapeRunner]:
        """Start a worker as the tape's fingerprint names it, and end it afterwards."""
        job, name, own = self.job, actor_of(each.incarnation), None
        start = self.start_point.start(each.incarnation) if self.start_point is not None else None
        history = self._histories.setdefault(name, FragmentHistory())
        change = change_of(each.header.facts)
        async with AsyncExitStack() as stack:
            if is_simulated(each.header):
                assert start is None, "simulated jobs have no store"
                memory = self._memories.setdefault(name, FragmentMemory())
                arrays = ArrayTable()
                executor = SimulatedWorkExecutor(job, each.header, arrays, memory)
                prepared = await executor.prepare()
            else:
                executor, arrays, prepared = await stack.enter_async_context(
                    open_executor(
                        job,
                        each,
                        folder,
                        history,
                        task=self.task,
                        change=change,
                        recorded=each.header.fingerprint,
                        turns=self.turns,
                    )
                )
                if start is not None:
                    await self._take_up(each, start, executor, arrays, history)
                own = self._own_state(each, executor, arrays)
                pieces = each.header.facts.get(STATE_PIECES)
                if pieces is not None:
                    executor.state.cut_into(int(pieces))
            for difference in self._differences(each, prepared):
                self.warn(difference)
            started = Started(each.incarnation, prepared.leaves, own, tells=True)
            replay_executor = JobExecutor(
                started, job, executor, arrays, history, change, state.report, self.warn
            )
            if self.watch is not None and self.watch.of(each.incarnation):
                replay_executor.watch = self.watch
                replay_executor.enough = state.gate.reached.set
            fresh = new_actor(each.incarnation, machine_for(job, each.incarnation))
            actor = start.actor if start is not None else fresh
            player = Player(each, Happened, actor, actor.number)
            opened = open_comparison(state, player, actor, replay_executor, start)
            yield await stack.enter_async_context(opened)

    async def _take_up(
        self,
        each: Tape,
        start: JobStart,
        executor: WorkExecutor,
        arrays: ArrayTable,
        history: FragmentHistory,
    ) -> None:
        await start.take_up(executor, arrays)
        start.keep(arrays, history)
        if each.header.after == start.part.number and not each.dropped:
            start.adopt(self.job, executor.plan)
        else:
            history.bring()

    def _own_state(self, each: Tape, executor: WorkExecutor, arrays: ArrayTable) -> OwnState | None:
        said = each.header.facts.get(OWN_STATE)
        if said is None:
            return None
        place, snapshot = place_and_id(said)
        self.permit(place)
        start_point = program_of(self.job).restored(place, snapshot, actor_of(each.incarnation))
        [start] = start_point.starts.values()
        return start.bring(executor, arrays, start_point.snapshot)

    def _differences(self, each: Tape, prepared: rpc.Prepared) -> list[str]:
        header, folder = each.header, run_folder_of(each.path)
        sources = {} if is_simulated(header) else task_digests(self.task, folder)
        now = {DDLOCO: code_version(), **prepared.fingerprint, **said_of_sources(sources)}
        lines: list[str] = []
        if sources != sources_in(header.fingerprint):
            kept = changed_lines(kept_sources(folder), prepared.sources)
            lines = [f"task source: {line}" for line in kept]
        # Of what is shown line by line, the digests say nothing more.
        shown = bool(lines)
        differ = changes(identity_of(header), now)
        lines += [str(one) for one in differ if not (shown and one.key.startswith(SOURCE))]
        return [f"{each.incarnation}: {line}" for line in lines]
