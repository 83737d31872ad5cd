"""What people read of a replay that differs from its recording: the sentence first, then the values
that differ, what was equal until then, the usual cause, and the command that shows more of it."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ddloco.debugger.comparison_table import ROWS_MAX, WIDTH, Row, entry, table, title_lines
from ddloco.debugger.nondeterminism import uses_in
from ddloco.debugger.recorded_effects import UNTOLD, Told, compared
from ddloco.debugger.wording import body_phrase, class_phrase, clipped, effect_phrase, phrase
from ddloco.job.protocol.events import Started
from ddloco.job.protocol.work import (
    EncodeFragment,
    Evaluated,
    FragmentDecoded,
    FragmentEncoded,
    FragmentMerged,
    MergeFragment,
    ModelSaved,
    OneStep,
    ParametersMade,
    Recovered,
    StepFinished,
)
from ddloco.replayer.comparer import MEASURED, same
from ddloco.replayer.report import Report
from ddloco.stage.actors.events import Captured, Computed, Restored
from ddloco.stage.process.terminal import quoted
from ddloco.stage.programs.user_actor import handler_of
from replay import Divergence
from transport import MessageArrived

Kind = Literal["DATA", "ARITHMETIC", "DECISION", "MESSAGE", "SETUP"]

CAUSES: dict[Kind, str] = {
    "DATA": "The task's stream brought something else for the same data shard and position. It "
    "depends on more than shard, seed and its own state: a clock, a file, a global variable or an "
    "unseeded generator.",
    "ARITHMETIC": "The same inputs gave another result. The task uses something beside its "
    "arguments, a package or the hardware computes otherwise, or a machine errs: then a second "
    "replay differs elsewhere.",
    "DECISION": "The same event led to something else. The actor's code is another one, or uses "
    "something that is in neither the event nor its attributes: a clock, a file, a random number.",
    "MESSAGE": "The replay of the sender says something else. Its tape or this one was changed, or "
    "they are not of one run.",
    "SETUP": "The task, or what was found on the disk, is not that of the run.",
}
"""What such a difference usually comes from, where nothing else is known to differ."""

OF_SOURCE = frozenset({"DATA", "ARITHMETIC", "DECISION"})
"""Kinds whose cause may be in the user's source."""

STREAM = frozenset({"next", "batches", "__iter__", "__next__"})
"""Where a stream draws its batches."""

USES_MAX = 2
"""So many calls anywhere in the source are named as a possible cause."""

NAMES = {
    "theta": "parameters",
    "wire": "payload",
    "state": "outer state",
    "moved": "length",
    "digest": "digest",
    "made": "arrays",
    "leaves": "tensors",
    "step_s": "step time, s",
}
"""Fields by the words of the field's users."""


class Explained(Struct, frozen=True):
    """A difference in the words of the job.

    Attributes:
        equal: what was compared and equal until then.
        cause: what it usually comes from.
        command: what shows more of it, from the subcommand on, before and after the run folder.
    """

    kind: Kind
    what: str
    rows: tuple[Row, ...]
    equal: tuple[str, ...]
    cause: str
    command: tuple[Sequence[str], Sequence[str]]

    @property
    def title(self) -> str:
        return f"DIFFERENT {self.kind}: {self.what}"


def explained(found: Divergence, report: Report, recorded: Sequence[Told] = ()) -> Explained:
    """Return a difference in words; ``recorded`` is what the run tells of the event's effects."""
    kind, what, rows, same_too = _found(found, recorded)
    cause = found.hint if isinstance(found.values[0], StepFinished) and _corrupt(found) else ""
    event = f"{found.actor}:{found.number}"
    command: tuple[Sequence[str], Sequence[str]]
    if isinstance(found.work, MergeFragment):
        command = ("why",), ("merge", str(found.work.t))
    elif kind in ("MESSAGE", "SETUP"):
        command = ("why",), ("event", event)
    else:
        command = ("replay",), ("--until", event, "--shell")
    equal = (*same_too, _before(found, report))
    return Explained(kind, what, tuple(rows), equal, cause or CAUSES[kind], command)


def screen(
    report: Report,
    folder: Path | str,
    *,
    changed: bool = False,
    options: Sequence[str] = (),
    sources: Mapping[str, str] = {},
    recorded: Sequence[Told] = (),
) -> list[str]:
    """Return the lines about a replay with a difference. ``changed`` says whether source, versions
    or flags differ, which was said before; the command is for this run folder and these
    ``options``. ``sources`` are files of the user's, by name, in which the cause may be;
    ``recorded`` is what the run tells of the effects of the first difference's event."""
    first, *others = report.divergences
    said = explained(first, report, recorded)
    where = f"(event {first.actor}:{first.number})"
    lines = title_lines(said.title, where)
    lines += list(table(said.rows))
    lines += entry("equal", "; ".join(said.equal), 2)
    if report.dependent:
        names = ", ".join(sorted(report.dependent))
        lines += entry("not compared", f"what follows from it, on {names}", 1)
    cause = "look first at what differs from the recording, named above." if changed else said.cause
    if not changed and said.kind in OF_SOURCE:
        cause += _uses(first, sources)
    lines += textwrap.wrap(f"cause: {cause}", WIDTH, subsequent_indent="  ")
    if others:
        count = len(report.divergences)
        lines.append(f"The first of {count:,} that do not follow from each other; the next:")
        lines.append(clipped(f"  {explained(others[0], report).title}", WIDTH))
    see = "See it" if others else "1 difference. See it"
    lines.append(f"{see}, or all there is with replay --verbose:")
    before, after = said.command
    known = options if before == ("replay",) else [each for each in options if each == "--trust"]
    lines.append(f"  {quoted(['ddloco', *before, folder, *after, *known])}")
    return lines


