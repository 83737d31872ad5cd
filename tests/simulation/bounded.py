"""Simulated jobs whose tapes are bounded by snapshots, replayed from their snapshots to the end.

``python -m tests.simulation.bounded --jobs 100``. Each job is a hostile world with random faults
whose last learner is 4 to 16 times slower than the others, and in which several snapshots begin
while one of that learner's steps runs. As in a real job, whatever lies before the oldest of an
actor's last two snapshots is deleted. What is left is replayed from snapshots that are left.
"""

import argparse
import dataclasses
import random
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import trio
from msgspec.structs import replace

from clocks import actor_of
from ddloco.job.config import Job
from ddloco.job.protocol.events import Happened, Started
from ddloco.job.protocol.work import Kept, Recovered, StepFinished
from ddloco.machines.registry import machine_for, states_for
from ddloco.machines.syncer.global_fragments import names
from ddloco.machines.syncer.machine import Syncer
from ddloco.replayer.comparer import open_comparison
from ddloco.replayer.invariants.base import InvariantCheck, Violation
from ddloco.replayer.job_executor import JobExecutor
from ddloco.replayer.job_replay import COUNTED
from ddloco.replayer.recording import job_of
from ddloco.replayer.replay import Replay
from ddloco.replayer.replay_state import ReplayState
from ddloco.replayer.start_point import cut_of, mismatch
from ddloco.replayer.tape_runner import Difference, TapeRunner
from ddloco.roles.resume import steps_under_way
from ddloco.simulation.node import Node, Pace
from ddloco.simulation.tapes import header_of
from ddloco.simulation.world import World
from ddloco.stage.actors.actor import new_actor
from ddloco.stage.actors.effects import CaptureFlight, CaptureState, CommitSnapshot, Observe, Work
from ddloco.stage.actors.events import WorkResult
from ddloco.stage.actors.observations import BEGUN
from ddloco.stage.arrays.array_table import ArrayTable
from ddloco.stage.driver.resume import Start, StartPoint
from ddloco.stage.files.run_folder import TAPES, open_folder
from ddloco.stage.files.settings import SnapshotTable
from ddloco.stage.tapes.retention import ChainRecorder, before, cuts_of
from ddloco.workers.fragment_store import FragmentHistory
from ddloco.workers.simulated.executor import SimulatedWorkExecutor
from ddloco.workers.simulated.work import TOKENS, Content, FragmentMemory, SimulatedWork
from replay import Player, Recorder, Tape, TapeWriter, files_of, open_tapes, tape
from snapshot import Manifest, Part
from tests.lab import hostile_world
from tests.lab.snapshot_checks import seen
from tests.lab.snapshot_requests import Asked, ask, not_too_narrow
from transport import Event, MessageArrived

KEPT = 2
"""An actor's tape begins at the oldest of so many snapshots."""

REPLAYS_MAX = 4
"""Of one job, each from another snapshot; the oldest and the newest are among them."""

ASKED_MAX = 30

Merged = tuple[str, int, int]
"""A merge: whose, of which fragment, the version."""


@dataclass
class Outcome:
    """What one job led to."""

    seed: int
    snapshots: int = 0
    within_step: int = 0
    """The most snapshots that were begun while one step of the slow learner ran."""
    faults: int = 0
    deleted: int = 0
    """Files of tapes."""
    starts: list[str] = field(default_factory=list[str])
    """The snapshots that it was replayed from."""
    events: int = 0
    """That were executed again, in all replays."""
    identical: int = 0
    gaps: list[str] = field(default_factory=list[str])
    wrong: list[str] = field(default_factory=list[str])


# The job.


def draw(seed: int) -> hostile_world.Hostile:
    """The hostile world of a seed, with a slow learner, and snapshots within its steps."""
    drawn = hostile_world.draw(seed)
    rng = random.Random(f"bounded {seed}")
    factor = rng.choice([4.0, 8.0, 16.0])
    slow = drawn.job.learner_names()[-1]
    job = replace(
        drawn.job,
        # Were the slow learner waited for at every merge, there would be a thousand snapshots.
        sync=replace(drawn.job.sync, quorum=min(drawn.job.sync.quorum, 2)),
        snapshot=SnapshotTable(every_s=factor, keep=1000),
        tape=replace(drawn.job.tape, keep=f"{KEPT} snapshots", ship=False),
    )
    pace = drawn.physics.pace

    def paced(name: str, stream: random.Random) -> Pace:
        return Pace(factor, 0.1, stream) if name == slow else pace(name, stream)

    return dataclasses.replace(
        drawn,
        job=job,
        physics=dataclasses.replace(drawn.physics, pace=paced),
        # A replay does not know what was wrong with a chip.
        poisoned=(),
        wrong=(),
        faults=tuple(not_too_narrow(drawn.faults)),
        asked=_asked(rng, job, factor, drawn.heal_at),
        end_at=drawn.end_at + 4 * factor * job.job.steps,
    )


