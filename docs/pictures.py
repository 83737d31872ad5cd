"""Draw the pictures of the documentation from the output of real runs: ``make pictures``.

``live.svg`` is the live display of a run, while one of its three learners is down.
``divergence.svg`` is what a replay prints after one digit of the model has changed.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, Group
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from ddloco.job.config import load_job
from ddloco.monitoring.live_display import Board
from ddloco.stage.files.run_folder import JOB_FILE, LOG_FILE

FOLDER = Path(__file__).parent / "pictures"
COLUMNS = 100
"""Width of the pictures, in characters."""

BYTES_MAX = 100_000
"""Largest picture; a page with both still loads at once."""

STEPS = 300
CRASH = '[{what = "crash", who = "learner-1", at_s = 25, for_s = 10}]'
MERGES_AFTER_CRASH = 5
"""The picture is taken so many merges after the crash: the others train on."""

BEFORE, AFTER = "1e-6", "1e-5"
"""The digit of the model that is changed before the replay."""

SVG_FORMAT = re.sub(r"@font-face {{.*?}}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
"""rich's format without the fonts, which a browser would load from another site."""


def ddloco(*arguments: str, folder: Path) -> str:
    """Run a command of ddloco in a folder, and return what it printed."""
    command = [sys.executable, "-P", "-m", "ddloco", *arguments]
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603, PLW1510


def board_after_crash(run: Path) -> Board:
    """Return the live display of a run as it was some merges after a learner was killed."""
    board = Board(load_job(run / JOB_FILE))
    killed_at = None
    for line in (run / LOG_FILE).read_text().splitlines():
        board.take(json.loads(line))
        if killed_at is None and board.learners["learner-1"].state.startswith("gone"):
            killed_at = board.merges
        if killed_at is not None and board.merges >= killed_at + MERGES_AFTER_CRASH:
            break
    return board


def save(name: str, title: str, *contents: Group | Progress | Text) -> None:
    """Draw contents as an SVG file of fixed width.

    Raises:
        ValueError: the file would have more than ``BYTES_MAX`` bytes.
    """
    with Path("/dev/null").open("w") as nothing:
        console = Console(record=True, width=COLUMNS, file=nothing, force_terminal=True)
        for each in contents:
            console.print(each)
        svg = console.export_svg(title=title, code_format=SVG_FORMAT, unique_id=name)
    if len(svg) > BYTES_MAX:
        raise ValueError(f"{name}.svg has {len(svg)} bytes; at most {BYTES_MAX}")
    (FOLDER / f"{name}.svg").write_text(svg + "\n")


def draw_live(folder: Path) -> None:
    """Run a job of which a learner is killed, and draw its live display."""
    run = ["run", "examples/quickstart.toml", "--processes", "--dir", "runs/killed"]
    ddloco(*run, "--set", f"job.steps={STEPS}", "--set", f"chaos.fault={CRASH}", folder=folder)
    board = board_after_crash(folder / "runs/killed")
    bar = Progress(
        TextColumn("global step {task.completed:.0f}/{task.total:.0f}"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:.0f} %"),
        expand=True,
    )
    bar.add_task("steps", total=STEPS, completed=board.t)
    save("live", "ddloco run examples/quickstart.toml --processes", board.tables(), bar)


def draw_divergence(folder: Path) -> None:
    """Run a job, change a digit of its model, and draw what the replay prints."""
    run = ["run", "examples/quickstart.toml", "--dir", "runs/first"]
    ddloco(*run, "--set", "job.steps=24", folder=folder)
    model = folder / "examples/tiny_gpt.py"
    model.write_text(model.read_text().replace(BEFORE, AFTER))
    said = ddloco("replay", "runs/first", folder=folder).splitlines()
    found = "\n".join(line for line in said if not line.startswith("replayed "))  # Progress.
    save("divergence", "ddloco replay runs/first", Text(found.rstrip()))


def main() -> None:
    """Draw all pictures."""
    with tempfile.TemporaryDirectory() as name:
        ddloco("init", "--template", "examples", folder=Path(name))
        draw_live(Path(name))
        draw_divergence(Path(name))


if __name__ == "__main__":
    main()
