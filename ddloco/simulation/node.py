"""One actor of a simulated world, what its work costs in time, and the pace of its steps."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from clocks import number_of
from ddloco.actors.actor import Actor
from ddloco.actors.effects import Finish, Work
from ddloco.config.faults import Fault
from ddloco.protocol.effects import AverageGradients, EncodeFragment, MakeParameters, MergeFragment
from ddloco.runtime.log import ActorLog
from ddloco.workers.simulated.work import Content, Labour
from replay import Recorder


@dataclass(frozen=True)
class Costs:
    """Seconds that work takes, steps apart."""

    encode_s: float = 0.01
    merge_s: float = 0.05
    make_s: float = 0.1
    rest_s: float = 0.1

    def of(self, work: Work) -> float:
        """What one piece of work takes."""
        match work:
            case EncodeFragment():
                return self.encode_s
            case MergeFragment() | AverageGradients():
                return self.merge_s
            case MakeParameters():
                return self.make_s
            case _:
                return self.rest_s


class Pace:
    """How long a learner's steps take, and how its time was spent; it outlives incarnations.

    Args:
        step_s: seconds of one step.
        variance: standard deviation of a step's duration, as a share of it.
        rng: the learner's own stream.
    """

    def __init__(self, step_s: float, variance: float, rng: random.Random) -> None:
        self.step_s = step_s
        self.useful_s = 0.0
        """Time that went into steps that were finished."""
        self.steps = 0
        self._variance = variance
        self._rng = rng
        self._running_s = 0.0

    @classmethod
    def even(cls, _: str, rng: random.Random) -> "Pace":
        """A second a step, always."""
        return cls(1.0, 0.0, rng)

    def step(self, now: float, slow: float) -> float:
        """A step begins at ``now``, ``slow`` times slower than usual; how long it takes."""
        del now
        seconds = self.step_s * slow
        if self._variance:
            seconds *= max(self._rng.gauss(1.0, self._variance), 0.1)
        self._running_s = seconds
        return seconds

    def done(self, now: float) -> None:
        """The step that ran is finished."""
        del now
        self.useful_s += self._running_s
        self.steps += 1

    def away(self, now: float) -> None:
        """The learner has gone; the step that ran is lost."""
        del now
        self._running_s = 0.0


@dataclass(slots=True, eq=False)
class Node:
    """One incarnation of an actor in a world."""

    incarnation: str
    actor_name: str
    actor: Actor
    labour: Labour
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
    """When the step that runs will be done, as far as anybody knows."""
    timers: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def number(self) -> int:
        """2 for ``learner-3.2``."""
        return number_of(self.incarnation)

    def close(self) -> None:
        """Nothing more is written of it: its tape and its log are whole up to here."""
        if self.recorder is not None:
            self.recorder.close(self.actor.number, self.finish.reason if self.finish else None)
        if self.log is not None:
            self.log.close()
