"""Runs a real job along the tapes of another run, real or simulated.

The tapes say who finished which step when, who contributed to which merge, who failed and came
back; a job file says what is trained. The same machines handle the same events in the same order,
but the results of work are those of real workers. So "the quality of training under the failures of
a million chips" is one command; and the timing of a real run with changed code or settings tells
whether a difference comes from the one or the other. With nothing changed, the model is the same to
the bit. What it leaves is a run like any other: it replays.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import trio
from msgspec.structs import replace

from ddloco.actors.effects import Observe
from ddloco.actors.events import WorkFailed, WorkResult
from ddloco.config.job import Job
from ddloco.config.run_folder import LOG_FILE, open_folder
from ddloco.config.toml import ConfigError
from ddloco.nodes.node import recorder_for
from ddloco.protocol.events import Happened, Recovered, Started, StateCopied
from ddloco.protocol.fragment_plan import Leaf
from ddloco.protocol.tape_facts import STATE_PIECES, is_simulated
from ddloco.replayer.job_replay import JobReplay
from ddloco.replayer.job_tape_runner import JobTapeRunner
from ddloco.replayer.what_if import WHAT_IF, WhatIf, fact_of, what_if
from ddloco.runtime.door import admit
from ddloco.runtime.log import ActorLog
from ddloco.workers import rpc
from ddloco.workers.executor import Workers
from ddloco.workers.process import WorkerRequestError
from ddloco.workers.simulated.work import PIECES
from ddloco.workers.task_sources import keep_sources
from replay import Tape, TapeError, tape
from transport import MessageArrived


def _pieces_of(tapes: Sequence[Tape]) -> int:
    """Into how many pieces the schedule cuts a learner's state; 0 if it never does.

    A message says how many pieces there are, so the real state is cut into as many.
    """
    decode = msgspec.msgpack.Decoder(Happened).decode
    for each in tapes:
        for record in each.records():
            if isinstance(record, tape.Event):
                event = decode(record.event)
                if isinstance(event, StateCopied) and event.pieces:
                    return event.pieces
    return PIECES if all(is_simulated(each.header) for each in tapes) else 0


def job_under(job: Job, schedule: Job) -> Job:
    """What is trained from one job, who trains it and how they meet from another."""
    table = schedule.job
    return replace(
        job,
        job=replace(job.job, steps=table.steps, learners=table.learners, method=table.method),
        sync=schedule.sync,
        compress=schedule.compress,
        elastic=schedule.elastic,
        chaos=schedule.chaos,
        learner={},
    )


class ScheduledRun(JobReplay):
    """A real run that follows the tapes of another one.

    Args:
        schedule: the run folder whose tapes are followed.
        job: what is trained.
        folder: the new run folder.
        progress: called with the number of events so far.
        without: learners whose contributions are left out of merges.
        since: the first global step whose merge is changed; before it the schedule's own outer
            settings hold, and nobody is left out.

    Raises:
        TapeError: a tape cannot be read.
        ConfigError: the tapes cannot be followed, or the folder cannot be used.
    """

    def __init__(
        self,
        schedule: Path,
        job: Job,
        folder: Path,
        progress: Callable[[int], None],
        *,
        without: Sequence[str] = (),
        since: int | None = None,
    ) -> None:
        super().__init__(schedule, progress)
        for each in self.tapes:
            if each.header.after:
                said = f"begins behind event {each.header.after}; want tapes from their beginnings"
                raise ConfigError(f"{each.path}: {said}")
            if WHAT_IF in each.header.facts:
                said = "its merges were changed themselves; want the run that they were changed of"
                raise ConfigError(f"{each.path}: {said}")
        self.schedule = self.job
        self.pieces = _pieces_of(self.tapes)
        self.job = job_under(job, self.schedule)
        self.what_if = what_if(self.job, self.schedule, without, since)
        self.task = self.job.job.task
        self.folder = open_folder(folder, self.job)
        self.result: dict[str, Any] | None = None
        """What the syncer said of the final model."""

    def runner(self, each: Tape, folder: Path) -> JobTapeRunner:
        """What plays a tape; all of them write to one run folder."""
        del folder
        return ScheduledTapeRunner(self, each, self.folder)


class ScheduledTapeRunner(JobTapeRunner):
    """One tape's part: its events, with what real work brings instead of what was simulated."""

    def __init__(self, scheduled: ScheduledRun, each: Tape, folder: Path) -> None:
        super().__init__(scheduled, each, folder)
        self._scheduled = scheduled

    def _simulated(self) -> bool:
        return False

    def _what_if(self) -> WhatIf | None:
        return self._scheduled.what_if

    def _fingerprint(self) -> dict[str, str] | None:
        return None

    def differences(self) -> list[str]:
        """Everything may differ; nothing is compared."""
        return []

    async def execute(self) -> None:
        """Execute the tape's schedule to its end.

        Raises:
            TapeError: the run has parted from the schedule, or its own tape cannot be written.
            WorkerRequestError: the task cannot be used.
        """
        fits = len(self._scheduled.schedule.plan(self._scheduled_leaves()).fragments)
        got = len(self._scheduled.job.plan(self._prepared.leaves).fragments)
        if fits != got:
            raise ConfigError(
                f"{self._tape.path}: the schedule has {fits} fragments, the task's parameters "
                f"make {got}; want a schedule with sync.fragments = {got} or less"
            )
        assert isinstance(self._workers, Workers), "work is real here"
        facts = {"schedule": f"{self._tape.header.job_id} {self._tape.path.name}"}
        if self._scheduled.pieces:
            self._workers.state.cut_into(self._scheduled.pieces)
            facts[STATE_PIECES] = str(self._scheduled.pieces)
        if self._scheduled.what_if is not None:
            facts[WHAT_IF] = fact_of(self._scheduled.what_if)
        keep_sources(self._scheduled.folder, self._prepared.sources)
        self._recorder = recorder_for(
            self._scheduled.job, self._name, self._scheduled.folder, self._prepared, facts
        )
        with closing(ActorLog(self._scheduled.folder / LOG_FILE, self._name)) as self._log:
            await super().execute()
        self._recorder.close(self._actor.number, self._tape.closed)

    def _scheduled_leaves(self) -> tuple[Leaf, ...]:
        """The parameters of the schedule's task, as its first event says them."""
        started = next(event for _, event, _ in self._player.moments())
        return started.leaves

    def _handle(
        self, record: tape.Event, event: Any, outcome: tape.Effects | tape.Raised | None
    ) -> Sequence[Any]:
        effects = admit(self._actor, self._recorder, record.at, event)
        if isinstance(outcome, tape.Effects) and outcome.count != len(effects):
            said = f"event {record.n} asks for {len(effects)} things, in the schedule it was "
            raise TapeError(self._tape.path, 0, f"{said}{outcome.count}: they have parted")
        for effect in effects:
            if isinstance(effect, Observe):
                self._log.observe(effect.event, record.at, record.n, effect.fields)
                if effect.event == "result":
                    self._scheduled.result = effect.fields
        return effects

    async def _confirm(self, record: tape.Event, event: Any) -> Any:
        match event:
            case Started():
                if event.state is not None:
                    said = "its learner took its own state from a snapshot; that is no schedule"
                    raise TapeError(self._tape.path, 0, said)
                leaves = self._prepared.leaves
                return Started(self._name, leaves, tells=True, copies=event.copies)
            case WorkFailed(kind="worker"):
                await trio.lowlevel.checkpoint()
                return event  # Not the work's doing: the worker had died.
            case MessageArrived():
                return await self._message(record, event)
            case Recovered():
                await trio.lowlevel.checkpoint()
                return self._found(event)
            case WorkResult():
                result = self._results.pop(event.work)
                await result.done.wait()
                value = result.value
                if isinstance(value, WorkFailed):
                    raise WorkerRequestError(rpc.Failed(value.kind, value.reason))
                return value
            case _:
                await trio.lowlevel.checkpoint()
                return event

    def _found(self, scheduled: Recovered) -> Recovered:
        """What was found then, by version, as it was really merged here."""
        merged = [self._history.at(each.fragment, each.version) for each in scheduled.kept]
        found = [each for each in merged if each is not None]
        assert len(found) == len(merged), "what was merged then is merged here"
        assert isinstance(self._workers, Workers), "work is real here"
        for each in found:
            self._workers.take_back(each)
        return Recovered(scheduled.work, tuple(each.kept for each in found), scheduled.run)

    async def _message(self, record: tape.Event, event: MessageArrived[Any]) -> Any:
        """The same message, saying what its sender really said."""
        key = self._key_of(event)
        posted = await self._job_replay.mailbox.take(key)
        if posted is None:
            raise TapeError(self._tape.path, 0, f"event {record.n}: its message was never said")
        digest = posted.payload.digest if posted.payload is not None else b""
        if event.handle:
            self._arrays.put(event.handle, posted.payload)
            self._job_replay.mailbox.take_payload(key)
        said = posted.said
        return replace(event, body=said.body, clock=said.clock, payload=digest)
