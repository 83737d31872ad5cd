"""Decoupled DiLoCo: learners, syncer, driver and command line.

Machines decide (``machines``), workers compute (``workers``), and the driver (``runtime``) is their
only connection to the outside. See ARCHITECTURE.md for an overview.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddloco.debugger.api import Run


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
