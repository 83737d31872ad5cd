"""The live display of a job, drawn from its log, so that it shows what is recorded.

It works alike for actors in this process and in others: it reads new lines of ``log.jsonl``, keeps
the newest values, and draws them; without a terminal it prints plain lines.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from clocks import is_incarnation
from ddloco.job.config import Job
from ddloco.job.protocol.status import Numbers
from ddloco.machines.syncer.apart import far_held_out
from ddloco.monitoring.loss_chart import LossCurve, draw_losses
from ddloco.monitoring.status_view import COLUMNS_MAX, goodput_in_words
from ddloco.stage.actors import observations
from ddloco.stage.process.log_tail import LogTail

REFRESH_S = 0.25
PLAIN_LINE_S = 5.0
"""Seconds between two plain lines: a dozen per minute."""

SAME_LINE_S = 60.0
"""Seconds until a line that says nothing new is printed again."""

LOSSES_SHOWN = 20
"""A learner's displayed loss is the mean over this many steps, since single batches vary."""


NEWS_MAX = 15
"""Warnings that are printed at once where there is no terminal, at most."""

LOSSES = "losses"
"""The log event with what learners on other hosts have reported to the syncer."""


@dataclass
class LearnerView:
    step: int = 0
    tokens: int = 0
    alive_s: float = 0.0
    lived_s: float = 0.0
    """The part of ``alive_s`` that belongs to earlier incarnations."""
    losses: list[float] = field(default_factory=list[float])
    metrics: dict[str, float | None] = field(default_factory=dict[str, float | None])
    """The task's own metrics of the newest step."""
    state: str = "starting"
    curve: LossCurve = field(default_factory=partial(LossCurve, 1))
    steps_logged: bool = False
    """Whether its steps are in this log; if not, only what it reports to the syncer is."""

    def take(self, line: dict[str, Any], t: int = 0) -> None:
        """Add a step that ended at global step ``t``; a new incarnation restarts at step 1, with a
        clock of its own."""
        self.steps_logged = True
        if line["step"] <= self.step or self.step == 0:
            self.lived_s = self.alive_s
            self.first_at = line["at"] - line["step_s"]
        self.step = line["step"]
        self.tokens += line["tokens"]
        self.alive_s = self.lived_s + line["at"] - self.first_at
        if line["loss"] is not None:  # The log contains null for NaN and Inf.
            self.losses = [*self.losses[1 - LOSSES_SHOWN :], line["loss"]]
            self.curve.add(t, line["loss"])
        self.metrics = line.get("metrics") or {}
        self.state = "training"

    def report(self, step: int, loss: float | None, t: int) -> None:
        """Add what the learner has reported at global step ``t``, unless its steps are here."""
        if self.steps_logged:
            return
        self.step, self.state = step, "training"
        if loss is not None:
            self.losses = [loss]
            self.curve.add(t, loss)

    @property
    def loss(self) -> float | None:
        return sum(self.losses) / len(self.losses) if self.losses else None

    @property
    def tokens_per_s(self) -> float:
        """Tokens trained on per second of the learner's life."""
        return self.tokens / self.alive_s if self.alive_s > 0 else 0.0


def warning_of(line: dict[str, Any]) -> str:
    """What is said of a line of the log behind its learner or actor; empty if it is no warning."""
    match line["event"]:
        case "disregarded":
            return (
                f": {line['in_row']} contributions in a row refused, {line['merged']} merged; the "
                f"last: {line['reason']}"
            )
        case "state taken over" if line["batches"] and is_incarnation(line["from"]):
            told = f"goes on with the state of {line['from']}, after batch {line['batches']:,}"
            return f" {told}; its own steps that were not merged are lost"
        case "state lost":
            told = f"goes on after batch {line['batches']:,} without the optimizer's state"
            return f" {told}, which nobody could give it; its steps that were not merged are lost"
        case observations.APART | observations.CODE_DIFFERS | observations.TASK_DIFFERS:
            return f": {line['reason']}"
        case "not finite":
            return f": {line['what']} is not finite at inner step {line['step']}"
        case "worker busy":
            return f": its worker has been in {line['call']} for {line['for_s']:.0f} s"
        case observations.BLOCKED:
            told = f"was in {line['what']} for {line['took_s']:.0f} s, and heard nothing meanwhile"
            return f" {told}: its process was stopped, or waited there"
        case "data failed":
            again = f"is tried again in {line['again_s']:.3g} s"
            return f": its data stream {again}: {line['reason']}"
        case "data again":
            return ": its data stream brings batches again"
        case "host callback" | "state untold":
            return f": {line['reason']}"
        case "comes back":
            return f": ended, and comes back: {line['reason']}"
        case _:
            return ""


