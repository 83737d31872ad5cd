"""Driving a real training run by the tapes of a simulated one.

The tapes say who finished which step when, who contributed to which merge, who failed and came
back; a job file says what is trained. The same machines take the same events in the same order,
but what work brings is what real workers bring. So "the quality of training under the failures of a
million chips" is one command, and what it leaves is a run like any other: it replays.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import trio
from msgspec.structs import replace

from ddloco.actors.effects import Observe
from ddloco.actors.events import WorkFailed, WorkResult
from ddloco.config.job import Job
from ddloco.config.run_folder import LOG_FILE, open_folder
from ddloco.config.toml import ConfigError
from ddloco.nodes.node import recorder_for
from ddloco.protocol.events import Recovered, Started
from ddloco.protocol.tape_facts import STATE_PIECES, TENSORS, is_simulated
from ddloco.replayer.job_part import JobPart
from ddloco.replayer.job_replay import JobRerun
from ddloco.runtime.door import admit
from ddloco.runtime.log import ActorLog
from ddloco.workers import rpc
from ddloco.workers.executor import Workers
from ddloco.workers.process import ChoreError
from ddloco.workers.simulated.work import PIECES, leaves_of
from replay import Tape, TapeError, tape
from transport import MessageArrived


def job_under(job: Job, schedule: Job) -> Job:
    """What is trained from one job, who trains it and how they meet from another."""
    table = schedule.job
    return replace(
        job,
        job=replace(job.job, steps=table.steps, learners=table.learners, method=table.method),
        sync=schedule.sync,
        elastic=schedule.elastic,
        chaos=schedule.chaos,
        learner={},
    )


class Drive(JobRerun):
    """A real run that follows the tapes in ``schedule``.

    Args:
        schedule: the run folder of a simulation.
        job: what is trained.
        folder: the new run folder.
        progress: called with the number of events so far.

    Raises:
        TapeError: a tape cannot be read.
        ConfigError: these are no tapes of a simulation, or the folder cannot be used.
    """

    def __init__(
        self, schedule: Path, job: Job, folder: Path, progress: Callable[[int], None]
    ) -> None:
        super().__init__(schedule, progress)
        for each in self.tapes:
            if not is_simulated(each.header):
                raise ConfigError(f"{each.path}: of a real run; want the tapes of a simulation")
        self.schedule = self.job
        self.job = job_under(job, self.schedule)
        self.task = self.job.job.task
        self.folder = open_folder(folder, self.job)
        self.result: dict[str, Any] | None = None
        """What the syncer said of the final model."""

    def part(self, each: Tape, folder: Path) -> JobPart:
        """What plays a tape; all of them write to one run folder."""
        del folder
        return DrivenPart(self, each, self.folder)


class DrivenPart(JobPart):
    """One tape's part: its events, with what real work brings instead of what was simulated."""

    def __init__(self, drive: Drive, each: Tape, folder: Path) -> None:
        super().__init__(drive, each, folder)
        self._drive = drive

    def _simulated(self) -> bool:
        return False

    def _fingerprint(self) -> dict[str, str] | None:
        return None

    def differences(self) -> list[str]:
        """Everything may differ; nothing is compared."""
        return []

    async def play(self) -> None:
        """Execute the tape's schedule to its end.

        Raises:
            TapeError: the run has parted from the schedule, or its own tape cannot be written.
            ChoreError: the task cannot be used.
        """
        simulated = leaves_of(int(self._drive.schedule.task[TENSORS]))
        fits = len(self._drive.schedule.plan(simulated).fragments)
        got = len(self._drive.job.plan(self._prepared.leaves).fragments)
        if fits != got:
            raise ConfigError(
                f"{self._tape.path}: the schedule has {fits} fragments, the task's parameters "
                f"make {got}; simulate with sync.fragments = {got} or less"
            )
        assert isinstance(self._workers, Workers), "work is real here"
        self._workers.state.cut_into(PIECES)
        schedule = f"{self._tape.header.job_id} {self._tape.path.name}"
        facts = {STATE_PIECES: str(PIECES), "schedule": schedule}
        self._recorder = recorder_for(
            self._drive.job, self._name, self._drive.folder, self._prepared, facts
        )
        with closing(ActorLog(self._drive.folder / LOG_FILE, self._name)) as self._log:
            await super().play()
        self._recorder.close(self._actor.number, self._tape.closed)

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
                    self._drive.result = effect.fields
        return effects

    async def _confirm(self, record: tape.Event, event: Any) -> Any:
        match event:
            case Started():
                return Started(self._name, self._prepared.leaves)
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
                    raise ChoreError(rpc.Failed(value.kind, value.reason))
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
        posted = await self._rerun.mailbox.take(key)
        if posted is None:
            raise TapeError(self._tape.path, 0, f"event {record.n}: its message was never said")
        digest = posted.payload.digest if posted.payload is not None else b""
        if event.handle:
            self._arrays.put(event.handle, posted.payload)
            self._rerun.mailbox.take_payload(key)
        said = posted.said
        return replace(event, body=said.body, clock=said.clock, payload=digest)
