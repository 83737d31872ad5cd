"""A page of what a syncer tells an observer, for one who looks at a job on another host. Observers
hear of merges, learners, losses and warnings, but of no single step and of no message: those are on
the tapes, which ``LivePage`` reads."""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import trio

from clocks import actor_of
from ddloco.debugger.live_page import STORY_LINES_MAX, ServedPage
from ddloco.debugger.recorded_run import parse_event
from ddloco.debugger.report_data import (
    BINS,
    POINTS_MAX,
    Fact,
    ReportCurve,
    ReportData,
    RunData,
    goodput_fact,
    interval_fact,
)
from ddloco.debugger.report_lanes import (
    Axis,
    Lane,
    LaneSegment,
    Names,
    Note,
    clip,
    finite,
    to_differences,
)
from ddloco.debugger.report_merges import CELLS_MAX, Bars, Column, Matrix, TableCell
from ddloco.job.protocol.status import MemberStatus, Status
from ddloco.monitoring.client import Notified, UnansweredError, open_observer
from ddloco.monitoring.live_display import warning_of
from ddloco.monitoring.status_view import apart, doubts, seconds, under_way
from ddloco.monitoring.watch import observed_status
from ddloco.stage.actors import observations
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.serve import ENDS
from ddloco.stage.observers.observer_protocol import News, Told
from ddloco.stage.process.entry_point import in_one_line

MERGES_MAX = 2_000
"""Merges that are kept, the newest ones."""

POINTS_MIN = 64
"""Losses that are kept of each of many learners; of few, their share of ``POINTS_MAX``. Of more,
every other one is dropped."""

LIVES_MAX = 4_096
"""Incarnations of learners that are kept, the newest ones."""

NEWS_MAX = 400
"""Other news that are kept, the newest ones."""

WARNINGS_SHOWN = 20

AGAIN_S = 5.0
"""Seconds until a syncer that no longer answers is asked again."""

RUN = "RUN"
"""What commands have in place of the run folder, which is on the syncer's host."""

ELSEWHERE = (
    "more is on the tapes, on the syncer's host: type there what a click shows, with its run "
    f"folder for {RUN}"
)


class SeenMerge(NamedTuple):
    """A merge as it was told; ``at`` is on the page's axis, in seconds."""

    at: float
    ref: str
    t: int
    fragment: int
    weights: Mapping[str, float]
    grace_s: float
    sync_s: float
    live: int


class SeenLoss(NamedTuple):
    at: float
    incarnation: str
    step: int
    loss: float | None


class SeenNews(NamedTuple):
    """What was told beside merges: ``who`` it is of, an incarnation; ``t`` of a refused
    contribution is the global step of its merge, otherwise 0."""

    at: float
    ref: str
    who: str
    kind: str
    said: str
    t: int = 0

    @property
    def line(self) -> str:
        return self.said if self.who in self.said else f"{self.who}: {self.said}"


class Life:
    """One incarnation of a learner, as the syncer saw it."""

    def __init__(self, at: float) -> None:
        self.begin, self.end, self.how = at, at, "runs"