@dataclass
class Board:
    job: Job
    learners: dict[str, LearnerView] = field(default_factory=dict[str, LearnerView])
    fragments: dict[int, int] = field(default_factory=dict[int, int])
    merge: dict[str, Any] = field(default_factory=dict[str, Any])
    merges: int = 0
    numbers: Numbers = field(default_factory=Numbers)
    """The job's numbers, as the syncer counts them, at the newest line that has them."""
    troubles: list[str] = field(default_factory=list[str])
    news: list[str] = field(default_factory=list[str])
    """Warnings that have not been printed yet, where there is no terminal."""
    result: dict[str, Any] | None = None
    discarded: int = 0
    reached: int = 0
    evaluating: bool = False
    """Whether the final model is being evaluated, which may take long."""
    tells_who_comes: bool = False
    """Whether a learner that comes or goes is news, as for somebody who starts them by hand."""
    standstill: str = ""
    """What the job waits for, if nothing has been merged for too long."""

    def __post_init__(self) -> None:
        steps = self.job.job.steps
        self.learners = {
            name: LearnerView(curve=LossCurve(steps)) for name in self.job.learner_names()
        }

    def take(self, line: dict[str, Any]) -> None:
        if "computing_s" in line:
            told = {name: line[name] for name in Numbers.__struct_fields__ if name in line}
            self.numbers = Numbers(**told)
        match line["event"]:
            case "step":
                self.learners[line["actor"]].take(line, self.reached)
            case "losses":
                for name, (step, loss) in line["learners"].items():
                    self.learners[name].report(step, loss, self.reached)
            case "merge":
                self.merge, self.merges, self.standstill = line, self.merges + 1, ""
                self.fragments[line["fragment"]] = line["t"]
                self.reached = max(self.reached, int(line["t"]))
            case "result":
                self.result, self.evaluating = line, False
                self._compare_with(line["held_out_loss"])
            case "recovered":
                self.reached = max(self.reached, int(line["t"]))
            case "joined":
                self._state(line["learner"], "linked")
            case "lost":
                self._state(line["learner"], f"gone: {line['reason']}")
            case "refused" | "starts over" | "sync repeated" | "message refused" | "not evaluated":
                who = line.get("learner") or line.get("peer") or line["actor"]
                self.troubles = [*self.troubles[-2:], f"{who}: {line['event']}, {line['reason']}"]
            case "evaluating":
                self.evaluating = True
            case "snapshot discarded":
                self.discarded += 1
                if self.discarded.bit_count() == 1:  # The first, second, fourth, and so on.
                    self._warn(f"snapshots that failed: {self.discarded}; {line['reason']}")
            case "no merge":
                self.standstill = (
                    f"no merge for {line['since_s']:.0f} s: waits for {line['reason']}"
                )
                self.troubles = [*self.troubles[-2:], f"{line['actor']}: {self.standstill}"]
            case "fault":
                lasts = f" for {line['for_s']:.1f} s" if line["for_s"] is not None else ""
                self.troubles = [*self.troubles[-2:], f"{line['who']}: {line['what']}{lasts}"]
            case _:
                said = warning_of(line)
                if said:
                    self._warn(f"{line.get('learner') or line['actor']}{said}")

    def _compare_with(self, held_out: float | None) -> None:
        curves = [view.curve.points() for view in self.learners.values()]
        ends = [(points[0][1], points[-1][1]) for points in curves if points]
        if held_out is not None and ends:
            said = far_held_out(held_out, [last for _, last in ends], ends[0][0])
            if said:
                self._warn(said)

    def _warn(self, said: str) -> None:
        self.troubles = [*self.troubles[-2:], said]
        self.news = [*self.news[-NEWS_MAX:], said]

    def _state(self, incarnation: str, state: str) -> None:
        name = incarnation.rpartition(".")[0]
        if name in self.learners:
            self.learners[name].state = state
        if self.tells_who_comes:
            self.news = [*self.news[-NEWS_MAX:], f"{incarnation} is {state}"]

    @property
    def t(self) -> int:
        return self.reached

    @property
    def goodput(self) -> float | None:
        """The share of the learners' time that was spent computing steps; None before the first
        merge, or if it is not known. See ``machines.syncer.accounts``."""
        return self.numbers.goodput

    @property
    def inner_steps(self) -> int:
        """Inner steps of all learners: those that the syncer has counted, or before it tells of any
        those that are in this log."""
        return self.numbers.inner_steps or sum(view.step for view in self.learners.values())

    def counts(self) -> str:
        live, part = self.merge.get("live", 0), self.merge.get("taking_part", 0)
        return f"{live} live / {part} taking part / {self.merge.get('averaged', 0)} averaged"

    def progress(self) -> str:
        done, whole, unit = self.stage()
        more = ", evaluates the final model" * self.evaluating
        if self.job.job.tokens is None:
            return f"{unit} {done}/{whole}" + ", last merges" * (self.t > whole) + more
        return f"global step {self.t}  {done:,}/{whole:,} {unit}{more}"

    def stage(self) -> tuple[int, int, str]:
        """How far the job is, when it is done, and in which unit."""
        job = self.job.job
        if job.tokens is None:
            return min(self.t, job.steps), job.steps, "global step"
        return self.numbers.merged_tokens or 0, job.tokens, "tokens merged"

    def line(self) -> str:
        losses = [view.loss for view in self.learners.values() if view.loss is not None]
        loss = f"{_mean(losses):.3f}" if losses else "-"
        found = {name: self._values(name) for name in self.metrics}
        more = "".join(f"  {name} {_mean(values):.4g}" for name, values in found.items() if values)
        return (
            f"{self.progress()}  loss {loss}{more}  {self.inner_steps:,} inner steps  "
            f"{self.counts()}  goodput {goodput_in_words(self.numbers)}"
            + (f"  {self.standstill}" * bool(self.standstill))
        )

    def losses(self) -> str:
        """The losses of learners and of the final model over global steps, as an SVG file."""
        curves = {name: view.curve for name, view in self.learners.items()}
        result = self.result or {"held_out_loss": None}
        loss = result["held_out_loss"]
        held_out = [(result["t"], loss)] if loss is not None else []
        job = self.job.job
        title = f"{job.name}: {job.learners} learners, {job.method}"
        return draw_losses(curves, held_out, job.steps, title)

    @property
    def metrics(self) -> list[str]:
        """The names of the task's own metrics that are shown."""
        views = self.learners.values()
        return list(dict.fromkeys(name for view in views for name in view.metrics))[:COLUMNS_MAX]

    def _values(self, metric: str) -> list[float]:
        """The newest values of a metric, of the learners that have it."""
        found = [view.metrics.get(metric) for view in self.learners.values()]
        return [value for value in found if value is not None]

    def tables(self) -> Group:
        names = self.metrics
        columns = ("learner", "state", "step", "loss", "so far", *names, "tokens/s")
        learners = Table(*columns, expand=True)
        for name, view in self.learners.items():
            loss = f"{view.loss:.4f}" if view.loss is not None else "-"
            found = [view.metrics.get(each) for each in names]
            more = [f"{value:.4g}" if value is not None else "-" for value in found]
            rate = f"{view.tokens_per_s:,.0f}"
            spark = view.curve.spark()
            learners.add_row(name, view.state, str(view.step), loss, spark, *more, rate)
        syncer = Table("quorum", "grace", "learners", "goodput", "merges", expand=True)
        grace = f"{self.merge.get('grace_s', 0.0) * 1000:.0f} ms"
        goodput = goodput_in_words(self.numbers)
        quorum = f"{self.job.sync.quorum} of {self.job.job.learners}"
        syncer.add_row(quorum, grace, self.counts(), goodput, f"{self.merges:,}")
        fragments = "  ".join(f"{p}:{t}" for p, t in sorted(self.fragments.items()))
        notes = [Text(trouble, "yellow") for trouble in self.troubles]
        return Group(learners, syncer, f"fragment:global step  {fragments}", *notes)


