"""The parameters of a simulated world, and the interfaces of its observers and checks."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ddloco.job.protocol.fragment_plan import Leaf
from ddloco.simulation.network import Wire
from ddloco.simulation.node import Costs, Node, Pace
from ddloco.stage.actors.effects import Observe
from ddloco.stage.process.log import ActorLog
from replay import Recorder
from transport import Effect, Event

if TYPE_CHECKING:
    from ddloco.simulation.world import World


class WorldObserver(Protocol):
    """An observer that is told when actors start and end, and of their observations."""

    def started(self, world: "World", node: Node, /) -> None:
        """An actor is about to handle its first event."""
        ...

    def died(self, world: "World", node: Node, /) -> None:
        """An actor has ended, killed or finished."""
        ...

    def observed(self, node: Node, what: Observe, /) -> None:
        """An actor has made an observation."""
        ...


class Check(WorldObserver, Protocol):
    """A check that sees every event, and raises when an invariant is violated."""

    def see(self, world: "World", node: Node, event: Event, effects: Sequence[Effect], /) -> None:
        """An actor has handled an event; its effects are about to be performed."""
        ...


@dataclass(frozen=True)
class Physics:
    """The parameters of a world, in addition to the job.

    Attributes:
        hub_bytes_per_s: what a syncer's host carries in each direction, for all its links; 0 for
            everything.
        fragment_bytes: the size of a fragment on a link; 0 for that of the simulated tensors.
        arithmetic: whether contents have numbers.
    """

    leaves: tuple[Leaf, ...]
    seed: int = 0
    wire: Wire = Wire()
    costs: Costs = Costs()
    fragment_bytes: float = 0.0
    hub_bytes_per_s: float = 0.0
    arithmetic: bool = False
    pace: Callable[[str, random.Random], Pace] = Pace.even
    recorder: Callable[[str], Recorder | None] = lambda _: None
    log: Callable[[str], ActorLog | None] = lambda _: None
