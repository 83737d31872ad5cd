"""Leases in a simulated world: a syncer that is stopped is succeeded, and wakes up later.

The leases are those of a live run, over files in memory and the world's time. An engine that sees
no sign of life starts a successor elsewhere, while the one before is frozen; when that wakes, it
may handle no event.
"""

import io
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import cast

from ddloco.replayer.invariants.base import hold
from ddloco.simulation.node import Node
from ddloco.simulation.world import World
from ddloco.stage.actors.effects import Finish, Observe
from ddloco.stage.nodes.lease import BEAT_S, LOOK_S, Lease, LeaseLostError
from snapshot import Place

ONE_LEAD = "one-lead"
"""The invariant: of the incarnations of a syncer at most one acts at any time."""


class _Files:
    """The files of all leases."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def path(self, name: str) -> str:
        return name

    def create(self, name: str, data: bytes, *, exclusive: bool = False) -> bool:
        del exclusive
        return self._files.setdefault(name, data) is data

    def put(self, name: str, data: bytes) -> None:
        self._files[name] = data

    def stat(self, name: str) -> object | None:
        return self._files.get(name)

    def open(self, name: str) -> AbstractContextManager[io.BytesIO]:
        if name not in self._files:
            raise FileNotFoundError(name)
        return nullcontext(io.BytesIO(self._files[name]))

    def remove(self, name: str) -> None:
        self._files.pop(name, None)

    def files(self, folder: str) -> Mapping[str, bytes]:
        return {name: data for name, data in self._files.items() if name.startswith(f"{folder}/")}


class Fences:
    """The leases of a world's syncers; an observer of the world.

    Attributes:
        woken: how many incarnations have woken up and found that they were succeeded.
    """

    def __init__(self) -> None:
        self.woken = 0
        self._place = cast("Place", _Files())
        self._leases: dict[str, Lease] = {}
        """By incarnation, while it is there."""
        self._waiting: dict[str, Lease] = {}
        """The lease of the process that waits to act as a syncer, by actor."""

    def started(self, world: World, node: Node) -> None:
        """A syncer claims its lease: its predecessor is dead, or is silent for long enough."""
        if node.actor_name not in world.fragment_memories:
            return
        lease = self._waiting.pop(node.actor_name, None) or self._new(world, node.actor_name)
        claim = lease.look(standby=True)
        assert claim is None, "the one before has ended, or is silent"
        lease.take(node.incarnation)
        self._leases[node.incarnation] = lease
        world.call(world.now + BEAT_S, self._beat, world, node)

    def died(self, world: World, node: Node) -> None:
        """Whoever ends is known to have ended."""
        if node.frozen and node.present:
            return  # It is succeeded, and still sleeps.
        lease = self._leases.pop(node.incarnation, None)
        if lease is not None:
            lease.close(Finish("left", "ended"))

    def observed(self, node: Node, what: Observe) -> None:
        """Nothing is of interest."""

    def freeze(self, world: World, actor: str, for_s: float) -> None:
        """Stop a syncer for a while; an engine starts another one when it shows no sign of life."""
        node = world.nodes[actor]
        if not node.present or node.frozen or actor in self._waiting:
            return
        world.freeze(actor)
        world.call(world.now + for_s, world.thaw, node)
        self._waiting[actor] = self._new(world, actor)
        self._look(world, node)

    def _look(self, world: World, node: Node) -> None:
        """Look whether a frozen syncer can be succeeded, until it has woken up or ended."""
        name = node.actor_name
        if not (node.frozen and node.present and world.nodes[name] is node):
            self._waiting.pop(name, None)
        elif self._waiting[name].look(standby=True) is None:
            world.succeed(name)
        else:
            world.call(world.now + LOOK_S, self._look, world, node)

    def _new(self, world: World, actor: str) -> Lease:
        return Lease(self._place, actor, now=lambda: world.now, boot="")

    def _beat(self, world: World, node: Node) -> None:
        lease = self._leases.get(node.incarnation)
        if lease is None:
            return
        if not node.frozen:
            try:
                lease.renew()
            except LeaseLostError:
                return
        world.call(world.now + BEAT_S, self._beat, world, node)

    def may_act(self, world: World, node: Node) -> bool:
        """Whether an incarnation may handle an event; one that may not has ended."""
        lease = self._leases.get(node.incarnation)
        if lease is None:
            return True
        try:
            lease.confirm()
        except LeaseLostError as error:
            self.woken += 1
            del self._leases[node.incarnation]
            world.end(node, Finish("left", str(error)))
            return False
        acting = [
            who
            for who, each in self._leases.items()
            if who.startswith(f"{node.actor_name}.") and each.holds()
        ]
        hold(acting == [node.incarnation], ONE_LEAD, f"{acting} act at {world.now:.3f} s")
        return True
