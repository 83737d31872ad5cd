"""What can be checked of tapes without executing anything: records, order, clocks.

Every event's clock is computed again from the messages that the tape says arrived, and compared
with what was written; every message must come from an event that had happened, and bring what its
lane brought before and more. Over several tapes, all events must fit into one causal order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from clocks import CausalityError, VectorClock, actor_of, causal_sort, check_entries, number_of
from replay import tape
from replay.tape import Tape, TapeError


@dataclass(frozen=True, slots=True)
class Receipt:
    """A message as its receiver's tape has it; ``lane`` names the channel and its session."""

    sender: str
    lane: tuple[Any, ...]
    seq: int
    clock: dict[str, int]


ReceiptOf = Callable[[dict[str, Any]], Receipt | None]
"""Reads a receipt out of an event as plain data, None for any other event; raises ValueError if it
cannot be read."""


@dataclass
class TapeMoment:
    actor: str
    number: int
    clock: VectorClock


@dataclass
class TapeVerdict:
    """What was found on one tape."""

    incarnation: str
    events: int = 0
    messages: int = 0
    ends: str = ""
    problems: list[str] = field(default_factory=list[str])


def verify(tapes: Sequence[Tape], receipt_of: ReceiptOf) -> tuple[list[TapeVerdict], list[str]]:
    """Check every tape, then all of them together; verdicts, and problems between tapes.

    Raises:
        TapeError: a tape cannot be read.
    """
    verdicts: list[TapeVerdict] = []
    moments: dict[str, list[TapeMoment]] = {}
    for each in tapes:
        verdict, events = _verify_one(each, receipt_of)
        verdicts.append(verdict)
        moments[each.incarnation] = events
    cut_short = [each.incarnation for each in tapes if each.closed is None]
    try:
        causal_sort(moments, cut_short, {each.incarnation: each.header.after for each in tapes})
    except CausalityError as error:
        return verdicts, [str(error)]
    return verdicts, []


def _verify_one(each: Tape, receipt_of: ReceiptOf) -> tuple[TapeVerdict, list[TapeMoment]]:
    me = each.incarnation
    verdict = TapeVerdict(me)
    clock = VectorClock(each.header.clock)
    heard: dict[tuple[Any, ...], Receipt] = {}
    unheeded: dict[tuple[Any, ...], int] = {}
    moments: list[TapeMoment] = []
    unanswered = 0
    for record in each.records():
        if not isinstance(record, tape.Event):
            unanswered = 0
            continue
        if unanswered:
            verdict.problems.append(f"event {unanswered}: no record of its effects")
        unanswered = record.n
        receipt = _receipt(each, record, receipt_of)
        learned: dict[str, int] = {}
        if receipt is not None:
            verdict.messages += 1
            problem = _improbable(me, clock, receipt, heard.get(receipt.lane))
            if problem:
                verdict.problems.append(f"event {record.n}: {problem}")
            heard[receipt.lane] = receipt
            learned = {n: c for n, c in receipt.clock.items() if n != me and c > clock[n]}
            known = [*clock, *learned]
            for name in [n for n in learned if n not in record.clock and _succeeded(n, known)]:
                del learned[name]  # Retired: its actor has come back under a higher number.
            if learned and not record.clock:
                unheeded[receipt.lane] = receipt.seq  # No part of an open session, then.
                learned = {}
            elif record.clock and unheeded.pop(receipt.lane, receipt.seq) == receipt.seq - 1:
                problem = f"message {receipt.seq} follows one that taught nothing"
                verdict.problems.append(f"event {record.n}: {problem}")
        if dict(sorted(learned.items())) != dict(sorted(record.clock.items())):
            problem = f"the clock grew by {record.clock}, its message says {learned}"
            verdict.problems.append(f"event {record.n}: {problem}")
        clock = clock.merge(record.clock).tick(me)
        moments.append(TapeMoment(me, record.n, clock))
    verdict.events = len(moments)
    last = each.header.after + len(moments)
    verdict.ends = each.closed or f"not closed, after event {last}"
    return verdict, moments


def _receipt(each: Tape, record: tape.Event, receipt_of: ReceiptOf) -> Receipt | None:
    """What an event says of a message; events of any kind have their fields by name."""
    problem = "it has no fields"
    try:
        event = msgspec.msgpack.decode(record.event)
        if isinstance(event, dict):
            receipt = receipt_of(event)
            check_entries(receipt.clock if receipt is not None else {})
            return receipt
    except (ValueError, RecursionError) as error:
        problem = str(error)
    problem = f"event {record.n} is unknown to this version: {problem}"
    raise TapeError(each.path, 0, problem)


def _succeeded(name: str, known: list[str]) -> bool:
    actor, number = actor_of(name), number_of(name)
    return any(actor_of(each) == actor and number_of(each) > number for each in known)


def _improbable(
    me: str, clock: VectorClock, receipt: Receipt, before: Receipt | None
) -> str | None:
    """Why this message cannot have come now, if so."""
    if receipt.sender not in receipt.clock:
        return f"a message of {receipt.sender} without its own count"
    if receipt.clock.get(me, 0) > clock[me]:
        return f"a message of {receipt.sender} knows {me}:{receipt.clock[me]}, not yet happened"
    if before is None or receipt.sender != before.sender:
        return None
    if receipt.seq > before.seq and receipt.clock[receipt.sender] < before.clock[before.sender]:
        return f"a message of {receipt.sender} is older than the one before it in its lane"
    return None
