"""``ddloco tape show``: one line per event."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clocks import actor_of
from ddloco.cli.ask import complain_of_tape
from ddloco.debugger.exports import json_line
from ddloco.debugger.recorded_run import parse_event
from ddloco.debugger.timeline import TimelineEvent, timeline
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.exit_codes import HELD
from ddloco.stage.process.terminal import one_line
from replay import TapeError, open_tapes, tape

VALUE_CHARS_MAX = 60
"""Longer values are cut off, unless ``--full`` is given."""

AROUND_EVENTS = 10


@dataclass(frozen=True)
class Wanted:
    """Which events to show; empty means all.

    Attributes:
        actor: of this actor or incarnation only.
        kind: of this type only, such as StepFinished, or of messages with this body.
        merge: only what names this global step; None for all.
        around: only the events around this one, as ``syncer.1:540``.
    """

    actor: str = ""
    kind: str = ""
    merge: int | None = None
    around: str = ""

    def has(self, event: TimelineEvent) -> bool:
        """Whether an event is to be shown, wherever it is on the tape."""
        body = event.body or {}
        if self.actor and self.actor not in {event.actor, actor_of(event.actor)}:
            return False
        if self.kind and self.kind not in {event.kind, str(body.get("type", ""))}:
            return False
        if self.merge is None:
            return True
        return self.merge in {body.get("t"), body.get("version"), event.fields.get("t")}


def show(
    folder: Path,
    wanted: Wanted | None = None,
    *,
    as_json: bool,
    full: bool = False,
    salvage: bool = False,
) -> Iterator[str]:
    """Yield the wanted events of all tapes in one causal order, a line each."""
    wanted = wanted or Wanted()
    events = timeline(open_tapes(folder, salvage=salvage))
    if wanted.around:
        events = _around(events, wanted.around)
    for event in events:
        if wanted.has(event):
            yield json_line(event.as_dict()) if as_json else line(event, full=full)


def _around(events: list[TimelineEvent], ref: str) -> list[TimelineEvent]:
    who, number = parse_event(ref)
    for place, event in enumerate(events):
        if (event.actor, event.number) == (who, number):
            return events[max(place - AROUND_EVENTS, 0) : place + AROUND_EVENTS + 1]
    raise ConfigError(f"--around {ref}: no tape has this event")


def line(event: TimelineEvent, *, full: bool = False) -> str:
    """Return an event on one line; its time is that of the common axis."""
    fields = {**event.fields}
    kind = str(fields.pop("type", "?"))
    fields.pop("clock", None)
    body = fields.pop("body", None)
    if isinstance(body, dict):
        kind += f" {body.get('type', '?')}"
        rest = {key: value for key, value in body.items() if key != "type"}
        fields = {"peer": fields.get("peer"), "seq": fields.get("seq"), **rest}
    said = " ".join(f"{key}={_short(value, full=full)}" for key, value in fields.items())
    match event.effects:
        case tape.Effects(_, count):
            outcome = f"-> {count} effects"
        case tape.Raised(_, error):
            outcome = f"-> raised {error}"
        case _:
            outcome = "-> not recorded (killed here)"
    return f"{event.actor}:{event.number:<6} {event.common_at:10.4f} s  {kind} {said} {outcome}"


def _short(value: Any, *, full: bool) -> str:
    text = _in_words(value, full=full)
    return text if full or len(text) <= VALUE_CHARS_MAX else f"{text[: VALUE_CHARS_MAX - 3]}..."


def _in_words(value: Any, *, full: bool) -> str:
    """A value, such as a timer, as text: that of a struct has the struct's name and fields. Bytes
    are in hexadecimal digits, the first eight unless it is ``full``."""
    if isinstance(value, bytes):
        return value.hex() if full else value.hex()[:8]
    if isinstance(value, list):
        return f"[{', '.join(_in_words(each, full=full) for each in value)}]"
    if not isinstance(value, dict) or "type" not in value:
        return str(value)
    rest = (f"{key}={each}" for key, each in value.items() if key != "type")
    return f"{value['type']}({', '.join(rest)})"


def tape_show(given: argparse.Namespace) -> int:
    try:
        wanted = Wanted(given.actor, given.type, given.merge, given.around)
        shown = show(
            given.folder, wanted, as_json=given.json, full=given.full, salvage=given.salvage
        )
        for line in shown:
            print(one_line(line))
    except (TapeError, ConfigError) as error:
        return complain_of_tape(given, error)
    return HELD
