"""The part of a learner or a syncer in a replay: its JAX worker, its kept merges, its state."""

from collections.abc import Callable
from contextlib import AsyncExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from clocks import actor_of
from ddloco.actors.actor import Actor
from ddloco.actors.effects import Work
from ddloco.config.job import Job, Worker
from ddloco.machines.registry import machine_for
from ddloco.machines.syncer.global_fragments import names
from ddloco.nodes.resume import OWN_STATE, JobBeginning, begin_with
from ddloco.protocol.effects import (
    CopyState,
    EncodeFragment,
    InstallState,
    MergeFragment,
    Recover,
    RunStep,
)
from ddloco.protocol.events import (
    FragmentEncoded,
    FragmentMerged,
    Happened,
    OwnState,
    Recovered,
    Started,
    StepFinished,
    first_tensor,
)
from ddloco.protocol.tape_facts import STATE_PIECES, TASK, is_simulated
from ddloco.replayer.recording import run_folder_of
from ddloco.replayer.tape_runner import ReplayContext, Result, TapeRunner
from ddloco.replayer.what_if import WhatIf, change_of
from ddloco.runtime.array_table import Arrays
from ddloco.runtime.entry_point import pinned_file
from ddloco.runtime.resume import place_and_id
from ddloco.runtime.shared_memory import Arena
from ddloco.runtime.snapshot_sink import DigestSink
from ddloco.tapes.code_version import code_version
from ddloco.workers import rpc
from ddloco.workers.executor import Workers
from ddloco.workers.fragment_store import FragmentHistory
from ddloco.workers.process import open_worker
from ddloco.workers.simulated.executor import SimulatedWorkers
from ddloco.workers.simulated.work import FragmentMemory
from ddloco.workers.task import task_digest
from ddloco.workers.task_sources import SOURCE, changed_lines, kept_sources
from replay import Tape, describe, tape


class JobReplayContext(ReplayContext, Protocol):
    """Where the parts of a job play together; ``task`` is what they train."""

    job: Job
    task: str
    fragment_memories: dict[str, FragmentMemory]
    histories: dict[str, FragmentHistory]
    warn: Callable[[str], None]
    turns: Path | None

    @property
    def beginning(self) -> JobBeginning | None:
        """The snapshot that it begins with, if it does."""
        ...


