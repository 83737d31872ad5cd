"""Running estimates of durations, used by the grace window and the timeouts."""

from msgspec import Struct

SAMPLES = 8
"""Samples that an estimate is taken from. Half of them must be slow before the estimate is."""


class Recent(Struct, forbid_unknown_fields=True):
    """The lower median of the newest samples, in seconds; None before the first.

    A step that waits for a late batch, compiles again, or is measured across the suspension of its
    host changes nothing; a learner that becomes slower shows after four steps.
    """

    value: float | None = None
    newest: list[float] = []

    def add(self, sample: float) -> None:
        """Add one sample, in seconds."""
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
    """Return the seconds to wait for more learners once the quorum is reached (paper: Eq. 3).

    ``slack = overlap * step_s - (quorum_s + sync_s)`` is the waiting time that the overlap hides.
    The window is ``safety`` (gamma) times the slack, at least zero, at most ``steps_max`` steps,
    and zero while an estimate is missing.
    """
    if step_s is None or quorum_s is None or sync_s is None:
        return 0.0
    slack = overlap * step_s - (quorum_s + sync_s)
    return min(max(safety * slack, 0.0), steps_max * step_s)
