"""What a report shows of a run, as compact plain data: a summary, lanes, merges and losses. The
syncer's machine is stepped once, and every tape is decoded; nothing is executed."""

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from clocks import actor_of
from ddloco.debugger.detectors import LOSSES, detect
from ddloco.debugger.loss_analysis import LossFindings, analyse_losses
from ddloco.debugger.merge_history import Merge
from ddloco.debugger.outer_gain import outer_gain
from ddloco.debugger.recorded_job import RecordedJob
from ddloco.debugger.recorded_run import RecordedRun, parse_event
from ddloco.debugger.report_lanes import (
    Axis,
    Lane,
    Names,
    TapeContent,
    clip,
    finite,
    first_step_at,
    lanes_of,
    read_tape,
    set_spent,
    to_differences,
)
from ddloco.debugger.report_merges import Bars, Matrix, bars_of, columns_shown, matrix_of, syncer_of
from ddloco.debugger.run_diff import compare
from ddloco.debugger.stuck import stuck_at_end
from ddloco.debugger.version_travel import travels_of
from ddloco.job.config import Outer
from ddloco.job.protocol.status import Numbers
from ddloco.monitoring.status_view import interval_in_words, seconds, time_in_words
from ddloco.stage.process.terminal import quoted
from replay import tape

POINTS_MAX = 24_000
"""Points of all loss curves of one run."""

BINS = 240
"""Parts of the time axis for the goodput."""

DIFFERENCES_MAX = 20


class Fact(Struct):
    """A line of the summary: what it is about, the figure, and what it means."""

    label: str
    value: str
    note: str = ""


class ReportCurve(Struct):
    """A learner's losses over all its incarnations; ``of`` is how many there are, and ``parts`` are
    the positions at which another incarnation begins."""

    learner: str
    of: int
    parts: list[int]
    at: list[int]
    step: list[int]
    loss: list[float | None]


class LaneMoment(Struct):
    at: int
    event: str
    text: str


class LinkLife(Struct):
    """Payloads between a learner and the syncers: messages and bytes each way."""

    learner: str
    up: int
    up_bytes: int
    down: int
    down_bytes: int
    pieces: int


class RunData(Struct):
    """One run.

    Attributes:
        unit_s: the unit of every time, in seconds; ``end`` is the last moment.
        names: of incarnations, as clocks and cells number them.
        goodput: per part of the axis, the share of the learners' time spent computing.
        breaks: where losses left their bands, the first ones first.
        now: what the run waits for where its tapes end, or that it does not.
        findings: what stands out, of all detectors.
        path: the run folder as it was given, as a shell reads it.
    """

    name: str
    unit_s: float
    end: int
    facts: list[Fact]
    names: list[str]
    lanes: list[Lane]
    bars: Bars
    matrix: Matrix
    gaps: list[str]
    curves: list[ReportCurve] = []
    goodput: list[float] = []
    links: list[LinkLife] = []
    breaks: list[LaneMoment] = []
    held_out: list[tuple[int, float]] = []
    findings: list[str] = []
    now: list[str] = []
    path: str = ""


class Parting(Struct):
    """A first difference of two runs, with where it is in each of them."""

    what: str
    kind: str
    detail: str
    one: LaneMoment
    other: LaneMoment


class ReportData(Struct):
    runs: list[RunData]
    same: bool = True
    lines: list[str] = []
    partings: list[Parting] = []


