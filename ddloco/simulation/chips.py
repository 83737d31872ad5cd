"""A learner with many chips: slices that fail and return, and the cost of each change (paper
section 7). Chip failures are a Poisson process, the time until a slice returns has an exponentiated
Weibull distribution. Failures during a stop are handled within it. The durations, which the paper
does not publish, are calibrated to its Table 1; see ``scenarios/goodput.toml``."""

import heapq
import math
import random
from collections.abc import Callable
from typing import Annotated

from msgspec import Meta

from ddloco.simulation.node import Pace
from ddloco.stage.files.toml import Section

YEAR_S = 365.25 * 24 * 3600

Seconds = Annotated[float, Meta(ge=0.0)]
More = Annotated[float, Meta(gt=0.0)]


class Chips(Section, frozen=True):
    """``[chips]``: what learners consist of, and how it fails.

    Attributes:
        total: chips of the whole job, divided evenly among its learners.
        slice: chips that fail and return together.
        mtbi_s: mean time between interruptions of one chip.
        elastic: whether a learner continues without a failed slice.
        downscale_s: how long an elastic learner stops at a failure.
        upscale_s: how long it stops to add slices.
        patience_s: how long a returned slice waits for a stop that is due anyway.
        restart_s: how long a learner that is not elastic stops at a failure.
        back_scale_s, back_shape, back_power: exponentiated Weibull distribution of the time until a
            slice returns: P(T < x) = (1 - exp(-(x / scale) ** shape)) ** power.
        back_max_s: a slice that takes longer is replaced.
    """

    total: Annotated[int, Meta(ge=1)]
    slice: Annotated[int, Meta(ge=1)] = 256
    mtbi_s: More = YEAR_S
    elastic: bool = True
    downscale_s: Seconds = 19.0
    upscale_s: Seconds = 12.0
    patience_s: Seconds = 50.0
    restart_s: Seconds = 77.0
    back_scale_s: More = 500.0
    back_shape: More = 0.9
    back_power: More = 1.2
    back_max_s: Seconds = 4 * 3600.0

    def back_s(self, rng: random.Random) -> float:
        inner = 1.0 - rng.random() ** (1.0 / self.back_power)
        if inner <= 0.0:
            return self.back_max_s
        waited = self.back_scale_s * (-math.log(inner)) ** (1.0 / self.back_shape)
        return min(waited, self.back_max_s)


class ChipPace(Pace):
    """The pace of a learner with many chips: ``count`` of them, ``step_s`` seconds a step with all.
    A step is a fixed amount of work: with fewer slices it takes longer. A stop interrupts the
    current step, which continues afterwards. ``variance`` is a fraction of a step's duration."""

    def __init__(
        self, chips: Chips, count: int, step_s: float, variance: float, rng: random.Random
    ) -> None:
        super().__init__(step_s, variance, rng)
        self.stops = 0
        self.stopped: list[tuple[float, float]] = []
        """Intervals in which it was stopped; the ledger takes and clears this list."""
        self._chips = chips
        self._slices = max(count // chips.slice, 1)
        self._rate = count / chips.mtbi_s
        self._failed = 0
        self._returns: list[float] = []
        self._ready = 0
        self._ready_since = math.inf
        self._failure = rng.expovariate(self._rate)

    def step(self, now: float, slow: float, count: int = 1) -> float:
        work = super().step(now, slow, count)
        self._running_s = count * self.step_s
        at = now
        while True:
            rate = 1.0 - self._failed / self._slices
            end = at + work / rate if rate > 0 else math.inf
            due, change = self._next()
            if due >= end:
                return end - now
            work -= max(due - at, 0.0) * rate
            at = change(max(due, at))

    def _next(self) -> tuple[float, Callable[[float], float]]:
        back = self._returns[0] if self._returns else math.inf
        upscale = self._ready_since + self._chips.patience_s
        due = min(self._failure, back, upscale)
        if due == self._failure:
            return due, self._fail
        return due, (self._come_back if due == back else self._upscale)

    def _fail(self, at: float) -> float:
        chips = self._chips
        self._failure = at + self._rng.expovariate(self._rate)
        if not chips.elastic:
            return self._stop(at, chips.restart_s)
        self._lose_slice(at)
        self._take_in()
        return self._stop(at, chips.downscale_s)

    def _lose_slice(self, at: float) -> None:
        if self._failed < self._slices:
            self._failed += 1
            heapq.heappush(self._returns, at + self._chips.back_s(self._rng))

    def _come_back(self, at: float) -> float:
        heapq.heappop(self._returns)
        self._ready += 1
        self._ready_since = min(self._ready_since, at)
        return at

    def _upscale(self, at: float) -> float:
        self._take_in()
        return self._stop(at, self._chips.upscale_s)

    def _take_in(self) -> None:
        self._failed -= self._ready
        self._ready, self._ready_since = 0, math.inf

    def _stop(self, at: float, seconds: float) -> float:
        """Stop for some time; further failures meanwhile are handled in the same stop."""
        end = at + seconds
        self.stops += 1
        self.stopped.append((at, end))
        while self._failure < end:
            if self._chips.elastic:
                self._lose_slice(self._failure)
            self._failure += self._rng.expovariate(self._rate)
        return end
