"""Where learners and syncers go on from: a snapshot read back, workers as they were at the cut."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from clocks import actor_of
from ddloco.actors.snapshot_adapter import PACKAGES
from ddloco.config.faults import SYNCER
from ddloco.config.job import Job, load_job
from ddloco.config.run_folder import JOB_FILE, run_of_place
from ddloco.config.toml import Section
from ddloco.machines.learner.machine import Learner
from ddloco.machines.syncer.global_fragments import WIRE, names
from ddloco.machines.syncer.machine import Syncer
from ddloco.protocol.effects import RunStep
from ddloco.protocol.events import Kept, OwnState, StepFinished
from ddloco.protocol.fragment_plan import FragmentPlan
from ddloco.runtime import resume
from ddloco.runtime.array_table import Arrays, HostCopy, Stored
from ddloco.runtime.resume import Beginning, Start, payload_from, place_and_id, place_outside
from ddloco.runtime.snapshot_writer import Tensors
from ddloco.workers import rpc
from ddloco.workers.executor import Workers, step_finished
from ddloco.workers.fragment_store import FragmentStore, StoredFragment
from ddloco.workers.process import WorkerRequestError, fitting
from ddloco.workers.snapshot_work import LAST, STATE, theta_of
from snapshot import NEWEST, Part, SnapshotError, Store
from transport import Bytes

OWN = "own/state"
"""The handle of what a learner was in a snapshot."""

OWN_STATE = "own state"
"""The fact in a tape's header that tells of which snapshot it was: place and id."""


def place_said(said: str) -> tuple[str, str]:
    """As ``place_and_id``; of a run whose job names another place, the newest snapshot there.

    Raises:
        ConfigError: the run's job file cannot be read.
        SnapshotError: the place cannot be opened, or has no snapshot of this run.
    """
    folder = Path(said)
    job = (
        load_job(folder / JOB_FILE) if "://" not in said and (folder / JOB_FILE).is_file() else None
    )
    if job is None or not job.snapshot.place:
        return place_and_id(said)
    place = job.snapshot.place
    found = Store(place, run_of_place(job, folder)).find(NEWEST)
    return (place if "://" in place else str(Path(place).absolute())), found


@dataclass
class JobStart(Start):
    """Where a learner or a syncer goes on from.

    Attributes:
        worker: its worker's state as it was when the step was done that ran at the cut; None where
            there was none.
        last: what the worker's last step had brought; None before the first.
    """

    worker: Bytes | None
    last: rpc.Trained | None

    async def take_up(self, workers: Workers, arrays: Arrays) -> None:
        """Put everything where the actor's work looks for it.

        Raises:
            WorkerRequestError: the task's parameters are others, or the worker cannot take its
                state over.
            WorkerDiedError: the worker process ended.
        """
        machine: Any = self.actor.machine
        self._check_plan(workers)
        for handle, tensors in self.arrays.items():
            arrays.put(handle, stored_from(tensors, workers.plan, handle, arrays))
        for handle in sorted(self.actor.handles.names()):
            if handle.startswith(WIRE) and theta_of(handle) in self.arrays:
                fragment = int(handle.split("/")[1])
                arrays.put(handle, workers.layouts.sent(fragment, arrays.get(theta_of(handle))))
        if self.worker is not None:
            await workers.state.restore(self.worker, rpc.Own(machine.drawn, self.last))
            workers.capture.trains = True  # A snapshot before its next step holds this state, too.
            for step in self.running():
                size = workers.plan.total_bytes
                arrays.put(step.out, HostCopy(arrays.lend(self.worker[:size])))

    def _check_plan(self, workers: Workers) -> None:
        plan = getattr(self.actor.machine, "_plan", None)
        if plan is not None and plan.digest != workers.plan.digest:
            said = f"the task's parameters are cut in another way than {self.part.who}'s"
            raise WorkerRequestError(rpc.Failed("task", said))

    def adopt(self, job: Job, plan: FragmentPlan) -> None:
        """Go on in a run whose job is another one."""
        machine: Any = self.actor.machine
        self.actor.links.renew(job.agreement(plan))
        if isinstance(machine, Syncer) and machine.rounds is not None:
            machine.rounds.schedule.extend(job.job.last_step)

    def keep(self, arrays: Arrays, keep: FragmentStore) -> None:
        """A syncer that starts again goes on from its merges: keep those of this one anew."""
        machine: Any = self.actor.machine
        rounds = machine.rounds if isinstance(machine, Syncer) else None
        for fragment, version, spent, batches, tokens in rounds.kept() if rounds else ():
            theta, momentum, _ = names(fragment, version)
            flat, velocity = arrays.get(theta), arrays.get(momentum)
            digest = xxhash.xxh3_128_digest(flat.data) + xxhash.xxh3_128_digest(velocity.data)
            kept = Kept(fragment, version, spent, batches, digest, tokens)
            keep.put(StoredFragment(kept, flat, velocity))

    def bring(self, workers: Workers, arrays: Arrays, snapshot: str) -> OwnState:
        """Put a learner's state where its next incarnation finds it, in a job that went on.

        Raises:
            WorkerRequestError: it had not begun, or the task's parameters are others.
        """
        machine = self.actor.machine
        if self.worker is None or not isinstance(machine, Learner):
            said = f"{self.part.who} had not begun to train in {snapshot}"
            raise WorkerRequestError(rpc.Failed("task", said))
        self._check_plan(workers)
        if len(self.worker) != workers.state.nbytes:
            said = f"the task's optimizer is another than {self.part.who}'s"
            raise WorkerRequestError(rpc.Failed("task", said))
        arrays.put(OWN, HostCopy(arrays.lend(self.worker)))
        digest = xxhash.xxh3_128_digest(self.worker.data)
        step, versions = machine.stands
        return OwnState(snapshot, step, versions, OWN, digest)

    def results(self) -> Sequence[StepFinished]:
        """What the step that ran at the cut has brought."""
        last = self.last
        if last is None:
            return []
        return [step_finished(work, last) for work in self.running()]

    def running(self) -> list[RunStep]:
        """The step that ran at the cut, which is done in what was written."""
        works = self.actor.under_way.values()
        return [work for work in works if isinstance(work, RunStep)]