async def show_live(tail: LogTail, board: Board, console: Console, done: trio.Event) -> None:
    """Take what is logged to the board, and draw that, until ``done`` is set."""
    if not console.is_terminal:
        await _show_lines(board, tail, console, done)
        return
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
        expand=True,
    )
    task = bar.add_task(board.progress(), total=board.stage()[1])
    with Live(console=console, auto_refresh=False) as live:
        while True:
            last = done.is_set()
            tail.give(board.take)
            bar.update(task, completed=board.stage()[0], description=board.progress())
            live.update(Group(board.tables(), bar), refresh=True)
            if last:
                return
            with trio.move_on_after(REFRESH_S):
                await done.wait()


async def _show_lines(board: Board, tail: LogTail, console: Console, done: trio.Event) -> None:
    shown, said_at = "", -SAME_LINE_S
    while True:
        with trio.move_on_after(PLAIN_LINE_S):
            await done.wait()
        last = done.is_set()
        tail.give(board.take)
        for said in board.news:
            console.print(said, soft_wrap=True, highlight=False)
        board.news.clear()
        line, now = board.line(), trio.current_time()
        if line != shown or now - said_at >= SAME_LINE_S:
            console.print(line, soft_wrap=True, highlight=False)
            shown, said_at = line, now
        if last:
            return


