"""Decoupled DiLoCo: learners, syncer, driver, command line, and jobs from Python.

Machines decide (``machines``), workers compute (``workers``), and the driver (``stage``) is their
only connection to the outside. See ARCHITECTURE.md for an overview.
"""

import importlib
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddloco.api.job import FinishedRun, Handle, Job, JobMetrics, LearnerMetrics, Result
    from ddloco.api.launch import JobError
    from ddloco.api.model import load
    from ddloco.api.model_folder import export
    from ddloco.debugger.api import Run
    from ddloco.stage.files.toml import ConfigError
    from ddloco.workers.task import TaskError
    from replay import Tape, TapeError, tape
    from snapshot import SnapshotError, StorageError

__all__ = [
    "ConfigError",
    "FinishedRun",
    "Handle",
    "Job",
    "JobError",
    "JobMetrics",
    "LearnerMetrics",
    "Result",
    "Run",
    "SnapshotError",
    "StorageError",
    "Tape",
    "TapeError",
    "TaskError",
    "export",
    "load",
    "open",
    "tape",
]

_HOMES = {
    "ddloco.api.job": ("FinishedRun", "Handle", "Job", "JobMetrics", "LearnerMetrics", "Result"),
    "ddloco.api.launch": ("JobError",),
    "ddloco.api.model": ("load",),
    "ddloco.api.model_folder": ("export",),
    "ddloco.stage.files.toml": ("ConfigError",),
    "ddloco.debugger.api": ("Run",),
    "ddloco.api.public": ("SnapshotError", "StorageError", "Tape", "TapeError", "tape"),
    "ddloco.workers.task": ("TaskError",),
}
"""Where the names above are, by module: importing ddloco should cost nothing, so that each is
imported when it is first used."""

_BESIDE = ("clocks", "replay", "snapshot", "transport")
"""The packages beside this one in the source tree. An installed wheel has them inside of this one,
so that they cannot be taken for others."""


def _hidden() -> str:
    """Name a foreign package that is imported in place of one of ours; empty if none is."""
    here = Path(__file__).resolve().parent
    if (here / "_packages").is_dir():
        return ""
    searched = sys.path
    if sys.argv[0] == "-m" and not sys.flags.safe_path and Path(searched[0]) != here.parent:
        searched = searched[1:]  # __main__ removes the current folder.
    for name in _BESIDE:
        loaded = sys.modules.get(name)
        found = loaded.__spec__ if loaded is not None else PathFinder.find_spec(name, searched)
        origin = found.origin if found is not None else None
        if origin is None or Path(origin).resolve().parent != here.with_name(name):
            what = f"{origin} is imported" if origin else "nothing is found"
            return (
                f"{what} as `{name}`, a package of ddloco's checkout in {here.parent}: rename or "
                "remove it, or install ddloco from its wheel, which claims no such name "
                "(`make build`, then `pip install dist/ddloco-*.whl`)"
            )
    return ""


if _said := _hidden():
    if Path(sys.argv[0]).name in ("ddloco", "-m"):  # The command, which shows no traceback.
        sys.stderr.write(f"ddloco: {_said}\n")
        raise SystemExit(2)
    raise ImportError(_said)


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'ddloco' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def open(  # noqa: A001, as ddloco.open it reads
    path: Path | str, *, salvage: bool = False, trust: bool = False
) -> "Run":
    """Open a recorded run for questions; see ``ddloco.debugger.api.Run``.

    Args:
        path: the run folder, a folder of tapes, or one tape.
        salvage: whether to read damaged tapes up to the damage.
        trust: whether to let the task and the states of a run act that another user recorded.

    Raises:
        TapeError: a tape cannot be read, or is of another run than the others.
        ConfigError: the tapes are of a program of the user's own.
    """
    from ddloco.debugger.api import Run  # noqa: PLC0415, importing ddloco should cost nothing

    return Run(path, salvage=salvage, trust=trust)
