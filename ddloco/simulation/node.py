"""One actor of a simulated world, the durations of its work, and the pace of its steps."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from clocks import number_of
from ddloco.job.protocol.work import (
    AverageGradients,
    EncodeFragment,
    MakeParameters,
    MergeFragment,
    SumContributions,
)
from ddloco.stage.actors.actor import Actor
from ddloco.stage.actors.effects import Finish, Work
from ddloco.stage.files.faults import Fault
from ddloco.stage.process.log import ActorLog
from ddloco.workers.simulated.work import Content, SimulatedWork
from replay import Recorder
from transport import Timer


@dataclass(frozen=True)
class Costs:
    """Durations of work other than steps, in seconds; a merge also takes ``merge_each_s`` for each
    contribution."""

    encode_s: float = 0.01
    merge_s: float = 0.05
    make_s: float = 0.1
    rest_s: float = 0.1
    merge_each_s: float = 0.0

    def of(self, work: Work) -> float:
        match work:
            case EncodeFragment():
                return self.encode_s
            case MergeFragment(shares=shares):
                return self.merge_s + self.merge_each_s * len(shares)
            case AverageGradients():
                return self.merge_s
            case SumContributions(shares=shares):
                return self.merge_s + self.merge_each_s * len(shares)
            case MakeParameters():
                return self.make_s
            case _:
                return self.rest_s


class Pace:
    """The durations of a learner's steps, and how its time was spent, over all incarnations.
    ``variance`` is a fraction of a step's duration."""

    def __init__(self, step_s: float, variance: float, rng: random.Random) -> None:
        self.step_s = step_s
        self.useful_s = 0.0
        """Time spent in steps that finished."""
        self.steps = 0
        self._variance = variance
        self._rng = rng
        self._running_s = 0.0

    @classmethod
    def even(cls, _: str, rng: random.Random) -> "Pace":
        return cls(1.0, 0.0, rng)

    def step(self, now: float, slow: float, count: int = 1) -> float:
        """Begin ``count`` steps at ``now``, ``slow`` times slower than usual; returns their
        duration."""
        del now
        seconds = count * self.step_s * slow
        if self._variance:
            seconds *= max(self._rng.gauss(1.0, self._variance), 0.1)
        self._running_s = seconds
        return seconds

    def done(self, now: float, count: int = 1) -> None:
        del now
        self.useful_s += self._running_s
        self.steps += count

    def away(self, now: float) -> None:
        del now
        self._running_s = 0.0


@dataclass(slots=True, eq=False)
class Node:
    incarnation: str
    actor_name: str
    actor: Actor
    simulated_work: SimulatedWork
    pace: Pace
    recorder: Recorder | None
    log: ActorLog | None
    zero: float
    at: float = 0.0
    present: bool = True
    frozen: bool = False
    slow: float = 1.0
    finish: Finish | None = None
    faults: list[Fault] = field(default_factory=list[Fault])
    held: list[tuple[Callable[[Any, Any], None], Any]] = field(default_factory=list[Any])
    contents: dict[str, Content] = field(default_factory=dict[str, Content])
    step_until: float = 0.0
    """When the current step will be done, unless that changes."""
    timers: dict[Timer, float] = field(default_factory=dict[Timer, float])

    @property
    def number(self) -> int:
        return number_of(self.incarnation)

    def close(self) -> None:
        if self.recorder is not None:
            self.recorder.close(self.actor.number, self.finish.reason if self.finish else None)
        if self.log is not None:
            self.log.close()
