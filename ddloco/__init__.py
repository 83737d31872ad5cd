"""Decoupled DiLoCo: learners, syncer, driver, command line, and jobs from Python.

Machines decide (``machines``), workers compute (``workers``), and the driver (``runtime``) is their
only connection to the outside. See ARCHITECTURE.md for an overview.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddloco.api.job import FinishedRun, Handle, Job, JobMetrics, LearnerMetrics, Result
    from ddloco.api.launch import JobError
    from ddloco.api.model import load
    from ddloco.config.toml import ConfigError
    from ddloco.debugger.api import Run
    from ddloco.workers.task import TaskError
    from replay import TapeError
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
    "TapeError",
    "TaskError",
    "load",
    "open",
]

_HOMES = {
    "ddloco.api.job": ("FinishedRun", "Handle", "Job", "JobMetrics", "LearnerMetrics", "Result"),
    "ddloco.api.launch": ("JobError",),
    "ddloco.api.model": ("load",),
    "ddloco.config.toml": ("ConfigError",),
    "ddloco.debugger.api": ("Run",),
    "ddloco.workers.task": ("TaskError",),
    "replay": ("TapeError",),
    "snapshot": ("SnapshotError", "StorageError"),
}
"""Where the names above are, by module: importing ddloco should cost nothing, so that each is
imported when it is first used."""


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'ddloco' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def open(path: Path | str, *, salvage: bool = False) -> "Run":  # noqa: A001, as ddloco.open it reads
    """Open a recorded run for questions; see ``ddloco.debugger.api.Run``.

    Args:
        path: the run folder, a folder of tapes, or one tape.
        salvage: whether to read damaged tapes up to the damage.

    Raises:
        TapeError: a tape cannot be read, or is of another run than the others.
        ConfigError: the tapes are of a program of the user's own.
    """
    from ddloco.debugger.api import Run  # noqa: PLC0415, importing ddloco should cost nothing

    return Run(path, salvage=salvage)
