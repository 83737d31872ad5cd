"""Runs a real job along the tapes of another run, real or simulated, which say who finished which
step when, who contributed to which merge, who failed and came back; a job file says what is
trained. The results of work are those of real workers. With nothing changed, the model is the same
to the bit."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import msgspec
import trio
from msgspec.structs import replace

from clocks import actor_of
from ddloco.job.config import Job
from ddloco.job.protocol.events import Happened, Started
from ddloco.job.protocol.tape_facts import STATE_PIECES, is_simulated
from ddloco.job.protocol.work import Recovered, StateCopied, StepFinished
from ddloco.machines.registry import machine_for
from ddloco.replayer.comparer import MEASURED
from ddloco.replayer.job_executor import JobExecutor, open_executor
from ddloco.replayer.job_replay import COUNTED
from ddloco.replayer.message_matcher import Mailbox, message_key
from ddloco.replayer.recording import job_of, named_settings, open_recording, run_folder_of
from ddloco.replayer.replay import Replay
from ddloco.replayer.replay_state import ReplayState
from ddloco.replayer.tape_runner import PendingWork, TapeRunner, open_pending
from ddloco.replayer.what_if import WHAT_IF, fact_of, what_if
from ddloco.roles.job_program import program_of
from ddloco.stage.actors.actor import Actor, new_actor
from ddloco.stage.actors.effects import Observe
from ddloco.stage.actors.events import WorkFailed, WorkResult
from ddloco.stage.driver.door import admit
from ddloco.stage.files.run_folder import LOG_FILE, open_folder
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.node import recorder_for
from ddloco.stage.process.log import ActorLog
from ddloco.workers import rpc
from ddloco.workers.fragment_store import FragmentHistory
from ddloco.workers.process import WorkerRequestError
from ddloco.workers.simulated.work import PIECES
from ddloco.workers.task_sources import keep_sources
from replay import Player, Recorder, Tape, TapeError, tape
from transport import MessageArrived


def _pieces_of(tapes: Sequence[Tape]) -> int:
    """Return into how many pieces the schedule cuts a learner's state; 0 if it never does. A
    message says how many pieces there are, so the real state is cut into as many."""
    decode = msgspec.msgpack.Decoder(Happened).decode
    for each in tapes:
        for record in each.records():
            if isinstance(record, tape.Event):
                event = decode(record.event)
                if isinstance(event, StateCopied) and event.pieces:
                    return event.pieces
    return PIECES if all(is_simulated(each.header) for each in tapes) else 0


def job_under(job: Job, schedule: Job) -> Job:
    """Return what is trained along a schedule: what workers compute is of the job; all that the
    machines decide by is of the schedule, and whatever is not named here."""
    own = job.job
    return replace(
        schedule,
        job=replace(schedule.job, task=own.task, name=own.name, seed=own.seed),
        task=job.task,
        inner=job.inner,
        outer=job.outer,
        worker=job.worker,
        # Who is how slow is on the tapes.
        learner={name: replace(each, factor=1.0) for name, each in sorted(job.learner.items())},
    )


FOLLOWED = "[task], [inner], [outer], [worker], job.task, job.name, job.seed, learner.*.shard"
"""What a run under a schedule takes from its own job; for people."""

LISTED_MAX = 8


def overridden(job: Job, schedule: Job) -> dict[str, tuple[Any, Any]]:
    """Return the settings of a job that the schedule decides otherwise, by name: its own value, and
    the one that holds."""
    mine, theirs = (
        named_settings(msgspec.to_builtins(each)) for each in (job, job_under(job, schedule))
    )
    for name in {*job.learner, *schedule.learner}:
        key = f"learner.{name}.factor"
        mine[key], theirs[key] = (each.learner_table(name).factor for each in (job, schedule))
    return {
        key: (mine.get(key, "not set"), theirs.get(key, "not set"))
        for key in sorted({*mine, *theirs})
        if mine.get(key) != theirs.get(key)
    }


def settings_in_words(settings: Mapping[str, tuple[Any, Any]]) -> str:
    listed = list(settings.items())
    said = [f"{key} = {theirs!r}, not {mine!r}" for key, (mine, theirs) in listed[:LISTED_MAX]]
    more = len(listed) - LISTED_MAX
    return "; ".join([*said, f"and {more} more"] if more > 0 else said)


@final
class ScheduledRun:
    """A real run that follows the tapes of another one, ``schedule``. Before the merge of global
    step ``since`` the schedule's own outer settings hold, and no learner is left out. ``asked`` are
    overrides that the user asked for, as ``sync.quorum=2``. ``overridden`` has the settings of the
    job file that a simulated schedule decides otherwise; ``result`` is what the syncer says of the
    final model, once the run has ended. ``ConfigError`` if the tapes cannot be followed, or the
    folder cannot be used."""

    def __init__(
        self,
        schedule: Path,
        job: Job,
        folder: Path,
        progress: Callable[[int], None],
        *,
        without: Sequence[str] = (),
        since: int | None = None,
        asked: Sequence[str] = (),
        overwrite: bool = False,
    ) -> None:
        tapes = open_recording(schedule)
        for each in tapes:
            if each.header.after:
                said = f"begins after event {each.header.after}; want tapes from their beginnings"
                raise ConfigError(f"{each.path}: {said}")
            if WHAT_IF in each.header.facts:
                said = "its merges were changed themselves; want the run that they were changed of"
                raise ConfigError(f"{each.path}: {said}")
        self._schedule = job_of(tapes[0])
        self._pieces = _pieces_of(tapes)
        self.overridden = overridden(job, self._schedule)
        self._refuse(schedule, asked, simulated=all(is_simulated(each.header) for each in tapes))
        self.job = job_under(job, self._schedule)
        seed = self._schedule.job.seed
        if self._schedule.sync.clients != 1.0 and self.job.job.seed != seed:
            said = f"the clients of its rounds are drawn by seed {seed}; want job.seed = {seed}"
            raise ConfigError(f"--schedule {schedule}: {said}")
        self._what_if = what_if(self.job, self._schedule, without, since)
        if run_folder_of(schedule).resolve() == folder.resolve():
            raise ConfigError(f"{folder}: is the schedule; choose another --dir")
        self._folder = open_folder(folder, self.job, overwrite=overwrite)
        self._histories: dict[str, FragmentHistory] = {}
        self.result: dict[str, Any] | None = None
        names = self._schedule.names()
        self._replay = Replay(tapes, names, self._open, COUNTED, progress=progress)
        self.total = self._replay.total

    def _refuse(self, schedule: Path, asked: Sequence[str], *, simulated: bool) -> None:
        """Refuse settings that would not be followed. A real schedule and what is run along it are
        compared, so every one is refused. A simulated one is of another job, and decides; refused
        is only what the user asked for."""
        keys = {each.partition("=")[0].strip() for each in asked}
        refused = {
            key: values
            for key, values in self.overridden.items()
            if not simulated or any(key == each or key.startswith(f"{each}.") for each in keys)
        }
        if refused:
            raise ConfigError(
                f"--schedule {schedule}: these settings are those of the schedule: "
                f"{settings_in_words(refused)}; a run along it may differ in {FOLLOWED}"
            )

    async def run(self) -> None:
        """Run to the end of the schedule; ``TapeError`` if the run has parted from it."""
        await self._replay.run()

    @asynccontextmanager
    async def _open(
        self, state: ReplayState, each: Tape, folder: Path
    ) -> AsyncIterator[TapeRunner]:
        del folder
        job, name = self.job, each.incarnation
        history = self._histories.setdefault(actor_of(name), FragmentHistory())
        async with AsyncExitStack() as stack:
            opened = open_executor(
                job, each, self._folder, history, task=job.job.task, change=self._what_if
            )
            executor, arrays, prepared = await stack.enter_async_context(opened)
            actor = new_actor(name, machine_for(job, name))
            player = Player(each, Happened, actor)
            self._check_fragments(player, prepared)
            if self._pieces:
                executor.state.cut_into(self._pieces)
            keep_sources(self._folder, prepared.sources)
            program = program_of(job)
            facts = self._facts(each)
            recorder = recorder_for(program, name, self._folder, prepared.fingerprint, facts=facts)
            log = stack.enter_context(closing(ActorLog(self._folder / LOG_FILE, name)))
            started = Started(name, prepared.leaves, tells=True)
            replay_executor = JobExecutor(
                started, job, executor, arrays, history, self._what_if, state.report
            )
            pending = await stack.enter_async_context(open_pending(replay_executor))
            observe, mailbox = partial(self._observed, log), state.mailbox
            door = ScheduleFollower(
                each, actor, replay_executor, pending, mailbox, recorder, observe
            )
            yield TapeRunner(state, actor, player, door, pending)
            recorder.close(actor.number, each.closed)

    def _check_fragments(self, player: Player[Any], prepared: rpc.Prepared) -> None:
        """Check that the schedule's merges are of as many fragments as the task's parameters
        make."""
        scheduled = next(event for _, event, _ in player.moments())
        fits = len(self._schedule.plan(scheduled.leaves).fragments)
        got = len(self.job.plan(prepared.leaves).fragments)
        if fits != got:
            raise ConfigError(
                f"{player.tape.path}: the schedule has {fits} fragments, the task's parameters "
                f"make {got}; want a schedule with sync.fragments = {got} or less"
            )

    def _facts(self, each: Tape) -> dict[str, str]:
        facts = {"schedule": f"{each.header.job_id} {each.path.name}"}
        if self._pieces:
            facts[STATE_PIECES] = str(self._pieces)
        if self._what_if is not None:
            facts[WHAT_IF] = fact_of(self._what_if)
        return facts

    def _observed(self, log: ActorLog, effect: Observe, at: float, number: int) -> None:
        log.observe(effect.event, at, number, effect.fields)
        if effect.event == "result":
            self.result = effect.fields


@final
@dataclass(frozen=True)
class ScheduleFollower:
    recorded: Tape
    actor: Actor
    executor: JobExecutor
    pending: PendingWork
    mailbox: Mailbox
    recorder: Recorder
    observe: Callable[[Observe, float, int], None]

    def admit(
        self, record: tape.Event, event: Any, outcome: tape.Effects | tape.Raised | None
    ) -> Sequence[Any]:
        effects = admit(self.actor, self.recorder, record.at, event)
        if isinstance(outcome, tape.Effects) and outcome.count != len(effects):
            said = f"event {record.n} asks for {len(effects)} things, in the schedule it was "
            raise TapeError(self.recorded.path, 0, f"{said}{outcome.count}: they have parted")
        for effect in effects:
            if isinstance(effect, Observe):
                self.observe(effect, record.at, record.n)
        return effects

    async def confirm(self, record: tape.Event, event: Any) -> Any:
        """Return what takes an event's place: the same message or the same work's result, with
        what was really said and computed."""
        match event:
            case Started():
                if event.state is not None:
                    said = "its learner took its own state from a snapshot; that is no schedule"
                    raise TapeError(self.recorded.path, 0, said)
                return replace(self.executor.started, copies=event.copies)
            case WorkFailed(kind="worker" | "later"):
                await trio.lowlevel.checkpoint()
                return event  # Not the work's doing.
            case MessageArrived():
                return await self._message(record, event)
            case Recovered():
                await trio.lowlevel.checkpoint()
                return self._found(event)
            case WorkResult():
                pending = self.pending.take(event.work)
                assert pending is not None, "it is this machine that has asked for it"
                value = await pending.result()
                if isinstance(value, WorkFailed):
                    raise WorkerRequestError(rpc.Failed(value.kind, value.reason))
                if isinstance(value, StepFinished) and isinstance(event, StepFinished):
                    # All times are the schedule's.
                    return replace(value, **{name: getattr(event, name) for name in MEASURED})
                return value
            case _:
                await trio.lowlevel.checkpoint()
                return event

    def _found(self, scheduled: Recovered) -> Recovered:
        found = tuple(self.executor.take_back(each) for each in scheduled.kept)
        return Recovered(scheduled.work, found, scheduled.run)

    async def _message(self, record: tape.Event, event: MessageArrived[Any]) -> Any:
        """Return the same message, saying what its sender really said."""
        key = message_key(self.recorded.incarnation, event)
        posted = await self.mailbox.take(key)
        if posted is None:
            raise TapeError(self.recorded.path, 0, f"event {record.n}: its message was never said")
        digest = posted.payload.digest if posted.payload is not None else b""
        if event.handle:
            self.executor.arrays.put(event.handle, posted.payload)
            self.mailbox.take_payload(key)
        said = posted.said
        return replace(event, body=said.body, clock=said.clock, payload=digest)
