"""Checks of simulated worlds that use more than the actors know.

A world knows the true order of events, and the true contents of every array.
"""

from collections import Counter
from typing import Any

from msgspec import UNSET

from ddloco.job.protocol.messages import Contribution
from ddloco.job.protocol.work import (
    FromShard,
    MergeFragment,
    Recovered,
    RunStep,
    StepFinished,
    SumContributions,
)
from ddloco.machines.learner.machine import Learner
from ddloco.machines.relay.machine import Relay
from ddloco.machines.syncer.global_fragments import names
from ddloco.machines.syncer.machine import Syncer
from ddloco.replayer.invariants.base import Effects, InvariantCheck
from ddloco.simulation.node import Node
from ddloco.simulation.world import World
from ddloco.stage.actors.actor import Actor
from ddloco.workers.simulated.work import TOKENS, shard_and_number
from transport import Event, LaneBroken, MessageArrived, Transmit


class Contents(InvariantCheck[World, Node]):
    """token-conservation, data-cursor: contributions contain what they claim, and no learner skips
    unused data. Without ``cursors``, positions in the data are not compared with their numbers."""

    def __init__(self, *, cursors: bool = True) -> None:
        super().__init__()
        self._cursors = cursors
        self._batches: Counter[str] = Counter()

    def see(self, stage: World, role: Node, event: Event, effects: Effects) -> None:
        """Check arrays that arrive at a syncer, and the batches that steps skip."""
        if isinstance(role.actor.machine, Syncer | Relay):
            if isinstance(event, MessageArrived) and isinstance(event.body, Contribution):
                self._contribution(role, event, event.body)
            for effect in effects:
                if isinstance(effect, SumContributions):
                    self._summed(role, effect)
        elif isinstance(role.actor.machine, Learner):
            if isinstance(event, StepFinished):
                drawn = int.from_bytes(event.batch, "little")
                self._batches[role.actor_name] = max(drawn, self._batches[role.actor_name])
            for effect in effects:
                if isinstance(effect, RunStep) and effect.data is not None:
                    self._opened(role, effect.data, effect)
                elif isinstance(effect, RunStep) and effect.step == 1:
                    self._data(role, effect)

    def _contribution(self, node: Node, event: MessageArrived[Any], said: Contribution) -> None:
        number = node.actor.number
        what = node.contents[event.handle].what if event.handle else None
        if said.relay is not UNSET and isinstance(node.actor.machine, Syncer):
            self.hold(what is None, "token-conservation", f"its relay has it: {said}")
            return
        told = (said.fragment, said.base, said.steps, said.step)
        by = f"contribution of {event.sender} at event {number}"
        self.hold(what == told, "token-conservation", f"{by} says {told}, its array is {what}")
        counted = said.tokens == said.steps * TOKENS
        self.hold(counted, "token-conservation", f"{by}: {said.tokens}")

    def _summed(self, node: Node, work: SumContributions) -> None:
        """A relay must sum what the syncer asked for: that of this global step, and no other."""
        for share in work.shares:
            p, base, steps, _ = node.contents[share.handle].what
            told, what = (work.fragment, share.base, share.steps), (p, base, steps)
            said = f"{node.incarnation} sums {what} as the {told} of {share.name} for {work.t}"
            self.hold(what == told, "token-conservation", said)

    def _data(self, node: Node, run: RunStep) -> None:
        """A learner that returns must continue in its data, and skip only used batches."""
        used = self._batches[node.actor_name]
        said = f"{node.incarnation} leaves out {run.skip} batches, {used} were used"
        self.hold(run.skip <= used, "data-cursor", said)
        if run.cursor and self._cursors:
            at = int.from_bytes(run.cursor, "little")
            said = f"{node.incarnation} leaves out {run.skip} batches, its cursor is after {at}"
            self.hold(at == run.skip, "data-cursor", said)

    def _opened(self, node: Node, data: FromShard, run: RunStep) -> None:
        """A cursor must belong to its shard, after the batches that are left out."""
        if not (run.cursor and self._cursors):
            return
        at = shard_and_number(run.cursor)
        said = f"{node.incarnation} leaves out {run.skip} batches of shard {data.held[0]}"
        self.hold(at == (data.held[0], run.skip), "data-cursor", f"{said}, its cursor is {at}")


class Clocks(InvariantCheck[World, Node]):
    """clock-vs-truth: compares vector clocks with the true happened-before relation."""

    def __init__(self) -> None:
        super().__init__()
        self.lossless = True
        """Whether nothing was lost so far; after a loss a clock may know less than the truth."""
        self._truth: dict[str, dict[str, int]] = {}
        self._said: dict[tuple[str, int], dict[str, int]] = {}
        """The true clock at each event at which messages were sent."""

    def started(self, stage: World, role: Node) -> None:
        """A new incarnation knows nothing."""
        self._truth[role.incarnation] = {}

    def died(self, stage: World, role: Node) -> None:
        """Messages to or from an actor that ends may be lost."""
        self.lossless = False

    def see(self, stage: World, role: Node, event: Event, effects: Effects) -> None:
        """Update the true clock, and compare."""
        me, clock = role.incarnation, role.actor.clock
        truth = self._truth[me]
        self.lossless = self.lossless and not isinstance(event, LaneBroken)
        number = truth.get(me, 0) + 1
        truth[me] = number
        if isinstance(event, MessageArrived) and self._believed(role.actor, event):
            theirs = self._said.get((event.sender, event.clock[event.sender]), {})
            for name, count in theirs.items():
                if count > truth.get(name, 0):
                    truth[name] = count
        floors = role.actor.floors
        counts = clock.wire()
        for name, count in counts.items():
            known = truth.get(name, 0)
            self.hold(
                count <= known, "clock-vs-truth", f"{me}:{number} has {name}:{count}, not {known}"
            )
        if self.lossless and not floors:
            self.hold(
                counts == truth, "clock-vs-truth", f"{me}:{number} has {counts}, truth is {truth}"
            )
        if any(isinstance(effect, Transmit) for effect in effects):
            self._said[me, number] = dict(truth)

    def _believed(self, actor: Actor, event: MessageArrived[Any]) -> bool:
        """Whether the clock merged a message's clock; as long as nothing was lost it must merge
        those of all messages in an open session."""
        if actor.clock[event.sender] >= event.clock[event.sender]:
            return True
        said = f"{event.sender}:{event.clock[event.sender]} taught {actor.incarnation} nothing"
        heeded = self.lossless and actor.links.carries(event)
        self.hold(not heeded, "clock-vs-truth", said)
        return False


class Optimizer(InvariantCheck[World, Node]):
    """optimizer-with-params: the outer state has the same version as its parameters."""

    def see(self, stage: World, role: Node, event: Event, effects: Effects) -> None:
        """Check the inputs of merges, and recovered fragments."""
        if isinstance(event, Recovered):
            for each in event.kept:
                theta, state, wire = names(each.fragment, each.version)
                self._agree(role, theta, state, wire)
                found = role.contents[theta].digest + role.contents[state].digest
                said = f"{theta} and {state} are not what was kept"
                self.hold(found == each.digest, "optimizer-with-params", said)
        for effect in effects:
            if isinstance(effect, MergeFragment):
                self._agree(role, effect.theta, effect.state)

    def _agree(self, role: Node, theta: str, *others: str) -> None:
        belongs = role.contents[theta].what
        first = (belongs[0], 0, 0, 0)
        for handle in others:
            what = role.contents[handle].what if handle else first
            said = f"{handle or 'zeros'}: of {what}, the parameters of {belongs}"
            self.hold(what == belongs, "optimizer-with-params", said)
