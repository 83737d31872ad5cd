"""Restores learners, syncers and their workers from a snapshot."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from clocks import actor_of
from ddloco.job.config import DATA_PARALLEL, Job, Outer, load_job
from ddloco.job.job_folder import run_of_place
from ddloco.job.protocol.events import OwnState
from ddloco.job.protocol.fragment_plan import FragmentPlan, Leaf
from ddloco.job.protocol.work import Kept, RunStep
from ddloco.machines.data_parallel.coordinator import Coordinator
from ddloco.machines.learner.machine import Learner
from ddloco.machines.outer.optimizers.optimizer import STEPS
from ddloco.machines.outer.optimizers.table import OPTIMIZERS
from ddloco.machines.registry import states_for
from ddloco.machines.syncer.global_fragments import OUTER, WIRE, names
from ddloco.machines.syncer.machine import Syncer
from ddloco.stage.actors.actor import Actor
from ddloco.stage.arrays.array_table import F32, ArrayTable, HostCopy, Stored
from ddloco.stage.driver import resume
from ddloco.stage.driver.resume import Start, StartPoint, existing_place, payload_from
from ddloco.stage.driver.snapshot_writer import Tensors
from ddloco.stage.files.faults import SYNCER
from ddloco.stage.files.run_folder import JOB_FILE
from ddloco.stage.nodes.incarnation_grants import flat_settings
from ddloco.workers import rpc
from ddloco.workers.executor import WorkExecutor, step_finished
from ddloco.workers.fragment_store import FragmentStore, StoredFragment, theta_digest
from ddloco.workers.process import WorkerRequestError, fitting
from ddloco.workers.snapshot_work import LAST, STATE, Last, is_copied, is_flat, theta_of
from snapshot import NEWEST, Part, SnapshotError, Store
from transport import Bytes

OWN = "own/state"
"""The handle of a returning learner's state from a snapshot."""

SETTINGS_MAX, UNSET = 8, "not set"

PLACES = ("job.name", "snapshot.", "tape.", "transport.", "chaos.", "launch.")
"""Settings that say where things are, or what is done to the processes, and not how to train."""

OWN_STATE = "own state"
"""The fact in a tape's header that names this snapshot: place and id."""


def place_said(said: str) -> tuple[str, str]:
    """As ``existing_place``; for a run whose job has ``snapshot.place``, the newest snapshot
    there."""
    folder = Path(said)
    job = (
        load_job(folder / JOB_FILE) if "://" not in said and (folder / JOB_FILE).is_file() else None
    )
    if job is None or not job.snapshot.place:
        return existing_place(said)
    place = job.snapshot.place
    found = Store(place, run_of_place(job, folder)).find(NEWEST)
    return resume.absolute_place(place), found


