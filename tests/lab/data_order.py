"""What must hold for the data of a job with ``job.shards``: the world knows every batch drawn."""

from dataclasses import dataclass, field
from typing import Any

from clocks import actor_of, number_of
from ddloco.job.protocol.messages import DataShards, Progress
from ddloco.job.protocol.work import RunStep, StepFinished
from ddloco.machines.learner.machine import Learner
from ddloco.machines.syncer.data_roster import DataRoster
from ddloco.replayer.invariants.base import Effects, InvariantCheck
from ddloco.simulation.node import Node
from ddloco.simulation.world import World
from ddloco.stage.actors.effects import Observe
from ddloco.stage.actors.observations import DISMISSED
from ddloco.workers.simulated.work import shard_and_number
from transport import Event, MessageArrived, Transmit


@dataclass
class Shard:
    """What is true of one data shard.

    Attributes:
        used: the number of its newest batch that anybody has drawn.
        newest: who drew that.
        drawers: the living incarnations that draw from it, each with its newest batch.
        excuse: why batches may be drawn twice; empty if they may not.
        reported: the batches that were used, as the lead was told.
    """

    used: int = 0
    newest: str = ""
    drawers: dict[str, int] = field(default_factory=dict[str, int])
    excuse: str = ""
    reported: int = 0


class DataOrder(InvariantCheck[World, Node]):
    """data-order: the batches of every shard are drawn in order, none is left out, and none is
    drawn twice, but for those that a learner had drawn since its last report when it died or was
    gone for good, or when the lead died, which forgets what was not kept.

    Attributes:
        twice: batches that were drawn again.
    """

    invariants = ("data-order",)

    def __init__(self) -> None:
        super().__init__()
        self.twice = 0
        self._shards: dict[int, Shard] = {}
        self._gone: dict[str, int] = {}
        """Learners that are gone for good and may live, with the newest message to anybody then:
        until one follows a later message, it draws what others draw, too."""

    def started(self, stage: World, role: Node) -> None:
        """A lead that returns knows only what was kept."""
        if role.actor_name != stage.lead or number_of(role.incarnation) == 1:
            return
        for shard in self._shards.values():
            shard.excuse, shard.reported = "the lead has restarted", 0

    def died(self, stage: World, role: Node) -> None:
        """What it had drawn since its last report may be drawn again."""
        del stage
        for shard in self._shards.values():
            held = shard.drawers.pop(role.incarnation, None) is not None
            if held or shard.newest == role.incarnation:
                shard.excuse = f"{role.incarnation} has died"

    def observed(self, role: Node, what: Observe) -> None:
        """Note who is gone."""
        if what.event in ("gone for good", DISMISSED):
            gone = what.fields["learner"]
            self._gone[gone] = _roster(role).number
            for shard in self._shards.values():
                if any(actor_of(each) == gone for each in (shard.newest, *shard.drawers)):
                    shard.excuse = f"{gone} is gone"

    def see(self, stage: World, role: Node, event: Event, effects: Effects) -> None:
        """Check the steps of learners, and what the lead gives away."""
        if stage.job.job.shards is None:
            return
        if isinstance(role.actor.machine, Learner):
            if isinstance(event, StepFinished):
                self._drawn(stage, role, event)
            follows = role.actor.machine.data.follows
            if follows > self._gone.get(role.actor_name, follows):
                del self._gone[role.actor_name]
            for effect in effects:
                if isinstance(effect, RunStep) and effect.data is not None:
                    self._holds(role, effect)
        elif role.actor_name == stage.lead:
            if isinstance(event, MessageArrived) and role.actor.links.stands(event):
                self._reported(role, event)
            for effect in effects:
                match effect:
                    case Transmit(body=DataShards() as said):
                        self._given(said)
                    case _:
                        pass

    def _of(self, shard: int) -> Shard:
        return self._shards.setdefault(shard, Shard())

    def _holds(self, node: Node, run: RunStep) -> None:
        assert run.data is not None, "a step of a job with shards"
        first, *others = run.data.held
        for index, shard in self._shards.items():
            if index not in run.data.held:
                shard.drawers.pop(node.incarnation, None)
        for index in others:
            self._of(index).drawers.setdefault(node.incarnation, 0)
        shard = self._of(first)
        if run.data.opens:
            shard.drawers[node.incarnation] = run.skip

    def _drawn(self, stage: World, node: Node, event: StepFinished) -> None:
        index, number = shard_and_number(event.batch)
        shard, who = self._of(index), node.incarnation
        before = shard.drawers.get(who, 0)
        said = f"{who} draws batch {number} of shard {index}"
        self.hold(number == before + 1, "data-order", f"{said} after its batch {before}")
        self.hold(number <= shard.used + 1, "data-order", f"{said}, {shard.used} were used")
        if node.actor_name in self._gone:
            shard.excuse = f"{who} is gone"
        if number <= shard.used:
            self.hold(shard.excuse, "data-order", f"{said} again: {shard.used} were used")
            self.twice += 1
        elif len(shard.drawers) == 1 and not self._gone:
            given = _roster(stage.nodes[stage.lead]).shards
            if given and given[index].bound and given[index].drawer == who:
                shard.excuse = ""
        shard.drawers[who] = number
        if number > shard.used:
            shard.used, shard.newest = number, who

    def _reported(self, lead: Node, event: MessageArrived[Any]) -> None:
        machine: Any = lead.actor.machine
        if isinstance(event.body, Progress) and event.peer in machine.members:
            for place in (*event.body.returned, *event.body.drawing):
                shard = self._of(place.shard)
                shard.reported = max(shard.reported, place.batches)

    def _given(self, said: DataShards) -> None:
        for place in said.places:
            reported = self._of(place.shard).reported
            what = f"shard {place.shard} is given away after {place.batches} batches"
            self.hold(place.batches >= reported, "data-order", f"{what}, {reported} were reported")


def _roster(lead: Node) -> DataRoster:
    machine: Any = lead.actor.machine
    return machine.rounds.membership.data if machine.rounds is not None else DataRoster()
