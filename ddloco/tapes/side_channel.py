"""An endpoint with one lane less: what comes on that lane is taken aside, below the door.

The driver that is given such an endpoint never hears of the lane; whoever takes what comes must not
block. What comes for the driver before it runs waits here, so that the lane is attended to while an
actor makes itself ready.
"""

from collections import deque
from collections.abc import Callable, Sequence

import trio

from transport import Arrival, Endpoint
from transport.endpoint import Buffer, Deliver, EndpointStatistics

EARLY_MAX = 256
"""Arrivals that wait for a driver that is about to run: handshakes and questions of observers. The
rest is dropped; whoever shakes hands says it again."""


class SideLane:
    """An ``Endpoint`` whose arrivals on one lane go to ``take``.

    Args:
        endpoint: what really carries messages.
        lane: the last part of the routes that are taken aside.
        take: given each of their arrivals.
        heeds: says of any other route whether what comes from it is handed on.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        lane: str,
        take: Callable[[Arrival], None],
        heeds: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._endpoint = endpoint
        self._suffix = f"/{lane}"
        self._take = take
        self._heeds = heeds
        self._early: deque[Arrival] = deque()

    async def run(self, deliver: Deliver) -> None:
        """Receive for ever, first what came early; see ``Endpoint.run``."""
        while self._early:
            await deliver(self._early[0])
            self._early.popleft()
        await self._receive(deliver)

    async def _receive(self, deliver: Deliver) -> None:
        async def sort_out(arrival: Arrival) -> None:
            if arrival.route.endswith(self._suffix):
                self._take(arrival)
            elif self._heeds(arrival.route):
                await deliver(arrival)

        await self._endpoint.run(sort_out)

    async def run_early(self) -> None:
        """Receive for ever while the actor is not there yet."""

        async def keep(arrival: Arrival) -> None:
            await trio.lowlevel.checkpoint()
            if len(self._early) < EARLY_MAX:
                self._early.append(arrival)

        await self._receive(keep)

    async def run_alone(self) -> None:
        """Receive for ever what is taken aside; the actor has ended and hears nothing more."""

        async def deaf(_: Arrival) -> None:
            await trio.lowlevel.checkpoint()

        await self.run(deaf)

    async def listen(self, address: str) -> str:
        """As ``Endpoint.listen``."""
        return await self._endpoint.listen(address)

    async def dial(self, address: str, *, route: str, identity: str) -> None:
        """As ``Endpoint.dial``."""
        await self._endpoint.dial(address, route=route, identity=identity)

    def send_nowait(self, route: str, frames: Sequence[Buffer]) -> None:
        """As ``Endpoint.send_nowait``."""
        self._endpoint.send_nowait(route, frames)

    def reaches(self, route: str) -> bool:
        """As ``Endpoint.reaches``."""
        return self._endpoint.reaches(route)

    def statistics(self) -> EndpointStatistics:
        """As ``Endpoint.statistics``."""
        return self._endpoint.statistics()

    async def aclose(self) -> None:
        """As ``Endpoint.aclose``."""
        await self._endpoint.aclose()
