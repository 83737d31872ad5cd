"""One tape's part in a replay: its machine, its worker, and what must have become true again."""

import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import trio

from clocks import actor_of
from ddloco import chores
from ddloco.actor import Actor
from ddloco.album import Digested
from ddloco.arena import Arena
from ddloco.arrays import Arrays
from ddloco.config import Job
from ddloco.effects import (
    CopyState,
    InstallState,
    MergeFragment,
    Recover,
    RunStep,
    Work,
    handles_of,
)
from ddloco.events import Captured, Happened, Recovered, Started, WorkFailed, WorkResult
from ddloco.host import STATE_PIECES, TASK, machine_for
from ddloco.keeping import KeptHistory
from ddloco.mailbox import Key, Mailbox, Posted
from ddloco.process import open_worker
from ddloco.provenance import code_version
from ddloco.restoring import Beginning, passed
from ddloco.simulation.labour import Vault
from ddloco.simulation.workers import SimulatedWorkers, is_simulated
from ddloco.syncs import names
from ddloco.task import task_digest
from ddloco.workers import Workers
from replay import Divergence, Player, Tape, describe, tape
from transport import GREETINGS, Effect, Free, Marker, MessageArrived, Payload, Transmit


class Theatre(Protocol):
    """Where parts play together."""

    job: Job
    vaults: dict[str, Vault]
    histories: dict[str, KeptHistory]
    warn: Callable[[str], None]
    payloads: int
    unverified: int

    @property
    def mailbox(self) -> Mailbox:
        """Where messages travel."""
        ...

    @property
    def beginning(self) -> Beginning | None:
        """The snapshot that it begins with, if it does."""
        ...

    def note(self, what: str) -> None:
        """Something that people should know afterwards."""
        ...

    def gap(self, what: str) -> None:
        """Something could not be verified, so that the replay cannot be called identical."""
        ...

    def posted_by(self, sender: str, number: int) -> bool:
        """Whether there is a tape to check a message of the sender's event ``number`` against."""
        ...

    def played(self, event: Any) -> None:
        """One more event was found equal."""
        ...


