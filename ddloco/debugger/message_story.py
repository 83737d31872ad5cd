"""What happened to the messages of one event: why they were sent, when each one came, and what its
receiver did then. A message is found by its sender, session, lane and number."""

from collections.abc import Iterator
from typing import Any

from clocks import actor_of
from ddloco.debugger.recorded_run import RecordedRun, parse_event
from ddloco.debugger.story_line import Line
from ddloco.debugger.wording import body_phrase, clipped, effect_phrase, listed, phrase
from ddloco.monitoring.status_view import seconds
from ddloco.stage.actors.effects import Finish, Observe, Work
from ddloco.stage.files.toml import ConfigError
from replay import Step
from transport import MessageArrived, Transmit

SHOWN = Transmit, Work, Observe, Finish
"""What is told of that an actor did."""

MESSAGES_MAX = 16
"""Messages of one event of which the story is told."""


def story_of_message(run: RecordedRun, event: str) -> list[Line]:
    """Return the story of the message that came with an event, or of those that were sent at it.
    ``ConfigError`` if it is of neither."""
    who, number = parse_event(event)
    step = _step(run, who, number)
    if isinstance(step.event, MessageArrived):
        return [*_origin(run, who, step), *_handled(run, who, step)]
    sent = [each for each in step.effects if type(each) is Transmit]
    if not sent:
        said = "brought no message, and none was sent at it"
        raise ConfigError(f"{run.path}: {event}: {phrase(step.event)}: {said}")
    lines = [line for each in sent[:MESSAGES_MAX] for line in _travelled(run, who, step, each)]
    return sorted(lines, key=lambda each: each.at)


def _step(run: RecordedRun, who: str, number: int) -> Step:
    run.event(who, number)  # ``ConfigError`` if there is none.
    return run.at(who, number)


def _is_there(run: RecordedRun, who: str, number: int) -> bool:
    found = run.tapes.get(who)
    return found is not None and found.header.after < number <= found.events


def _origin(run: RecordedRun, who: str, step: Step) -> Iterator[Line]:
    """The event that sent a message, in front of its arrival."""
    event: Any = step.event
    number = event.clock.get(event.sender, 0)
    if not _is_there(run, event.sender, number):
        said = f"{event.sender} sends {body_phrase(event.body)}; no tape here has that event"
        yield Line(run.common(who, step.at), f"{who}:{step.number}", said)
        return
    yield _sent(run, event.sender, _step(run, event.sender, number), event.body, who)


def _sent(run: RecordedRun, who: str, step: Step, body: Any, to: str) -> Line:
    said = f"{who} sends {body_phrase(body)} to {to}, since {clipped(phrase(step.event))}"
    return Line(run.common(who, step.at), f"{who}:{step.number}", said)


def _travelled(run: RecordedRun, who: str, step: Step, sent: Transmit[Any]) -> Iterator[Line]:
    yield _sent(run, who, step, sent.body, sent.peer)
    at, wanted = run.common(who, step.at), (who, sent.session, sent.lane, sent.seq)
    for other in run.tapes:
        if actor_of(other) == actor_of(sent.peer):
            for record, event in run.events(other, type(sent.body)):
                if isinstance(event, MessageArrived) and wanted == (
                    event.sender, event.session, event.lane, event.seq,
                ):  # fmt: skip
                    yield from _handled(run, other, _step(run, other, record.n), at)
                    return
    said = f"no tape of {sent.peer} has it: the link was lost before, or the tape ends before"
    yield Line(at, f"{who}:{step.number}", said)


def _handled(
    run: RecordedRun, who: str, step: Step, sent_at: float | None = None
) -> Iterator[Line]:
    """When it came, and what its receiver did then."""
    event, at = step.event, run.common(who, step.at)
    assert isinstance(event, MessageArrived)
    number = event.clock.get(event.sender, 0)
    if sent_at is None and _is_there(run, event.sender, number):
        sent_at = run.common(event.sender, run.event(event.sender, number)[0])
    after = f", {seconds(max(at - sent_at, 0.0))} later" if sent_at is not None else ""
    told = [each for each in step.effects if isinstance(each, SHOWN)]
    done = listed([effect_phrase(each) for each in told])
    then = f"; then {who}: {done}" if done else f"; {who} notes it, and does nothing more"
    said = f"{body_phrase(event.body)} is with {who}{after}{then}"
    yield Line(max(at, sent_at or at), f"{who}:{step.number}", said)
