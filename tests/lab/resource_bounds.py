"""Limits on what actors hold: bounded-memory, control-not-starved, and the references to arrays."""

from collections.abc import Sequence
from typing import Any

from clocks import actor_of, number_of
from ddloco.job.protocol.work import Recovered, RunStep
from ddloco.machines.learner.machine import Learner
from ddloco.machines.relay.machine import Relay
from ddloco.machines.syncer.machine import Syncer
from ddloco.replayer.invariants.base import InvariantCheck, hold
from ddloco.simulation.node import Node
from ddloco.simulation.world import World
from ddloco.stage.actors.actor import Actor
from ddloco.stage.actors.effects import Finish, Observe, Work
from ddloco.stage.actors.events import WorkResult
from ddloco.workers.simulated.work import PIECES
from transport import CONTROL, LANES, Effect, Event, Free

MEMORY = "bounded-memory"
Effects = Sequence[Effect]


class Bounds(InvariantCheck[World, Node]):
    """bounded-memory, control-not-starved: arrays, clocks, queues, remembered incarnations."""

    def __init__(self) -> None:
        self._newest: dict[str, dict[str, int]] = {}
        """By syncer, the newest incarnation of each learner that it has heard of."""

    def started(self, world: World, node: Node) -> None:
        """A new syncer has heard of no learner."""
        if node.actor_name in world.fragment_memories:
            self._newest[node.actor_name] = {}

    def see(self, world: World, node: Node, event: Event, effects: Effects) -> None:
        """Compare what the actor holds with the limits."""
        if node.finish is not None or any(isinstance(effect, Finish) for effect in effects):
            return
        if node.actor_name in world.fragment_memories:
            self._remembered(world, node, event, effects)
        actor, sync = node.actor, world.job.sync
        me, learners = f"{node.incarnation}:{actor.number}", world.job.job.learners
        freed = {effect.handle for effect in effects if isinstance(effect, Free)}
        held, stored = actor.handles.names(), node.contents.keys() - freed
        hold(stored <= held, MEMORY, f"{me}: no reference holds {sorted(stored - held)}")
        parts = len(world.plan.fragments)
        most = 3 * parts + 4 * max(sync.overlap, 1) + 4 + 4 * PIECES
        most += parts * (sync.blocking + (sync.late == "carry"))
        if node.actor_name in world.fragment_memories:
            most = (
                3 * parts + max(sync.overlap, 1) * (learners + 3) + (parts + 2 * PIECES) * learners
            )
        elif node.actor_name in world.job.relay:
            # A version of each fragment, the next one and its difference, a sum; and of learners
            # what arrived for it and for the next one.
            most = 4 * parts + (2 * parts + max(sync.overlap, 1)) * learners
        most += _differences(world, node) + len(set(actor.snapshots.holding()))
        hold(len(held) <= most, MEMORY, f"{me} holds {len(held)} arrays, {most} at most")
        entries = 2 * len(world.job.names()) + 2
        hold(len(actor.clock) <= entries, MEMORY, f"{me}: {len(actor.clock)} entries in its clock")
        for peer in actor.links.peers():
            for lane in LANES:
                waiting, credit = actor.links.waiting(peer, lane)
                hold(waiting <= parts + 8, MEMORY, f"{me}: {waiting} wait for {peer}")
                starved = lane == CONTROL and waiting and credit
                hold(not starved, "control-not-starved", f"{me}: {waiting} wait for {peer}")

    def _remembered(self, world: World, node: Node, event: Event, effects: Effects) -> None:
        """A syncer must remember nothing of earlier incarnations of an actor that returned."""
        joined = [
            each.fields["learner"]
            for each in effects
            if isinstance(each, Observe) and each.event == "joined"
        ]
        if isinstance(event, Recovered):
            joined += [node.incarnation, *(name for each in event.kept for name in each.spent)]
        newest = self._newest[node.actor_name]
        for name in joined:
            actor = actor_of(name)
            newest[actor] = max(newest.get(actor, 0), number_of(name))
        machine: Any = node.actor.machine
        learners, clock = world.job.job.learners, node.actor.clock
        known = machine.rounds if isinstance(machine, Syncer) else machine
        merged = len(known.membership.merged) if known is not None else 0
        hold(merged <= learners, MEMORY, f"{merged} incarnations of {learners} are remembered")
        if len(clock) > learners + len(world.fragment_memories):
            for name in clock.others():
                gone = number_of(name) < newest.get(actor_of(name), 0)
                hold(not gone, MEMORY, f"{node.incarnation} still has {name} in its clock")


