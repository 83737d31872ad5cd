"""An endpoint that handles one lane separately, below the driver, which never sees it. Arrivals for
the driver before it runs are queued here, so that the lane is served while an actor is prepared."""

from collections import deque
from collections.abc import Callable, Sequence

import trio

from transport import Arrival, Endpoint
from transport.endpoint import Buffer, Deliver, EndpointStatistics, SharedFiles

EARLY_ROUTES_MAX = 4096
"""Routes of which arrivals are queued for a driver that has not started: the lanes of 1,024
learners, and observers. Those of others are dropped; peers repeat their handshakes."""

EARLY_EACH_MAX = 2
"""Of each route the newest are kept. A peer that goes on in a session of before must get an answer,
whatever others send: once its credit is used up, it sends nothing more, and without an answer
notices only after 30 s that its link is lost."""


class SideChannel:
    """An ``Endpoint`` whose arrivals on one lane, the last part of a route, go to ``take``, which
    must not block. ``heeds`` decides for any other route whether its arrivals are passed on."""

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
        self._early: dict[str, deque[Arrival]] = {}

    async def run(self, deliver: Deliver) -> None:
        """Receive for ever, beginning with queued arrivals; see ``Endpoint.run``."""
        for route in list(self._early):
            early = self._early[route]
            while early:
                await deliver(early[0])
                early.popleft()
            del self._early[route]
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
            if arrival.route in self._early or len(self._early) < EARLY_ROUTES_MAX:
                self._early.setdefault(arrival.route, deque(maxlen=EARLY_EACH_MAX)).append(arrival)

        await self._receive(keep)

    async def run_alone(self) -> None:
        """Receive only the separate lane for ever, after the actor has ended."""

        async def deaf(_: Arrival) -> None:
            await trio.lowlevel.checkpoint()

        await self.run(deaf)

    async def listen(self, address: str) -> str:
        return await self._endpoint.listen(address)

    async def dial(self, address: str, *, route: str, identity: str) -> None:
        await self._endpoint.dial(address, route=route, identity=identity)

    async def disconnect(self, route: str) -> None:
        await self._endpoint.disconnect(route)

    def send_nowait(self, route: str, frames: Sequence[Buffer]) -> None:
        self._endpoint.send_nowait(route, frames)

    def share(self, own: SharedFiles) -> None:
        self._endpoint.share(own)

    def reaches(self, route: str) -> bool:
        return self._endpoint.reaches(route)

    def statistics(self) -> EndpointStatistics:
        return self._endpoint.statistics()

    async def aclose(self) -> None:
        await self._endpoint.aclose()
