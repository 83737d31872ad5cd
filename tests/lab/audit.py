"""The audit of recorded runs with all checks: those of ``tape verify``, and how syncs launch."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ddloco.replayer.invariants.base import PerSyncer
from ddloco.replayer.invariants.tape_audit import Audit, InvariantResult
from replay import Tape, open_tapes
from tests.lab.launches import Launches

LATE_MAX = 1
"""In a live run one arrival may be handled while a deadline passes; its timer comes before the
next."""


def audit(tapes: Sequence[Tape]) -> list[InvariantResult]:
    """The result for each invariant."""
    return Audit(tapes, [PerSyncer(partial(Launches, LATE_MAX))]).run()


def violated_in(folder: Path) -> list[str]:
    """What does not hold in the tapes of a run folder, a line each."""
    return [each.line() for each in audit(open_tapes(folder)) if each.violation is not None]
