"""Events in words, for people."""

from collections.abc import Sequence
from typing import Any

from ddloco.job.protocol.events import Started
from ddloco.job.protocol.messages import Contribution, GlobalFragment, Progress, Pull
from ddloco.job.protocol.work import FragmentEncoded, FragmentMerged, StepFinished
from ddloco.stage.actors.effects import Finish, Observe, Work
from ddloco.stage.actors.events import Computed, WorkFailed
from ddloco.stage.programs.user_actor import NOT_HERE
from transport import MessageArrived, SetTimer, TimerFired, Transmit

FIELDS_CHARS_MAX = 120

LISTED_MAX = 4
"""Differences, settings and names that are printed."""


def phrase(event: Any) -> str:
    match event:
        case MessageArrived():
            return f"{body_phrase(event.body)} arrived from {event.sender}"
        case StepFinished():
            first = event.step - len(event.before)
            who = f"step {first}" if event.before else "it"
            wrong = f"; {who} had two results: {event.corrupt}" if event.corrupt else ""
            which = (
                f"inner steps {first} to {event.step}" if event.before else f"inner step {first}"
            )
            last = "the last one's " if event.before else ""
            return (
                f"{which} finished: {last}loss {event.loss:.6g}, {event.tokens} tokens, "
                f"batch {event.batch.hex()[:8]}{wrong}"
            )
        case FragmentMerged():
            took = ", ".join(event.accepted) or "no contribution"
            refused = "".join(f"; refused {who}: {why}" for who, why in event.refused)
            return f"a merge finished: took {took}{refused}"
        case FragmentEncoded():
            return f"a fragment was encoded: digest {event.digest.hex()[:8]}"
        case Computed():
            made = ", ".join(digest.hex()[:8] for digest in event.made) or "nothing"
            value = getattr(event, "value", None)
            returned = clipped(f", and returned {value!r}") if value is not None else ""
            return f"work {event.work} made {made}{returned}"
        case WorkFailed():
            return f"work failed: {event.reason}"
        case TimerFired():
            return f"the timer {event.timer} fired"
        case Started():
            return f"{event.incarnation} started"
        case _:
            return _fields(event)


def body_phrase(body: Any) -> str:
    match body:
        case Progress():
            return f"Progress (step {body.step})"
        case Pull():
            return f"Pull (global step {body.t}, fragment {body.fragment})"
        case Contribution():
            return (
                f"Contribution (global step {body.t}, fragment {body.fragment}, from version "
                f"{body.base}, {body.steps:,} steps, {body.tokens:,} tokens)"
            )
        case GlobalFragment():
            return f"GlobalFragment (fragment {body.fragment}, version {body.version})"
        case _:
            return _fields(body)


def effect_phrase(effect: Any) -> str:
    match effect:
        case Transmit():
            return f"send {body_phrase(effect.body)} to {effect.peer}"
        case Observe(event=event):
            return f"log {event!r}"
        case SetTimer(timer=timer):
            return f"set timer {getattr(timer, 'name', class_phrase(type(timer).__name__))}"
        case Work():
            return f"begin {class_phrase(type(effect).__name__)}"
        case Finish():
            return f"end: {effect.reason}"
        case _:
            return class_phrase(type(effect).__name__)


def class_phrase(kind: str) -> str:
    """A class as words: ``StateCopied`` is "state copied"."""
    return "".join(f" {each.lower()}" if each.isupper() else each for each in kind).strip()


def _fields(value: Any) -> str:
    name = type(value).__name__
    text = ", ".join(
        f"{field} {getattr(value, field)!r}"
        for field in getattr(value, "__struct_fields__", ())
        if not isinstance(shown := getattr(value, field), bytes) and shown != NOT_HERE
    )
    return f"{name} ({clipped(text)})" if text else name


def listed(names: Sequence[str]) -> str:
    more = len(names) - LISTED_MAX
    return ", ".join(names[:LISTED_MAX]) + (f" and {more} more" if more > 0 else "")


def clipped(text: str, width: int = FIELDS_CHARS_MAX) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."