class ObservedJob:
    """What has been told of a job since it is observed."""

    def __init__(self) -> None:
        self.status: Status | None = None
        self.ended = ""
        self._began: dict[str, float] = {}
        """Of each incarnation of the syncer, what is added to its times."""
        self._at = 0.0
        self._missed = 0
        self._merges: deque[SeenMerge] = deque(maxlen=MERGES_MAX)
        self._losses: dict[str, list[SeenLoss]] = {}
        self._lives: dict[str, Life] = {}
        self._spent: list[tuple[float, float]] = []
        """Seconds on the axis, and those that all learners had computed by then."""
        self._news: deque[SeenNews] = deque(maxlen=NEWS_MAX)
        self._warnings: deque[str] = deque(maxlen=WARNINGS_SHOWN)
        self._held_out: list[tuple[float, float]] = []

    def take_status(self, status: Status) -> None:
        self.status = status
        at = self._place(status.incarnation, status.uptime_s)
        if not self._spent or status.computing_s != self._spent[-1][1]:
            self._spent.append((at, status.computing_s))
            _thin(self._spent, POINTS_MAX)
        for member in status.members:
            self._life(member.learner, at).end = at
            self._take_loss(at, member)

    def take_news(self, news: News) -> None:
        syncer = news.ref.rpartition(":")[0]
        at = self._place(syncer, news.at)
        said, kind, t, fields, self._missed = "", "stop", 0, news.fields, news.lost
        match news.event:
            case "ended" if fields.get("status") in ENDS:
                self.ended = f"{fields['status']}: {fields.get('reason')}"
            case "ended":
                said = f"{syncer} has left, to be started again: {fields.get('reason')}"
            case "merge":
                self._merges.append(_merge_of(at, news))
                return
            case "result" if isinstance(fields.get("held_out_loss"), float):
                self._held_out.append((at, fields["held_out_loss"]))
            case "joined":
                life = self._life(fields["learner"], at)
                life.end, life.how = at, "runs"
                said = f"{fields['learner']} is linked"
            case "lost":
                life = self._life(fields["learner"], at)
                kind, life.end, life.how = "broken", at, f"gone: {fields['reason']}"
                said = f"{fields['learner']} {life.how}"
            case "refused" if "learner" in fields and "t" in fields:
                kind, t, said = "failed", fields["t"], f"refused: {fields['reason']}"
            case observations.BEGUN | observations.TAKEN | observations.DISCARDED:
                kind = "snapshot"
            case _:
                pass
        who = str(fields.get("learner") or syncer)
        warned = warning_of({"event": news.event, "actor": actor_of(syncer), **fields})
        if warned:
            said = f"{who}{warned}"
            self._warnings.append(clip(said))
        reason = f": {fields['reason']}" if "reason" in fields else ""
        said = clip(said or f"{news.event}{reason}")
        self._news.append(SeenNews(at, news.ref, who, kind, said, t))

    def _place(self, syncer: str, at: float) -> float:
        """Where a time of one incarnation of the syncer is on the axis: after all before it."""
        began = self._began.setdefault(syncer, self._at if self._began else 0.0)
        self._at = max(self._at, began + at)
        return began + at

    def _take_loss(self, at: float, member: MemberStatus) -> None:
        known = self._losses.setdefault(actor_of(member.learner), [])
        newest = known[-1] if known else SeenLoss(0.0, "", 0, None)
        if member.step and (member.learner, member.step) != (newest.incarnation, newest.step):
            known.append(SeenLoss(at, member.learner, member.step, finite(member.loss)))
            _thin(known, max(POINTS_MAX // len(self._losses), POINTS_MIN))

    def _life(self, incarnation: str, at: float) -> Life:
        life = self._lives.setdefault(incarnation, Life(at))
        while len(self._lives) > LIVES_MAX:
            del self._lives[next(iter(self._lives))]
        return life

    def data(self) -> RunData:
        status = self.status
        if status is None:
            raise ConfigError("the syncer has told nothing yet")
        begin = min([self._at, *(each.begin for each in self._lives.values())])
        axis, names = Axis(begin, self._at), Names()
        learners = sorted({actor_of(each) for each in self._lives})
        missed = f", but for {self._missed:,} news that came too fast" if self._missed else ""
        return RunData(
            name=status.name or status.job,
            unit_s=axis.unit_s,
            end=axis.place(self._at),
            facts=self._facts(status),
            lanes=self._lanes(status, axis, learners),
            bars=self._bars(axis, names),
            matrix=self._matrix(axis, names, learners),
            gaps=[f"seen from {seconds(begin)} after the syncer's start{missed}; {ELSEWHERE}"],
            curves=[self._curve(who, axis) for who in learners],
            goodput=self._goodput(axis, len(learners)),
            held_out=[(axis.place(at), loss) for at, loss in self._held_out],
            findings=[*self._warnings, *map(clip, doubts(status))],
            now=[f"the job has ended, {self.ended}"] if self.ended else self._now(status),
            names=names.all,
            path=RUN,
        )

    def _facts(self, status: Status) -> list[Fact]:
        ends = f"of {status.steps:,}" if status.tokens is None else ""
        merged = status.merged_tokens or 0
        until = f"of {status.tokens:,} tokens that end the job" if status.tokens else ""
        facts = [
            Fact("Job", status.job, f"at {status.address}"),
            Fact("Up", seconds(status.uptime_s), f"{status.incarnation}, {status.events:,} events"),
            Fact("Global step", f"{status.t or 0:,}", ends),
            Fact("Merges", f"{status.merges or 0:,}", f"{status.late} contributions were late"),
            Fact("Learners", str(status.live or 0), "linked now"),
            Fact("Inner steps", f"{status.inner_steps:,}", "of all learners"),
            goodput_fact(status),
            *interval_fact(status, status.interval or 0),
        ]
        return [*facts, Fact("Tokens merged", f"{merged:,}", until)] if until else facts

    def _now(self, status: Status) -> list[str]:
        told = [status.standstill] if status.standstill else []
        told += [*apart(status), *under_way(status)]
        return [clip(each) for each in told] or ["learners train"]

    def _lanes(self, status: Status, axis: Axis, learners: Sequence[str]) -> list[Lane]:
        lanes = {who: Lane(who, "learner", []) for who in learners}
        for incarnation, life in sorted(self._lives.items(), key=lambda each: each[1].begin):
            begin, end = axis.place(life.begin), axis.place(life.end)
            each = LaneSegment(incarnation, begin, end, 0, clip(life.how), False, None, {}, [])
            lanes[actor_of(incarnation)].segments.append(each)
        own = Lane(actor_of(status.incarnation), "syncer", [])
        ends = [*self._began.values(), self._at][1:]
        for (incarnation, began), end in zip(self._began.items(), ends, strict=True):
            notes = [
                Note(axis.place(each.at), parse_event(each.ref)[1], each.kind, each.line)
                for each in self._news
                if parse_event(each.ref)[0] == incarnation
            ]
            how = (self.ended or "runs") if end == self._at else "has a successor"
            span = max(axis.place(began), 0), axis.place(end)
            own.segments.append(
                LaneSegment(incarnation, *span, 0, clip(how), False, None, {}, notes)
            )
        return [own, *lanes.values()]

    def _bars(self, axis: Axis, names: Names) -> Bars:
        merges, unit = self._merges, axis.unit_s
        none = [0] * len(merges)
        since = [axis.place(each.at - each.sync_s - each.grace_s) for each in merges]
        return Bars(
            of=len(merges),
            t=to_differences(each.t for each in merges),
            p=[each.fragment for each in merges],
            syncer=[names.number(parse_event(each.ref)[0]) for each in merges],
            n=to_differences(parse_event(each.ref)[1] for each in merges),
            since=to_differences(since),
            floor=none,
            quorum=none,
            grace=[round(each.grace_s / unit) for each in merges],
            flight=[round(each.sync_s / unit) for each in merges],
            took=[len(each.weights) for each in merges],
            moved=[None] * len(merges),
        )

    def _matrix(self, axis: Axis, names: Names, learners: Sequence[str]) -> Matrix:
        most = max(CELLS_MAX // max(len(learners), 1), 1)
        shown, reasons = list(self._merges)[-most:], dict[str, int]()
        matrix = Matrix(len(self._merges), list(learners), [], [[] for _ in learners], [])
        refused = {(each.t, actor_of(each.who)): each for each in self._news if each.t}
        for each in shown:
            wait = (each.grace_s, 0.0, 0.0, each.grace_s)
            column = Column(
                each.t, each.fragment, each.ref, axis.place(each.at), each.live, None, wait, [], []
            )
            matrix.columns.append(column)
            took = {actor_of(who): (who, weight) for who, weight in each.weights.items()}
            for row, learner in zip(matrix.cells, learners, strict=True):
                cell = TableCell(0)
                if learner in took:
                    who, weight = took[learner]
                    cell = TableCell(1, each.ref, weight=finite(weight), who=names.number(who))
                elif (each.t, learner) in refused:
                    no = refused[each.t, learner]
                    reason = reasons.setdefault(no.said, len(reasons))
                    cell = TableCell(2, no.ref, reason, who=names.number(no.who))
                row.append(cell)
        matrix.reasons = list(reasons)
        return matrix

    def _curve(self, learner: str, axis: Axis) -> ReportCurve:
        seen = self._losses.get(learner, [])
        parts = [
            n for n, each in enumerate(seen) if not n or each.incarnation != seen[n - 1].incarnation
        ]
        return ReportCurve(
            learner=learner,
            of=len(seen),
            parts=parts,
            at=to_differences(axis.place(each.at) for each in seen),
            step=to_differences(each.step for each in seen),
            loss=[each.loss for each in seen],
        )

    def _goodput(self, axis: Axis, learners: int) -> list[float]:
        """The share of the learners' time that was spent computing, for each part of the axis."""
        width = axis.span_s / BINS
        edges = [self._computed_by(axis.begin + n * width) for n in range(BINS + 1)]
        whole = width * max(learners, 1)
        return [round(min(max(b - a, 0.0) / whole, 1.0), 4) for a, b in pairwise(edges)]

    def _computed_by(self, at: float) -> float:
        times = self._spent
        n = bisect_left(times, at, key=lambda each: each[0])
        if n in (0, len(times)):
            return times[min(n, len(times) - 1)][1] if times else 0.0
        (before, less), (after, more) = times[n - 1], times[n]
        return less + (more - less) * (at - before) / max(after - before, 1e-9)

    def story(self, of: str) -> list[str]:
        """Return what was told of a merge, an actor or an event."""
        kind, _, rest = of.partition(":")
        merged = [each for each in self._merges if kind == "merge" and str(each.t) == rest]
        told = {
            "merge": lambda each: str(each.t) == rest,
            "actor": lambda each: rest in {each.who, actor_of(each.who)},
            "event": lambda each: each.ref == rest,
        }.get(kind, lambda _: False)
        found = [(each.at, each.ref, _told(each)) for each in merged]
        found += [(each.at, each.ref, each.line) for each in self._news if told(each)]
        lines = [f"{at:.2f} s  {said}  ({ref})" for at, ref, said in sorted(found)]
        return [*lines[:STORY_LINES_MAX], ELSEWHERE]


def _merge_of(at: float, news: News) -> SeenMerge:
    fields = news.fields
    weights = dict(zip(fields["learners"], fields["weights"], strict=True))
    told = fields["t"], fields["fragment"], weights, fields["grace_s"], fields["sync_s"]
    return SeenMerge(at, news.ref, *told, fields["live"])


def _told(merge: SeenMerge) -> str:
    shares = ", ".join(f"{who} {weight:.3g}" for who, weight in merge.weights.items())
    return (
        f"merge {merge.t} of fragment {merge.fragment}: {shares or 'nobody'}; launched "
        f"{seconds(merge.sync_s)} before, grace window {seconds(merge.grace_s)}"
    )


def _thin(points: list[Any], most: int) -> None:
    """Drop every other point of too many, but not the newest."""
    if len(points) > most:
        del points[:-1:2]


class ObservedPage(ServedPage):
    """The page of a job at an address."""

    def __init__(self, address: str, *, timeout_s: float, keys: Path | None) -> None:
        super().__init__()
        self._where = address, timeout_s, keys
        self._job = ObservedJob()
        self._more = True
        self._problem = ""

    async def look(self) -> None:
        """Ask once, so that who does not answer is named before there is a page."""
        async with open_observer(*self._where) as observer:
            with self._lock:
                self._job.take_status(observed_status(await observer.status()))

    async def follow(self) -> None:
        """Take what the syncer tells, for ever; one that is away is asked again."""
        while not self._job.ended:
            try:
                async with open_observer(*self._where) as observer:
                    last = await observer.follow(self._take, payloads=False)
                problem = f"{last.fields.get('status')}: {last.fields.get('reason')}"
            except* (UnansweredError, ConfigError) as group:
                problem = in_one_line(group.exceptions[0])
            if not self._job.ended:
                with self._lock:
                    self._problem, self._more = f"{problem}; it is asked again", True
                await trio.sleep(AGAIN_S)
        await trio.sleep_forever()

    async def _take(self, said: Notified) -> None:
        with self._lock:
            self._problem, self._more = "", True
            try:
                if isinstance(said, Told):
                    self._job.take_status(observed_status(said.status))
                elif isinstance(said, News):
                    self._job.take_news(said)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                self._problem = f"news of another version cannot be read: {in_one_line(error)}"
        await trio.lowlevel.checkpoint()

    def story(self, of: str) -> list[str]:
        with self._lock:
            return self._job.story(of)

    def _has_more(self) -> bool:
        return self._more

    def _data(self) -> ReportData:
        self._more = False
        data = self._job.data()
        data.now = [self._problem, *data.now] if self._problem else data.now
        return ReportData([data])