def _asked(rng: random.Random, job: Job, factor: float, heal_at: float) -> Asked:
    """Random actors begin two or three snapshots for each step of the slow learner. An actor that
    takes them by itself waits until the last one is complete, and so for the end of that step."""
    every_s = factor / rng.choice([2, 3])
    count = min(int(2 * heal_at / every_s), ASKED_MAX)
    return tuple((every_s * (n + 1), rng.choice(job.names())) for n in range(count))


class Bounding(InvariantCheck[World, Node]):
    """Deletes the beginnings of tapes as ``ddloco.stage.tapes.retention`` does, when an actor ends;
    counts how many snapshots were begun while one step of the slow learner ran."""

    def __init__(self, job: Job, folder: Path) -> None:
        super().__init__()
        self._job, self._folder = job, folder / TAPES
        self._slow = job.learner_names()[-1]
        self._begun = 0
        self.within_step = 0
        self.deleted = 0

    def see(self, stage: World, role: Node, event: Event, effects: Sequence[Any]) -> None:
        """Count what is begun between two finished steps."""
        if isinstance(event, StepFinished) and role.actor_name == self._slow:
            self._begun = 0
        self._begun += sum(isinstance(e, Observe) and e.event == BEGUN for e in effects)
        self.within_step = max(self.within_step, self._begun)

    def died(self, stage: World, role: Node) -> None:
        """Its process has ended, one way or the other."""
        self.delete(stage, role.incarnation)

    def delete(self, world: World, incarnation: str) -> None:
        """Delete what lies before the oldest of the newest snapshots that count."""
        files = files_of(self._folder, incarnation)
        standing = manifests(world, self._job)
        begins = {after for after, _ in files}
        cuts = cuts_of(reversed(standing), self._job.id, incarnation, begins)
        if len(cuts) >= KEPT:
            for path in before(files, cuts[KEPT - 1]):
                path.unlink()
                self.deleted += 1


def manifests(world: World, job: Job) -> list[Manifest]:
    """The snapshots that stand, the oldest first."""
    facts = {"job": job.id}
    return [
        Manifest(each.snapshot, order, facts, each.parts, each.absent)
        for order, each in enumerate(world.snapshots.committed.values())
    ]


def play(drawn: hostile_world.Hostile, folder: Path, outcome: Outcome) -> World:
    """Let a job happen, every invariant checked beside it; its tapes are in ``folder``."""
    open_folder(folder, drawn.job)
    worlds: list[World] = []

    def recorder(incarnation: str) -> Recorder:
        def clock() -> dict[str, int]:
            return worlds[0].nodes[actor_of(incarnation)].actor.clock.wire()

        header = header_of(drawn.job, incarnation, arithmetic=True)
        return ChainRecorder(TapeWriter(folder / TAPES / f"{incarnation}.tape", header), "stop",
                             clock)  # fmt: skip

    bounding = Bounding(drawn.job, folder)
    checks = [*hostile_world.Watch(drawn.heal_at).checks(), bounding]
    physics = dataclasses.replace(drawn.physics, recorder=recorder)
    worlds.append(World(drawn.job, physics, checks))
    [world] = worlds
    try:
        world.begin(drawn.faults)
        for at, name in drawn.asked:
            world.call(at, ask, world, name)
        world.run(drawn.end_at, events_max=4 * hostile_world.EVENTS_MAX)
        if world.nodes[world.lead].finish is None:
            outcome.wrong.append(f"not over after {world.now:.0f} s")
    except Violation as violation:
        outcome.wrong.append(str(violation))
    finally:
        world.close()
    outcome.snapshots = len(world.snapshots.committed)
    outcome.within_step = bounding.within_step
    outcome.deleted, outcome.faults = bounding.deleted, len(drawn.faults)
    return world


