"""Which incarnations of learners a shard hears: those whose numbers the lead has given.

Only the lead gives numbers. A shard that believed any number could be told of ``learner-1.999`` by
a stranger, and would then refuse the learner itself for ever. So a shard asks the lead, below its
door like every question about numbers, and drops what comes from an incarnation that was not given;
whoever dials does so again soon.

    [Known]     from the shard, every few seconds and at an unknown number: what it was told before
    [Known]     from the lead, as the answer and after each number it gives: the newest numbers

A lead that has lost its folder learns from the question what it has given before.
"""

from collections.abc import Callable
from contextlib import suppress

import trio

from clocks import actor_of, is_incarnation, number_of
from ddloco.config.job import Job
from ddloco.nodes.incarnation_grants import LANE, GrantError, Known, decode_known, encode
from transport import Arrival, Endpoint, LaneFull, PeerGone

ASK_S, ASK_S_MIN = 5.0, 0.2
"""How often a shard asks: a lead that was restarted is found in this time; and how often at most,
however many unknown numbers come."""


class Gate:
    """What a shard knows of numbers.

    Args:
        job: the resolved job.
        endpoint: carries the questions.
        lead: the syncer that leads, to which there is a connection for them.
        note: the log.
    """

    def __init__(
        self, job: Job, endpoint: Endpoint, lead: str, note: Callable[[str, dict[str, str]], None]
    ) -> None:
        self._learners = frozenset(job.learner_names())
        self._endpoint = endpoint
        self._route = f"{lead}/{LANE}"
        self._note = note
        self._numbers: dict[str, int] = {}
        self._wanted = trio.Event()

    def heeds(self, route: str) -> bool:
        """Whether the incarnation that a route names may be heard."""
        peer = route.rpartition("/")[0]
        name = actor_of(peer)
        if name not in self._learners or not is_incarnation(peer):
            return True  # The door judges it.
        if number_of(peer) <= self._numbers.get(name, 0):
            return True
        self._wanted.set()
        return False

    def take(self, arrival: Arrival) -> None:
        """Take an answer of the lead."""
        try:
            known = decode_known(arrival.frames)
        except GrantError as error:
            self._note("answer refused", {"peer": arrival.route[:64], "reason": str(error)})
            return
        for name, number in known.numbers.items():
            if name in self._learners:
                self._numbers[name] = max(number, self._numbers.get(name, 0))

    async def run(self) -> None:
        """Ask for ever."""
        while True:
            self._wanted = trio.Event()
            with suppress(LaneFull, PeerGone):  # The lead is away; it is asked again.
                self._endpoint.send_nowait(self._route, [encode(Known(self._numbers))])
            await trio.sleep(ASK_S_MIN)
            with trio.move_on_after(ASK_S - ASK_S_MIN):
                await self._wanted.wait()
