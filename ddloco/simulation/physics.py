"""What a world is made of, and who looks at it."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ddloco.actors.effects import Observe
from ddloco.protocol.fragment_plan import Leaf
from ddloco.runtime.log import ActorLog
from ddloco.simulation.network import Wire
from ddloco.simulation.node import Costs, Node, Pace
from replay import Recorder
from transport import Effect, Event

if TYPE_CHECKING:
    from ddloco.simulation.world import World


class Clerk(Protocol):
    """Somebody who notes who comes and goes, and what they observe."""

    def started(self, world: "World", node: Node, /) -> None:
        """An actor is about to take its first event."""
        ...

    def died(self, world: "World", node: Node, /) -> None:
        """An actor is gone, killed or finished."""
        ...

    def observed(self, node: Node, what: Observe, /) -> None:
        """An actor has observed something."""
        ...


class Check(Clerk, Protocol):
    """Something that looks at every event, and raises when what must hold does not."""

    def see(self, world: "World", node: Node, event: Event, effects: Sequence[Effect], /) -> None:
        """An event was handled; its effects are about to be performed."""
        ...


@dataclass(frozen=True)
class Physics:
    """What a world is made of, beside the job.

    Attributes:
        seed: everything that is left to chance.
        leaves: the model's tensors.
        wire: what links are like when nothing is wrong with them.
        costs: what work costs in time.
        fragment_bytes: what a fragment weighs on a link; 0 for what its simulated tensors weigh.
        arithmetic: whether there are numbers behind the contents.
        pace: makes a learner's pace, from its name and a stream of its own.
        recorder: makes the pen at an incarnation's door.
        log: makes an incarnation's log.
    """

    leaves: tuple[Leaf, ...]
    seed: int = 0
    wire: Wire = Wire()
    costs: Costs = Costs()
    fragment_bytes: float = 0.0
    arithmetic: bool = False
    pace: Callable[[str, random.Random], Pace] = Pace.even
    recorder: Callable[[str], Recorder | None] = lambda _: None
    log: Callable[[str], ActorLog | None] = lambda _: None
