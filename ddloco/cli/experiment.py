"""The command ``ddloco experiment``."""

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import msgspec
from rich.markdown import Markdown

from ddloco.api.experiment import (
    FOLDER,
    Cell,
    CellError,
    CellResult,
    Experiment,
    cells,
    load_experiment,
    run_cell,
    trials,
)
from ddloco.api.experiment_table import case_table, losses_by_seed, said_of_identity
from ddloco.cli.ask import complain
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.exit_codes import FOUND
from ddloco.stage.process.console import SafeConsole


def experiment(given: argparse.Namespace) -> int:
    try:
        loaded = [load_experiment(file, given.overrides) for file in given.experiments]
    except ConfigError as error:
        return complain(error)
    for each in loaded:
        folder = each.folder(given.folder or FOLDER)
        try:
            tried = _run_all(each, trials(each, folder), given)
            results = [*tried, *_run_all(each, cells(each, folder, tried), given)]
        except CellError as error:
            return complain(error, FOUND)
        if given.json:
            print(msgspec.json.encode({"experiment": each.table.name, "cells": results}).decode())
        else:
            lines = (*case_table(each, results), *losses_by_seed(each, results))
            SafeConsole().print(Markdown("\n".join((*lines, *said_of_identity(results)))))
    return 0


def _run_all(
    experiment: Experiment, todo: Sequence[Cell], given: argparse.Namespace
) -> list[CellResult]:
    """Run the cells that have no result yet, some side by side; prints a line for each."""
    console = SafeConsole(stderr=True, soft_wrap=True, highlight=False)
    done: dict[Path, CellResult] = {}
    for cell in todo:
        known, changes = cell.known(experiment)
        if known is not None:
            done[cell.folder] = known
        elif changes:
            what = f"{experiment.table.name}, {cell.case}, seed {cell.seed}"
            console.print(f"{what}: is run again, since this has changed: {', '.join(changes)}")
    missing = [cell for cell in todo if cell.folder not in done]
    if done:
        folder = todo[0].folder.parent
        console.print(f"{experiment.table.name}: {len(done)} of {len(todo)} cells are in {folder}")
    with ThreadPoolExecutor(given.jobs or max((os.cpu_count() or 1) // 2, 1)) as pool:
        running = {pool.submit(run_cell, experiment, cell): cell for cell in missing}
        try:
            for number, each in enumerate(as_completed(running), len(done) + 1):
                cell, result = running[each], each.result()
                done[cell.folder] = result
                console.print(_line(experiment, cell, result, f"{number} of {len(todo)}"))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [done[cell.folder] for cell in todo]


def _line(experiment: Experiment, cell: Cell, result: CellResult, count: str) -> str:
    loss = f"{result.loss:.4f}" if result.loss is not None else "none"
    what = f"{experiment.table.name}, {cell.case}, seed {cell.seed}"
    if experiment.table.tune is not None and cell.tuned is not None:
        what += f", {experiment.table.tune.key} {cell.tuned:g}"
    return f"{count}: {what}: held-out loss {loss} in {result.took_s:.0f} s"
