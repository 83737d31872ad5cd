"""Simulated links, with delay, bandwidth, cuts and losses; one per learner incarnation and syncer,
for both lanes. Messages arrive in order per lane and direction. A cut holds messages back. A reset
loses those in flight in both directions, and leaves a gap, as with ZeroMQ."""

import math
import random
from dataclasses import dataclass, field
from typing import Any, Literal

from ddloco.stage.files.faults import Direction, Fault

Way = Literal["to-syncer", "from-syncer"]
WAYS: tuple[Way, Way] = ("to-syncer", "from-syncer")

CONTROL_BYTES = 400
"""The size of a report of 24 fragments with its clock, measured on real tapes."""

Item = tuple[Any, ...]


@dataclass(slots=True)
class Direct:
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
    delay_s: float = 0.01
    jitter_s: float = 0.0
    bytes_per_s: float = math.inf


class Card:
    """The network card of a syncer's host: what all its links carry passes through it, each
    direction for itself."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free: dict[str, float] = dict.fromkeys(WAYS, 0.0)

    def carry(self, way: Way, begun: float, nbytes: int) -> float:
        """When a message of ``nbytes`` that begins now is through, after those before it."""
        self._free[way] = max(self._free[way], begun) + nbytes / self._bytes_per_s
        return self._free[way]


class Line:
    """One learner's link to a syncer. Its random stream for jitter is its own, so that links do not
    affect each other."""

    def __init__(self, wire: Wire, rng: random.Random, card: Card | None = None) -> None:
        self.generation = 0
        """Increases with every reset: messages sent with an older value are lost."""
        self._wire = wire
        self._rng = rng
        self._card = card
        self.ways: dict[str, Direct] = {
            way: Direct(wire.delay_s, wire.jitter_s, wire.bytes_per_s) for way in WAYS
        }

    def carry(self, way: Way, lane: str, now: float, nbytes: int) -> tuple[float, float]:
        """When a message of ``nbytes`` that is sent now begins to arrive, and when it has arrived:
        after the previous one in its lane."""
        direct = self.ways[way]
        begun = max(direct.free[lane], now)
        end = begun
        if direct.bytes_per_s != math.inf:
            end = begun + nbytes / direct.bytes_per_s
        if self._card is not None and lane == "bulk":  # A short message waits for no long one.
            end = max(end, self._card.carry(way, begun, nbytes))
        direct.free[lane] = end
        at = end + direct.delay_s
        if direct.jitter_s:
            at += self._rng.random() * direct.jitter_s
        due = direct.due
        at = max(at, due[lane])
        due[lane] = at
        return begun + direct.delay_s, at

    @property
    def backlog_until(self) -> float:
        return max(at for direct in self.ways.values() for at in direct.due.values())

    def begin(self, fault: Fault) -> None:
        if fault.what == "reset":
            self.generation += 1
            return
        for direct in self._of(fault.direction):
            direct.faults.append(fault)
            self._feel(direct, fault)

    def end(self, fault: Fault) -> list[Item]:
        """A fault of the link ends; returns the messages that are no longer held, in order."""
        freed: list[Item] = []
        for direct in self._of(fault.direction):
            direct.faults.remove(fault)
            self._feel(direct, fault)
            if not direct.held:
                freed += direct.waiting
                direct.waiting = []
        return freed

    def _feel(self, direct: Direct, changed: Fault) -> None:
        """Recompute a direction's properties from its active faults of the kind that changed."""
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
