"""Displaying tapes, one line per event, and the checks that need no execution."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgpack
import msgspec

from clocks import VectorClock, actor_of, causal_sort
from ddloco.invariants.merged_tokens import Share
from ddloco.invariants.tape_audit import Audit, Finding
from ddloco.programs.program import is_production
from ddloco.replayer.recording import job_of, open_recording
from replay import Receipt, Tape, open_tapes, tape, verify

VALUE_CHARS_MAX = 60


class Arrival(msgspec.Struct, frozen=True):
    """The fields of a MessageArrived event that are needed here."""

    peer: str
    lane: str
    session: int
    sender: str
    seq: int
    clock: dict[str, int]


class ShownEvent:
    """An event with the fields of its line; decoded with msgpack, without a schema."""

    def __init__(self, actor: str, record: tape.Event, clock: VectorClock) -> None:
        self.actor = actor
        self.number = record.n
        self.clock = clock
        self.at = record.at
        self.fields: dict[str, Any] = msgpack.unpackb(record.event)
        self.effects: tape.Effects | tape.Raised | None = None

    def as_dict(self) -> dict[str, Any]:
        """The event as plain data; bytes are hexadecimal."""
        return {
            "event": f"{self.actor}:{self.number}",
            "at": self.at,
            "clock": self.clock.wire(),
            **_plain(self.fields),
            "effects": self.effects.count if isinstance(self.effects, tape.Effects) else None,
        }

    def line(self) -> str:
        """The event on one line, for display."""
        fields = {**self.fields}
        kind = str(fields.pop("type", "?"))
        fields.pop("clock", None)
        body = fields.pop("body", None)
        if isinstance(body, dict):
            kind += f" {body.pop('type', '?')}"
            fields = {"peer": fields.get("peer"), "seq": fields.get("seq"), **body}
        said = " ".join(f"{key}={_short(value)}" for key, value in fields.items())
        match self.effects:
            case tape.Effects(_, count):
                outcome = f"-> {count} effects"
            case tape.Raised(_, error):
                outcome = f"-> raised {error}"
            case _:
                outcome = "-> not recorded (killed here)"
        return f"{self.actor}:{self.number:<6} {self.at:10.4f} s  {kind} {said} {outcome}"


def show(folder: Path, *, as_json: bool) -> Iterator[str]:
    """The events of all tapes in one causal order, one line each.

    Raises:
        TapeError: a tape cannot be read.
    """
    tapes = open_tapes(folder)
    events = {each.incarnation: events_of(each) for each in tapes}
    cut_short = [each.incarnation for each in tapes if each.closed is None]
    after = {each.incarnation: each.header.after for each in tapes}
    for event in causal_sort(events, cut_short, after):
        yield json.dumps(event.as_dict()) if as_json else event.line()


def events_of(each: Tape) -> list[ShownEvent]:
    """A tape's events with their whole clocks."""
    events: list[ShownEvent] = []
    clock = VectorClock(each.header.clock)
    for record in each.records():
        if isinstance(record, tape.Event):
            clock = clock.merge(record.clock).tick(each.incarnation)
            events.append(ShownEvent(each.incarnation, record, clock))
        elif isinstance(record, tape.Effects | tape.Raised) and events:
            events[-1].effects = record
    return events


def verify_folder(folder: Path, *, as_json: bool) -> tuple[bool, list[str]]:
    """Check all tapes, their records, clocks and invariants; returns whether they hold, and a
    report.

    Raises:
        TapeError: a tape cannot be read.
        ConfigError: this version cannot run the recorded job.
    """
    tapes = open_recording(folder)
    verdicts, between = verify(tapes, receipt_of)
    goes_on = any(each.header.after for each in tapes)  # The checks would need the earlier events.
    program = is_production(tapes[0].header.job)
    findings: list[Finding] = []
    share: Share | None = None
    if not (goes_on or program):
        audit = Audit(tapes)
        findings, share = audit.run(), audit.share()
    sound = not between and not any(verdict.problems for verdict in verdicts)
    missing = [] if program else _missing_syncers(tapes)
    held = sound and not missing and not any(finding.violation for finding in findings)
    if as_json:
        found = {
            "tapes": [asdict(verdict) for verdict in verdicts],
            "between": between,
            "missing": missing,
            "invariants": [asdict(finding) for finding in findings],
            "tokens": asdict(share) if share is not None and share.merges else None,
        }
        return held, [json.dumps({"held": held, **found}, indent=2)]
    lines: list[str] = []
    for verdict in verdicts:
        counts = f"{verdict.events} events, {verdict.messages} messages"
        lines.append(f"{verdict.incarnation:<14} {counts}, ends: {verdict.ends}")
        lines += [f"  {verdict.incarnation} {problem}" for problem in verdict.problems]
        if verdict.lost is not None:
            lines.append(f"  gap: {verdict.incarnation}: {verdict.lost}")
    total = sum(verdict.events for verdict in verdicts)
    lines += between
    lines += [f"gap: {name}: no tape" for name in missing]
    lines += [finding.line() for finding in findings]
    if share is not None and share.merges:
        lines.append(share.line())
    good = f"held: {total} events of {len(verdicts)} tapes, every record, clock and invariant"
    lines += [f"{each.incarnation:<14} {dropped_before(each)}" for each in tapes if each.dropped]
    if program:
        good = f"held: {total} events of {len(verdicts)} tapes, every record and clock"
    elif goes_on:
        good = f"held: {total} events of {len(verdicts)} tapes, every record and clock; invariants "
        dropped = any(each.dropped for each in tapes)
        why = "have lost their beginnings" if dropped else "go on from a snapshot"
        good += f"were not looked at: these tapes {why}"
    bad = "not held: tapes are missing" if sound and missing else "failed"
    return held, [*lines, good if held else bad]


def _missing_syncers(tapes: Sequence[Tape]) -> list[str]:
    """The syncers without a tape; without theirs, merges cannot be verified."""
    there = {actor_of(each.incarnation) for each in tapes}
    return [name for name in job_of(tapes[0]).syncer_names() if name not in there]


def dropped_before(each: Tape) -> str:
    """A description of the deleted part of a tape."""
    return f"begins behind event {each.header.after}: what lay before it was dropped"


def receipt_of(event: dict[str, Any]) -> Receipt | None:
    """The receipt in an arrival, which is given as plain data.

    Raises:
        ValueError: it does not have the fields of an arrival.
    """
    if event.get("type") != "MessageArrived":
        return None
    said = msgspec.convert(event, Arrival)
    return Receipt(said.sender, (said.peer, said.lane, said.session), said.seq, said.clock)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


def _short(value: Any) -> str:
    text = value.hex()[:8] if isinstance(value, bytes) else str(value)
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[: VALUE_CHARS_MAX - 3]}..."
