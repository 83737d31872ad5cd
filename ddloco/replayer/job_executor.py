"""Does the work of a learner or a syncer again, with its JAX worker or as the simulator did it."""

import fnmatch
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, final

import trio

from clocks import actor_of
from ddloco.job.config import Job, Worker
from ddloco.job.protocol.events import Started
from ddloco.job.protocol.work import (
    Differentiate,
    EncodeFragment,
    FragmentEncoded,
    FragmentMerged,
    Kept,
    MergeFragment,
    Recover,
    Recovered,
    RunStep,
    StepFinished,
    first_tensor,
)
from ddloco.machines.syncer.global_fragments import names
from ddloco.replayer.comparer import difference_of, same
from ddloco.replayer.recording import run_folder_of
from ddloco.replayer.report import Report
from ddloco.replayer.tape_runner import Difference, Mismatch
from ddloco.replayer.what_if import WhatIf
from ddloco.stage.actors.effects import Work
from ddloco.stage.actors.events import WorkResult
from ddloco.stage.arrays.array_table import ArrayTable
from ddloco.stage.arrays.shared_memory import SharedMemory
from ddloco.stage.driver.snapshot_sink import DigestSink
from ddloco.stage.process.run_identity import changes
from ddloco.workers import rpc
from ddloco.workers.executor import WorkExecutor
from ddloco.workers.fragment_store import FragmentHistory
from ddloco.workers.process import WorkerRequestError, open_worker
from ddloco.workers.simulated.executor import SimulatedWorkExecutor
from ddloco.workers.task import TaskError, task_digests
from ddloco.workers.task_sources import kept_modules
from replay import Tape


@final
@dataclass(frozen=True)
class StepWatch:
    """What is looked at after each inner step of the actors whose names or incarnations match a
    pattern: the tensors whose names match another. The replay ends when ``look`` returns True."""

    actor: str
    wanted: str
    look: Callable[[str, StepFinished, rpc.Looked], bool]

    def of(self, incarnation: str) -> bool:
        return bool(fnmatch.filter([incarnation, actor_of(incarnation)], self.actor))


