"""How a learner's time was spent: the one rule by which computing, compiling, waiting and being
stopped are told apart. Machines, status, reports and the simulator all use it."""

from operator import add, sub

from msgspec import Struct
from msgspec.structs import astuple

STOPPED_STEPS = 4.0
STOPPED_S = 1.0
"""A step that lasted more than four usual ones and a second beyond was stopped meanwhile: its
process or host was suspended, swapped out, or had no processor. Steps vary by less."""


class TimeSpent(Struct, frozen=True, array_like=True):
    """Seconds of a learner's time, by what it did.

    Attributes:
        computing: it computed steps; only this is goodput.
        compiling: it compiled its first step, or a later one again.
        data: it waited for batches.
        parameters: it waited for parameters, before its first step.
        stopped: it was stopped in a step; see ``STOPPED_STEPS``.
        versions: it waited between two steps for a version, with ``sync.blocking``.
    """

    computing: float = 0.0
    compiling: float = 0.0
    data: float = 0.0
    parameters: float = 0.0
    stopped: float = 0.0
    versions: float = 0.0

    def __add__(self, other: "TimeSpent") -> "TimeSpent":
        return TimeSpent(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: "TimeSpent") -> "TimeSpent":
        return TimeSpent(*map(sub, astuple(self), astuple(other)))


def of_step(
    step: int, took_s: float, data_s: float, compiling_s: float, usual_s: float | None
) -> TimeSpent:
    """Return how the time of one finished step was spent; an incarnation compiles in its first one.
    ``compiling_s`` are the seconds in which the step was compiled again, for a batch of another
    shape. ``usual_s`` is the median of the newest steps before it; None if there is none."""
    data = min(max(data_s, 0.0), took_s)
    rest = took_s - data
    if step == 1:
        return TimeSpent(compiling=rest, data=data)
    compiling = min(max(compiling_s, 0.0), rest)
    rest -= compiling
    if usual_s is not None and rest > STOPPED_STEPS * usual_s + STOPPED_S:
        return TimeSpent(usual_s, compiling, data, stopped=rest - usual_s)
    return TimeSpent(rest, compiling, data)
