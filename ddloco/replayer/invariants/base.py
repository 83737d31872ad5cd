"""The base of all checks: the actors and events that they see, and how they report violations."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from ddloco.job.config import Job
from ddloco.job.protocol.fragment_plan import FragmentPlan
from ddloco.stage.actors.actor import Actor
from ddloco.stage.actors.effects import Observe
from transport import Effect, Event

Effects = Sequence[Effect]


class Stage(Protocol):
    """Where events happen: a simulated world, or a set of tapes."""

    @property
    def job(self) -> Job:
        """Return the job that is run."""
        ...

    @property
    def plan(self) -> FragmentPlan: ...

    @property
    def now(self) -> float:
        """Seconds since the world's start; on a tape, since its actor's start."""
        ...


class Incarnation(Protocol):
    """One incarnation of an actor, which has just handled an event."""

    @property
    def incarnation(self) -> str: ...

    @property
    def actor_name(self) -> str: ...

    @property
    def actor(self) -> Actor: ...

    @property
    def at(self) -> float:
        """Seconds since its start."""
        ...


S = TypeVar("S")
R = TypeVar("R")


class Violation(Exception):  # noqa: N818, the usual term
    """An invariant does not hold; the text begins with its name."""

    def __init__(self, invariant: str, said: str) -> None:
        super().__init__(f"{invariant}: {said}")
        self.invariant = invariant
        self.said = said


def hold(condition: object, invariant: str, said: str) -> None:
    if not condition:
        raise Violation(invariant, said)


class InvariantCheck(Generic[S, R]):
    """A check; this base class ignores everything. ``looked`` counts how often each invariant was
    checked."""

    invariants: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.looked: Counter[str] = Counter()

    def hold(self, condition: object, invariant: str, said: str) -> None:
        self.looked[invariant] += 1
        hold(condition, invariant, said)

    def started(self, stage: S, role: R, /) -> None:
        """An actor is about to handle its first event."""

    def died(self, stage: S, role: R, /) -> None:
        """An actor has ended."""

    def observed(self, role: R, what: Observe, /) -> None:
        """An actor has made an observation."""

    def see(self, stage: S, role: R, event: Event, effects: Effects, /) -> None:
        """An actor has handled an event."""


class PerSyncer(InvariantCheck[Any, Any]):
    """A check with separate state for each syncer of a job; ``make`` creates the check for one."""

    def __init__(self, make: Callable[[], InvariantCheck[Any, Any]]) -> None:
        super().__init__()
        self.invariants = make().invariants
        self._make = make
        self._checks: dict[str, InvariantCheck[Any, Any]] = {}

    def started(self, stage: Stage, role: Incarnation) -> None:
        name = role.actor_name
        if name in stage.job.syncer_names():
            if name not in self._checks:
                self._checks[name] = self._make()
                self._checks[name].looked = self.looked
            self._checks[name].started(stage, role)

    def see(self, stage: Stage, role: Incarnation, event: Event, effects: Effects) -> None:
        if role.actor_name in self._checks:
            self._checks[role.actor_name].see(stage, role, event, effects)
