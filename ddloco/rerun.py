"""The second run: all tapes executed again on one machine, in causal order, without sockets.

Every tape has a task of its own that feeds its events to the same machine as live. Before an event
is handled, what it says must have become true again: a message was said by its sender's replay,
with the same clock, body and bytes; a result came out of the same work, with the same digests and
loss bits. So the tasks wait for each other exactly where the run's causality says, and nothing else
orders them: work runs side by side as it did live. The first difference stops everything.

Where a tape is missing, machines are still checked event by event, but what was computed from the
missing actor's arrays cannot be: it is counted as unverified, and the gap is named.
"""

import struct
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import trio

from ddloco import chores
from ddloco.actor import Actor
from ddloco.arena import Arena
from ddloco.arrays import Arrays
from ddloco.config import Job, job_from
from ddloco.effects import (
    EncodeFragment,
    Evaluate,
    MakeParameters,
    MergeFragment,
    RunStep,
    SaveModel,
    Work,
)
from ddloco.errors import first_of
from ddloco.events import FragmentMerged, Happened, Started, StepFinished, WorkFailed, WorkResult
from ddloco.host import TASK, machine_for
from ddloco.learner import SYNCER
from ddloco.mailbox import Mailbox, Posted
from ddloco.process import open_worker
from ddloco.provenance import code_version
from ddloco.task import task_digest
from ddloco.workers import Workers
from replay import Divergence, Player, Tape, describe, open_tapes, tape
from transport import Effect, Free, MessageArrived, Payload, Transmit, actor_of


@dataclass
class Report:
    """What a replay found."""

    events: int = 0
    steps: int = 0
    merges: int = 0
    payloads: int = 0
    unverified: int = 0
    gaps: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    divergence: Divergence | None = None

    @property
    def identical(self) -> bool:
        """Whether everything was compared and found equal."""
        return self.divergence is None and not self.gaps

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        return {
            "identical": self.identical,
            "events": self.events,
            "steps": self.steps,
            "merges": self.merges,
            "payloads": self.payloads,
            "unverified": self.unverified,
            "gaps": self.gaps,
            "notes": self.notes,
            "divergence": self.divergence.as_dict() if self.divergence else None,
        }