JobBeginning = Beginning[JobStart]
"""A snapshot that a job, or its replay, begins with."""


def settings(job: Job) -> list[object]:
    """A job and its tables: what a machine refers to, and is not its state."""
    tables = (getattr(job, name) for name in job.__struct_fields__)
    return [job, *(each for each in tables if isinstance(each, Section))]


def load_start(given: Mapping[type, object], store: Store, part: Part) -> JobStart:
    """Read all that a participant needs; ``given`` are its settings of now.

    Raises:
        SnapshotError: something is missing, damaged, or of another version of this program.
        StorageError: the place cannot be read.
    """
    start = resume.load_start(store, part, PACKAGES, given)
    state, last = start.blobs.get(("worker", STATE)), start.blobs.get(("worker", LAST))
    return JobStart(
        **vars(start),
        worker=store.read_tensors(state)[STATE] if state is not None else None,
        last=_trained(store, last) if last is not None else None,
    )


def _trained(store: Store, digest: str) -> rpc.Trained | None:
    data = bytes(store.read_bytes(digest))
    return fitting(rpc.decode_answer(data), rpc.Trained) if data else None


def stored_from(tensors: Tensors, plan: FragmentPlan, handle: str, arrays: Arrays) -> Stored:
    """An array as it was held, from the tensors that were written of it."""
    if STATE in tensors and len(tensors) == 1:
        return HostCopy(arrays.lend(tensors[STATE]))
    if all("/" in name and name.partition("/")[0].isdigit() for name in tensors):
        return payload_from(tensors)
    leaves = plan.fragments[int(handle.split("/")[1])]
    return np.concatenate([tensors[leaf.name].reshape(-1) for leaf in leaves])


def begin_with(place: str | Path, snapshot: str, job: Job, only: str | None = None) -> JobBeginning:
    """Where everybody in a job stood in a snapshot; what the machines' settings are now is in
    ``job``.

    Raises:
        SnapshotError: it is not there, not intact, or of another version of this program.
        StorageError: the place cannot be read.
    """
    given = {type(each): each for each in settings(job)}
    return resume.begin_with(place, snapshot, partial(load_start, given), only)


def go_on_from(place: str | Path, snapshot: str, job: Job, only: str | None = None) -> JobBeginning:
    """As ``begin_with``, for a job that is to go on from there and not only to be looked at.

    Raises:
        SnapshotError: its shards are others than the job's, or it is past the job's last step.
        StorageError: the place cannot be read.
    """
    found = begin_with(place, snapshot, job, only)
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
        rounds = getattr(start.actor.machine, "rounds", None)
        if rounds is not None and rounds.schedule.t > job.job.last_step:
            raise SnapshotError(
                f"{where}: is of global step {rounds.schedule.t}, and job.steps = {job.job.steps} "
                "ends before it; want as many steps or more"
            )
    return found


def beginning_of(job: Job, said: str, folder: Path) -> JobBeginning | None:
    """What a whole job goes on from, as people say it; None for a job that begins.

    Raises:
        SnapshotError: it cannot be used, or lies in the folder that the job would write to.
    """
    if not said:
        return None
    return go_on_from(*place_outside(said, folder, place_said), job)
