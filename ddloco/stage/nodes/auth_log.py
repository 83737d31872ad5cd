"""Logs the peers that were refused, for lack of the right key or for other reasons. They reach no
machine and no tape. The counts are read at intervals, so that a peer that tries all day does not
fill the disk."""

import trio

from ddloco.stage.nodes.node import HostedActor
from transport.zeromq import ZmqEndpoint

LOOK_S = 0.5
QUIET_S = 10.0
"""Interval, in seconds, after a refusal was logged; otherwise it is ``LOOK_S``."""

EVENTS = {
    "handshakes_refused": "handshake refused",
    "arrivals_refused_identity": "identity refused",
    "arrivals_refused_taken": "route refused",
    "connections_cut": "connection cut",
}
"""For each counter of an endpoint, the event that is logged when it has grown."""


class AuthRefusals:
    def __init__(self, endpoint: ZmqEndpoint, hosted: HostedActor) -> None:
        self._endpoint = endpoint
        self._hosted = hosted
        self._told = dict.fromkeys(EVENTS, 0)

    async def run(self) -> None:
        while True:
            grown = self.tell()
            await trio.sleep(QUIET_S if grown else LOOK_S)

    def tell(self) -> bool:
        """Log each count that has grown, with the newest reason; returns whether there was one. No
        peer is refused before the actor runs: until then handshakes wait."""
        driver, grown = self._hosted.driver, False
        if driver is None:
            return False
        counts = self._endpoint.statistics()
        for counter, event in EVENTS.items():
            count: int = getattr(counts, counter)
            if count > self._told[counter]:
                newest = self._endpoint.refusals[counter]
                where = {"address": newest.address} if newest.address else {}
                driver.note(event, {"count": count, **where, "reason": newest.reason})
                self._told[counter], grown = count, True
        return grown
