"""The timers of an actor."""

import heapq


class Timers:
    """Timers by name, ordered by due time; times are in seconds."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def set(self, timer: str, at: float) -> None:
        """Set or move a timer."""
        self._due[timer] = at
        heapq.heappush(self._heap, (at, timer))

    def cancel(self, timer: str) -> None:
        """Cancel a timer, if it is set."""
        self._due.pop(timer, None)

    def next_at(self) -> float | None:
        """Return the due time of the next timer; None if no timer is set."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> str | None:
        """Remove and return a timer that is due at ``now``; None if there is none."""
        at = self.next_at()
        if at is None or at > now:
            return None
        _, timer = heapq.heappop(self._heap)
        del self._due[timer]
        return timer
