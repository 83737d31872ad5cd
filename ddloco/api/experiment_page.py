"""The page of an experiment: a table with means and deviations, what it shows, and a picture."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean, stdev

from ddloco.api.experiment import CellResult, Experiment, TuneTable

NOISE_ERRORS = 2.0
"""A difference of fewer standard errors than this is called none."""

WIDTH, LEFT, RIGHT, ROW, TOP, FOOT = 720, 250, 30, 26, 20, 34
INK, GRID, DOT, MEAN = "#444444", "#dddddd", "#4c72b0", "#c44e52"
"""The picture's measures in pixels, and its colours."""

TICKS = 5

COLUMNS = (
    "case",
    "held-out loss",
    "against {baseline}",
    "inner steps",
    "goodput",
    "up, MB",
    "down, MB",
    "time",
)


class CaseRow:
    """The results of one case."""

    def __init__(self, name: str, results: Sequence[CellResult]) -> None:
        self.name = name
        self.results = results
        self.losses = [each.loss for each in results if each.loss is not None]

    @property
    def loss(self) -> str:
        """The mean of its losses and their standard deviation, as text."""
        if not self.losses:
            return "-"
        spread = f" ± {stdev(self.losses):.4f}" if len(self.losses) > 1 else ""
        return f"{fmean(self.losses):.4f}{spread}"

    def against(self, other: "CaseRow") -> str:
        """How much higher its loss is than another's, as text; "none" below the noise."""
        if other is self or not self.losses or not other.losses:
            return "-"
        gap = fmean(self.losses) - fmean(other.losses)
        share = f"{100 * gap / fmean(other.losses):+.1f} %"
        if min(len(self.losses), len(other.losses)) < 2:
            return share
        error = math.hypot(*(stdev(e.losses) / math.sqrt(len(e.losses)) for e in (self, other)))
        noise = f"{100 * NOISE_ERRORS * error / fmean(other.losses):.1f}"
        return (
            f"{share} ± {noise}" if abs(gap) > NOISE_ERRORS * error else f"none ({share} ± {noise})"
        )

    def mean(self, name: str, scale: float = 1.0, digits: int = 0) -> str:
        """The mean of a measure, as text."""
        values = [getattr(each, name) for each in self.results]
        known = [each for each in values if each is not None]
        return f"{scale * fmean(known):,.{digits}f}" if known else "-"

    def cells(self, baseline: "CaseRow", other: "CaseRow | None") -> list[str]:
        """Its cells in the table, compared with the baseline or with ``other``."""
        goodput = self.mean("goodput", 100.0, 1)
        gap = self.against(baseline if other is None else other)
        if other is not None and other is not self:
            gap += f" to {other.name}"
        return [
            self.name,
            self.loss,
            gap,
            self.mean("steps"),
            goodput if goodput == "-" else f"{goodput} %",
            self.mean("up", 1e-6, 1),
            self.mean("down", 1e-6, 1),
            f"{self.mean('seconds')} s",
        ]


def case_rows(experiment: Experiment, results: Sequence[CellResult]) -> list[CaseRow]:
    """Return the rows of the cases that have results; trials have no row."""
    seeds = experiment.table.seeds
    found = {
        case.name: CaseRow(
            case.name, [each for each in results if each.case == case.name and each.seed in seeds]
        )
        for case in experiment.cases
    }
    return [row for row in found.values() if row.results]


def case_table(experiment: Experiment, results: Sequence[CellResult]) -> list[str]:
    """Return the results as lines of a Markdown table."""
    rows = case_rows(experiment, results)
    baseline = next((row for row in rows if row.name == experiment.baseline), rows[0])
    paper = {case.name: case.paper for case in experiment.cases}
    told = any(paper.values())
    tune = experiment.table.tune
    columns = [each.format(baseline=baseline.name) for each in COLUMNS]
    columns += [] if tune is None else [tune.key]
    columns += ["the paper"] * told
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    named = {row.name: row for row in rows}
    others = {case.name: named.get(case.against) for case in experiment.cases}
    for row in rows:
        found = row.cells(baseline, others[row.name])
        found += [] if tune is None else [_tuned(tune, row)]
        found += [paper[row.name] or "-"] * told
        lines.append("| " + " | ".join(found) + " |")
    return lines


