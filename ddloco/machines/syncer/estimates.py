"""Running estimates of durations, used by the grace window and the timeouts."""

from dataclasses import dataclass

SMOOTHING = 0.1
"""Weight of the newest sample; about the last twenty samples have an effect."""

OUTLIER_TIMES = 16.0
OUTLIER_S_MIN = 10.0
"""A sample is clipped to this many times the estimate, or to ten seconds if that is more. A step
time measured across an hour of suspension is not a step time; a real slowdown still shows after
two or three samples."""


@dataclass(slots=True)
class Smoothed:
    """An exponential moving average in seconds; the first sample initialises it."""

    value: float | None = None

    def add(self, sample: float) -> None:
        """Add one sample, in seconds."""
        if self.value is None:
            self.value = sample
        else:
            believed = min(sample, max(OUTLIER_TIMES * self.value, OUTLIER_S_MIN))
            self.value += SMOOTHING * (believed - self.value)


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
