"""Compares the events of a tape with what happens again: messages, results of work, snapshots."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, final

import msgspec
import trio

from ddloco.replayer.message_matcher import Posted, message_key
from ddloco.replayer.replay_state import ReplayState
from ddloco.replayer.tape_runner import (
    DependsOnDivergence,
    Difference,
    Mismatch,
    PendingWork,
    ReplayExecutor,
    TapeRunner,
    open_pending,
)
from ddloco.stage.actors.actor import Actor
from ddloco.stage.actors.effects import Work
from ddloco.stage.actors.events import Captured, Restored, WorkFailed, WorkResult
from ddloco.stage.driver.resume import Start, passed
from replay import Divergence, Player, event_line, tape
from transport import GREETINGS, Marker, MessageArrived, Payload

NEVER_SAID = "nothing: never sent"
"""In place of a message that a replay of its sender does not send."""

NOT_ASKED = "nothing: not asked for"


@final
class Comparer:
    def __init__(
        self, state: ReplayState, player: Player[Any], pending: PendingWork, start: Start | None
    ) -> None:
        self._state = state
        self._player = player
        self._name = player.tape.incarnation
        self._pending = pending
        self._executor = pending.executor
        self._start = start
        results = start.results if start is not None else ()
        self._given = {each.work: each for each in results}

    def admit(
        self, record: tape.Event, event: Any, outcome: tape.Effects | tape.Raised | None
    ) -> Sequence[Any]:
        return self._player.play(record, event, outcome)

    async def confirm(self, record: tape.Event, event: Any) -> Any:
        """Wait until what an event says has become true again."""
        try:
            if self._executor.check_fact(event):
                await trio.lowlevel.checkpoint()
                return event
        except Mismatch as found:
            raise self._player.differs(
                record, event, "result", found.recorded, found.found
            ) from None
        match event:
            case MessageArrived():
                await self._confirm_message(record, event)
            case WorkResult():
                await self._confirm_result(record, event)
            case Restored(snapshot):
                there = self._state.start_point
                if there is not None and there.start(self._name) and snapshot != there.snapshot:
                    raise self._player.differs(record, event, "result", snapshot, there.snapshot)
            case _:
                await trio.lowlevel.checkpoint()
        return event

    # Messages.

    async def _confirm_message(self, record: tape.Event, event: MessageArrived[Any]) -> None:
        payload: Payload | None = None
        state, number = self._state, event.clock.get(event.sender, 0)
        if self._is_before(event.sender, number):
            payload = self._confirm_flight(record, event)
        elif state.posted_by(event.sender, number):
            key = message_key(self._name, event)
            posted = await state.mailbox.take(key)
            if posted is None and state.has_parted(event.sender):
                raise DependsOnDivergence
            if posted is None:
                raise self._differs(record, event, event, NEVER_SAID)
            self._compare_message(record, event, posted)
            payload = posted.payload
            if event.handle:
                state.mailbox.take_payload(key)
        if event.handle:
            self._executor.arrays.put(event.handle, payload)

    def _is_before(self, sender: str, number: int) -> bool:
        """Whether a message was said before the cut of the snapshot that this replay begins with; a
        former incarnation had ended before it."""
        there = self._state.start_point
        if there is None:
            return False
        former = self._start is not None and there.is_former(sender)
        return there.before(sender, number) or former

    def _confirm_flight(self, record: tape.Event, event: MessageArrived[Any]) -> Payload | None:
        """Confirm a message that was said before the cut and came after it: it must have been in
        flight."""
        assert self._start is not None, "an actor that began later knows no event before that"
        found = {passed(each): each for each in self._start.flight}.get(passed(event))
        if found is None:
            if type(event.body) not in GREETINGS | {Marker}:
                said = f"{event_line(event.body)} of {event.sender} was said before the cut"
                report = self._state.report
                report.unverified += 1
                report.gaps.append(f"{self._name}:{record.n}: {said}, and is not in the snapshot")
            return None
        if not same(msgspec.structs.replace(found, handle=event.handle), event):
            raise self._differs(record, event, event, found)
        self._state.report.payloads += bool(event.handle)
        return self._start.payload(found)

    def _compare_message(
        self, record: tape.Event, event: MessageArrived[Any], posted: Posted
    ) -> None:
        said = posted.said
        if not _arrives_as(event.body, said.body):
            raise self._differs(record, event, event.body, said.body)
        if event.clock != said.clock:
            raise self._differs(record, event, event.clock, said.clock)
        if posted.payload is not None:
            self._state.report.payloads += 1
            if posted.payload.digest != event.payload:
                got = f"payload {posted.payload.digest.hex()}"
                raise self._differs(record, event, f"payload {event.payload.hex()}", got)

    def _differs(self, record: tape.Event, event: Any, expected: Any, actual: Any) -> Divergence:
        return self._player.differs(record, event, "message", expected, actual)

    # Results of work.

    async def _confirm_result(self, record: tape.Event, event: WorkResult) -> None:
        pending = self._pending.take(event.work)
        if isinstance(event, WorkFailed) and event.kind != "task":
            # The world's doing, not the work's: a fact, like the time.
            self._state.report.notes.append(f"{self._name}:{record.n}: {event.reason}")
            return
        if self._wrote(event):
            return
        given = self._given.pop(event.work, None)
        if given is not None:
            work = pending.work if pending is not None else None
            self._compare_result(record, (event, given), difference_of(event, given), work)
            return
        if pending is None and self._start is not None and event.work < 0:
            said = "of an earlier snapshot, whose writing had begun before this replay does"
            self._state.report.notes.append(f"{self._name}:{record.n}: {said}")
            return
        if pending is None:
            raise self._player.differs(record, event, "result", event, NOT_ASKED)
        if not pending.begun:
            # Its inputs are missing: taken from the tape.
            self._state.report.unverified += 1
            for handle in pending.work.makes:
                if not isinstance(event, WorkFailed):
                    self._executor.arrays.put(handle, None)
            return
        found = await pending.result()
        difference = self._executor.difference(event, found)
        self._compare_result(record, (event, found), difference, pending.work)

    def _compare_result(
        self,
        record: tape.Event,
        results: tuple[WorkResult, WorkResult],
        difference: Difference | None,
        work: Work | None,
    ) -> None:
        if difference is None:
            return
        found = self._player.differs(record, results[0], "result", *results)
        found.hint, found.tensor, found.work = difference.said, difference.tensor, work
        raise found

    def _wrote(self, event: WorkResult) -> bool:
        if self._start is None or not isinstance(event, Captured):
            return False
        return event.content in self._start.part.contents


@asynccontextmanager
async def open_comparison(
    state: ReplayState,
    player: Player[Any],
    actor: Actor,
    executor: ReplayExecutor,
    start: Start | None,
) -> AsyncIterator[TapeRunner]:
    async with open_pending(executor) as pending:
        comparer = Comparer(state, player, pending, start)
        if start is not None:
            pending.resume(actor, start)
        yield TapeRunner(state, actor, player, comparer, pending)


MEASURED = frozenset({"data_s", "compiling_s", "corrupt", "reads"})
"""Fields of results that say how long something took, or that a machine computed wrongly, which no
replay repeats; and what a task has read, which is told as a difference of identity."""


def difference_of(recorded: Any, found: Any) -> Difference | None:
    if type(recorded) is not type(found):
        return Difference("the work ended otherwise")
    fields = [name for name in recorded.__struct_fields__ if name not in MEASURED]
    differ = [name for name in fields if not same(getattr(recorded, name), getattr(found, name))]
    return Difference(f"differs in {', '.join(differ)}") if differ else None


def same(one: Any, other: Any) -> bool:
    """Whether two values have the same type and bits: NaN is the same as NaN, 0.0 is not -0.0."""
    return type(one) is type(other) and msgspec.msgpack.encode(one) == msgspec.msgpack.encode(other)


def _arrives_as(body: Any, said: Any) -> bool:
    """Whether what a sender said arrives as ``body``. They are not equal if a learner reports that
    its loss is NaN, and have other bits if a field of type float was set to an integer."""
    if body == said:
        return True
    return same(body, msgspec.msgpack.decode(msgspec.msgpack.encode(said), type=type(said)))