class _Reader:
    def __init__(self, run: RecordedRun, share: int = 1) -> None:
        self.run, self.share = run, share
        self.names = Names()
        self.contents = self.read()
        begin = min((each.begin for each in self.contents if each.begin <= each.end), default=0.0)
        end = max((each.end for each in self.contents if each.begin <= each.end), default=0.0)
        self.axis = Axis(begin, end)

    def read(self) -> list[TapeContent]:
        return [read_tape(self.run, who, self.run.offsets.get(who, 0.0)) for who in self.run.tapes]

    def moment(self, event: str, text: str) -> LaneMoment:
        who, number = parse_event(event)
        at = 0.0
        for record in self.run.tape_of(who).records(number - 1):
            if isinstance(record, tape.Event):
                at = record.at
                break
        return LaneMoment(self.axis.place(self.run.common(who, at)), event, clip(text))

    def data(self) -> RunData:
        actors, tapes = self.run.program.names, self.run.tapes.values()
        events = sum(each.events - each.header.after for each in tapes)
        work = sum(len(each.marks.get("worked", ())) for each in self.contents)
        killed = sum(each.closed is None and not self.run.runs(each.incarnation) for each in tapes)
        returned = len(tapes) - len({actor_of(each) for each in self.run.tapes})
        facts = [
            Fact("Program", self.run.program.name, self.run.program.source_name),
            self.duration(events),
            Fact("Work", f"{work:,}", "computations that are done"),
            Fact("Actors", str(len(actors)), f"{killed} killed, {returned} returned"),
        ]
        return self.shown(facts, actors, [], {})

    def duration(self, events: int) -> Fact:
        said = f"{events:,} events on {len(self.run.tapes)} tapes"
        return Fact("Duration", seconds(self.axis.span_s), said)

    def shown(
        self,
        facts: list[Fact],
        rows: Sequence[str],
        merges: Sequence[Merge],
        clocks: dict[str, dict[str, int]],
        columns: Sequence[Merge] = (),
    ) -> RunData:
        return RunData(
            name=self.run.path.resolve().name,
            unit_s=self.axis.unit_s,
            end=self.axis.place(self.axis.begin + self.axis.span_s),
            facts=facts,
            lanes=lanes_of(self.run, self.contents, self.axis, self.names, self.share),
            bars=bars_of(merges, self.run.common, self.axis, self.names, self.share),
            matrix=matrix_of(
                columns,
                len(merges),
                learners=rows,
                placed=self.placed,
                clocks=clocks,
                names=self.names,
            ),
            gaps=[clip(each) for each in self.run.preface()],
            now=[clip(each) for each in stuck_at_end(self.run).lines()],
            path=quoted([self.run.path]),
            names=self.names.all,
        )

    def placed(self, merge: Merge) -> int:
        return self.axis.place(self.run.common(syncer_of(merge), merge.at))


