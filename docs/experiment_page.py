"""Make the page about experiments from the results that ``ddloco experiment`` has left.

``make experiments`` runs the experiments, and writes the page again.
"""

import argparse
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean

from ddloco.api.experiment import (
    FOLDER,
    Cell,
    CellResult,
    Experiment,
    cells,
    load_experiment,
    trials,
)
from ddloco.api.experiment_table import NOISE_ERRORS, case_rows, case_table, losses_by_seed

PICTURES = "pictures"

WIDTH, LEFT, RIGHT, ROW, TOP, FOOT = 720, 250, 30, 26, 20, 34
INK, GRID, DOT, MEAN = "#444444", "#dddddd", "#4c72b0", "#c44e52"
"""The picture's measures in pixels, and its colours."""

TICKS = 5


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
        *losses_by_seed(experiment, results),
        "",
        f"![Held-out losses of {said.name}]({picture})",
        "",
    ]
    for text in (f"The paper: {said.paper}" * bool(said.paper), said.shows, said.shows_not):
        lines += [text, ""] if text else []
    return lines


HEAD = f"""\
# Experiments

On this page you see what each setting was worth on one small model, and where it was not told
apart from noise. `make experiments` makes it. Losses are held-out losses of the final global
parameters, in nats, as mean and standard deviation over the seeds. A difference is shown with
{NOISE_ERRORS:.0f} standard errors, and called none if it is smaller. Up and down are the payload
bytes of all learners together. In virtual time a case gives the same result on any machine of the
same kind; its goodput and time are those of the simulated machines.

Training has just begun at these lengths, so a small delay is a large percentage: eight decoupled
learners that are 11 % behind (learners) need 1.5 times the tokens of data-parallel training.
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


def known(found: Experiment, todo: Sequence[Cell]) -> list[CellResult]:
    """The results that are there, of so many cells."""
    return [result for cell in todo if (result := cell.known(found)) is not None]


def results_of(found: Experiment, folder: Path) -> list[CellResult]:
    """All results of an experiment that are in its folder."""
    tried = known(found, trials(found, folder))
    return [*tried, *known(found, cells(found, folder, tried))]


def write_page(page: Path, files: Sequence[Path], folder: Path = FOLDER) -> None:
    """Write the page about experiments, and its pictures into a folder beside it."""
    loaded = {str(file): load_experiment(file) for file in files}
    found = {file: (each, results_of(each, each.folder(folder))) for file, each in loaded.items()}
    text, drawn = pages({file: each for file, each in found.items() if each[1]}, PICTURES)
    pictures = page.parent / PICTURES
    pictures.mkdir(parents=True, exist_ok=True)
    for name, picture in drawn.items():
        (pictures / name).write_text(picture)
    page.write_text(text)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("experiments", type=Path, nargs="+", metavar="EXPERIMENT.toml")
    options.add_argument("--page", type=Path, required=True, metavar="FILE")
    given = options.parse_args()
    write_page(given.page, given.experiments)
