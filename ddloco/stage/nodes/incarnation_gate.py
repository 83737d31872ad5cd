"""A shard accepts only incarnations of learners whose numbers the lead has granted.

Only the lead grants numbers. If a shard accepted any number, any process could claim to be
``learner-1.999``, and the shard would then refuse the real learner for ever. So a shard asks the
lead for the newest numbers, and drops messages of incarnations that were not granted; their senders
dial again soon. These messages pass below the driver and are on no tape.

    [Known]     from the shard, every few seconds and at an unknown number: what it was told before
    [Known]     from the lead, as the answer and after each grant: the newest numbers

A lead that has lost its folder learns from the shards' messages what it has granted before.
"""

from collections.abc import Callable

import trio

from clocks import actor_of, is_incarnation, number_of
from ddloco.stage.nodes.incarnation_grants import LANE, Known, decode_known
from ddloco.stage.nodes.runnable import Runnable
from ddloco.stage.process.side_protocol import SideProtocolError, tell
from transport import Arrival, Endpoint

ASK_S, ASK_S_MIN = 5.0, 0.2
"""The usual and the shortest interval, in seconds, between two questions of a shard. A restarted
lead is found within the first, and unknown numbers cannot cause more questions than the second."""


class Gate:
    def __init__(
        self, program: Runnable, endpoint: Endpoint, note: Callable[[str, dict[str, str]], None]
    ) -> None:
        self._learners = frozenset(program.followers)
        self._endpoint = endpoint
        self._route = f"{program.lead}/{LANE}"
        self._note = note
        self._numbers: dict[str, int] = {}
        self._wanted = trio.Event()

    def heeds(self, route: str) -> bool:
        peer = route.rpartition("/")[0]
        name = actor_of(peer)
        if name not in self._learners or not is_incarnation(peer):
            return True  # The driver validates it.
        if number_of(peer) <= self._numbers.get(name, 0):
            return True
        self._wanted.set()
        return False

    def take(self, arrival: Arrival) -> None:
        try:
            known = decode_known(arrival.frames)
        except SideProtocolError as error:
            self._note("answer refused", {"peer": arrival.route[:64], "reason": str(error)})
            return
        for name, number in known.numbers.items():
            if name in self._learners:
                self._numbers[name] = max(number, self._numbers.get(name, 0))

    async def run(self) -> None:
        while True:
            self._wanted = trio.Event()
            tell(self._endpoint, self._route, Known(self._numbers))
            await trio.sleep(ASK_S_MIN)
            with trio.move_on_after(ASK_S - ASK_S_MIN):
                await self._wanted.wait()