class _JobReader(_Reader):
    def __init__(self, run: RecordedJob, share: int = 1) -> None:
        self.job = run
        merges = list(run.merges())
        self.merges = sorted(merges, key=lambda each: run.common(syncer_of(each), each.at))
        self.learners = run.job.learner_names()
        self.columns = columns_shown(self.merges, len(self.learners), share)
        super().__init__(run, share)

    def read(self) -> list[TapeContent]:
        """Read all tapes, and the clocks at the merges that are shown."""
        run, wanted = self.job, dict[str, list[int]]()
        for merge in self.columns:
            wanted.setdefault(syncer_of(merge), []).append(merge.number)
        contents = [
            read_tape(run, who, run.offsets.get(who, 0.0), wanted.get(who, ())) for who in run.tapes
        ]
        for content in contents:
            if content.incarnation in run.learners and content.steps:
                first = first_step_at(run, content.incarnation)
                if first is not None:
                    content.begun = run.common(content.incarnation, first)
            set_spent(content)
        return contents

    def data(self) -> RunData:
        found = analyse_losses(self.job)
        clocks = {
            f"{each.incarnation}:{n}": clock
            for each in self.contents
            for n, clock in each.clocks.items()
        }
        shown = self.shown(_facts(self, found), self.learners, self.merges, clocks, self.columns)
        shown.curves = [self.curve(learner) for learner in self.learners]
        shown.goodput = [round(each, 4) for each in self.goodput()]
        shown.links = self.links()
        shown.breaks = [
            self.moment(
                each.event, f"loss of {each.learner}: {each.loss:.4g}, usually {each.usual:.4g}"
            )
            for each in found.breaks
        ]
        shown.held_out = [
            (self.axis.place(at), float(f"{loss:.6g}"))
            for each in self.contents
            for at, _, loss in each.held_out
            if finite(loss) is not None
        ]
        shown.findings = [clip(each) for each in found.lines() if found.breaks or found.suspect]
        others, _ = detect(self.job, without=LOSSES)
        shown.findings += [clip(line) for each in others for line in each.lines]
        return shown

    def of_learner(self, learner: str) -> list[TapeContent]:
        return [each for each in self.contents if actor_of(each.incarnation) == learner]

    def curve(self, learner: str) -> ReportCurve:
        """Return a learner's losses; of too many, the least and the largest of each stretch."""
        contents = [each for each in self.of_learner(learner) if each.steps]
        of = sum(len(each.steps) for each in contents)
        most = max(POINTS_MAX // self.share // max(len(self.learners), 1), 8)
        shown: list[tuple[int, int, float]] = []
        parts: list[int] = []
        for content in contents:
            parts.append(len(shown))
            points = [(self.axis.place(each.at), each.step, each.loss) for each in content.steps]
            shown += _extremes(points, most * len(points) // of) if of > most else points
        return ReportCurve(
            learner=learner,
            of=of,
            parts=parts,
            at=to_differences(at for at, _, _ in shown),
            step=to_differences(step for _, step, _ in shown),
            loss=[finite(loss) for _, _, loss in shown],
        )

    def goodput(self) -> list[float]:
        """Return the share of all learners' time spent computing, for each part of the axis."""
        width = self.axis.span_s / BINS
        busy = [0.0] * BINS
        for content in self.contents:
            for each in content.steps:
                # What was not computing came before: a batch that was late, or a suspension.
                begun = (each.at - each.spent.computing - self.axis.begin) / width
                _spread(busy, begun, (each.at - self.axis.begin) / width)
        return [min(each / max(len(self.learners), 1), 1.0) for each in busy]

    def links(self) -> list[LinkLife]:
        plan = self.job.plan
        links = {each: LinkLife(each, 0, 0, 0, 0, 0) for each in self.learners}
        for content in self.contents:
            for payload in content.payloads:
                own = actor_of(content.incarnation)
                link = links.get(own) or links.get(actor_of(payload.peer))
                if link is None:
                    continue
                nbytes = payload.nbytes(plan) if plan is not None else 0
                if payload.kind == "up":
                    link.up, link.up_bytes = link.up + 1, link.up_bytes + nbytes
                elif payload.kind == "down":
                    link.down, link.down_bytes = link.down + 1, link.down_bytes + nbytes
                else:
                    link.pieces += 1
        return list(links.values())


def _extremes(
    points: Sequence[tuple[int, int, float]], most: int
) -> "list[tuple[int, int, float]]":
    """Return the least and the largest loss of each of ``most`` / 2 stretches, in order."""
    stretch = -(-len(points) // max(most // 2, 1))
    shown: list[tuple[int, int, float]] = []
    for i in range(0, len(points), stretch):
        part = points[i : i + stretch]
        ends = {min(part, key=lambda p: p[2]), max(part, key=lambda p: p[2])}
        shown += sorted(ends, key=lambda p: (p[0], p[1]))
    return shown


def _spread(busy: list[float], begin: float, end: float) -> None:
    """Add the time from ``begin`` to ``end``, in parts of the axis, to each part."""
    last = len(busy) - 1
    for i in range(max(int(begin), 0), min(int(end), last) + 1):
        busy[i] += max(min(end, i + 1.0) - max(begin, float(i)), 0.0)


def _facts(reader: _JobReader, found: LossFindings) -> list[Fact]:
    run, merges, contents = reader.job, reader.merges, reader.contents
    job = run.job.job
    count = sum(len(each.contributions) for each in merges)
    tapes = run.tapes.values()
    events = sum(each.events - each.header.after for each in tapes)
    numbers = run.numbers
    turned = f"{numbers.refusals} refused, {numbers.late} late"
    mean = f"{count / len(merges):.2f} contributions each, {turned}" if merges else ""
    counts = _steps_note(reader)
    facts = [
        Fact("Job", job.name, f"{job.method}, {job.task}"),
        reader.duration(events),
        Fact("Inner steps", f"{numbers.inner_steps:,}" if run.syncers else "unknown", counts),
        Fact("Merges", f"{len(merges):,}", mean),
        _incarnations(reader),
        goodput_fact(numbers),
        *interval_fact(numbers, run.job.sync.interval),
    ]
    facts += [Fact("Look at", who, said) for who, said in run.disregarded.items()]
    tokens, merged = numbers.trained_tokens, numbers.merged_tokens
    if tokens and merged is not None and merges:
        said = f"{merged:,} of {tokens:,} trained, on average over the fragments"
        facts.append(Fact("Tokens merged", f"{merged / tokens:.1%}", said))
    losses = [loss for each in contents for _, _, loss in each.held_out]
    facts.append(
        Fact("Held-out loss", f"{losses[-1]:.4f}", "of the global parameters")
        if losses
        else Fact("Held-out loss", "unknown", "no evaluation is on the tapes")
    )
    facts.append(_first_break(found))
    facts += [_waits(merges), *_travels(run)]
    return [*facts, *_outer_steps(merges, run.job.outer)]


def goodput_fact(numbers: Numbers) -> Fact:
    share = f"{numbers.goodput:.1%}" if numbers.goodput is not None else "unknown"
    since = "since the syncer's restart: " * numbers.restarted
    return Fact("Goodput", share, since + time_in_words(numbers))


def interval_fact(numbers: Numbers, asked: int) -> list[Fact]:
    """How many inner steps an interval really had."""
    said = interval_in_words(numbers, asked)
    return [Fact("Interval", f"{numbers.interval_steps:.1f}", said)] if said else []


def _steps_note(reader: _JobReader) -> str:
    counts = {who: sum(len(c.steps) for c in reader.of_learner(who)) for who in reader.learners}
    if not counts:
        return ""
    least, most = min(counts.values()), max(counts.values())
    return f"{least:,} to {most:,} a learner"


def _incarnations(reader: _JobReader) -> Fact:
    learners = [reader.job.tapes[each] for each in reader.job.learners]
    kills = sum(each.closed is None and not reader.job.runs(each.incarnation) for each in learners)
    returns = len(learners) - len({actor_of(each.incarnation) for each in learners})
    said = f"{kills} killed, {returns} returned"
    return Fact("Learners", str(len(reader.learners)), said)


def _first_break(found: LossFindings) -> Fact:
    if not found.breaks:
        return Fact("First break", "none", "no loss left its band")
    first = found.breaks[0]
    said = f"inner step {first.step} ({first.event}): {first.loss:.4g}, usually {first.usual:.4g}"
    return Fact("First break", first.learner, said)


def _waits(merges: Sequence[Merge]) -> Fact:
    """What held the launches on average."""
    if not merges:
        return Fact("Waiting", "none", "there are no merges")
    count = len(merges)
    floor, quorum, grace = (
        sum(part) / count
        for part in zip(
            *((m.wait.floor_s, m.wait.quorum_s, m.wait.grace_s) for m in merges), strict=True
        )
    )
    said = f"a merge: floor {floor:.2f} s, quorum {quorum:.2f} s, grace {grace:.2f} s"
    return Fact("Waiting", f"{floor + quorum + grace:.2f} s", said)


def _travels(run: RecordedJob) -> list[Fact]:
    """How long new versions were on their way; nothing if none came."""
    found = travels_of(run)
    if not found:
        return []
    usual = seconds(median(each.median_s for each in found))
    slowest = f"{found[0].learner} {seconds(found[0].median_s)}"
    return [Fact("Versions", usual, f"from a merge to a learner; slowest: {slowest}")]


def _outer_steps(merges: Sequence[Merge], outer: Outer) -> list[Fact]:
    """How far the outer steps went; nothing if no merge says."""
    found = outer_gain(merges, outer)
    if found is None:
        return []
    said = f"the mean of {found.merges:,} merges"
    if found.rho is not None:
        said += (
            f"; as if successive merged differences had a correlation of {found.rho:.2f}, for "
            f"which {outer.lr:g} with momentum {outer.momentum:g} has an effective gain of "
            f"{found.gain:.2f}"
        )
    return [Fact("Outer step", f"{found.length:.2f} contributions long", said)]


def _reader(run: RecordedRun, share: int) -> _Reader:
    return _JobReader(run, share) if isinstance(run, RecordedJob) else _Reader(run, share)


def report_data(run: RecordedRun, other: RecordedRun | None = None) -> ReportData:
    if other is None:
        return ReportData([_reader(run, 1).data()])
    mine, theirs = _reader(run, 2), _reader(other, 2)
    found = compare(run, other)
    partings = [
        Parting(
            what=clip(each.what),
            kind=each.kind,
            detail=clip(each.detail),
            one=mine.moment(each.one, each.what),
            other=theirs.moment(each.other, each.what),
        )
        for each in found.first[:DIFFERENCES_MAX]
    ]
    lines = [clip(each) for each in found.lines()]
    return ReportData([mine.data(), theirs.data()], found.same, lines, partings)
