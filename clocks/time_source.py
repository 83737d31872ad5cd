"""Time, defined once: seconds since an actor's start, from the source given to its driver.

Nothing else reads a clock. Machines receive the time with each event; a simulation or a replay
supplies another source.
"""

import time
from typing import Protocol


class TimeSource(Protocol):
    """A source of seconds that never runs backwards."""

    @property
    def began(self) -> float | None:
        """The wall clock's time at 0, in seconds since 1970; None if it is not known. It is for
        logs that people read: nothing may depend on it."""
        ...

    def now(self) -> float:
        """Seconds since this source was created."""
        ...


class MonotonicTime:
    """The host's monotonic clock; changes of the wall clock do not affect it."""

    def __init__(self, start: float = 0.0) -> None:
        self._start = time.monotonic() - start
        self.began: float | None = time.time() - start

    def now(self) -> float:
        """Seconds since this source was created, plus ``start``."""
        return time.monotonic() - self._start


class SuspendAwareTime:
    """The host's monotonic clock, which also counts the time that the host is suspended, where the
    system has one: a lease runs out while its holder sleeps."""

    began = None

    def __init__(self) -> None:
        self._clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def now(self) -> float:
        """Seconds since the host was started."""
        return time.clock_gettime(self._clock)
