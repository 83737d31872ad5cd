"""A wall clock that jumps: this process and its workers read it shifted by what a file says.

The kernel has no namespace for the wall clock, and setting the machine's would harm every process
on it. So Python's ways to read it are replaced before anything else is imported; the monotonic ones
are not. Below Python nothing is shifted: libzmq and XLA read monotonic clocks.
"""

import datetime as dt
import os
import time
from pathlib import Path

SHIFT = Path(os.environ["WALL_CLOCK_SHIFT"])


def shift() -> float:
    """How far off the wall clock is now, in seconds."""
    return float(SHIFT.read_text() or "0")


true_time, true_time_ns, true_datetime = time.time, time.time_ns, dt.datetime


class ShiftedDatetime(true_datetime):
    """`datetime` by the shifted clock."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:
        """Read it."""
        return true_datetime.now(tz) + dt.timedelta(seconds=shift())

    @classmethod
    def utcnow(cls) -> dt.datetime:
        """Read it."""
        return true_datetime.utcnow() + dt.timedelta(seconds=shift())


time.time = lambda: true_time() + shift()
time.time_ns = lambda: true_time_ns() + int(shift() * 1e9)
dt.datetime = ShiftedDatetime