# What differs.

Found = tuple[Kind, str, list[Row], list[str]]


def _found(found: Divergence, recorded: Sequence[Told] = ()) -> Found:
    event, (then, now) = found.happened, found.values
    match found.aspect:
        case "message":
            return _of_message(found, then, now)
        case "effects":
            return _of_decision(found, then, now, recorded)
        case "clock":
            what = f"how {found.actor} counts events at {phrase(event)}"
            return "DECISION", what, list(_rows(then, now)), []
        case "exception":
            what = f"how {found.actor} handles {phrase(event)}"
            return "DECISION", what, [Row("exception", str(then), str(now), marked=True)], []
        case _:
            pass
    if isinstance(event, Started | Recovered | Restored):
        what = f"what {found.actor} begins with"
        return "SETUP", what, list(_rows(then, now)), []
    if isinstance(then, StepFinished) and isinstance(now, StepFinished):
        return _of_step(found, then, now)
    if type(then) is not type(now):
        what = f"{_result(found)} of {found.actor}"
        rows = [Row("result", _words(then), _words(now))]
        return "DECISION" if isinstance(now, str) else "ARITHMETIC", what, rows, []
    rows = list(_rows(then, now))
    if found.tensor:
        rows = [Row("tensor", found.tensor, "another digest"), *rows]
    equal = _equal_fields(then, now)
    return "ARITHMETIC", f"{_result(found)} of {found.actor}", rows, equal


def _of_step(found: Divergence, then: StepFinished, now: StepFinished) -> Found:
    pairs = list(zip(then.steps(), now.steps(), strict=False))
    unequal = [(step, one, two) for (step, one), (_, two) in pairs if not _same(one, two)]
    step, one, two = unequal[0] if unequal else (then.step, pairs[-1][0][1], pairs[-1][1][1])
    rows, of = list(_rows(one, two)), f"inner step {step} of {found.actor}"
    batch = f"its batch ({one.batch.hex()[:8]})"
    if one.batch != two.batch:
        return "DATA", f"the batch of {of}", rows, []
    if unequal:
        kind: Kind = "DATA" if one.tokens != two.tokens else "ARITHMETIC"
        return kind, f"the {rows[0].name} of {of}", rows, [batch]
    rows = [row for row in _rows(then, now) if row.name not in OneStep.__struct_fields__]
    if then.cursor != now.cursor:
        return "DATA", f"the position of the data after {of}", rows, [batch, "its loss"]
    if found.tensor:
        rows = [Row("tensor", found.tensor, "another digest")]
        return "ARITHMETIC", f"the update of {of}", rows, [batch, f"its loss ({one.loss:.6g})"]
    names = ", ".join(row.name for row in rows)
    return "ARITHMETIC", f"{names} of {of}", rows, [batch, f"its loss ({one.loss:.6g})"]


def _corrupt(found: Divergence) -> bool:
    return bool(getattr(found.values[0], "corrupt", ""))


def _result(found: Divergence) -> str:
    match found.work:
        case MergeFragment(t=t, fragment=fragment):
            return f"the merge of global step {t} (fragment {fragment})"
        case EncodeFragment(fragment=fragment):
            return f"the payload of fragment {fragment}"
        case _:
            pass
    match found.happened:
        case FragmentMerged():
            return "a merge"
        case FragmentEncoded():
            return "a fragment's payload"
        case FragmentDecoded():
            return "a fragment that was decompressed"
        case ParametersMade():
            return "the first parameters"
        case Evaluated():
            return "the evaluation of the final model"
        case ModelSaved():
            return "the saved model"
        case Captured():
            return "a part of a snapshot"
        case Computed(work=number):
            return f"work {number}"
        case StepFinished(step=step):
            return f"inner step {step}"
        case _:
            return class_phrase(type(found.happened).__name__)


def _uses(found: Divergence, sources: Mapping[str, str]) -> str:
    """What in the user's source may be the cause: where it was decided, or else all there is, if
    that is little; of much, most is something else."""
    event: Any = found.happened
    names = {handler_of(type(event.body))} if isinstance(event, MessageArrived) else STREAM
    uses = uses_in(sources)
    near = [each for each in uses if each.function.rpartition(".")[2] in names]
    uses = near or (uses if len(uses) <= USES_MAX else [])
    if not uses:
        return ""
    more = f", or {len(uses) - 1} more like it" if uses[1:] else ""
    return f" It may be {uses[0]}{more}."


