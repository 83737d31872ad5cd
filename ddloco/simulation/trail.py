"""A digest of all that happens in a world: two runs of the same world have the same."""

import xxhash
from msgspec.msgpack import Encoder

from ddloco.replayer.invariants.base import Effects, InvariantCheck
from ddloco.simulation.node import Node
from ddloco.simulation.world import World
from transport import Event


class Trail(InvariantCheck[World, Node]):
    """A digest of everything that happened, to compare two runs of the same world."""

    def __init__(self) -> None:
        super().__init__()
        self._digest = xxhash.xxh3_128()
        self._encode = Encoder(order="deterministic").encode

    def see(self, stage: World, role: Node, event: Event, effects: Effects) -> None:
        """Add an event and its effects."""
        self._digest.update(f"{stage.now!r} {role.incarnation} ".encode())
        self._digest.update(self._encode((event, list(effects))))

    def value(self) -> str:
        """The digest so far."""
        return self._digest.hexdigest()
