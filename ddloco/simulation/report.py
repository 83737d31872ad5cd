"""``ddloco simulate``: runs many worlds with a progress bar, and prints the results in a table."""

import argparse
import json
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ddloco.simulation.before_after import RunOutcome, outcome_of, table_of
from ddloco.simulation.calibrated import Recording
from ddloco.simulation.experiment import Row, run_case
from ddloco.simulation.scenario import Case, Scenario, cases_of, find
from ddloco.stage.files.run_folder import next_folder
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.process.console import SafeConsole
from ddloco.stage.process.process_pool import process_pool
from ddloco.stage.process.terminal import quoted
from replay import Divergence

T = TypeVar("T")
World = Scenario | Recording
"""Where a case runs: described by a scenario file, or taken from a recorded run."""

HELD, FOUND = 0, 1
COLUMNS = (
    "chip goodput",
    "goodput",
    "uptime",
    "taking part",
    "in a merge",
    "by fragment",
    "even data",
    "time",
)
"""Columns of the table, in percent, if measured; ``time`` is relative to the first case."""

SHOWN_MAX = 10
"""Failed seeds that are listed."""


GIVEN = 2
"""Seeds that are given to a process at a time: the one that it runs, and the next."""


def scenario_table(given: argparse.Namespace) -> int:
    path = find(given.scenario)
    choose = partial(chosen, path, tuple(given.overrides), tuple(given.without))
    cases = choose(given.case)
    if not cases:
        raise ConfigError(f"{path}: no case has {given.case!r} in its name")
    about = cases[0][1].scenario
    first = about.seed if given.seed is None else given.seed
    seeds = range(first, first + at_least_one("--seeds", given.seeds))
    if given.folder is not None and (len(seeds) > 1 or len(cases) > 1):
        raise ConfigError("--dir: holds the tapes of one world; choose one --case and one seed")
    console = SafeConsole(stderr=True)
    works = [index * len(seeds) + at for index in range(len(cases)) for at in range(len(seeds))]
    if path.is_dir() and len(seeds) == 1:
        return _beside_recorded(console, given, path, cases[0], first)
    run = partial(_one, choose, given.case, seeds, given.folder)
    rows = with_bar(console, about.name, run, works, given.jobs)
    averaged = [
        _averaged(rows[index * len(seeds) : (index + 1) * len(seeds)])
        for index in range(len(cases))
    ]
    _relative_times(averaged)
    if given.json:
        print(json.dumps({"scenario": about.name, "cases": [asdict(r) for r in averaged]}))
    else:
        _show(SafeConsole(), about, averaged, len(seeds))
    broken = [row for row in rows if row.violation]
    for row in broken[:SHOWN_MAX]:
        _report_broken(console, path, given, row)
    return FOUND if broken else HELD


def _one(
    choose: Callable[[str], list[tuple[Case, World]]],
    among: str,
    seeds: range,
    folder: Path | None,
    work: int,
) -> Row:
    case, scenario = choose(among)[work // len(seeds)]
    return run_case(case, scenario, seeds[work % len(seeds)], folder)


def chosen(
    path: Path, overrides: tuple[str, ...], without: tuple[str, ...], among: str
) -> list[tuple[Case, World]]:
    """Return the case named ``among``, or those whose names contain it; a run folder has one
    case."""
    if path.is_dir():
        return [(Case(path.name), Recording(path, overrides, without=without))]
    if without:
        raise ConfigError("--without: leaves learners out of a recorded run; want a run folder")
    cases: list[tuple[Case, World]] = [*cases_of(path, overrides)]
    exact = [each for each in cases if each[0].name == among]
    return exact or [each for each in cases if among in each[0].name]


def _beside_recorded(
    console: Console,
    given: argparse.Namespace,
    path: Path,
    chosen_case: tuple[Case, World],
    seed: int,
) -> int:
    """Simulate a recorded run, and show what it comes to beside what the run came to. With a
    change, the run is simulated without it, too: what that differs by from the recorded run is the
    error of the simulation."""
    case, scenario = chosen_case
    outcomes: dict[str, RunOutcome] = {}
    try:
        outcomes["recorded"] = outcome_of(path, trust=given.trust)
    except Divergence as found:
        said = f"{path}: {found}: this program decides otherwise than the tape says"
        console.print(f"{said}, so what the run came to is not shown", soft_wrap=True)
    with TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch) / "changed"
        row = run_case(case, scenario, seed, folder)
        changed = given.overrides or given.without
        if changed:
            as_it_was = Path(scratch) / "unchanged"
            run_case(case, Recording(path), seed, as_it_was)
            outcomes["simulated"] = outcome_of(as_it_was)
        if row.violation is None:
            outcomes["changed" if changed else "simulated"] = outcome_of(folder)
    if given.json:
        told = {name: msgspec.to_builtins(each) for name, each in outcomes.items()}
        cases = [asdict(row)]
        print(json.dumps({"scenario": scenario.scenario.name, "cases": cases, "outcomes": told}))
    else:
        _show(SafeConsole(), scenario.scenario, [row], 1)
        SafeConsole().print(table_of(outcomes))
    if row.violation is not None:
        _report_broken(console, path, given, row)
        return FOUND
    return HELD