def _of_message(found: Divergence, then: Any, now: Any) -> Found:
    event: MessageArrived[Any] = found.happened
    kind = type(event.body).__name__
    what = f"the {kind} message of {event.sender} to {found.actor}"
    if isinstance(then, MessageArrived):
        rows = [Row("message", body_phrase(event.body), _words(now))]
        if isinstance(now, MessageArrived):
            rows = list(_rows(then, now))
        return "MESSAGE", what, rows, []
    if isinstance(then, str):
        said, got = (text.removeprefix("payload ")[:8] for text in (then, now))
        return "MESSAGE", f"the payload of {what}", [Row("payload", said, got)], ["what it says"]
    if isinstance(then, dict):
        return "MESSAGE", f"the clock of {what}", list(_rows(then, now)), ["what it says"]
    return "MESSAGE", what, list(_rows(then, now)), _equal_fields(then, now)


def _of_decision(
    found: Divergence, count: int, effects: Sequence[Any], recorded: Sequence[Told]
) -> Found:
    what = f"what {found.actor} does on {phrase(found.happened)}"
    differ, same = compared(recorded, effects) if recorded else ([], 0)
    if any(then != UNTOLD for _, then, _ in differ):
        rows = [Row(kind, then, now, marked=True) for kind, then, now in differ]
        equal = [f"{same:,} of {count:,} effects"] if same else []
        return "DECISION", what, rows, [*equal, "the event and its clock"]
    said = [effect_phrase(each) for each in effects]
    rows = [Row("effects", f"{count:,}", f"{len(said):,}, with another digest")]
    rows += [Row(f"  {n}", UNTOLD, text) for n, text in enumerate(said, 1)]
    return "DECISION", what, rows, ["the event and its clock"]


# Values.


def _same(one: Any, other: Any) -> bool:
    return one is other or same(one, other)  # What is not set cannot be encoded.


def _rows(then: Any, now: Any, name: str = "") -> Iterator[Row]:
    """The innermost values that differ, each with its name."""
    if type(then) is type(now):
        parts = _parts(then, now)
        if parts is not None:
            for key, one, two in parts:
                if not _same(one, two):
                    yield from _rows(one, two, _joined(name, key))
            return
    marked = isinstance(then, int | float | str) and isinstance(now, int | float | str)
    yield Row(name or "value", _words(then), _words(now), marked=marked)


def _parts(then: Any, now: Any) -> list[tuple[str, Any, Any]] | None:
    """The parts of two values of one type, by name; None if they are no wholes."""
    if isinstance(then, Struct):
        fields = [each for each in then.__struct_fields__ if each not in MEASURED]
        return [(each, getattr(then, each), getattr(now, each)) for each in fields]
    if isinstance(then, dict):
        keys: list[Any] = list(dict.fromkeys([*then, *now]))
        return [(str(key), then.get(key, "not there"), now.get(key, "not there")) for key in keys]
    if isinstance(then, list | tuple) and len(then) == len(now):  # pyright: ignore[reportUnknownArgumentType]
        return [(str(n), *pair) for n, pair in enumerate(zip(then, now, strict=True))]
    return None


def _joined(name: str, key: str) -> str:
    key = NAMES.get(key, key)
    return f"{name}.{key}" if name and not key.isdigit() else f"{name} {key}".strip()


def _equal_fields(then: Any, now: Any) -> list[str]:
    """The names of the fields that are equal and not empty, if they are few enough to read; two of
    different types have none in common."""
    names: tuple[str, ...] = then.__struct_fields__ if type(then) is type(now) else ()
    fields = [each for each in names if each not in MEASURED | {"work", "t"}]
    found = [
        NAMES.get(each, each)
        for each in fields
        if _same(getattr(then, each), getattr(now, each))
        and getattr(then, each) not in (None, b"", (), "", msgspec.UNSET)
    ]
    return [f"its {', '.join(found)}"] if 0 < len(found) <= ROWS_MAX else []


def _words(value: Any) -> str:
    match value:
        case bytes():
            return value.hex()[:8] or "empty"
        case float():
            return f"{value!r}"
        case tuple() | list():
            inner = ", ".join(_words(each) for each in value)  # pyright: ignore[reportUnknownVariableType]
            return inner or "none"
        case Struct():
            return phrase(value)
        case None | msgspec.UNSET:
            return "none"
        case _:
            return " ".join(str(value).split()) or "empty"


def _before(found: Divergence, report: Report) -> str:
    counts = report.equal.get(found.actor, {})
    events = counts.get("events", 0)
    more = [_counted(n, name) for name, n in counts.items() if n and name != "events"]
    within = f", with {', '.join(more)}" if more else ""
    if not events:
        return "nothing, since it is the first event that was compared"
    return f"{_counted(events, 'events')} of {found.actor} before it{within}"


def _counted(number: int, names: str) -> str:
    return f"{number:,} {names.removesuffix('s') if number == 1 else names}"
