"""Running estimates of durations, used by the grace window and the timeouts."""

from msgspec import Struct

SAMPLES = 8
"""Samples that an estimate is taken from. Half of them must be slow before the estimate is."""


class Recent(Struct, forbid_unknown_fields=True):
    """The lower median of the newest samples, in seconds; None before the first. One step that
    waits for a batch, compiles again or is measured across a suspension changes nothing; a learner
    that becomes slower shows after four steps."""

    value: float | None = None
    newest: list[float] = []

    def add(self, sample: float) -> None:
        self.newest = [*self.newest[1 - SAMPLES :], sample]
        self.value = sorted(self.newest)[(len(self.newest) - 1) // 2]


def grace_window(
    *,
    step_s: float | None,
    quorum_s: float | None,
    sync_s: float | None,
    overlap: int,
    safety: float,
    steps_max: float,
) -> float:
    """Return the seconds to wait for more learners once the quorum is reached (paper: Eq. 3):
    ``safety`` (gamma) times the waiting time that the overlap hides, at least zero, at most
    ``steps_max`` steps, and zero while an estimate is missing."""
    if step_s is None or quorum_s is None or sync_s is None:
        return 0.0
    slack = overlap * step_s - (quorum_s + sync_s)
    return min(max(safety * slack, 0.0), steps_max * step_s)
