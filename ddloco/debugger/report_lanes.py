"""What a report shows of each actor's tape, on one time axis, in columns of small numbers. A column
that only grows (times, event numbers, inner steps) holds differences: the first value, then how
much each one is larger than the one before it."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict

from clocks import actor_of
from ddloco.debugger.recorded_job import RecordedJob
from ddloco.debugger.recorded_run import RecordedRun
from ddloco.job.protocol.compression import Format, compressed_layout
from ddloco.job.protocol.fragment_plan import FragmentPlan
from ddloco.job.protocol.messages import Contribution, GlobalFragment, Pull, StatePiece
from ddloco.job.protocol.time_spent import TimeSpent, of_step
from ddloco.job.protocol.work import Evaluated, FragmentEncoded, StateInstalled, StepFinished
from ddloco.machines.syncer.estimates import Recent
from ddloco.stage.actors.events import (
    Captured,
    Computed,
    DismissRequested,
    LeaveRequested,
    Restored,
    SnapshotRequested,
    StopRequested,
    WorkFailed,
)
from replay import TapeError
from snapshot import SnapshotError
from transport import LaneBroken, Marker, MessageArrived, aligned

BLOCKS_MAX = 24_000
"""Blocks of steps in one report; with more steps, several are put into one block."""

BLOCKS_OF_ONE_MAX = 20_000
FINER_MAX = 160_000
"""Blocks of steps of the finest level in one report; a block takes about 20 bytes of the file."""

LEVEL_TIMES = 8
"""Between two levels whose sizes differ by more than this, there is a third one."""

MARKS_MAX = 24_000
"""Pulls, contributions and installed fragments in one report, per kind."""

NOTES_MAX = 400
"""Other marks of one incarnation."""

GAPS_MAX = 400
"""Gaps of one incarnation."""

GAP_SHARE_MIN = 0.0005
"""Of the time axis: a shorter gap would not be seen."""

CLOCK_NUMBERS_MAX = 300_000
"""Clock entries of one report, which are about a megabyte."""

TEXT_MAX = 300
"""Characters of a reason; tapes may hold more."""


class Blocks(Struct):
    """The inner steps of an incarnation, in blocks.

    Attributes:
        size: steps in each block but the last one.
        end: when the last step of each block was finished (differences).
        n: the event of that (differences).
        step: the number of that step (differences).
        loss: the mean loss of each block; none where it is not finite.
    """

    size: int
    end: list[int]
    n: list[int]
    step: list[int]
    loss: list[float | None]


class Steps(Blocks):
    """The blocks that a page shows first.

    Attributes:
        clock: the entries that the actor learned since the block before: actor, number, ...; absent
            if there would be too many.
        finer: the same in smaller blocks, the larger ones first, as far as the file holds them;
            shown when the page is zoomed in.
    """

    count: int = 0
    begun: int = 0
    clock: list[list[int]] | None = None
    finer: list[Blocks] = []


class Marks(Struct):
    """Events of one kind on a lane; ``of`` is how many there are, if not all are shown."""

    of: int
    at: list[int]
    n: list[int]
    t: list[int]
    p: list[int]


class Note(Struct):
    """A rare event, with what it says."""

    at: int
    n: int
    kind: str
    text: str


class Gap(Struct):
    """Part of a step in which nothing was computed, with what there was instead."""

    at: int
    to: int
    kind: str
    text: str


class LaneSegment(Struct):
    """One incarnation on the lane of its actor; ``end`` says how its tape ends."""

    incarnation: str
    begin: int
    end: int
    events: int
    how: str
    killed: bool
    steps: Steps | None
    marks: dict[str, Marks]
    notes: list[Note]
    gaps: list[Gap] = []


class Lane(Struct):
    """One actor."""

    actor: str
    kind: str
    segments: list[LaneSegment]


class Point(Struct):
    at: float
    n: int
    t: int = 0
    p: int = 0


class RawStep(Struct):
    """A finished inner step as it was read, or several that were asked for at once, ``count`` of
    them, with the mean of their losses; ``learned`` are clock entries since the one before, and
    ``spent`` is what ``spent_in`` says."""

    at: float
    n: int
    step: int
    loss: float
    tokens: int
    learned: dict[str, int]
    apart: tuple[float, float] = (0.0, 0.0)
    """Seconds of waiting for the batch, and of compiling again."""
    spent: TimeSpent = TimeSpent()
    count: int = 1


@dataclass(frozen=True)
class Received:
    """A payload that arrived: "up", "down" or "piece", from whom, and which fragment or piece."""

    kind: str
    peer: str
    which: int
    form: Format | UnsetType = UNSET

    def nbytes(self, plan: FragmentPlan) -> int:
        """The bytes of a fragment as it was sent, without the message's header."""
        if self.which >= len(plan.fragments):
            return 0
        if self.form is UNSET:
            start, stop = plan.fragment_slice(self.which)
            return stop - start
        return sum(aligned(n) for _, (n,), _ in compressed_layout(plan, self.which, self.form))


