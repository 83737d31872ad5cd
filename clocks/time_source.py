"""The one definition of time: seconds since an actor's start, from a source handed to its door.

Nobody else reads a clock. Machines are told the time of each event; a simulation or a replay
hands the door another source.
"""

import time
from typing import Protocol


class TimeSource(Protocol):
    """Seconds, never running backwards."""

    def now(self) -> float:
        """Seconds since this source was made."""
        ...


class MonotonicTime:
    """The machine's monotonic clock; wall-clock jumps do not touch it."""

    def __init__(self, start: float = 0.0) -> None:
        self._start = time.monotonic() - start

    def now(self) -> float:
        """Seconds since this source was made, and ``start`` before that."""
        return time.monotonic() - self._start


class ManualTime:
    """Time that moves only when told to: for simulation, replay and tests."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Seconds, as last set."""
        return self._now

    def advance_to(self, seconds: float) -> None:
        """Move to ``seconds``; time never runs backwards."""
        if seconds < self._now:
            raise ValueError(f"time cannot go back from {self._now} to {seconds}")
        self._now = seconds
