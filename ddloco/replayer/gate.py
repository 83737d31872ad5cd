"""How far each tape of a replay may go: to its end, or to a consistent cut. The limits of a cut are
the clock of an event: no event within it depends on one outside, so all tapes come to their
limits."""

from collections.abc import Collection, Mapping

import trio


class ReplayGate:
    """Holds the tapes of a replay at a cut.

    Attributes:
        reached: set when every tape has come to its limit or to its end.
    """

    def __init__(self, tapes: Collection[str], limits: Mapping[str, int] | None = None) -> None:
        self._limits = limits
        self._running = set(tapes)
        self._stopped = {each: trio.Event() for each in tapes}
        self.reached = trio.Event()
        self._opened = trio.Event()

    def holds(self, incarnation: str) -> bool:
        """Whether none of a tape's events may be handled."""
        return self._limits is not None and not self._limits.get(incarnation, 0)

    def beyond(self, incarnation: str, number: int) -> bool:
        return self._limits is not None and number > self._limits.get(incarnation, 0)

    async def passing(self, incarnation: str, number: int) -> None:
        if self.beyond(incarnation, number):
            self.ended(incarnation)
            await self._opened.wait()

    async def stopped(self, incarnation: str) -> None:
        """Wait until a tape has come to its limit or to its end; one that is not replayed has."""
        if incarnation in self._stopped:
            await self._stopped[incarnation].wait()

    def ended(self, incarnation: str) -> None:
        self._running.discard(incarnation)
        self._stopped[incarnation].set()
        if not self._running:
            self.reached.set()
