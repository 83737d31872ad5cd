"""Simulated links: delay, bandwidth, what is cut, what is lost. One per learner incarnation.

A link stands for the learner's two connections (lanes) to the syncer. As over TCP, what is sent in
one lane and direction arrives in order; a cut holds it back; a reset loses what is on the way, in
both directions, and leaves the gap that ZeroMQ leaves.
"""

import math
import random
from dataclasses import dataclass, field
from typing import Any, Literal

from ddloco.config.faults import Direction, Fault

Way = Literal["to-syncer", "from-syncer"]
WAYS: tuple[Way, Way] = ("to-syncer", "from-syncer")

CONTROL_BYTES = 400
"""A report of 24 fragments with its clock, as measured on real tapes."""

Item = tuple[Any, ...]


@dataclass(slots=True)
class Direct:
    """One direction of a link."""

    delay_s: float
    jitter_s: float
    bytes_per_s: float
    held: bool = False
    waiting: list[Item] = field(default_factory=list[Item])
    faults: list[Fault] = field(default_factory=list[Fault])
    due: dict[str, float] = field(default_factory=lambda: {"control": 0.0, "bulk": 0.0})
    free: dict[str, float] = field(default_factory=lambda: {"control": 0.0, "bulk": 0.0})


@dataclass(frozen=True)
class Wire:
    """What a link is like when nothing is wrong with it."""

    delay_s: float = 0.01
    jitter_s: float = 0.0
    bytes_per_s: float = math.inf


class Line:
    """One learner's link to the syncer.

    Args:
        wire: how it is when nothing is wrong.
        rng: where jitter is drawn from; its own, so that no other link's traffic changes it.
    """

    def __init__(self, wire: Wire, rng: random.Random) -> None:
        self.generation = 0
        """Grows with every reset: whatever was sent under an older one is lost."""
        self._wire = wire
        self._rng = rng
        self.ways: dict[str, Direct] = {
            way: Direct(wire.delay_s, wire.jitter_s, wire.bytes_per_s) for way in WAYS
        }

    def begins(self, way: Way, lane: str, now: float) -> float:
        """When a message that is sent now begins to arrive, seconds."""
        direct = self.ways[way]
        return max(direct.free[lane], now) + direct.delay_s

    def arrival(self, way: Way, lane: str, now: float, nbytes: int) -> float:
        """When a message of ``nbytes`` sent now arrives: after the one before it in its lane."""
        direct = self.ways[way]
        at = now + direct.delay_s
        if direct.bytes_per_s != math.inf:
            begun = max(direct.free[lane], now)
            direct.free[lane] = begun + nbytes / direct.bytes_per_s
            at = direct.free[lane] + direct.delay_s
        if direct.jitter_s:
            at += self._rng.random() * direct.jitter_s
        due = direct.due
        at = max(at, due[lane])
        due[lane] = at
        return at

    def begin(self, fault: Fault) -> None:
        """A fault of the link sets in, on top of those that have not ended."""
        if fault.what == "reset":
            self.generation += 1
            return
        for direct in self._of(fault.direction):
            direct.faults.append(fault)
            self._feel(direct, fault)

    def end(self, fault: Fault) -> list[Item]:
        """A fault of the link is over; whatever nothing holds back any more, in order."""
        freed: list[Item] = []
        for direct in self._of(fault.direction):
            direct.faults.remove(fault)
            self._feel(direct, fault)
            if not direct.held:
                freed += direct.waiting
                direct.waiting = []
        return freed

    def _feel(self, direct: Direct, changed: Fault) -> None:
        """What a direction is like follows from its faults of the kind that has changed."""
        active = [each for each in direct.faults if each.what == changed.what]
        match changed.what:
            case "cut":
                direct.held = bool(active)
            case "delay":
                direct.delay_s = self._wire.delay_s + sum(each.delay_s for each in active)
            case _:
                rates = [each.mbit * 1e6 / 8 for each in active]
                direct.bytes_per_s = min(rates, default=self._wire.bytes_per_s)

    def _of(self, direction: Direction) -> list[Direct]:
        return [self.ways[way] for way in WAYS if direction in {"both", way}]