@dataclass
class TapeContent:
    """What a report needs of one tape, with times on the common axis, in seconds."""

    incarnation: str
    begin: float = math.inf
    end: float = -math.inf
    begun: float | None = None
    steps: list[RawStep] = field(default_factory=list[RawStep])
    marks: dict[str, list[Point]] = field(default_factory=dict[str, list[Point]])
    notes: list[tuple[float, int, str, str]] = field(
        default_factory=list[tuple[float, int, str, str]]
    )
    held_out: list[tuple[float, int, float]] = field(default_factory=list[tuple[float, int, float]])
    payloads: list[Received] = field(default_factory=list[Received])
    """Of each message with a payload: kind, peer, and fragment or piece."""
    clocks: dict[int, dict[str, int]] = field(default_factory=dict[int, dict[str, int]])


def read_tape(
    run: RecordedRun, incarnation: str, offset: float, wanted: Iterable[int] = ()
) -> TapeContent:
    content = TapeContent(incarnation)
    asked = set(wanted)
    known = dict(run.tape_of(incarnation).header.clock)
    learned: dict[str, int] = {}
    cuts: set[str] = set()
    for record, event in run.events(incarnation):
        at = record.at + offset
        content.begin, content.end = min(content.begin, at), max(content.end, at)
        if record.clock:
            known.update(record.clock)
            learned.update(record.clock)
        if record.n in asked:
            content.clocks[record.n] = {**known, incarnation: record.n}
        match event:
            case StepFinished():
                each = [one for _, one in event.steps()]
                loss = sum(one.loss for one in each) / len(each)
                told = event.step, loss, sum(one.tokens for one in each), learned
                apart = event.data_s, event.compiling_s
                content.steps.append(RawStep(at, record.n, *told, apart, count=event.count))
                learned = {}
            case MessageArrived():
                _see_message(content, at, record.n, event, cuts)
            case FragmentEncoded():
                _mark(content, "sent", Point(at, record.n))
            case Computed():
                _mark(content, "worked", Point(at, record.n))
            case _:
                _see_rare(content, at, record.n, event, cuts)
    return content


def set_spent(content: TapeContent) -> None:
    """Say of each step how its time was spent, as the learner's machine does."""
    begun, usual = content.begun, Recent()
    for each in content.steps:
        if begun is not None:
            usual_s = each.count * usual.value if usual.value is not None else None
            each.spent = of_step(each.step, each.at - begun, *each.apart, usual_s)
            if each.step > 1:
                usual.add((each.at - begun) / each.count)
        begun = each.at


def _mark(content: TapeContent, kind: str, point: Point) -> None:
    content.marks.setdefault(kind, []).append(point)


def _see_message(
    content: TapeContent, at: float, n: int, event: MessageArrived[Any], cuts: set[str]
) -> None:
    body = event.body
    match body:
        case Pull():
            _mark(content, "pulled", Point(at, n, body.t, body.fragment))
        case GlobalFragment():
            _mark(content, "received", Point(at, n, body.version, body.fragment))
            if event.payload:
                content.payloads.append(Received("down", event.peer, body.fragment, body.form))
        case Contribution():
            if event.payload:
                content.payloads.append(Received("up", event.peer, body.fragment, body.form))
        case StatePiece():
            if event.payload:
                content.payloads.append(Received("piece", event.peer, body.piece))
        case Marker():
            if body.snapshot not in cuts:
                cuts.add(body.snapshot)
                content.notes.append((at, n, "snapshot", f"cut of snapshot {body.snapshot}"))
        case _ if event.payload:
            _mark(content, "arrived", Point(at, n))
        case _:
            pass