def _differences(world: World, node: Node) -> int:
    """The most arrays that an actor holds in addition where differences are sent."""
    compress, sync = world.job.compress, world.job.sync
    parts = len(world.plan.fragments)
    if not compress.differences:
        return 0
    if node.actor_name in world.fragment_memories:
        # What learners hold, and the difference to it; and the parameters of older versions.
        return (2 + sync.staleness) * parts + 2 * sync.overlap
    return (1 + 2 * compress.feedback) * parts + 3 * parts


class Holders(InvariantCheck[World, Node]):
    """bounded-memory, exactly: the state accounts for every reference to an array, and every handle
    refers to an array that exists or is being computed."""

    def __init__(self) -> None:
        self._pending: dict[str, dict[int, tuple[str, ...]]] = {}

    def started(self, world: World, node: Node) -> None:
        """No work is in progress at the start."""
        self._pending[node.incarnation] = {}

    def died(self, world: World, node: Node) -> None:
        """Forget the work of an incarnation that has ended."""
        del self._pending[node.incarnation]

    def see(self, world: World, node: Node, event: Event, effects: Effects) -> None:
        """Compare the actor's reference counts with what its machine and its links hold."""
        if not isinstance(node.actor.machine, Syncer | Learner | Relay):
            return
        pending = self._pending[node.incarnation]
        if isinstance(event, WorkResult):
            pending.pop(event.work)
        ended = False
        for effect in effects:
            if isinstance(effect, Work):
                pending[effect.work] = effect.makes
                if isinstance(effect, RunStep):
                    pending[effect.work] += tuple(each.handle for each in effect.copies)
            ended = ended or isinstance(effect, Finish)
        if ended:
            return
        held = node.actor.handles.held()
        missing = held.keys() - node.contents.keys()
        missing.difference_update(*pending.values())
        me = f"{node.incarnation}:{node.actor.number}"
        hold(not missing, MEMORY, f"{me}: there is nothing under {sorted(missing)}")
        counted, found = sum(held.values()), holders(node.actor)
        hold(
            counted == found, MEMORY, f"{me} counts {counted} holders of arrays, there are {found}"
        )


def holders(actor: Actor) -> int:
    """The number of references to arrays in an actor's state."""
    machine: Any = actor.machine
    links: Any = actor.links
    total = len(actor.snapshots.holding()) + sum(
        bool(waiting.payload)
        for link in links.links.values()
        for lane in link.lanes.values()
        for waiting in lane.outbox.waiting
    )
    if isinstance(actor.machine, Syncer):
        training = machine.training
        if training is None:
            return total
        syncs, compress = training.rounds.syncs, machine.job.compress
        total += training.relay.held() + len(training.shards.finals)
        making = [each for each in syncs.values() if each.work]
        total += training.rounds.globals.held()
        total += sum(len(training.rounds.makes(each, compress)) for each in making)
        return total + sum(len(sync.handles()) for sync in syncs.values())
    if isinstance(actor.machine, Relay):
        return total + actor.machine.references()
    running = machine.running
    total += machine.recovery.held() + machine.lending.held()
    total += 2 * len(machine.answers) + len(machine.incoming)
    total += machine.compression.held() + machine.late.held()
    if machine.copies is not None:
        total += machine.copies.held()
    if machine.lockstep is not None:
        total += len(machine.lockstep.stands)
    if running is not None:
        total += len(running.overwrites) + len(running.carries) + bool(running.out)
    return total
