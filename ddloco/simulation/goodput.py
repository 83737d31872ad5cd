"""How the time of a world was spent: goodput, uptime, participation (paper: section 7.1). Chip
goodput is the paper's: the share of the learners' allocated time spent in steps that finished, at
full capacity; it knows of chips that failed, and of time before a learner first joins, which no
syncer does. Goodput is what the job's syncer says. Uptime is the share of the time in which at
least one learner trained."""

from collections.abc import Sequence
from typing import Any

from ddloco.machines.syncer.machine import Syncer
from ddloco.replayer.invariants.base import InvariantCheck
from ddloco.simulation.chips import ChipPace
from ddloco.simulation.node import Node
from ddloco.simulation.world import World
from ddloco.stage.actors.effects import Observe

FOLD_S = 3600.0
"""Interval at which recorded downtimes are summed and discarded, so that memory stays constant."""

Span = tuple[float, float]


class Ledger(InvariantCheck[World, Node]):
    """Accounts for a world's time in constant memory."""

    def __init__(self) -> None:
        self.merges = 0
        self.averaged = 0
        self.all_down_s = 0.0
        self._down: dict[str, list[Span]] = {}
        self._away: dict[str, float] = {}
        self._folded = 0.0

    def watch(self, world: World) -> None:
        """Begin: every learner of the job counts from the start, even if it joins later."""
        for name in world.job.learner_names():
            self._down[name] = []
            self._away[name] = 0.0
        world.call(FOLD_S, self._fold_again, world)

    def started(self, world: World, node: Node) -> None:
        if node.actor_name not in world.fragment_memories and node.actor_name in self._away:
            since = self._away.pop(node.actor_name)
            if world.now > since:
                self._down[node.actor_name].append((since, world.now))

    def died(self, world: World, node: Node) -> None:
        if node.actor_name not in world.fragment_memories:
            self._away[node.actor_name] = world.now

    def observed(self, node: Node, what: Observe) -> None:
        if what.event == "merge":
            self.merges += 1
            self.averaged += what.fields["averaged"]

    def fold(self, world: World) -> None:
        """Sum up to now the time in which all learners were stopped at once."""
        now, spans = world.now, self._down
        for name, down in spans.items():
            pace = world.pace_of(name)
            if isinstance(pace, ChipPace):
                down.extend(pace.stopped)
                pace.stopped = []
            if name in self._away:
                down.append((self._away[name], now))
                self._away[name] = now
        known = [[(max(a, self._folded), min(b, now)) for a, b in down] for down in spans.values()]
        self.all_down_s += together([[s for s in each if s[0] < s[1]] for each in known])
        for name, down in spans.items():
            spans[name] = [span for span in down if span[1] > now]
        self._folded = now

    def _fold_again(self, world: World) -> None:
        self.fold(world)
        world.call(world.now + FOLD_S, self._fold_again, world)

    def results(self, world: World) -> dict[str, float]:
        self.fold(world)
        learners = world.job.learner_names()
        paces = [world.pace_of(name) for name in learners]
        allocated = world.now * len(learners)
        useful = sum(pace.useful_s for pace in paces if pace is not None)
        return {
            **_told(world),
            "chip goodput": 100 * useful / allocated if allocated else 0.0,
            "uptime": 100 * (1 - self.all_down_s / world.now) if world.now else 0.0,
            "taking part": 100 * self.averaged / (self.merges * len(learners) or 1),
            "steps": float(sum(pace.steps for pace in paces if pace is not None)),
            "merges": float(self.merges),
            "hours": world.now / 3600,
        }


def _told(world: World) -> dict[str, float]:
    """The goodput that the leading syncer counts, in percent; nothing if it is unknown."""
    actor = world.nodes[world.lead].actor
    machine: Any = actor.machine
    goodput = machine.numbers(actor.at).goodput
    return {"goodput": 100 * goodput} if goodput is not None else {}


def even_data(world: World) -> dict[str, float]:
    """How evenly the parts of the data were drawn, in percent: the batches of the least drawn one,
    of those of the most drawn one; nothing if the syncer does not count them."""
    machine: Any = world.nodes[world.lead].actor.machine
    if not isinstance(machine, Syncer) or machine.rounds is None:
        return {}
    membership = machine.rounds.membership
    used = [each.batches for each in membership.data.shards]
    used = used or [membership.batches.get(name, 0) for name in world.job.learner_names()]
    return {"even data": 100 * min(used) / max(used)} if max(used) else {}


def together(spans: Sequence[Sequence[Span]]) -> float:
    """Seconds covered by every list of spans; the spans of one list may overlap."""
    edges: list[tuple[float, int]] = []
    for each in spans:
        for begin, end in union(each):
            edges += [(begin, 1), (end, -1)]
    edges.sort()
    count, since, total = 0, 0.0, 0.0
    for at, change in edges:
        if count == len(spans):
            total += at - since
        count += change
        since = at
    return total


def union(spans: Sequence[Span]) -> list[Span]:
    """The same time as spans without overlaps, in order."""
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged
