"""The effects of an event, as far as a run tells them beside their digest on the tape: the lines of
its log, which name their event, and the messages that other tapes received."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from clocks import actor_of, open_regular
from ddloco.debugger.recorded_job import open_run
from ddloco.debugger.wording import body_phrase
from ddloco.replayer.recording import run_folder_of
from ddloco.stage.actors.effects import Observe
from ddloco.stage.files.run_folder import LOG_FILE
from ddloco.stage.files.toml import ConfigError
from replay import TapeError, tape
from transport import MessageArrived, Transmit

BESIDE = frozenset({"event", "actor", "at", "date", "ref", "level"})
"""Fields of a line of the log that are not of the observation."""

UNTOLD = "only a digest is on the tape"
"""What is shown of an effect that a run tells nowhere."""

Told = tuple[str, str]
"""An effect in words, behind its kind: "log" or "send to" a peer; two of one kind are compared."""


def told_of(effect: Any) -> Told | None:
    """Return an effect in words, if a run may tell it elsewhere, too."""
    match effect:
        case Observe(event=event, fields=fields):
            return "log", _line(event, msgspec.json.decode(msgspec.json.encode(fields)))
        case Transmit():
            return f"send to {actor_of(effect.peer)}", body_phrase(effect.body)
        case _:
            return None


def recorded_effects(path: Path, actor: str, number: int, *, trust: bool = False) -> list[Told]:
    """Return the effects of an event that a run tells; what cannot be read tells none."""
    try:
        return [*_of_log(path, f"{actor}:{number}"), *_of_tapes(path, actor, number, trust=trust)]
    except (OSError, ValueError, TapeError, ConfigError):
        return []


def _of_log(path: Path, ref: str) -> Iterator[Told]:
    with open_regular(run_folder_of(path) / LOG_FILE) as file:
        for line in file:
            if ref.encode() not in line:
                continue
            plain = json.loads(line)
            if isinstance(plain, dict) and plain.get("ref") == ref:  # pyright: ignore[reportUnknownMemberType]
                yield "log", _line(str(plain.get("event")), plain)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def _of_tapes(path: Path, actor: str, number: int, *, trust: bool) -> Iterator[Told]:
    run = open_run(path, trust=trust)
    for who, found in run.tapes.items():
        for record in found.records() if who != actor else ():
            if type(record) is tape.Event and actor.encode() in bytes(record.event):
                _, event = run.event(who, record.n)
                is_from = isinstance(event, MessageArrived) and event.sender == actor
                if is_from and event.clock.get(actor) == number:
                    yield f"send to {actor_of(who)}", body_phrase(event.body)


def _line(event: str, fields: dict[str, Any]) -> str:
    of = {key: value for key, value in fields.items() if key not in BESIDE}
    return ", ".join([event, *(f"{key} {value!r}" for key, value in of.items())])


def compared(
    recorded: Sequence[Told], effects: Sequence[Any]
) -> tuple[list[tuple[str, str, str]], int]:
    """Return the effects that differ, as recorded and as replayed, behind their kinds; and how many
    are equal."""
    now = [told for each in effects if (told := told_of(each)) is not None]
    then = list(recorded)
    equal = 0
    for told in list(now):
        if told in then:
            then.remove(told)
            now.remove(told)
            equal += 1
    rows: list[tuple[str, str, str]] = []
    for kind, text in then:
        instead = next((each for each in now if each[0] == kind), None)
        if instead is not None:
            now.remove(instead)
        rows.append((kind, text, instead[1] if instead is not None else "nothing"))
    return [*rows, *((kind, UNTOLD, text) for kind, text in now)], equal
