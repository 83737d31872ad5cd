"""A digest of all that happens in a world: two runs of the same world have the same."""

import xxhash
from msgspec.msgpack import Encoder

from ddloco.replayer.invariants.base import Effects, InvariantCheck
from ddloco.simulation.node import Node
from ddloco.simulation.world import World
from transport import Event


class Trail(InvariantCheck[World, Node]):
    def __init__(self) -> None:
        super().__init__()
        self._digest = xxhash.xxh3_128()
        self._encode = Encoder(order="deterministic").encode

    def see(self, stage: World, role: Node, event: Event, effects: Effects) -> None:
        self._digest.update(f"{stage.now!r} {role.incarnation} ".encode())
        self._digest.update(self._encode((event, list(effects))))

    def value(self) -> str:
        return self._digest.hexdigest()
