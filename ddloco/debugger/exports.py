"""Runs in the formats of other tools: traces of Perfetto, logs of ShiViz, spans of OpenTelemetry.
All times are on one axis (``timeline``). No machine is stepped but those of learners, up to their
first step: a tape does not say when that was asked for."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from clocks import actor_of
from ddloco.debugger.recorded_job import RecordedJob, open_job
from ddloco.debugger.timeline import TimelineEvent, sent_at, timeline
from ddloco.machines.learner.machine import Learner
from ddloco.replayer.recording import run_folder_of
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.programs.program import is_program
from replay import Divergence, Tape, TapeError
from snapshot import SnapshotError

NAME_FIELDS = ("step", "t", "fragment", "version")
"""Fields that are part of a name, where an event has them."""


class WorkSpan(NamedTuple):
    """Work between the event before it and the event that tells of its end, in seconds."""

    actor: str
    name: str
    begin: float
    end: float
    fields: dict[str, Any]


def json_line(plain: Any) -> str:
    """JSON on one line; a number that is NaN or infinite is null, because JSON has neither."""
    return msgspec.json.encode(plain).decode()


def export_jsonl(tapes: Sequence[Tape]) -> Iterator[str]:
    for event in timeline(tapes):
        yield json_line(event.as_dict())


def export_shiviz(tapes: Sequence[Tape]) -> Iterator[str]:
    r"""Yield a log for ShiViz, two lines an event: a description, then host and vector clock.

    ShiViz reads it with its default expression, ``(?<event>.*)\n(?<host>\S*) (?<clock>{.*})``.
    """
    for event in timeline(tapes):
        yield f"{event.common_at:.4f} s {event_name(event)}"
        yield f"{event.actor} {json_line(event.clock.wire())}"


def export_perfetto(tapes: Sequence[Tape]) -> Iterator[str]:
    """Yield a trace in the Trace Event Format, one JSON object, which Perfetto and Chrome open. A
    process for each actor and a thread for each incarnation; inner steps and merges are slices,
    other events are instants, and messages are arrows."""
    events = timeline(tapes)
    incarnations = sorted({event.actor for event in events}, key=str.encode)
    actors = sorted({actor_of(name) for name in incarnations}, key=str.encode)
    place = {name: (actors.index(actor_of(name)) + 1, i + 1) for i, name in enumerate(incarnations)}
    lines: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": actor}}
        for pid, actor in enumerate(actors, start=1)
    ]
    lines += [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
        for name, (pid, tid) in place.items()
    ]
    spans = list(spans_of(events, first_steps(tapes)))
    zero = _zero(events, spans)
    times = {(event.actor, event.number): event.common_at for event in events}
    for span in spans:
        pid, tid = place[span.actor]
        lines.append(
            {
                "ph": "X",
                "name": span.name,
                "cat": "work",
                "pid": pid,
                "tid": tid,
                "ts": _us(span.begin - zero),
                "dur": _us(span.end - span.begin),
                "args": span.fields,
            }
        )
    for event in events:
        lines += _perfetto_event(event, place, zero, times)
    yield '{"displayTimeUnit": "ms", "traceEvents": ['
    for index, line in enumerate(lines):
        yield json_line(line) + ("," if index + 1 < len(lines) else "")
    yield "]}"


def _perfetto_event(
    event: TimelineEvent,
    place: dict[str, tuple[int, int]],
    zero: float,
    times: dict[tuple[str, int], float],
) -> Iterator[dict[str, Any]]:
    pid, tid = place[event.actor]
    at = {"pid": pid, "tid": tid, "ts": _us(event.common_at - zero)}
    ref = f"{event.actor}:{event.number}"
    yield {
        **at,
        "ph": "i",
        "s": "t",
        "name": event_name(event),
        "cat": event.kind,
        "args": {"event": ref, "clock": event.clock.wire()},
    }
    sender = event.fields.get("sender")
    if event.kind == "MessageArrived" and sender in place:
        sent = sent_at(event, sender)
        yield {**at, "ph": "f", "bp": "e", "name": "message", "cat": "message", "id": ref}
        spid, stid = place[sender]
        yield {
            "ph": "s",
            "name": "message",
            "cat": "message",
            "id": ref,
            "pid": spid,
            "tid": stid,
            "ts": _us(times.get((sender, sent), event.common_at) - zero),
            "args": {"sent": f"{sender}:{sent}"},
        }


def export_otlp(tapes: Sequence[Tape]) -> Iterator[str]:
    """Yield spans of OpenTelemetry, as the JSON of one OTLP export request: a resource for each
    incarnation, a span for each inner step and merge. The clock's zero stands for the Unix epoch:
    tapes have no time of day."""
    trace = hashlib.sha256(tapes[0].header.job_id.encode()).hexdigest()[:32]
    events = timeline(tapes)
    all_spans = list(spans_of(events, first_steps(tapes)))
    zero = _zero(events, all_spans)
    by_actor: dict[str, list[WorkSpan]] = {each.incarnation: [] for each in tapes}
    for span in all_spans:
        by_actor[span.actor].append(span)
    resources: list[dict[str, Any]] = []
    for actor, spans in by_actor.items():
        told = [_otlp_span(trace, span, number, zero) for number, span in enumerate(spans)]
        name = {"key": "service.name", "value": {"stringValue": actor}}
        scope = {"scope": {"name": "ddloco"}, "spans": told}
        resources.append({"resource": {"attributes": [name]}, "scopeSpans": [scope]})
    yield json_line({"resourceSpans": resources})


def _zero(events: Sequence[TimelineEvent], spans: Sequence[WorkSpan]) -> float:
    """The time that exports call 0: nothing begins before it."""
    return min(
        [*(event.common_at for event in events), *(span.begin for span in spans)], default=0.0
    )


def _otlp_span(trace: str, span: WorkSpan, number: int, zero: float) -> dict[str, Any]:
    digest = hashlib.sha256(f"{trace}/{span.actor}/{number}".encode()).hexdigest()
    return {
        "traceId": trace,
        "spanId": digest[:16],
        "name": span.name,
        "kind": 1,
        "startTimeUnixNano": str(round((span.begin - zero) * 1e9)),
        "endTimeUnixNano": str(round((span.end - zero) * 1e9)),
        "attributes": [
            {"key": key, "value": {"stringValue": str(value)}} for key, value in span.fields.items()
        ],
    }


class BegunWork(NamedTuple):
    """When a learner asked for the step that a tape shows first: the event, 0 if that was before
    the tape begins, and the time on its own clock, in seconds."""

    number: int
    at: float


def first_steps(tapes: Sequence[Tape]) -> dict[str, BegunWork]:
    """Return when each learner asked for the first inner step of its tape, by incarnation, without
    those whose machine this program does not have, or whose tape continues from a snapshot that is
    not there, or that must not be opened without trust."""
    found: dict[str, BegunWork] = {}
    if not tapes or is_program(tapes[0].header.job):
        return found
    with suppress(ConfigError, TapeError):
        run = open_job(run_folder_of(tapes[0].path), salvage=True)
        for name in run.learners:
            with suppress(ConfigError, TapeError, Divergence, SnapshotError):
                begun = _first_step(run, name)
                found |= {name: begun} if begun is not None else {}
    return found


def _first_step(run: RecordedJob, name: str) -> BegunWork | None:
    stepper = run.stepper(name)
    machine = stepper.actor.machine
    running = machine.running if isinstance(machine, Learner) else None
    if running is not None:  # It ran where the tape begins.
        return BegunWork(0, running.since)
    asked = run.first_step(name)
    return BegunWork(asked.number, asked.at) if asked is not None else None


def spans_of(
    events: Sequence[TimelineEvent], first: Mapping[str, BegunWork] | None = None
) -> Iterator[WorkSpan]:
    """Yield inner steps and merges as spans. An inner step begins when the one before it is
    finished, the first one when it was asked for or, where that is not known, at the actor's first
    event. A merge begins with the newest contribution to it, which is when its work is asked for,
    unless a deadline did that."""
    first = first or {}
    since: dict[str, float] = {}
    for event in events:
        begun = first.get(event.actor)
        if begun is not None and event.number == begun.number:
            since[event.actor] = event.common_at
        elif begun is not None and begun.number == 0 and event.actor not in since:
            since[event.actor] = event.common_at - max(event.at - begun.at, 0.0)
        plain = event.fields
        if event.kind == "StepFinished":
            begin = min(since.get(event.actor, event.common_at), event.common_at)
            fields = {"loss": plain.get("loss"), "tokens": plain.get("tokens")}
            last, before = plain.get("step"), len(plain.get("before") or ())
            name = f"steps {last - before} to {last}" if last and before else f"step {last}"
            yield WorkSpan(event.actor, name, begin, event.common_at, fields)
            since[event.actor] = event.common_at
        elif event.kind == "FragmentMerged":
            begin = min(since.get(event.actor, event.common_at), event.common_at)
            fields = {"accepted": plain.get("accepted"), "refused": plain.get("refused")}
            yield WorkSpan(event.actor, "merge", begin, event.common_at, fields)
        elif event.body is not None and event.body.get("type") == "Contribution":
            since[event.actor] = event.common_at
        else:
            since.setdefault(event.actor, event.common_at)


def event_name(event: TimelineEvent) -> str:
    """Return a short name: the type, and the numbers that tell one such event from another."""
    body = event.body or {}
    kind = f"{event.kind} {body.get('type', '')}".strip()
    fields = {**event.fields, **body}
    numbers = [f"{name} {fields[name]}" for name in NAME_FIELDS if name in fields]
    return " ".join([kind, *numbers])


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


FORMATS = {
    "jsonl": export_jsonl,
    "otlp": export_otlp,
    "perfetto": export_perfetto,
    "shiviz": export_shiviz,
}