class Part:
    """One tape's part in a replay."""

    def __init__(self, rerun: Theatre, tape: Tape, folder: Path) -> None:
        self._rerun = rerun
        self._tape = tape
        self._folder = folder
        self._name = tape.incarnation
        beginning = rerun.beginning
        start = self._start = beginning.starts.get(self._name) if beginning is not None else None
        fresh = start is None
        self._actor = (
            Actor(self._name, machine_for(rerun.job, self._name)) if fresh else start.actor
        )
        after = beginning.after(self._name) if beginning is not None else 0
        self._player: Player[Any] = Player(tape, Happened, self._actor, after)
        self._given: set[int] = set()
        """Work that a snapshot has the result of."""
        self._results: dict[int, Result] = {}
        self._outputs: dict[int, tuple[str, ...]] = {}
        self._in_step = True
        self._history = rerun.histories.setdefault(actor_of(self._name), KeptHistory())
        self._vault = rerun.vaults.setdefault(actor_of(self._name), Vault())
        self._merges: list[Result] = []

    async def perform(self) -> None:
        """Start a worker as the tape's fingerprint names it, execute the tape, end the worker.

        Raises:
            Divergence: at the first difference.
            TapeError: the tape cannot be read.
            ChoreError: the task cannot be used.
        """
        async with AsyncExitStack() as stack:
            await self._prepare(stack)
            for difference in self.differences():
                self._rerun.warn(difference)
            await self.play()

    async def _prepare(self, stack: AsyncExitStack) -> None:
        job = self._rerun.job
        if self._simulated():
            self._arrays = Arrays()
            self._workers: Workers | SimulatedWorkers = SimulatedWorkers(
                job, self._tape.header, self._arrays, self._vault
            )
        else:
            arena = stack.enter_context(closing(Arena()))
            self._arrays = Arrays(arena)
            environment = job.worker_of(actor_of(self._name)), self._fingerprint()
            process = await stack.enter_async_context(open_worker(self._name, arena, *environment))
            self._workers = Workers(
                job,
                self._name,
                self._arrays,
                process,
                folder=self._folder,
                keep=self._history,
                album=Digested(),
            )
        self._prepared: chores.Prepared = await self._workers.prepare()
        if self._start is not None:
            assert isinstance(self._workers, Workers), "simulated jobs have no store"
            await self._start.take_up(self._workers, self._arrays)
            self._start.keep(self._arrays, self._history)
            begins = self._tape.header.after == self._start.part.number
            if begins and not self._tape.dropped:
                self._start.adopt(self._rerun.job, self._workers.plan)
            else:
                self._history.bring()
        pieces = self._tape.header.facts.get(STATE_PIECES)
        if pieces is not None and isinstance(self._workers, Workers):
            self._workers.state.cut_into(int(pieces))

    def _simulated(self) -> bool:
        return is_simulated(self._tape.header)

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
            self._go_on()
            for record, event, outcome in self._player.moments():
                sure = await self._confirm(record, event)
                effects = self._handle(record, sure, outcome)
                for effect in effects:
                    self._perform(record.n, effect)
                self._rerun.played(sure)
            for merge in self._merges:
                # One that nobody heard of may have been kept, for the next incarnation to find.
                await merge.done.wait()
            nursery.cancel_scope.cancel()
        self._rerun.mailbox.silence(self._name)
        if self._tape.closed is None:
            note = f"{self._name}: the tape ends after event {self._actor.number}, not closed"
            self._rerun.note(f"{note} (its process was killed)")

    def _handle(
        self, record: tape.Event, event: Any, outcome: tape.Effects | tape.Raised | None
    ) -> Sequence[Any]:
        return self._player.play(record, event, outcome)

    def _go_on(self) -> None:
        """Whatever was being done at the cut is done again, but for what only the worker's state of
        then could do: of a step the snapshot has what came out."""
        if self._start is None:
            return
        steps = self._start.running()
        self._given = {step.work for step in steps}
        for work in list(self._actor.under_way.values()):
            if work.work not in self._given and not isinstance(work, CopyState):
                self._begin(work)

    # What the event says must be so again.

    async def _confirm(self, record: tape.Event, event: Any) -> Any:
        """Wait until what the event says has become true again; the event that is so."""
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
        return event

    async def _confirm_message(self, record: tape.Event, event: MessageArrived[Any]) -> None:
        payload: Payload | None = None
        beginning, number = self._rerun.beginning, event.clock.get(event.sender, 0)
        if beginning is not None and beginning.before(event.sender, number):
            payload = self._confirm_flight(record, event)
        elif self._rerun.posted_by(event.sender, event.clock.get(event.sender, 0)):
            key = self._key_of(event)
            posted = await self._rerun.mailbox.take(key)
            if posted is None:
                raise self._differs(record, event, describe(event), "never said", "message")
            self._compare_message(record, event, posted)
            payload = posted.payload
            if event.handle:
                self._rerun.mailbox.take_payload(key)
        if event.handle:
            self._arrays.put(event.handle, payload)

    def _confirm_flight(self, record: tape.Event, event: MessageArrived[Any]) -> Payload | None:
        """It was said before the cut and came after it: it must have been in flight."""
        assert self._start is not None, "whoever began later has heard of nothing before that"
        found = {passed(each): each for each in self._start.flight}.get(passed(event))
        if found is None:
            if type(event.body) not in GREETINGS | {Marker}:
                said = f"{describe(event.body)} of {event.sender} was said before the cut"
                self._rerun.unverified += 1
                self._rerun.gap(f"{self._name}:{record.n}: {said}, and is not in the snapshot")
            return None
        if msgspec.structs.replace(found, handle=event.handle) != event:
            raise self._differs(record, event, describe(event), describe(found), "message")
        self._rerun.payloads += bool(event.handle)
        return self._start.payload(found)

    def _key_of(self, event: MessageArrived[Any]) -> Key:
        """A listening side is addressed by its actor's name, a dialling one by incarnation."""
        me = actor_of(self._name) if event.peer == event.sender else self._name
        number = event.clock.get(event.sender, 0)
        return (event.sender, number, me, event.lane, event.session, event.seq)

    def _compare_message(
        self, record: tape.Event, event: MessageArrived[Any], posted: Posted
    ) -> None:
        said = posted.said
        if (event.body, event.clock) != (said.body, said.clock):
            got = f"{describe(said.body)} with clock {said.clock}"
            recorded = f"{describe(event.body)} with clock {event.clock}"
            raise self._differs(record, event, recorded, got, "message")
        if posted.payload is not None:
            self._rerun.payloads += 1
            if posted.payload.digest != event.payload:
                got = f"payload {posted.payload.digest.hex()}"
                recorded = f"payload {event.payload.hex()}"
                raise self._differs(record, event, recorded, got, "message")

    async def _confirm_result(self, record: tape.Event, event: Any) -> None:
        result = self._results.pop(event.work, None)
        outputs = self._outputs.pop(event.work, ())
        if isinstance(event, WorkFailed) and event.kind == "worker":
            # The world's doing, not the work's: a fact, like the time.
            self._rerun.note(f"{self._name}:{record.n}: {event.reason}")
            return
        if isinstance(event, Recovered) and isinstance(self._workers, Workers):
            self._recover(record, event, self._workers)
            return
        if event.work in self._given or self._wrote(event):
            return
        if result is None:
            # Its inputs are missing: taken from the tape.
            self._rerun.unverified += 1
            for handle in outputs:
                if not isinstance(event, WorkFailed):
                    self._arrays.put(handle, None)
            return
        await result.done.wait()
        if same_bits(event) != same_bits(result.value):
            raise self._differs(record, event, describe(event), describe(result.value))
        if isinstance(self._workers, SimulatedWorkers):
            self._workers.settle(event)

    def _wrote(self, event: Any) -> bool:
        """Whether it tells of what was written of the snapshot that this replay begins with."""
        if self._start is None or not isinstance(event, Captured):
            return False
        return event.content in self._start.part.contents

    def _recover(self, record: tape.Event, event: Recovered, workers: Workers) -> None:
        """What the disk held is a fact; that it is what was merged is checked."""
        for kept in event.kept:
            found = self._history.at(kept.fragment, kept.version)
            if found is None:
                # Its inputs were missing, or the tape of whoever merged it.
                self._rerun.unverified += 1
                version = f"version {kept.version} of fragment {kept.fragment}"
                self._rerun.gap(f"{self._name}: {version} was found, and not merged again")
                for handle in names(kept.fragment, kept.version):
                    self._arrays.put(handle, None)
            elif not self._history.agrees(kept):
                raise self._differs(record, event, describe(kept), describe(found.kept))
            else:
                workers.take_back(found)

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
                self._begin(effect)
            case _:
                pass  # Timers and observations belong to the first run.

    def _begin(self, work: Work) -> None:
        inputs, outputs = handles_of(work)
        self._outputs[work.work] = outputs
        if self._can_do(work, inputs):
            result = self._results[work.work] = Result()
            if isinstance(work, MergeFragment):
                self._merges = [each for each in self._merges if not each.done.is_set()]
                self._merges.append(result)
            self._nursery.start_soon(self._work, self._workers.do(work), result)

    def _can_do(self, work: Work, inputs: tuple[str, ...]) -> bool:
        """Whether all that the work reads is known: arrays, and the worker's own state.

        A step that could not be executed leaves a worker whose parameters and moments are not
        those of the run; no later step can be checked.
        """
        if isinstance(work, Recover) and not self._simulated():
            return False  # Not done again: see _recover.
        known = self._arrays.known(*inputs)
        if isinstance(work, InstallState):
            self._in_step = known  # A whole state takes the place of whatever was there.
        if isinstance(work, RunStep | CopyState):
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


def same_bits(event: Any) -> tuple[bytes, bytes]:
    """What must be equal of a result: its encoding, and the bits of its loss (NaN has many)."""
    loss = getattr(event, "loss", None)
    bits = struct.pack("<d", loss) if isinstance(loss, float) else b""
    return msgspec.msgpack.encode(event), bits