def sweep(
    run: Callable[[int], T], seeds: Sequence[int], jobs: int, progress: Callable[[int], None]
) -> Iterator[T]:
    """Run ``run``, which must be importable by name, for every seed in ``jobs`` processes; yields
    results in the order of ``seeds``. A process runs one seed at a time, since worlds differ in
    length: of the cases of Table 1 the longest takes eight times as long as the shortest."""
    if jobs == 1 or len(seeds) == 1:
        for done, seed in enumerate(seeds, 1):
            yield run(seed)
            progress(done)
        return
    waiting = deque(enumerate(seeds))
    running: dict[Future[T], int] = {}
    outcomes: dict[int, T] = {}
    with process_pool(jobs) as pool:
        while waiting or running:
            while waiting and len(running) < GIVEN * jobs:
                index, seed = waiting.popleft()
                running[pool.submit(run, seed)] = index
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                outcomes[running.pop(future)] = future.result()
                progress(len(outcomes))
    yield from (outcomes[index] for index in range(len(seeds)))


def with_bar(
    console: Console, name: str, run: Callable[[int], T], works: Sequence[int], jobs: int
) -> list[T]:
    """Run works in so many processes, one for each core with 0; shows how many are done."""
    if jobs < 0:
        raise ConfigError(f"--jobs {jobs}: a number of processes, or 0 for one per core")
    named = TextColumn(name, markup=False)
    columns = named, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    quiet = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task(name, total=len(works))
        jobs = min(jobs or os.cpu_count() or 1, len(works))
        return list(sweep(run, works, jobs, lambda done: bar.update(task, completed=done)))


def _averaged(rows: Sequence[Row]) -> Row:
    columns = [name for name in rows[0].values if all(name in row.values for row in rows)]
    values = {name: sum(row.values[name] for row in rows) / len(rows) for name in columns}
    first = rows[0]
    violation = next((row.violation for row in rows if row.violation), None)
    return Row(
        case=first.case,
        seed=first.seed,
        values=values,
        paper=first.paper,
        events=sum(row.events for row in rows),
        wall_s=sum(row.wall_s for row in rows),
        trail=first.trail,
        violation=violation,
    )


def _relative_times(rows: Sequence[Row]) -> None:
    """Compute the time of each case relative to the one whose ``paper.time`` is 1."""
    base = 0.0
    for row in rows:
        if row.paper.get("time") == 1.0:
            base = row.values["hours"]
        if "time" in row.paper and base:
            row.values["time"] = row.values["hours"] / base


def _show(console: Console, about: Any, rows: Sequence[Row], seeds: int) -> None:
    columns = [c for c in COLUMNS if any(c in r.values for r in rows)]
    table = Table(title=about.about or about.name, title_justify="left", title_style="bold")
    table.add_column("case", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
        if any(column in row.paper for row in rows):
            table.add_column("paper", justify="right")
    table.add_column("merges", justify="right")
    table.add_column("events/s", justify="right")
    for row in rows:
        cells = [row.case]
        for column in columns:
            cells.append(_number(column, row.values.get(column)))
            if any(column in each.paper for each in rows):
                cells.append(_number(column, row.paper.get(column)))
        rate = row.events / row.wall_s if row.wall_s else 0.0
        table.add_row(*cells, f"{row.values['merges']:,.0f}", f"{rate:,.0f}")
    console.print(table)
    for column in columns:
        _show_agreement(console, column, rows)
    if seeds > 1:
        console.print(f"mean of {seeds} seeds")
    if about.note:
        console.print(about.note.strip(), soft_wrap=True, highlight=False)


def _number(column: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if column == "time" else f"{value:.1f} %"


def _show_agreement(console: Console, column: str, rows: Sequence[Row]) -> None:
    off = [
        (abs(row.values[column] - row.paper[column]), row)
        for row in rows
        if column in row.paper and column in row.values
    ]
    if len(off) < 2:
        return
    rmse = math.sqrt(sum(each * each for each, _ in off) / len(off))
    worst, row = max(off, key=lambda each: each[0])
    unit, digits = ("", 2) if column == "time" else (" points", 1)
    ours, theirs = _number(column, row.values[column]), _number(column, row.paper[column])
    console.print(
        f"{column}: RMSE {rmse:.{digits}f}{unit} over {len(off)} cells of the paper; "
        f"worst {worst:.{digits}f}{unit}: {row.case}, {ours} against {theirs}",
        soft_wrap=True,
        highlight=False,
    )


def _report_broken(console: Console, path: Path, given: argparse.Namespace, row: Row) -> None:
    """Print how to reproduce a violation, and record its tapes."""
    folder = given.folder
    if folder is None:
        folder = next_folder(Path("runs"), f"simulated-{row.seed}")
        overrides, without = tuple(given.overrides), tuple(given.without)
        case, scenario = chosen(path, overrides, without, row.case)[0]
        run_case(case, scenario, row.seed, folder)
    words = ["ddloco", "simulate", given.scenario, "--case", row.case, "--seed", row.seed]
    words += [word for each in given.overrides for word in ("--set", each)]
    again = quoted([*words, *(word for each in given.without for word in ("--without", each))])
    console.print(f"{row.case}, seed {row.seed}: {row.violation}", soft_wrap=True, highlight=False)
    console.print(f"  again: {again}\n  tapes: {folder}", soft_wrap=True, highlight=False)


def at_least_one(option: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"{option} {value}: at least 1")
    return value
