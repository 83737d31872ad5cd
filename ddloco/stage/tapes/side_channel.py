"""An endpoint that handles one lane separately, below the driver.

The driver that uses this endpoint never sees that lane; the callback for it must not block.
Arrivals for the driver before it runs are queued here, so that the lane is served while an actor
is being prepared.
"""

from collections import deque
from collections.abc import Callable, Sequence

import trio

from transport import Arrival, Endpoint
from transport.endpoint import Buffer, Deliver, EndpointStatistics, SharedFiles

EARLY_MAX = 256
"""Arrivals queued for a driver that has not started: handshakes and observers' requests. Others are
dropped; peers repeat their handshakes."""


class SideChannel:
    """An ``Endpoint`` whose arrivals on one lane go to ``take``.

    Args:
        endpoint: the endpoint that carries the messages.
        lane: the last part of the routes that are handled separately.
        take: called with each arrival on that lane.
        heeds: decides for any other route whether its arrivals are passed on.
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
        """Receive for ever, beginning with queued arrivals; see ``Endpoint.run``."""
        while self._early:
            await deliver(self._early[0])
            self._early.popleft()
        await self._receive(deliver)

    async def _receive(self, deliver: Deliver) -> None:
        async def sort_out(arrival: Arrival) -> None:
            if arrival.route.endswith(self._suffix):
                if arrival.frames:  # Without any, the line has moved; questions are repeated.
                    self._take(arrival)
            elif self._heeds(arrival.route):
                await deliver(arrival)

        await self._endpoint.run(sort_out)

    async def run_early(self) -> None:
        """Receive for ever before the actor runs, queueing its arrivals."""

        async def keep(arrival: Arrival) -> None:
            await trio.lowlevel.checkpoint()
            if len(self._early) < EARLY_MAX:
                self._early.append(arrival)

        await self._receive(keep)

    async def run_alone(self) -> None:
        """Receive only the separate lane for ever, after the actor has ended."""

        async def deaf(_: Arrival) -> None:
            await trio.lowlevel.checkpoint()

        await self.run(deaf)

    async def listen(self, address: str) -> str:
        """See ``Endpoint.listen``."""
        return await self._endpoint.listen(address)

    async def dial(self, address: str, *, route: str, identity: str) -> None:
        """See ``Endpoint.dial``."""
        await self._endpoint.dial(address, route=route, identity=identity)

    async def disconnect(self, route: str) -> None:
        """See ``Endpoint.disconnect``."""
        await self._endpoint.disconnect(route)

    def send_nowait(self, route: str, frames: Sequence[Buffer]) -> None:
        """See ``Endpoint.send_nowait``."""
        self._endpoint.send_nowait(route, frames)

    def share(self, own: SharedFiles) -> None:
        """See ``Endpoint.share``."""
        self._endpoint.share(own)

    def reaches(self, route: str) -> bool:
        """See ``Endpoint.reaches``."""
        return self._endpoint.reaches(route)

    def statistics(self) -> EndpointStatistics:
        """See ``Endpoint.statistics``."""
        return self._endpoint.statistics()

    async def aclose(self) -> None:
        """See ``Endpoint.aclose``."""
        await self._endpoint.aclose()