@dataclass
class JobStart(Start):
    """The state that a learner or a syncer continues from.

    Attributes:
        worker: its worker's state after the step that ran at the cut; None if there was none.
        last: the result of the worker's last step; None before the first.
        then: the settings at the snapshot.
    """

    worker: Bytes | None
    last: Last
    then: Job

    async def take_up(self, executor: WorkExecutor, arrays: ArrayTable) -> None:
        """Put all arrays under the handles that the actor's machine knows."""
        machine: Any = self.actor.machine
        self._check_plan(executor)
        outer: Outer = machine.job.outer
        for handle, tensors in self.arrays.items():
            arrays.put(handle, stored_from(tensors, executor.plan, handle, arrays, outer))
        for handle in sorted(self.actor.handles.names()):
            if handle.startswith(WIRE) and theta_of(handle) in self.arrays:
                fragment = int(handle.split("/")[1])
                arrays.put(handle, executor.layouts.sent(fragment, arrays.get(theta_of(handle))))
        if self.worker is not None:
            await executor.state.restore(self.worker, _own_of(machine, self.last))
            executor.capture.trains = True  # A snapshot before its next step holds this state, too.
            for step in steps_under_way(self.actor):
                if step.out:
                    size = executor.plan.total_bytes
                    arrays.put(step.out, HostCopy(arrays.lend(self.worker[:size])))

    def _check_plan(self, executor: WorkExecutor) -> None:
        plan = plan_of(self.actor.machine)
        if plan is not None and plan.digest != executor.plan.digest:
            raise WorkerRequestError(rpc.Failed("task", plan_difference(executor.plan, plan)))

    def adopt(self, job: Job, plan: FragmentPlan) -> None:
        """Continue in a run whose job has other settings."""
        self.actor.links.renew(job.agreement(plan))
        machine: Any = self.actor.machine
        if isinstance(machine, Syncer) and machine.rounds is not None:
            machine.rounds.globals.lag = job.sync.lag
            machine.rounds.membership.data.adopt(job.learner_names(), job.elastic.gone_s)

    def keep(self, arrays: ArrayTable, keep: FragmentStore) -> None:
        """Store the merges of the snapshot, from which a restarted syncer would continue."""
        machine: Any = self.actor.machine
        rounds = machine.rounds if isinstance(machine, Syncer) else None
        for fragment, version, spent, batches, tokens in rounds.kept() if rounds else ():
            theta, state = (arrays.get(each) for each in names(fragment, version)[:2])
            kept = Kept(fragment, version, spent, batches, theta_digest(theta, state), tokens)
            keep.put(StoredFragment(kept, theta, state))

    def bring(self, executor: WorkExecutor, arrays: ArrayTable, snapshot: str) -> OwnState:
        """Store a learner's state for its next incarnation, in a job that went on without it."""
        machine = self.actor.machine
        if self.worker is None or not isinstance(machine, Learner):
            said = f"{self.part.who} had not begun to train in {snapshot}"
            raise WorkerRequestError(rpc.Failed("task", said))
        self._check_plan(executor)
        if len(self.worker) != executor.state.nbytes:
            said = f"the task's optimizer is another than {self.part.who}'s"
            raise WorkerRequestError(rpc.Failed("task", said))
        arrays.put(OWN, HostCopy(arrays.lend(self.worker)))
        digest = xxhash.xxh3_128_digest(self.worker.data)
        step, versions = machine.stands
        return OwnState(snapshot, step, versions, OWN, digest)


def _own_of(machine: Any, last: Last) -> rpc.RestoredState:
    if not isinstance(machine, Learner):
        return rpc.RestoredState(0, last)
    shards = machine.data.after(runs=machine.running is not None)
    return rpc.RestoredState(machine.drawn, last, shards)


def plan_difference(now: FragmentPlan, then: FragmentPlan) -> str:
    """The first difference between a job's plan and that of its snapshot: what sets it, and both
    values."""
    ours, theirs = (
        {leaf.name: f"{leaf.dtype}{list(leaf.shape)}" for leaf in chain.from_iterable(each)}
        for each in (now.fragments, then.fragments)
    )
    for name in sorted({**ours, **theirs}):
        if ours.get(name) != theirs.get(name):
            both = f"is {ours.get(name, 'missing')}, the snapshot has {theirs.get(name, 'none')}"
            return f"task: parameter {name!r} {both}"
    if len(now.fragments) != len(then.fragments):
        return f"sync.fragments: {len(now.fragments)}, the snapshot has {len(then.fragments)}"
    if now.interval != then.interval:
        return f"sync.interval: {now.interval}, the snapshot has {then.interval}"
    return "sync.fragmentation: another one than the snapshot's; set it as it was"


def steps_under_way(actor: Actor) -> list[RunStep]:
    """Return the step that is running. The worker's state in a snapshot is that after this step."""
    return [work for work in actor.under_way.values() if isinstance(work, RunStep)]


JobStartPoint = StartPoint[JobStart]


def plan_of(machine: Any) -> FragmentPlan | None:
    """The plan of a machine of a job; None before its start."""
    if isinstance(machine, Syncer):
        return machine.place.plan if machine.place is not None else None
    return machine.plan if isinstance(machine, Learner | Coordinator) else None


NAME_CHARS_MAX = 80
"""Of a handle in a line of text."""