class Rerun:
    """Replays a run folder, or any set of its tapes.

    Args:
        folder: the run folder.
        progress: called with the number of events played so far.
        warn: called with what differs before the replay starts.

    Raises:
        TapeError: a tape cannot be read.
        ConfigError: the recorded job is none that this version can run.
    """

    def __init__(
        self,
        folder: Path,
        progress: Callable[[int], None] = lambda _: None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.tapes = open_tapes(folder)
        self.total = sum(tape.events for tape in self.tapes)
        self.report = Report()
        self.job = job_from(self.tapes[0].header.job, f"{self.tapes[0].path} (header)")
        self._progress = progress
        self._warn = warn
        self._recorded = {tape.incarnation for tape in self.tapes}
        self._mailbox = Mailbox(self._recorded)
        present = {actor_of(name) for name in self._recorded}
        self._missing = {
            name: 0 for name in (SYNCER, *self.job.learner_names()) if name not in present
        }

    async def run(self) -> Report:
        """Replay everything; what was found."""
        with tempfile.TemporaryDirectory(prefix="ddloco-replay-") as folder:
            async with AsyncExitStack() as stack:
                parts = [Part(self, tape, stack, Path(folder)) for tape in self.tapes]
                try:
                    async with trio.open_nursery() as nursery:
                        for part in parts:
                            nursery.start_soon(part.prepare)
                except ExceptionGroup as group:
                    raise first_of(group) from None
                for part in parts:
                    for difference in part.differences():
                        self._warn(difference)
                try:
                    async with trio.open_nursery() as nursery:
                        for part in parts:
                            nursery.start_soon(part.play)
                except ExceptionGroup as group:
                    found = first_of(group)
                    if not isinstance(found, Divergence):
                        raise found from None
                    self.report.divergence = found
        self._name_gaps()
        return self.report

    def posted_by(self, sender: str) -> bool:
        """Whether there is a tape to check a message of ``sender`` against."""
        if sender in self._recorded:
            return True
        actor = actor_of(sender)
        self._missing[actor] = self._missing.get(actor, 0) + 1
        return False

    @property
    def mailbox(self) -> Mailbox:
        """Where messages travel."""
        return self._mailbox

    def played(self, event: Any) -> None:
        """One more event was found equal."""
        self.report.events += 1
        self.report.steps += isinstance(event, StepFinished)
        self.report.merges += isinstance(event, FragmentMerged)
        self._progress(self.report.events)

    def _name_gaps(self) -> None:
        for actor, messages in self._missing.items():
            said = f"; {messages} of its messages were taken from the others' tapes"
            self.report.gaps.append(f"{actor}: no tape{said if messages else ''}")


class Part:
    """One tape's part in a replay."""

    def __init__(self, rerun: Rerun, tape: Tape, stack: AsyncExitStack, folder: Path) -> None:
        self._rerun = rerun
        self._tape = tape
        self._stack = stack
        self._folder = folder / tape.incarnation
        self._name = tape.incarnation
        self._arrays = Arrays(stack.enter_context(closing(Arena())))
        self._actor = Actor(self._name, machine_for(rerun.job, self._name))
        self._player: Player[Any] = Player(tape, Happened, self._actor)
        self._results: dict[int, Result] = {}
        self._outputs: dict[int, tuple[str, ...]] = {}
        self._in_step = True

    async def prepare(self) -> None:
        """Start a worker with the environment that the tape's fingerprint names."""
        arena = self._arrays.arena
        assert arena is not None
        job: Job = self._rerun.job
        worker = job.worker_of(actor_of(self._name))
        process = await self._stack.enter_async_context(
            open_worker(self._name, arena, worker, self._tape.header.fingerprint)
        )
        self._workers = Workers(job, self._name, self._arrays, process, self._folder)
        self._prepared: chores.Prepared = await self._workers.prepare()

    def differences(self) -> list[str]:
        """What can change arithmetic and is not as it was recorded."""
        header = self._tape.header
        then = {**header.fingerprint, "code": header.code, TASK: header.facts.get(TASK, "")}
        now = {**self._prepared.fingerprint, "code": code_version()}
        now[TASK] = task_digest(self._rerun.job.job.task)
        return [
            f"{self._name}: {key} was {then.get(key, 'not set')}, is {now.get(key, 'not set')}"
            for key in sorted({*then, *now})
            if then.get(key) != now.get(key)
        ]

    async def play(self) -> None:
        """Execute the tape to its end or to the first difference.

        Raises:
            Divergence: at the first difference.
            TapeError: the tape cannot be read.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for record, event, outcome in self._player.moments():
                await self._confirm(record, event)
                effects = self._player.play(record, event, outcome)
                for effect in effects:
                    self._perform(record.n, effect)
                self._rerun.played(event)
            nursery.cancel_scope.cancel()
        self._rerun.mailbox.silence(self._name)
        if self._tape.closed is None:
            note = f"{self._name}: the tape ends after event {self._actor.number}, not closed"
            self._rerun.report.notes.append(f"{note} (its process was killed)")

    # What the event says must be so again.

    async def _confirm(self, record: tape.Event, event: Any) -> None:
        match event:
            case Started():
                if event.leaves != self._prepared.leaves:
                    raise self._differs(record, event, event.leaves, self._prepared.leaves)
            case MessageArrived():
                await self._confirm_message(record, event)
            case WorkResult():
                await self._confirm_result(record, event)
            case _:
                await trio.lowlevel.checkpoint()

    async def _confirm_message(self, record: tape.Event, event: MessageArrived[Any]) -> None:
        payload: Payload | None = None
        if self._rerun.posted_by(event.sender):
            # A listening side is addressed by its actor's name, a dialling one by incarnation.
            me = actor_of(self._name) if event.peer == event.sender else self._name
            number = event.clock.get(event.sender, 0)
            key = (event.sender, number, me, event.lane, event.session, event.seq)
            posted = await self._rerun.mailbox.take(key)
            if posted is None:
                raise self._differs(record, event, describe(event), "never said", "message")
            self._compare_message(record, event, posted)
            payload = posted.payload
            if event.handle:
                self._rerun.mailbox.take_payload(key)
        if event.handle:
            self._arrays.put(event.handle, payload)

    def _compare_message(
        self, record: tape.Event, event: MessageArrived[Any], posted: Posted
    ) -> None:
        said = posted.said
        if (event.body, event.clock) != (said.body, said.clock):
            got = f"{describe(said.body)} with clock {said.clock}"
            recorded = f"{describe(event.body)} with clock {event.clock}"
            raise self._differs(record, event, recorded, got, "message")
        if posted.payload is not None:
            self._rerun.report.payloads += 1
            if posted.payload.digest != event.payload:
                got = f"payload {posted.payload.digest.hex()}"
                recorded = f"payload {event.payload.hex()}"
                raise self._differs(record, event, recorded, got, "message")

    async def _confirm_result(self, record: tape.Event, event: Any) -> None:
        result = self._results.pop(event.work, None)
        outputs = self._outputs.pop(event.work, ())
        if isinstance(event, WorkFailed) and event.kind == "worker":
            # The world's doing, not the work's: a fact, like the time.
            self._rerun.report.notes.append(f"{self._name}:{record.n}: {event.reason}")
            return
        if result is None:
            # Its inputs are missing: taken from the tape.
            self._rerun.report.unverified += 1
            for handle in outputs:
                if not isinstance(event, WorkFailed):
                    self._arrays.put(handle, None)
            return
        await result.done.wait()
        if same_bits(event) != same_bits(result.value):
            raise self._differs(record, event, describe(event), describe(result.value))

    def _differs(
        self, record: tape.Event, event: Any, expected: Any, actual: Any, aspect: Any = "result"
    ) -> Divergence:
        return self._player.differs(record, event, aspect, expected, actual)

    # What the machine asks for again.

    def _perform(self, number: int, effect: Effect) -> None:
        match effect:
            case Transmit():
                known = effect.payload and self._arrays.known(effect.payload)
                payload = self._arrays.get(effect.payload) if known else None
                self._rerun.mailbox.post(self._name, number, effect, payload)
            case Free(handle):
                self._arrays.free(handle)
            case Work():
                inputs, outputs = handles_of(effect)
                self._outputs[effect.work] = outputs
                if self._can_do(effect, inputs):
                    result = self._results[effect.work] = Result()
                    self._nursery.start_soon(self._work, self._workers.do(effect), result)
            case _:
                pass  # Timers and observations belong to the first run.

    def _can_do(self, work: Work, inputs: tuple[str, ...]) -> bool:
        """Whether all that the work reads is known: arrays, and the worker's own state.

        A step that could not be executed leaves a worker whose parameters and moments are not
        those of the run; no later step can be checked.
        """
        known = self._arrays.known(*inputs)
        if isinstance(work, RunStep):
            known = self._in_step = self._in_step and known
        return known

    async def _work(self, coming: Awaitable[WorkResult], result: "Result") -> None:
        result.value = await coming
        result.done.set()


@dataclass
class Result:
    """Work under way in a replay."""

    done: trio.Event = field(default_factory=trio.Event)
    value: WorkResult | None = None


def handles_of(work: Work) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a piece of work reads, and what it makes."""
    match work:
        case MakeParameters():
            return (), ()
        case RunStep():
            return tuple(each.handle for each in work.overwrites), (work.out,)
        case EncodeFragment():
            return (work.source,), (work.out,)
        case MergeFragment():
            read = (work.theta, work.momentum, *(share.handle for share in work.shares))
            return read, work.out
        case Evaluate() | SaveModel():
            return work.fragments, ()
        case _:
            raise AssertionError(f"unknown work: {work}")


def same_bits(event: Any) -> tuple[bytes, bytes]:
    """What must be equal of a result: its encoding, and the bits of its loss (NaN has many)."""
    loss = getattr(event, "loss", None)
    bits = struct.pack("<d", loss) if isinstance(loss, float) else b""
    return msgspec.msgpack.encode(event), bits