# Its replays.


@dataclass
class SimulatedStart(Start):
    """Where a simulated actor continues from.

    Attributes:
        worker: what its simulated worker knew, when the step was done that ran at the cut.
    """

    worker: tuple[Any, ...]

    def payload(self, event: MessageArrived[Any]) -> Any:
        """What a message in flight had brought."""
        return self.brought[event.handle] if event.handle else None

    def take_up(
        self, work: SimulatedWork, arrays: ArrayTable, memory: FragmentMemory, brought: set[Merged]
    ) -> None:
        """Put everything where the actor's work looks for it."""
        for handle, content in self.arrays.items():
            arrays.put(handle, content)
        device, drawn, params = self.worker
        if isinstance(drawn, tuple):
            work._drawn = dict(drawn)
        else:
            work._batch = drawn
        work._device, work._params = list(device), np.frombuffer(params, np.float32).copy()
        for step in steps_under_way(self.actor):
            arrays.put(step.out, Content((*device, step.step), work._params.copy()))
        machine: Any = self.actor.machine
        if isinstance(machine, Syncer) and machine.rounds is not None:
            for fragment, version, spent, batches, tokens in machine.rounds.kept():
                theta, state = (arrays.get(name) for name in names(fragment, version)[:2])
                told = dict(sorted(spent.items())), dict(sorted(batches.items()))
                kept = Kept(fragment, version, *told, theta.digest + state.digest, tokens)
                memory.kept[fragment] = kept, theta, state
                brought.add((self.actor.incarnation.rpartition(".")[0], fragment, version))


@dataclass
class SnapshotExecutor:
    """Does a simulated actor's work again, from a snapshot on.

    Attributes:
        executor: does the work.
        name: the actor.
        snapshot: the snapshot that the replay begins with.
        brought: the merges that the snapshot has.
    """

    executor: JobExecutor
    name: str
    snapshot: str
    brought: set[Merged]

    def __post_init__(self) -> None:
        """All else is as in the replay of a job."""
        self.begin, self.finish = self.executor.begin, self.executor.finish
        self.check_fact, self.arrays = self.executor.check_fact, self.executor.arrays

    def is_repeated(self, work: Work) -> bool:
        """Not what was written of the snapshot itself: no actor waits for that here, so what it
        reads may be freed before it is done."""
        own = isinstance(work, CaptureState | CaptureFlight) and work.snapshot == self.snapshot
        return not own and self.executor.is_repeated(work)

    def difference(self, recorded: WorkResult, found: WorkResult) -> Difference | None:
        """Of a merge that was kept before the cut the snapshot does not say how far each actor's
        data had gone then; the digest of its arrays is compared."""
        if isinstance(recorded, Recovered) and isinstance(found, Recovered):
            theirs = {(each.fragment, each.version, each.digest): each for each in recorded.kept}
            kept = tuple(
                theirs.get((each.fragment, each.version, each.digest), each)
                if (self.name, each.fragment, each.version) in self.brought
                else each
                for each in found.kept
            )
            found = replace(found, kept=kept)
        return self.executor.difference(recorded, found)


@dataclass
class Again:
    """Opens what plays the tapes of a simulated job, from one of its snapshots on."""

    job: Job
    start_point: StartPoint[SimulatedStart]
    memories: dict[str, FragmentMemory] = field(default_factory=dict)
    brought: set[Merged] = field(default_factory=set)

    @asynccontextmanager
    async def open(self, state: ReplayState, each: Tape, folder: Path) -> AsyncIterator[TapeRunner]:
        """Open what plays a tape."""
        name, arrays = actor_of(each.incarnation), ArrayTable()
        memory = self.memories.setdefault(name, FragmentMemory())
        simulated = SimulatedWorkExecutor(self.job, each.header, arrays, memory)
        prepared = await simulated.prepare()
        start = self.start_point.starts.get(each.incarnation)
        actor = new_actor(each.incarnation, machine_for(self.job, each.incarnation))
        if start is not None:
            start.results = recorded_results(each, {work.work for work in start.results})
            start.take_up(simulated._simulated_work, arrays, memory, self.brought)
            actor = start.actor
        started = Started(each.incarnation, prepared.leaves, tells=True)
        history = FragmentHistory()
        inner = JobExecutor(started, self.job, simulated, arrays, history, None, state.report)
        player = Player(each, Happened, actor, actor.number)
        executor = SnapshotExecutor(inner, name, self.start_point.snapshot, self.brought)
        opened = open_comparison(state, player, actor, executor, start)
        async with opened as runner:
            yield runner