def load_job_start(job: Job, store: Store, part: Part) -> JobStart:
    """Read everything that a participant needs; its settings are now those of ``job``."""
    start = resume.load_start(store, part, states_for(job, part.who))
    now = _fixed(job)
    for key, value in _fixed(start.actor.machine.job).items():
        if value != now[key]:
            raise SnapshotError(
                f"{store.name}: {part.who} has {key} = {value} there, this job has {now[key]}, "
                "which keeps another state; set it as it was"
            )
    then, start.actor.machine.job = start.actor.machine.job, job
    state, digest = start.blobs.get(("worker", STATE)), start.blobs.get(("worker", LAST))
    last = _last(store, digest) if digest is not None else None
    if isinstance(last, rpc.Trained):
        start.results = [step_finished(work, last) for work in steps_under_way(start.actor)]
    worker = store.read_tensors(state)[STATE] if state is not None else None
    return JobStart(**vars(start), worker=worker, last=last, then=then)


def _fixed(job: Job) -> dict[str, str]:
    """The settings that stay as they were when a job continues from a snapshot, by name."""
    return {
        "inner.optimizer": f'"{job.inner.optimizer}"',
        "outer.optimizer": f'"{job.outer.optimizer}"',
        "sync.blocking": str(job.sync.blocking).lower(),
        "job.shards": "none" if job.job.shards is None else str(job.job.shards),
    }


def _last(store: Store, digest: str) -> Last:
    data = bytes(store.read_bytes(digest))
    answer = rpc.decode_answer(data) if data else None
    return answer if isinstance(answer, rpc.Updated | None) else fitting(answer, rpc.Trained)


def stored_from(
    tensors: Tensors, plan: FragmentPlan, handle: str, arrays: ArrayTable, outer: Outer
) -> Stored:
    """An array in the form in which it was held, which its handle tells; names of tensors may be
    any text."""
    if is_copied(handle):
        _require([STATE], tensors, handle)
        return HostCopy(arrays.lend(tensors[STATE]), _start_of(handle, plan))
    if handle.startswith(OUTER):
        leaves = _leaves_of(handle, plan)
        _require([STEPS], tensors, handle)
        steps = tensors[STEPS]
        if steps.dtype != np.int64 or steps.shape != (1,) or steps[0] < 0:
            raise _odd(handle, f"its {STEPS} are no count")
        names = OPTIMIZERS[outer.optimizer].state
        flat = {name: _joined(leaves, tensors, handle, f"{name}/") for name in names}
        return {**flat, STEPS: steps}
    if not is_flat(handle):
        return payload_from(tensors)
    return _joined(_leaves_of(handle, plan), tensors, handle)


def _leaves_of(handle: str, plan: FragmentPlan) -> Sequence[Leaf]:
    return plan.fragments[_fragment_in(handle, 1, plan)]


def _joined(leaves: Sequence[Leaf], tensors: Tensors, handle: str, prefix: str = "") -> F32:
    """A flat array from the tensors of its leaves, whose names begin with ``prefix``."""
    names = [f"{prefix}{leaf.name}" for leaf in leaves]
    _require(names, tensors, handle)
    return np.concatenate([tensors[name].reshape(-1) for name in names])


def _start_of(handle: str, plan: FragmentPlan) -> int:
    """Where a host copy begins in the layout of all parameters, in bytes: ``host/STEP/P`` is that
    of a fragment, other handles are those of all parameters."""
    kind, *rest = handle.split("/")
    if kind != "host" or len(rest) < 2:
        return 0
    return plan.fragment_slice(_fragment_in(handle, 2, plan))[0]


DIGITS_MAX = 9
"""Of the number of a fragment in a handle; there are no plans of so many."""


def _fragment_in(handle: str, at: int, plan: FragmentPlan) -> int:
    part = [*handle.split("/"), "", ""][at]
    number = int(part) if part.isdecimal() and len(part) <= DIGITS_MAX else len(plan.fragments)
    if number >= len(plan.fragments):
        raise _odd(handle, f"its fragment is {part[:DIGITS_MAX]!r}, of {len(plan.fragments)}")
    return number


def _require(names: list[str], tensors: Tensors, handle: str) -> None:
    missing = [name for name in names if name not in tensors]
    if missing:
        raise _odd(handle, f"it lacks the tensor {missing[0]!r}")