OF_NUMBERS = (LOSSES, "needs", "traffic")
"""Events of a job's actors with nothing but numbers, which ``status`` and ``report`` show."""

UNSAID = {"event", "actor", "at", "date", "ref"}
"""Fields that a line on the screen does without: the log has them."""

NUMBERS = {*Numbers.__struct_fields__} - {"live"}
"""The same of a line that has the job's numbers."""

FREQUENT = ("step", "merge")
"""Events that occur many times a second; only the newest is shown, at intervals."""


async def follow_log(
    folder: Path, actor: str, console: Console, unshown: Container[str] = (LOSSES,)
) -> None:
    """Print what an actor logs from now on, but for the events that are ``unshown``."""
    tail = LogTail(folder, from_end=True)
    newest: dict[str, Any] | None = None
    said_at = trio.current_time()
    while True:
        for line in tail.new_lines():
            if line["actor"] == actor and line["event"] in FREQUENT:
                newest = line
            elif line["actor"] == actor and line["event"] not in unshown:
                _say(console, line)
        if newest is not None and trio.current_time() - said_at >= PLAIN_LINE_S:
            _say(console, newest)
            newest, said_at = None, trio.current_time()
        await trio.sleep(REFRESH_S)


def _say(console: Console, line: dict[str, Any]) -> None:
    """Print one line of the log in readable form."""
    unsaid = UNSAID | NUMBERS if "computing_s" in line else UNSAID
    fields = [f"{key} {_in_words(value)}" for key, value in line.items() if key not in unsaid]
    at = line.get("at")
    when = f"{at:8.1f} s" if isinstance(at, int | float) else f"{'-':>10}"
    text = f"{when}  {line['actor']}  {line['event']}  {', '.join(fields)}"
    console.print(text, soft_wrap=True, highlight=False)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _in_words(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return " ".join(map(_in_words, value)) if isinstance(value, list) else str(value)