def _tuned(tune: TuneTable, row: CaseRow) -> str:
    """The value that a case was given, and whether a better one may lie beyond those tried."""
    value = row.results[0].tuned
    if value is None:
        return "-"
    beyond = {tune.values[0]: " (the lowest)", tune.values[-1]: " (the highest)"}
    return f"{value:g}{beyond.get(value, '')}"


def section(
    experiment: Experiment, results: Sequence[CellResult], file: str, picture: str
) -> list[str]:
    """Return the section of a page about an experiment, as lines of Markdown."""
    said, tune = experiment.table, experiment.table.tune
    seeds = sorted({each.seed for each in results} & set(said.seeds))
    took_s = sum(each.took_s for each in results)
    virtual = "in virtual time, trained for real" if said.time == "virtual" else "in real time"
    count = f"{len(results)} cells {virtual}, seeds {', '.join(map(str, seeds))}"
    if tune is not None:
        values = ", ".join(f"{each:g}" for each in tune.values)
        tried = f"the best of {values} with seeds {', '.join(map(str, tune.seeds))}"
        count += f" (of the {tune.key} of each case, {tried})"
    lines = [
        f"## {said.name}",
        "",
        said.about,
        "",
        f"`ddloco experiment {file}`: {count}, {took_s / 60:.0f} minutes in all.",
        "",
        *case_table(experiment, results),
        "",
        f"![Held-out losses of {said.name}]({picture})",
        "",
    ]
    for text in (f"The paper: {said.paper}" * bool(said.paper), said.shows, said.shows_not):
        lines += [text, ""] if text else []
    return lines


HEAD = f"""\
# Experiments

Made by `make experiments`; a single one with the command above its table. Losses are held-out
losses of the final global parameters, in nats, as mean and standard deviation over the seeds. A
difference is shown with {NOISE_ERRORS:.0f} standard errors, and called none if it is smaller. Up
and down are the payload bytes of all learners together. In virtual time a case gives the same
result on any machine of the same kind; its goodput and time are those of the simulated machines.
"""


def losses_svg(experiment: Experiment, results: Sequence[CellResult]) -> str:
    """Return a picture of the losses: a row for each case, with a dot for each seed."""
    rows = [row for row in case_rows(experiment, results) if row.losses]
    every = [loss for row in rows for loss in row.losses]
    low, high = min(every), max(every)
    margin = 0.05 * (high - low) or 0.05
    low, high = low - margin, high + margin
    height = TOP + ROW * len(rows) + FOOT

    def across(loss: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (loss - low) / (high - low)

    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    font = 'font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    bottom = TOP + ROW * len(rows)
    for index in range(TICKS):
        loss = low + (high - low) * index / (TICKS - 1)
        x = across(loss)
        parts += [
            f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="{GRID}"/>',
            _text(x, bottom + 18, "middle", f"{loss:.3f}"),
        ]
    for number, row in enumerate(rows):
        y, mean = TOP + ROW * (number + 0.5), across(fmean(row.losses))
        parts.append(_text(LEFT - 10, y + 4, "end", row.name))
        parts.append(
            f'<line x1="{mean:.1f}" y1="{y - 8:.1f}" x2="{mean:.1f}" y2="{y + 8:.1f}" '
            f'stroke="{MEAN}" stroke-width="2"/>'
        )
        parts += [
            f'<circle cx="{across(loss):.1f}" cy="{y:.1f}" r="4" fill="{DOT}" fill-opacity="0.6"/>'
            for loss in row.losses
        ]
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, anchor: str, said: str) -> str:
    at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {at} fill="{INK}">{escape(said)}</text>'


def pages(
    found: Mapping[str, tuple[Experiment, Sequence[CellResult]]], pictures: str
) -> tuple[str, dict[str, str]]:
    """Return the page about several experiments, by their files, and its pictures by name."""
    lines, drawn = [HEAD], dict[str, str]()
    for file, (experiment, results) in found.items():
        name = f"experiment-{experiment.table.name.replace(' ', '-')}.svg"
        drawn[name] = losses_svg(experiment, results)
        lines += section(experiment, results, file, f"{pictures}/{name}")
    return "\n".join(lines).rstrip() + "\n", drawn
