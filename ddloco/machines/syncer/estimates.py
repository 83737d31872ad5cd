"""Running estimates of durations, as the grace window and the time-outs need them."""

from dataclasses import dataclass

SMOOTHING = 0.1
"""Weight of the newest sample: about the last twenty count."""

OUTLIER_TIMES = 16.0
OUTLIER_S_MIN = 10.0
"""A sample counts as at most so many times what is usual, and where that is little, as ten seconds.
Whoever measures across an hour in which its machine was suspended has measured no step; what has
really become slower is known after two samples or three."""


@dataclass(slots=True)
class Smoothed:
    """An exponential moving average; the first sample initialises it. Seconds."""

    value: float | None = None

    def add(self, sample: float) -> None:
        """Take one more sample."""
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
    """Seconds to wait for more learners once the quorum is there (paper: Eq. 3).

    ``slack = overlap * step_s - (quorum_s + sync_s)`` is what the overlap hides anyway; the window
    is ``safety`` (gamma) of it, never negative, never more than ``steps_max`` steps, and zero while
    an estimate is missing.
    """
    if step_s is None or quorum_s is None or sync_s is None:
        return 0.0
    slack = overlap * step_s - (quorum_s + sync_s)
    return min(max(safety * slack, 0.0), steps_max * step_s)
