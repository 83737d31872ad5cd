"""The connections of a simulated world, and the messages in flight on them. Learners and relays
dial every shard, the other shards dial the first, and learners their relay. Messages wait while no
endpoint listens, as in a socket's queue."""

import random
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from clocks import actor_of
from ddloco.job.protocol.compression import relative_size
from ddloco.simulation.network import CONTROL_BYTES, Card, Line, Way
from ddloco.simulation.node import Node
from ddloco.stage.arrays.reassembly import PROGRESS_S
from transport import BULK, BytesArrived, LaneBroken, MessageArrived, Transmit

if TYPE_CHECKING:
    from ddloco.simulation.world import World

DEALER_MESSAGES_MAX = 1000
"""Messages of all diallers that wait while a listener is absent; later ones are lost."""

Key = tuple[str, str]


class Switch:
    def __init__(self, world: "World") -> None:
        self.lines: dict[Key, Line] = {}
        """By (incarnation that dials, actor that listens)."""
        self._world = world
        self._names = world.job.listeners()
        self._dialled: dict[str, Node] = {}
        self._parked: dict[str, list[Any]] = {name: [] for name in self._names}
        size = world.plan.total_bytes / len(world.plan.fragments)
        rate = world.physics.hub_bytes_per_s
        self._cards = {name: Card(rate) for name in self._names} if rate else {}
        self._bulk_bytes = int(world.physics.fragment_bytes or size)

    def _listeners(self, actor: str) -> tuple[str, ...]:
        return self._world.job.dials(actor)

    def of(self, node: Node) -> list[Line]:
        pairs = ((node.incarnation, each) for each in self._listeners(node.actor_name))
        return [self.lines[pair] for pair in pairs if pair in self.lines]

    def plug(self, node: Node) -> None:
        physics, me = self._world.physics, node.incarnation
        for listener in self._listeners(node.actor_name):
            name = f"{physics.seed}/link of {me}"
            if len(self._names) > 1:
                name += f" to {listener}"
            self.lines[me, listener] = Line(
                physics.wire, random.Random(name), self._cards.get(listener)
            )
            self._dialled[me] = node

    def unplug(self, node: Node) -> None:
        """Disconnect an actor that has ended: messages to it break the lane at the sender."""
        for listener in self._listeners(node.actor_name):
            del self.lines[node.incarnation, listener]
            self._dialled.pop(node.incarnation, None)

    def reset(self, actor: str) -> None:
        """Lose the messages in flight to and from a listener that was killed."""
        for (_, listener), line in self.lines.items():
            if listener == actor:
                line.generation += 1

    def cut_connections(self, node: Node) -> None:
        for listener in self._listeners(node.actor_name):
            self._world.tell(node, LaneBroken(listener, BULK, "reset"))

    def transmit(self, node: Node, said: Transmit[Any]) -> None:
        content = node.contents[said.payload] if said.payload else None
        item = (said, node.incarnation, content)
        line = self.lines.get((node.incarnation, said.peer))
        if line is not None:
            target = self._world.nodes.get(said.peer)
            if target is not None and target.present:
                self._send(line, "to-syncer", target, item)
            elif len(self._parked[said.peer]) < DEALER_MESSAGES_MAX:
                self._parked[said.peer].append(item)
            return
        target = self._dialled.get(said.peer)
        if target is None:
            self._world.tell(node, LaneBroken(said.peer, said.lane, "the peer cannot be reached"))
        else:
            self._send(self.lines[said.peer, node.actor_name], "from-syncer", target, item)

    def _send(self, line: Line, way: Way, target: Node, item: Any) -> None:
        nbytes = CONTROL_BYTES if item[2] is None else self._bulk(item[0].body)
        said = item[0]
        begun, at = line.carry(way, said.lane, self._world.now, nbytes)
        moment = begun + PROGRESS_S
        while moment < at:
            come = int(nbytes * (moment - begun) / (at - begun))
            told = (said, item[1], come, line, way, line.generation)
            self._world.push(moment, target, self._progress, told)
            moment += PROGRESS_S
        self._world.push(at, target, self.arrive, (*item, line, way, line.generation))

    def _bulk(self, body: Any) -> int:
        """The bytes of a message with a payload; those of a compressed one are fewer."""
        form = getattr(body, "form", UNSET)
        return self._bulk_bytes if form is UNSET else int(self._bulk_bytes * relative_size(form))

    def _progress(self, node: Node, item: Any) -> None:
        """A large message is still arriving, unless its connection was reset or its line is cut."""
        said, sender, nbytes, line, way, generation = item
        if generation == line.generation and not line.ways[way].held:
            peer = actor_of(sender) if way == "from-syncer" else sender
            self._world.admit(node, BytesArrived(peer, said.lane, nbytes))

    def unpark(self, actor: str) -> None:
        """Deliver the messages that waited for a syncer that has started again."""
        parked, self._parked[actor] = self._parked.get(actor, []), []
        for item in parked:
            line = self.lines.get((item[1], actor))
            if line is not None:
                self._send(line, "to-syncer", self._world.nodes[actor], item)

    def arrive(self, node: Node, item: Any) -> None:
        """A message arrives, unless it was lost with its connection, or its line is cut."""
        said, sender, content, line, way, generation = item
        if generation != line.generation:
            return
        direct = line.ways[way]
        if direct.held:
            direct.waiting.append((node, item))
            return
        handle, digest = "", b""
        if content is not None:
            handle = f"in/{node.actor.number + 1}"
            node.contents[handle] = content
            digest = content.digest
        # The dialling side knows its peer by the name that it dialled.
        peer = actor_of(sender) if way == "from-syncer" else sender
        # A decoded message has its own copy of the clock; messages of one event may share theirs.
        clock = dict(said.clock)
        came = said.lane, sender, said.session, said.seq, clock, said.body, digest, handle
        self._world.admit(node, MessageArrived(peer, *came))
