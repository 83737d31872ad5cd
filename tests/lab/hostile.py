"""Many hostile worlds, with every check: ``python -m tests.lab.hostile --seeds 2000``.

Each seed draws a small world with its own sizes, speeds, links and faults (``hostile_world``). A
failure prints the seed and the command that shows it again, and leaves tapes for ``ddloco replay``.
Exit code 1: an invariant was violated.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from ddloco.simulation.report import at_least_one, with_bar
from ddloco.stage.files.run_folder import next_folder, open_folder
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.exit_codes import BAD_INPUT, FOUND, HELD
from ddloco.stage.process.console import SafeConsole
from tests.lab import hostile_world

SHOWN_MAX = 10
"""Failed seeds that are listed."""


def given(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    options = argparse.ArgumentParser(prog="python -m tests.lab.hostile", description=__doc__)
    options.add_argument("--seed", type=int, default=0, help="the first seed")
    options.add_argument("--seeds", type=int, default=1, help="how many, from the first one on")
    options.add_argument("--jobs", type=int, default=0, help="processes (default: one per core)")
    options.add_argument("--lying", action="store_true", help="with a peer whose messages lie")
    options.add_argument("--dir", dest="folder", type=Path, help="write tapes and a log there")
    options.add_argument("--json", action="store_true", help="print JSON")
    return options.parse_args(arguments)


def hostile_worlds(given: argparse.Namespace) -> int:
    """Run hostile worlds with every check; one in twenty runs repeatedly.

    Raises:
        ConfigError: an option cannot be used.
    """
    console = SafeConsole(stderr=True)
    seeds = range(given.seed, given.seed + at_least_one("--seeds", given.seeds))
    if given.folder is not None:
        if len(seeds) > 1:
            raise ConfigError("--dir: holds the tapes of one world; choose one seed")
        outcomes = [_kept(given.seed, given.folder, lying=given.lying)]
    else:
        run = partial(hostile_world.run_checked, lying=given.lying)
        outcomes = with_bar(console, "hostile", run, list(seeds), given.jobs)
    broken = [each for each in outcomes if each.violation]
    for each in broken[:SHOWN_MAX]:
        folder = given.folder or _tapes_of(each.seed, lying=given.lying)
        console.print(f"seed {each.seed}: {each.violation}", soft_wrap=True, highlight=False)
        again = f"python -m tests.lab.hostile --seed {each.seed}{' --lying' * given.lying}"
        console.print(f"  again: {again}\n  tapes: {folder}", soft_wrap=True, highlight=False)
    totals = {
        "worlds": len(outcomes),
        "events": sum(each.events for each in outcomes),
        "hours": sum(each.seconds for each in outcomes) / 3600,
        "steps": sum(each.steps for each in outcomes),
        "merges": sum(each.merges for each in outcomes),
        "faults": sum(each.faults for each in outcomes),
        "violations": len(broken),
    }
    if given.json:
        print(json.dumps(totals | {"seeds": [asdict(each) for each in broken]}))
    else:
        said = "  ".join(f"{value:,.0f} {what}" for what, value in totals.items())
        print(f"{said}\n{'failed' if broken else 'held: every invariant in every world'}")
    return FOUND if broken else HELD


def _kept(seed: int, folder: Path, *, lying: bool) -> hostile_world.SeedOutcome:
    open_folder(folder, hostile_world.draw(seed).job)
    return hostile_world.run_seed(seed, folder, lying=lying)


def _tapes_of(seed: int, *, lying: bool) -> Path:
    folder = next_folder(Path("runs"), f"hostile-{seed}")
    _kept(seed, folder, lying=lying)
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    try:
        return hostile_worlds(given(arguments))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
