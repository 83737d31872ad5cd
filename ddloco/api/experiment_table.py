"""The results of an experiment as a table: a row for each case, with means and deviations."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from ddloco.api.experiment import CellResult, Experiment, TuneTable
from ddloco.stage.process.run_identity import DDLOCO, FILE, PACKAGES, shown, sources_in

NOISE_ERRORS = 2.0
"""A difference of fewer standard errors than this is called none."""

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


def losses_by_seed(experiment: Experiment, results: Sequence[CellResult]) -> list[str]:
    """Return the held-out loss of each seed as lines of Markdown, an item for each case."""
    found = [""]
    for row in case_rows(experiment, results):
        told = [f"{each.seed}: {each.loss:.4f}" for each in row.results if each.loss is not None]
        found += [f"* {row.name}, by seed: {', '.join(told)}"] if told else []
    return found


def said_of_identity(results: Sequence[CellResult]) -> list[str]:
    """Return as lines of Markdown what decides the results beside their settings: one list item for
    all of them, or several if the task or a version was changed while they ran."""
    said = dict.fromkeys(_said(each.identity) for each in results if each.identity)
    return ["", *(f"* {each}" for each in said)]


def _said(identity: Mapping[str, str]) -> str:
    sources = hashlib.sha256("".join(sources_in(identity).values()).encode()).hexdigest()
    versions = [
        f"{name} {identity[name]}" for name in (DDLOCO, "python", *PACKAGES) if name in identity
    ]
    files = [
        f"{k.removeprefix(FILE)} {shown(v)}" for k, v in identity.items() if k.startswith(FILE)
    ]
    data = f"data files {', '.join(files)}" if files else "no data file is known"
    return f"task sources {shown(sources)}, {', '.join(versions)}; {data}"


def _tuned(tune: TuneTable, row: CaseRow) -> str:
    """The value that a case was given, and whether a better one may lie beyond those tried."""
    value = row.results[0].tuned
    if value is None:
        return "-"
    beyond = {tune.values[0]: " (the lowest)", tune.values[-1]: " (the highest)"}
    return f"{value:g}{beyond.get(value, '')}"
