"""Who was turned away for want of the right key, told in the log.

A peer without a key reaches no machine and no tape. Its attempts are counted by the endpoint; here
the counts are looked at now and then, so that a peer that knocks all day fills no disk.
"""

import trio

from ddloco.nodes.node import Hosted
from transport.zeromq import ZmqEndpoint

LOOK_S = 0.5
QUIET_S = 10.0
"""After a look that found something, so long nothing is said."""

EVENTS = {
    "handshakes_refused": "handshake refused",
    "arrivals_refused_identity": "identity refused",
    "arrivals_refused_taken": "route refused",
    "connections_cut": "connection cut",
}
"""Counters of an endpoint, and what the log calls a count that has grown."""


class Refusals:
    """What of an endpoint's refusals has been told.

    Args:
        endpoint: counts them.
        hosted: its actor, in whose name they are logged.
    """

    def __init__(self, endpoint: ZmqEndpoint, hosted: Hosted) -> None:
        self._endpoint = endpoint
        self._hosted = hosted
        self._told = dict.fromkeys(EVENTS, 0)

    async def run(self) -> None:
        """Tell as it happens, but seldom, until cancelled."""
        while True:
            grown = self.tell()
            await trio.sleep(QUIET_S if grown else LOOK_S)

    def tell(self) -> bool:
        """Tell each count that has grown, with its newest reason; whether there was one.

        Nobody can be refused before the actor runs: until then handshakes wait.
        """
        driver, grown = self._hosted.driver, False
        if driver is None:
            return False
        counts = self._endpoint.statistics()
        for counter, event in EVENTS.items():
            count: int = getattr(counts, counter)
            if count > self._told[counter]:
                newest = self._endpoint.refusals[counter]
                fields = {"count": count, "address": newest.address, "reason": newest.reason}
                driver.note(event, fields)
                self._told[counter], grown = count, True
        return grown