def _odd(handle: str, problem: str) -> WorkerRequestError:
    said = f"the snapshot's array {handle[:NAME_CHARS_MAX]!r} cannot be used: {problem}"
    return WorkerRequestError(rpc.Failed("task", said))


def check_start_point(found: JobStartPoint, job: Job) -> None:
    """Refuse to continue from a snapshot whose shards differ from the job's, or that is past the
    job's last step."""
    where = f"{found.place}: {found.snapshot}"
    names = {actor_of(part.who) for part in found.parts}
    had = {name for name in names if re.fullmatch(rf"{SYNCER}(-[0-9]+)?", name)}
    known = {actor_of(name) for part in found.parts for name in part.clock} | had
    strange = sorted(had - set(job.syncer_names())) or sorted(set(job.syncer_names()) - known)
    if had and strange:
        raise SnapshotError(
            f"{where}: has the syncers {', '.join(sorted(had))}, and job.syncers = "
            f"{job.job.syncers} wants {', '.join(job.syncer_names())}; set it as it was"
        )
    for start in found.starts.values():
        t = _global_step(start.actor.machine)
        if t > job.job.last_step:
            raise SnapshotError(
                f"{where}: is of global step {t}, and job.steps = {job.job.steps} "
                "ends before it; want as many steps or more"
            )


def _global_step(machine: Any) -> int:
    """The last global step of a syncer's machine; 0 of other ones."""
    if isinstance(machine, Coordinator):
        return machine.version
    rounds = getattr(machine, "rounds", None)
    return rounds.schedule.t if rounds is not None else 0


def refuse_without_learners(found: JobStartPoint, job: Job) -> None:
    """Refuse a snapshot that was taken when all learners had left: they would begin anew. The error
    names one that has learners."""
    if job.job.method in DATA_PARALLEL:
        return  # What they train is the syncer's.
    lacking = [name for name in job.learner_names() if found.known(name)]
    if not lacking or any(actor_of(part.who) in job.learner_names() for part in found.parts):
        return
    listed = [each.manifest for each in Store(found.place).snapshots() if each.manifest is not None]
    learners = set(job.learner_names())
    having = [
        each.id for each in listed if any(actor_of(part.who) in learners for part in each.parts)
    ]
    other = f"; {having[0]} has learners" if having else ""
    raise SnapshotError(
        f"{found.place}: {found.snapshot}: {', '.join(lacking)} had left before it, and would "
        f"begin anew with step 1{other}; name another snapshot, or add --fresh-learners"
    )


def other_settings(found: JobStartPoint, job: Job) -> str:
    """A line on the settings that were others at a snapshot, and what holds now; empty if none
    were."""
    [start, *_] = [*found.starts.values(), None]
    if start is None:
        return ""
    then, now = flat_settings(start.then.as_plain()), flat_settings(job.as_plain())
    names = [name for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
    names = [name for name in names if not name.startswith(PLACES)]
    if not names:
        return ""
    said = [f"{n} {now.get(n, UNSET)} (was {then.get(n, UNSET)})" for n in names[:SETTINGS_MAX]]
    said += [f"{len(names) - SETTINGS_MAX} more"] if len(names) > SETTINGS_MAX else []
    line = f"goes on from {found.snapshot} with other settings: {', '.join(said)}"
    if any(name.startswith(("task.", "inner.")) for name in names):
        line += (
            "; what the restored state of the optimizer holds, such as a rate of "
            "optax.inject_hyperparams, stays as it was"
        )
    return line


def begins_anew(found: JobStartPoint, job: Job) -> str:
    """A line on the learners that are not in a snapshot and how they begin; empty if all are."""
    here = {actor_of(part.who) for part in found.parts}
    learners = job.learner_names()
    new = [name for name in learners if name not in here]
    if not new:
        return ""
    how = "with another learner's state" if here & set(learners) else "with step 1"
    if job.job.method in DATA_PARALLEL:
        how = "with the job's next step"
    return f"{', '.join(new)}: not in {found.snapshot}; begins {how}"