def recorded_results(each: Tape, works: Collection[int]) -> list[StepFinished]:
    """The results of these steps, which a worker's state in a snapshot has, from a tape."""
    steps = (
        msgspec.msgpack.decode(record.event, type=StepFinished)
        for record in each.records()
        if type(record) is tape.Event and b"StepFinished" in bytes(record.event)
    )
    return [step for step in steps if step.work in works]


def start_point_at(world: World, job: Job, commit: CommitSnapshot) -> StartPoint[SimulatedStart]:
    """The cut of a snapshot, by incarnation."""

    def start(part: Part) -> SimulatedStart:
        found = seen(world.snapshots, part, job)
        assert found.state.worker is not None
        actor = states_for(job, part.who).read(found.state.frozen)
        actor.machine.job = job
        steps = steps_under_way(actor)
        results = [StepFinished(each.work, each.step, 0.0, TOKENS, b"") for each in steps]
        return SimulatedStart(part, actor, found.state.contents, found.messages,
                              found.flight.contents, {}, results, found.state.worker)  # fmt: skip

    starts = {part.who: start(part) for part in commit.parts}
    return StartPoint(commit.snapshot, "", tuple(commit.parts), starts)


def fitting(world: World, job: Job, tapes: Sequence[Tape]) -> list[CommitSnapshot]:
    """The snapshots that these tapes can begin with and that have every syncer, the oldest first.

    What a syncer had kept that was dead at the cut is in no snapshot: a real one reads it from its
    disk."""
    syncers = set(job.syncer_names())
    return [
        each
        for each in world.snapshots.committed.values()
        if not any(cut_of(each.parts).precedes(tape) for tape in tapes)
        and mismatch(each.parts, tapes) is None
        and syncers <= {actor_of(part.who) for part in each.parts}
        and any(tape.events > part.number for tape in tapes for part in each.parts
                if part.who == tape.incarnation)
    ]  # fmt: skip


def replay(world: World, drawn: hostile_world.Hostile, folder: Path, outcome: Outcome) -> None:
    """Replay what is left of a job from some of its snapshots."""
    tapes = open_tapes(folder)
    left = fitting(world, drawn.job, tapes)
    rng = random.Random(f"replays {drawn.seed}")
    inner = left[1:-1]
    chosen = [*left[:1], *rng.sample(inner, min(len(inner), REPLAYS_MAX - 2)), *left[1:][-1:]]
    for commit in chosen:
        job, start_point = job_of(tapes[0]), start_point_at(world, drawn.job, commit)
        opener = Again(job, start_point)
        again = Replay(tapes, job.names(), opener.open, COUNTED, start_point=start_point)
        report = trio.run(again.run)
        outcome.starts.append(commit.snapshot)
        outcome.events += report.events
        outcome.identical += report.identical
        outcome.gaps += report.gaps
        if report.divergence is not None:
            outcome.wrong.append(f"from {commit.snapshot}: {report.divergence.report()}")


def run(seed: int) -> Outcome:
    """One job and its replays."""
    drawn, outcome = draw(seed), Outcome(seed)
    with tempfile.TemporaryDirectory(prefix="ddloco-bounded-") as made:
        world = play(drawn, Path(made), outcome)
        if not outcome.wrong:
            replay(world, drawn, Path(made), outcome)
    return outcome


def main() -> int:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.simulation.bounded")
    parser.add_argument("--jobs", type=int, default=100, help="in which that came to pass")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    given = parser.parse_args()
    total: Counter[str] = Counter()
    seed = given.first - 1
    while total["jobs"] < given.jobs:
        seed += 1
        found = run(seed)
        if found.within_step < 2 and not found.wrong:
            total.update(passed_over=1)
            continue
        total.update(jobs=1, snapshots=found.snapshots, faults=found.faults, files=found.deleted,
                     replays=len(found.starts), events=found.events, identical=found.identical,
                     gaps=len(found.gaps), wrong=bool(found.wrong))  # fmt: skip
        for line in (*found.wrong, *found.gaps):
            print(f"seed {seed}: {line}", flush=True)
    print(dict(total))
    return 1 if total["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