def _see_rare(content: TapeContent, at: float, n: int, event: Any, cuts: set[str]) -> None:
    note = content.notes.append
    match event:
        case Evaluated() if event.loss is not None:
            content.held_out.append((at, n, event.loss))
        case LaneBroken():
            note((at, n, "broken", f"link to {event.peer} broken: {event.reason}"))
        case WorkFailed():
            note((at, n, "failed", f"{event.kind} failed: {event.reason}"))
        case StopRequested():
            note((at, n, "stop", f"stop requested: {event.reason}"))
        case LeaveRequested():
            note((at, n, "stop", f"asked to leave: {event.reason}"))
        case DismissRequested():
            note((at, n, "stop", f"{event.who} asked to leave for good"))
        case Restored():
            note((at, n, "returned", f"continues from snapshot {event.snapshot}"))
        case StateInstalled() if event.sound:
            note((at, n, "returned", "installed the state of another learner"))
        case SnapshotRequested():
            note((at, n, "snapshot", "a snapshot was requested"))
        case Captured() if not cuts:
            cuts.add("")  # Who begins a snapshot gets no marker before its part is written.
            note((at, n, "snapshot", "wrote its part of a snapshot"))
        case _:
            pass


def first_step_at(run: RecordedJob, learner: str) -> float | None:
    """Return when a learner asked for its first step, on its own clock; None if its tape does not
    say."""
    try:
        asked = run.first_step(learner)
    except (TapeError, SnapshotError):
        return None  # The beginning of the tape is not there.
    return asked.at if asked is not None else None


class Axis:
    """The common time axis of a report: whole units of time since its beginning."""

    def __init__(self, begin: float, end: float) -> None:
        span = max(end - begin, 1e-6)
        self.begin, self.span_s = begin, span
        self.unit_s = max(10.0 ** (math.ceil(math.log10(span)) - 8), 1e-6)

    def place(self, at: float) -> int:
        return round((at - self.begin) / self.unit_s)


class Names:
    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self.all)
            self.all.append(name)
        return self._numbers[name]

    def clock(self, entries: dict[str, int], omitted: str) -> list[int]:
        """Return clock entries as actor, number, actor, number."""
        pairs = [(self.number(who), n) for who, n in entries.items() if who != omitted]
        return [number for pair in sorted(pairs) for number in pair]


def to_differences(values: Iterable[int]) -> list[int]:
    """Return each value's difference to the one before it; the first one as it is."""
    before, result = 0, list[int]()
    for value in values:
        result.append(value - before)
        before = value
    return result


