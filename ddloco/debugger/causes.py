"""The chain of causes of an event, back to what came from outside the job.

The cause of a message is the event of its sender that sent it; of a result, the event that asked
for the work; of a timer, the event that set it. Everything else (a start, a connection, a request
of the operator) comes from outside.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from ddloco.actors.effects import Work
from ddloco.actors.events import WorkResult
from ddloco.debugger.recorded_run import RecordedRun
from ddloco.debugger.wording import phrase
from transport import MessageArrived, SetTimer, TimerFired

LOOK_BACK_EVENTS = 256
"""How far back the first search for a cause on the same tape goes; each further one doubles it."""


class Cause(Struct, frozen=True):
    """One link of a chain.

    Attributes:
        event: the event, as ``syncer.1:782``.
        at: its time, in seconds since its actor's start.
        what: what happened, in words.
        because: why, in words; it names the event that comes next in the chain, if there is one.
        before: that event; empty at the end of the chain.
    """

    event: str
    at: float
    what: str
    because: str
    before: str = ""


def chain(run: RecordedRun, incarnation: str, number: int, most: int) -> list[Cause]:
    """Return the chain of causes of an event, that event first.

    Args:
        run: the recorded run.
        incarnation: whose event.
        number: its number.
        most: how many links to return at most.

    Raises:
        ConfigError: there is no such event.
        Divergence: this program decides otherwise than a tape says.
    """
    links: list[Cause] = []
    there: tuple[str, int] | None = (incarnation, number)
    while there is not None and len(links) < most:
        link, there = _link(run, *there)
        links.append(link)
    return links


def _link(run: RecordedRun, who: str, number: int) -> tuple[Cause, tuple[str, int] | None]:
    step = run.at(who, number)
    event, ref, at, what = step.event, f"{who}:{number}", step.at, phrase(step.event)
    match event:
        case MessageArrived():
            sent = event.clock.get(event.sender, 0)
            origin = f"{event.sender}:{sent}"
            if event.sender not in run.tapes or sent > run.tapes[event.sender].events:
                return Cause(ref, at, what, f"{origin} sent it; there is no tape of that"), None
            return Cause(ref, at, what, f"{origin} sent it", origin), (event.sender, sent)
        case WorkResult():
            work = event.work
            asked = _last(run, who, number, lambda e: isinstance(e, Work) and e.work == work)
            verb = "asked for this work"
        case TimerFired():
            name = event.timer
            asked = _last(run, who, number, lambda e: type(e) is SetTimer and e.timer == name)
            verb = "set this timer"
        case _:
            return Cause(ref, at, what, "it came from outside the job"), None
    if asked is None:
        return Cause(ref, at, what, f"an event before the tape begins {verb}"), None
    return Cause(ref, at, what, f"{who}:{asked} {verb}", f"{who}:{asked}"), (who, asked)


def _last(run: RecordedRun, who: str, before: int, asks: Callable[[Any], bool]) -> int | None:
    """Return the last event of an actor before event ``before`` with an effect that ``asks``."""
    stepper, first = run.walker(who), run.first(who)
    span, end = LOOK_BACK_EVENTS, before - 1
    while end >= first:
        begin = max(first, end - span + 1)
        found: int | None = None
        step = stepper.goto(begin)
        while True:
            if any(asks(effect) for effect in step.effects):
                found = step.number
            if step.number >= end:
                break
            step = stepper.goto(step.number + 1)
        if found is not None:
            return found
        end, span = begin - 1, span * 2
    return None