class JobTapeRunner(TapeRunner[Workers | SimulatedWorkers]):
    """One tape's part in the replay of a job.

    Args:
        replaying: where it plays.
        tape: its tape.
        folder: where its work may leave files.
    """

    def __init__(self, replaying: JobReplayContext, tape: Tape, folder: Path) -> None:
        fresh = Actor(tape.incarnation, machine_for(replaying.job, tape.incarnation))
        super().__init__(replaying, tape, fresh, Happened)
        self._job_replay = replaying
        self._folder = folder
        beginning = replaying.beginning
        self._start = beginning.starts.get(self._name) if beginning is not None else None
        self._in_step = True
        self._history = replaying.histories.setdefault(actor_of(self._name), FragmentHistory())
        self._fragment_memory = replaying.fragment_memories.setdefault(
            actor_of(self._name), FragmentMemory()
        )
        self._merges: list[Result] = []
        self._fragments: dict[int, int] = {}
        """The fragment that a piece of work is about, by its number."""

    def merge_under_way(self, t: int) -> MergeFragment | None:
        """Return the merge of a global step, if the actor waits for its result."""
        works = self.actor.under_way.values()
        found = (each for each in works if isinstance(each, MergeFragment) and each.t == t)
        work = next(found, None)
        if work is None or self._change is None:
            return work
        changed = self._change.changed(work)
        return changed if isinstance(changed, MergeFragment) else work

    def merge_apart(self, work: MergeFragment) -> tuple[FragmentMerged, Any]:
        """Compute a merge that the run did not make, from arrays that are there; its result is
        stored nowhere. Returns the new parameters as well."""
        return self._workers.merge_apart(work)

    async def run(self) -> None:
        """Start a worker as the tape's fingerprint names it, execute the tape, end the worker.

        Raises:
            Divergence: at the first difference.
            TapeError: the tape cannot be read.
            WorkerRequestError: the task cannot be used.
        """
        async with AsyncExitStack() as stack:
            await self._prepare(stack)
            for difference in self.differences():
                self._job_replay.warn(difference)
            await self.execute()

    async def _prepare(self, stack: AsyncExitStack) -> None:
        job = self._job_replay.job
        if self._simulated():
            self._arrays = Arrays()
            self._workers = SimulatedWorkers(
                job, self._tape.header, self._arrays, self._fragment_memory
            )
        else:
            arena = stack.enter_context(closing(Arena()))
            self._arrays = Arrays(arena)
            own = self._job_replay.task == job.job.task
            # Of a job whose task is not believed, neither is its [worker] env.
            worker = job.worker_of(actor_of(self._name)) if own else Worker()
            environment = worker, self._fingerprint()
            pinned = pinned_file(self._run_folder / SOURCE, self._job_replay.task)
            turns = self._job_replay.turns
            opened = open_worker(self._name, arena, *environment, pinned, turns=turns)
            process = await stack.enter_async_context(opened)
            self._workers = Workers(
                job,
                self._name,
                self._arrays,
                process,
                folder=self._folder,
                keep=self._history,
                sink=DigestSink(),
                task=self._job_replay.task,
            )
        self._prepared: rpc.Prepared = await self._workers.prepare()
        if self._start is not None:
            assert isinstance(self._workers, Workers), "simulated jobs have no store"
            await self._start.take_up(self._workers, self._arrays)
            self._start.keep(self._arrays, self._history)
            begins = self._tape.header.after == self._start.part.number
            if begins and not self._tape.dropped:
                self._start.adopt(self._job_replay.job, self._workers.plan)
            else:
                self._history.bring()
        self._own = self._bring_own()
        self._follow(self._what_if())
        pieces = self._tape.header.facts.get(STATE_PIECES)
        if pieces is not None and isinstance(self._workers, Workers):
            self._workers.state.cut_into(int(pieces))

    def _what_if(self) -> WhatIf | None:
        """How merges were changed in the recorded run."""
        return change_of(self._tape.header.facts)

    def _follow(self, change: WhatIf | None) -> None:
        self._change = change
        if change is not None and isinstance(self._workers, Workers):
            self._workers.outer_at = partial(change.outer_at, now=self._job_replay.job.outer)

    def _bring_own(self) -> OwnState | None:
        """What a learner that came back alone had of a snapshot."""
        said = self._tape.header.facts.get(OWN_STATE)
        if said is None or not isinstance(self._workers, Workers):
            return None
        beginning = begin_with(*place_and_id(said), self._job_replay.job, actor_of(self._name))
        [start] = beginning.starts.values()
        return start.bring(self._workers, self._arrays, beginning.snapshot)

    def _simulated(self) -> bool:
        return is_simulated(self._tape.header)

    @property
    def _run_folder(self) -> Path:
        """The folder of the run that the tape is of."""
        return run_folder_of(self._tape.path)

    def _fingerprint(self) -> dict[str, str] | None:
        """The environment that the worker must have."""
        return self._tape.header.fingerprint

    def differences(self) -> list[str]:
        """What can change arithmetic and is not as it was recorded."""
        header = self._tape.header
        then = {**header.fingerprint, "code": header.code}
        now = {**self._prepared.fingerprint, "code": code_version()}
        if not is_simulated(header):
            then[TASK] = header.facts.get(TASK, "")
            now[TASK] = task_digest(self._job_replay.task, self._run_folder)
        changed: list[str] = []
        if then.get(TASK) != now.get(TASK):
            kept = kept_sources(self._run_folder)
            changed += [
                f"{self._name}: task source: {line}"
                for line in changed_lines(kept, self._prepared.sources)
            ]
        return changed + [
            f"{self._name}: {key} was {then.get(key, 'not set')}, is {now.get(key, 'not set')}"
            for key in sorted({*then, *now})
            if then.get(key) != now.get(key)
        ]

    async def _finish(self) -> None:
        for merge in self._merges:
            # One that nobody heard of may have been kept, for the next incarnation to find.
            await merge.done.wait()

    def _is_repeated(self, work: Work) -> bool:
        """Not what only the worker's state of then could do; of a step the snapshot has what came
        out."""
        return not isinstance(work, RunStep | CopyState)

    # What the event says must be so again.

    async def _confirm(self, record: tape.Event, event: Any) -> Any:
        if isinstance(event, Started):
            then, now = (event.leaves, event.state), (self._prepared.leaves, self._own)
            if then != now:
                raise self._differs(record, event, then, now)
        return await super()._confirm(record, event)

    async def _confirm_result(self, record: tape.Event, event: Any) -> None:
        if isinstance(event, Recovered) and isinstance(self._workers, Workers):
            self._recover(record, event, self._workers)
            return
        await super()._confirm_result(record, event)

    def _comparable(self, event: Any, found: Any) -> Any:
        """Tapes of former versions have no digests of single tensors."""
        if isinstance(event, FragmentEncoded | FragmentMerged) and not event.tensors:
            return replace(found, tensors=b"") if type(found) is type(event) else found
        return found

    def _hint(self, event: Any, found: Any) -> str:
        """Tell data from arithmetic: a step has the digest of its batch; or the first tensor."""
        if isinstance(event, FragmentEncoded | FragmentMerged) and type(found) is type(event):
            leaves = self._job_replay.job.plan(self._prepared.leaves).fragments
            which = self._fragments.get(event.work, 0)
            name = first_tensor(leaves[which], event.tensors, found.tensors)
            if name:
                return f"{super()._hint(event, found)}; the first tensor that differs is {name}"
        if isinstance(event, StepFinished) and isinstance(found, StepFinished):
            if event.batch != found.batch:
                return f"the data differs: another batch for inner step {event.step}"
            if event.loss != found.loss:
                return f"the arithmetic differs: the same batch has another loss at {event.step}"
        return super()._hint(event, found)

    def _settled(self, event: Any) -> None:
        self._fragments.pop(event.work, None)
        if isinstance(self._workers, SimulatedWorkers):
            self._workers.settle(event)

    def _recover(self, record: tape.Event, event: Recovered, workers: Workers) -> None:
        """What the disk held is a fact; that it is what was merged is checked."""
        for kept in event.kept:
            found = self._history.at(kept.fragment, kept.version)
            if found is None:
                # Its inputs were missing, or the tape of whoever merged it.
                self._job_replay.unverified += 1
                version = f"version {kept.version} of fragment {kept.fragment}"
                self._job_replay.gap(f"{self._name}: {version} was found, and not merged again")
                for handle in names(kept.fragment, kept.version):
                    self._arrays.put(handle, None)
            elif not self._history.agrees(kept):
                raise self._differs(record, event, describe(kept), describe(found.kept))
            else:
                workers.take_back(found)

    # What the machine asks for again.

    def _begin(self, work: Work) -> None:
        if isinstance(work, EncodeFragment | MergeFragment):
            self._fragments[work.work] = work.fragment
        super()._begin(work if self._change is None else self._change.changed(work))
        if isinstance(work, MergeFragment) and work.work in self._results:
            self._merges = [each for each in self._merges if not each.done.is_set()]
            self._merges.append(self._results[work.work])

    def _can_do(self, work: Work) -> bool:
        """Whether all that the work reads is known: arrays, and the worker's own state.

        A step that could not be executed leaves a worker whose parameters and moments are not
        those of the run; no later step can be checked.
        """
        if isinstance(work, Recover) and not self._simulated():
            return False  # Not done again: see _recover.
        known = self._arrays.known(*work.reads)
        if isinstance(work, InstallState):
            self._in_step = known  # A whole state takes the place of whatever was there.
        if isinstance(work, RunStep | CopyState):
            known = self._in_step = self._in_step and known
        return known