def evenly(count: int, most: int) -> Iterator[int]:
    if count <= most:
        yield from range(count)
    else:
        yield from (i * count // most for i in range(most))


def lanes_of(
    run: RecordedRun, contents: Sequence[TapeContent], axis: Axis, names: Names, share: int
) -> list[Lane]:
    """Return a lane for each actor, in the program's order: of a job, syncers first."""
    syncers = run.syncers if isinstance(run, RecordedJob) else ()
    learners = max(len(run.tapes) - len(syncers), 1) * share
    blocks = max(min(BLOCKS_OF_ONE_MAX, BLOCKS_MAX // learners), 1)
    finer = max(FINER_MAX // learners, blocks)
    marks = max(MARKS_MAX // learners, 1)
    lanes: dict[str, Lane] = {}
    for content in contents:
        actor = actor_of(content.incarnation)
        kind = "syncer" if content.incarnation in syncers else "learner"
        lane = lanes.setdefault(actor, Lane(actor, kind, []))
        lane.segments.append(_segment(run, content, axis, names, (blocks, finer, marks)))
    steps = [each.steps for lane in lanes.values() for each in lane.segments if each.steps]
    if (
        sum(len(entries) for each in steps for entries in each.clock or ())
        > CLOCK_NUMBERS_MAX // share
    ):
        for each in steps:
            each.clock = None
    found = [lanes.pop(actor) for actor in run.program.names if actor in lanes]
    return [*found, *lanes.values()]


def _segment(
    run: RecordedRun, content: TapeContent, axis: Axis, names: Names, most: tuple[int, int, int]
) -> LaneSegment:
    blocks, finer, marks = most
    tape = run.tape_of(content.incarnation)
    empty = content.end < content.begin
    how = f"ended: {tape.closed}" if tape.closed is not None else "its tape is not closed: killed"
    runs = run.runs(content.incarnation)
    how = "its tape has no end yet" if runs else how
    if tape.damage:
        how = f"its tape is damaged: {tape.damage}"
    notes = [Note(axis.place(at), n, kind, clip(said)) for at, n, kind, said in content.notes]
    return LaneSegment(
        incarnation=content.incarnation,
        begin=0 if empty else axis.place(content.begin),
        end=0 if empty else axis.place(content.end),
        events=tape.events,
        how=clip(how),
        killed=tape.closed is None and not runs,
        steps=_blocks(content, axis, names, blocks, finer) if content.steps else None,
        marks={kind: _thinned(found, axis, marks) for kind, found in content.marks.items()},
        notes=notes[:NOTES_MAX],
        gaps=gaps_in(content, axis),
    )


def gaps_in(content: TapeContent, axis: Axis) -> list[Gap]:
    """Return when a learner compiled, waited for a batch, or was stopped: the longest ones. When in
    a step that was is not known; it is shown at the step's beginning."""
    found: list[tuple[float, Gap]] = []
    begun = content.begun
    for each in content.steps:
        spent = each.spent
        kinds = {
            "compiling": spent.compiling,
            "stopped": spent.stopped,
            "waiting for data": spent.data,
        }
        kind = max(kinds, key=lambda name: kinds[name])
        idle = each.at - begun - spent.computing if begun is not None else 0.0
        if begun is not None and idle > max(axis.span_s * GAP_SHARE_MIN, spent.computing):
            text = f"{kind} for {kinds[kind]:.3g} s in inner step {each.step}"
            gap = Gap(axis.place(begun), axis.place(begun + idle), kind, text)
            found.append((idle, gap))
        begun = each.at
    longest = sorted(found, key=lambda pair: -pair[0])[:GAPS_MAX]
    return sorted((gap for _, gap in longest), key=lambda gap: gap.at)


def _blocks(content: TapeContent, axis: Axis, names: Names, most: int, finer: int) -> Steps:
    """Put steps into blocks of equal size, at most ``most``; and at most ``finer`` smaller ones."""
    steps = content.steps
    size = -(-len(steps) // most)
    groups = [steps[i : i + size] for i in range(0, len(steps), size)]
    clock: list[list[int]] = []
    for group in groups:
        learned: dict[str, int] = {}
        for each in group:
            learned.update(each.learned)
        clock.append(names.clock(learned, content.incarnation))
    begun = content.begun if content.begun is not None else steps[0].at
    return Steps(
        **asdict(_in_blocks(steps, axis, size)),
        count=sum(each.count for each in steps),
        begun=axis.place(begun),
        clock=clock,
        finer=[_in_blocks(steps, axis, each) for each in _sizes(size, -(-len(steps) // finer))],
    )


def _sizes(coarse: int, fine: int) -> list[int]:
    if fine >= coarse:
        return []
    if coarse <= LEVEL_TIMES * fine:
        return [fine]
    return [round(math.sqrt(coarse * fine)), fine]


def _in_blocks(steps: Sequence[RawStep], axis: Axis, size: int) -> Blocks:
    groups = [steps[i : i + size] for i in range(0, len(steps), size)]
    lasts = [group[-1] for group in groups]
    return Blocks(
        size=size,
        end=to_differences(axis.place(each.at) for each in lasts),
        n=to_differences(each.n for each in lasts),
        step=to_differences(each.step for each in lasts),
        loss=[finite(_mean_loss(group)) for group in groups],
    )


def _mean_loss(group: Sequence[RawStep]) -> float:
    return sum(each.loss * each.count for each in group) / sum(each.count for each in group)


def _thinned(found: Sequence[Point], axis: Axis, most: int) -> Marks:
    shown = [found[i] for i in evenly(len(found), most)]
    return Marks(
        of=len(found),
        at=to_differences(axis.place(each.at) for each in shown),
        n=to_differences(each.n for each in shown),
        t=to_differences(each.t for each in shown),
        p=[each.p for each in shown],
    )


def finite(value: float | None) -> float | None:
    """Return a number with six digits, None if it is not finite."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def clip(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"
