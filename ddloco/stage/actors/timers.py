"""The timers of an actor: those that every actor has, and the queue of those that are set."""

import heapq
from itertools import count

from transport import LinkTimer, Timer


class MarkerDeadline(Timer, frozen=True):
    """Wait no longer for the markers of a snapshot: the peers that sent none are not in it."""

    snapshot: str


class PartDeadline(Timer, frozen=True):
    """Wait no longer for the parts of a snapshot that this actor began."""

    snapshot: str


class Named(Timer, frozen=True):
    """A timer of a user's actor or machine."""

    name: str

    def __str__(self) -> str:
        return self.name


SnapshotTimer = MarkerDeadline | PartDeadline

TimerOfAll = LinkTimer | SnapshotTimer
"""The timers that every actor may set, besides its machine's."""


class Timers:
    """The timers that are set, by due time in seconds, then in the order of setting."""

    def __init__(self) -> None:
        self._set: dict[Timer, int] = {}
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = count()

    def set(self, timer: Timer, at: float) -> None:
        number = self._set[timer] = next(self._numbers)
        heapq.heappush(self._heap, (at, number, timer))

    def cancel(self, timer: Timer) -> None:
        self._set.pop(timer, None)

    def next_at(self) -> float | None:
        while self._heap and self._set.get(self._heap[0][2]) != self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> Timer | None:
        at = self.next_at()
        if at is None or at > now:
            return None
        _, _, timer = heapq.heappop(self._heap)
        del self._set[timer]
        return timer