@final
@dataclass
class JobExecutor:
    started: Started
    job: Job
    executor: WorkExecutor | SimulatedWorkExecutor
    arrays: ArrayTable
    history: FragmentHistory
    change: WhatIf | None
    report: Report
    warn: Callable[[str], None] = lambda _: None
    watch: StepWatch | None = None
    enough: Callable[[], None] = lambda: None
    _knows_state: bool = field(default=True, init=False)
    """Whether the worker has the parameters and moments that it had in the run."""
    _merges: list[trio.Event] = field(default_factory=list[trio.Event], init=False)
    _fragments: dict[int, int] = field(default_factory=dict[int, int], init=False)
    _read_then: dict[str, str] = field(default_factory=dict[str, str], init=False)
    _read_now: dict[str, str] = field(default_factory=dict[str, str], init=False)

    def begin(self, work: Work) -> Awaitable[WorkResult] | None:
        """Begin a piece of work; None if something that it reads is missing."""
        if isinstance(work, EncodeFragment | MergeFragment):
            self._fragments[work.work] = work.fragment
        work = self._changed(work)
        if not self._can_do(work):
            return None
        coming = self.executor.do(work)
        if self.watch is not None and isinstance(work, RunStep | Differentiate):
            return self._watched(coming, self.watch)
        return self._merged(coming) if isinstance(work, MergeFragment) else coming

    async def _watched(self, coming: Awaitable[WorkResult], watch: StepWatch) -> WorkResult:
        """Let the state after a step be looked at, before anything else changes it."""
        result = await coming
        if isinstance(result, StepFinished):
            measures = await self.measures(watch.wanted)
            if watch.look(self.started.incarnation, result, measures):
                self.enough()
        return result

    async def measures(self, wanted: str) -> rpc.Looked:
        """Measure the tensors of the worker's state whose names match a pattern; those of a
        simulation have none."""
        if isinstance(self.executor, WorkExecutor):
            return await self.executor.look(wanted)
        return rpc.Looked(())

    def _changed(self, work: Work) -> Work:
        return work if self.change is None else self.change.changed(work)

    def _can_do(self, work: Work) -> bool:
        """Whether all that the work reads is known: arrays, and the worker's own state. A step that
        could not be executed leaves a worker whose parameters and moments are not those of the run;
        no later step can be checked."""
        if isinstance(work, Recover) and isinstance(self.executor, WorkExecutor):
            return False  # What the disk held is a fact: see ``_check_recovered``.
        known = self.arrays.known(*work.reads)
        if work.worker_state in {"reads", "changes"}:
            known = known and self._knows_state
        if work.worker_state in {"changes", "replaces"}:
            self._knows_state = known
        return known

    def _merged(self, coming: Awaitable[WorkResult]) -> Awaitable[WorkResult]:
        done = trio.Event()
        self._merges = [*(each for each in self._merges if not each.is_set()), done]

        async def merged() -> WorkResult:
            result = await coming
            done.set()
            return result

        return merged()

    async def finish(self) -> None:
        """Wait for merges: one whose result is not on the tape may have been kept, for the next
        incarnation to find."""
        for done in self._merges:
            await done.wait()

    def is_repeated(self, work: Work) -> bool:
        """Whether work that ran at the cut is begun again: not what only the worker's former state
        could do, and of a step the snapshot has the result."""
        return work.worker_state not in {"reads", "changes"}

    # What is compared.

    def check_fact(self, event: Any) -> bool:
        if isinstance(event, Started):
            then = {"tensors": event.leaves, "state": event.state}
            now = {"tensors": self.started.leaves, "state": self.started.state}
            if then != now:
                raise Mismatch(then, now)
            return True
        if isinstance(event, Recovered) and isinstance(self.executor, WorkExecutor):
            self._check_recovered(event, self.executor)
            return True
        return False

    def _check_recovered(self, event: Recovered, executor: WorkExecutor) -> None:
        """What the disk held is a fact; that it is what was merged is checked."""
        for kept in event.kept:
            found = self.history.at(kept.fragment, kept.version)
            if found is None:
                # Its inputs were missing, or the tape of the syncer that merged it.
                self.report.unverified += 1
                version = f"version {kept.version} of fragment {kept.fragment}"
                self.report.gaps.append(
                    f"{self.started.incarnation}: {version} was found, and not merged again"
                )
                for handle in names(kept.fragment, kept.version):
                    self.arrays.put(handle, None)
            elif not self.history.agrees(kept):
                raise Mismatch(kept, found.kept)
            else:
                executor.take_back(found)

    def take_back(self, scheduled: Kept) -> Kept:
        """Store a merge that was made here under its handles, in place of a scheduled one."""
        found = self.history.at(scheduled.fragment, scheduled.version)
        assert found is not None, "what was merged then is merged here"
        assert isinstance(self.executor, WorkExecutor), "work is real here"
        self.executor.take_back(found)
        return found.kept

    def difference(self, recorded: WorkResult, found: WorkResult) -> Difference | None:
        if isinstance(recorded, StepFinished) and isinstance(found, StepFinished):
            self._compare_reads(recorded.reads, found.reads)
        difference = difference_of(recorded, found)
        if difference is not None:
            return self._explained(recorded, found, difference)
        self._fragments.pop(recorded.work, None)
        if isinstance(self.executor, SimulatedWorkExecutor):
            self.executor.settle(recorded)
        return None

    def _compare_reads(self, then: Mapping[str, str], now: Mapping[str, str]) -> None:
        """Name what the task reads and is another one here. A batch may be drawn ahead, so a replay
        may read something a step earlier or later."""
        self._read_then.update(then)
        self._read_now.update(now)
        came = {*then, *now}
        recorded = {key: value for key, value in self._read_then.items() if key in came}
        for change in changes(recorded, self._read_now, shared=True):
            self.warn(f"{self.started.incarnation}: {change}")

    def _explained(self, recorded: Any, found: Any, difference: Difference) -> Difference:
        """Tell data from arithmetic: a step has the digest of its batch; or the first tensor."""
        if isinstance(recorded, FragmentEncoded | FragmentMerged) and type(found) is type(recorded):
            leaves = self.job.plan(self.started.leaves).fragments
            which = self._fragments.get(recorded.work, 0)
            name = first_tensor(leaves[which], recorded.tensors, found.tensors)
            if name:
                said = f"{difference.said}; the first tensor that differs is {name}"
                return Difference(said, name)
        if isinstance(recorded, StepFinished) and isinstance(found, StepFinished):
            if recorded.corrupt:
                step = recorded.step - len(recorded.before)
                said = f"the run itself found that step {step} had two results"
                return Difference(f"{said}: {recorded.corrupt}")
            for (step, then), (_, now) in zip(recorded.steps(), found.steps(), strict=False):
                if then.batch != now.batch:
                    return Difference(f"the data differs: another batch for inner step {step}")
                if not same(then.loss, now.loss):
                    said = f"the same batch has another loss at step {step}"
                    return Difference(f"the arithmetic differs: {said}")
            step = recorded.step
            plan = self.job.plan(self.started.leaves)
            whole = [leaf for each in plan.fragments for leaf in each]
            name = first_tensor(whole, recorded.tensors, found.tensors)
            if name:
                said = f"the arithmetic differs: the update of step {step} differs in {name}"
                return Difference(said, name)
        return difference

    # What the debugger asks for.

    def merge_of(self, t: int, under_way: Iterable[Work]) -> MergeFragment | None:
        found = (each for each in under_way if isinstance(each, MergeFragment) and each.t == t)
        work = next(found, None)
        changed = self._changed(work) if work is not None else None
        return changed if isinstance(changed, MergeFragment) else None

    def merge_apart(self, work: MergeFragment) -> tuple[FragmentMerged, Any]:
        """Compute a merge that the run did not make, from arrays that are there; its result is
        stored nowhere. Returns the new parameters as well."""
        return self.executor.merge_apart(work)


@asynccontextmanager
async def open_executor(
    job: Job,
    each: Tape,
    folder: Path,
    history: FragmentHistory,
    *,
    task: str,
    change: WhatIf | None,
    recorded: Mapping[str, str] | None = None,
    turns: Path | None = None,
) -> AsyncIterator[tuple[WorkExecutor, ArrayTable, rpc.Prepared]]:
    """Open the worker process of a tape's actor, and have it load the task; ``WorkerRequestError``
    if the task cannot be used."""
    with closing(SharedMemory()) as arena:
        name, arrays = each.incarnation, ArrayTable(arena)
        # Of a job whose task is not believed, neither is its [worker] env.
        worker = job.worker_of(actor_of(name)) if task == job.job.task else Worker()
        run_folder = run_folder_of(each.path)
        try:
            task_digests(task, run_folder)
        except TaskError as error:
            raise WorkerRequestError(rpc.Failed("task", str(error))) from None
        kept = kept_modules(run_folder, task)
        async with open_worker(name, arena, worker, recorded, kept, turns=turns) as process:
            executor = WorkExecutor(
                job,
                name,
                arrays,
                process,
                folder=folder,
                keep=history,
                sink=DigestSink(),
                task=task,
                outer_at=partial(change.outer_at, now=job.outer) if change is not None else None,
            )
            yield executor, arrays, await executor.prepare()
