"""An endpoint with one lane less: what comes on that lane is taken aside, below the door.

The driver that is given such an endpoint never hears of the lane; whoever takes what comes must not
block.
"""

from collections.abc import Callable, Sequence

import trio

from transport import Arrival, Endpoint
from transport.endpoint import Buffer, Deliver, EndpointStatistics


class SideLane:
    """An ``Endpoint`` whose arrivals on one lane go to ``take``.

    Args:
        endpoint: what really carries messages.
        lane: the last part of the routes that are taken aside.
        take: given each of their arrivals.
    """

    def __init__(self, endpoint: Endpoint, lane: str, take: Callable[[Arrival], None]) -> None:
        self._endpoint = endpoint
        self._suffix = f"/{lane}"
        self._take = take

    async def run(self, deliver: Deliver) -> None:
        """Receive for ever; see ``Endpoint.run``."""

        async def sort_out(arrival: Arrival) -> None:
            if arrival.route.endswith(self._suffix):
                self._take(arrival)
            else:
                await deliver(arrival)

        await self._endpoint.run(sort_out)

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
