"""A process of a learner whose actor is on another host: it follows that one's worker."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

import trio

from ddloco.job.config import Job
from ddloco.stage.actors.effects import Finish
from ddloco.stage.nodes.exit_codes import FOUND, HELD
from ddloco.stage.nodes.waiting import Wait
from ddloco.workers.fork_protocol import Rank
from ddloco.workers.process import run_other_rank

PAUSE_S = 1.0
"""How long, in seconds, to wait before the next incarnation's processes meet."""

LEAVE_S_MAX = 30.0
"""How long, in seconds, a process that is asked to end waits for rank 0, which is asked, too."""


async def follow_rank(job: Job, name: str, rank: Rank, say: Callable[[str], None]) -> Finish:
    """Follow rank 0 through the incarnations of a learner, until it is done for good."""
    follower = _Follower(job, name, rank, say)
    found: list[Finish] = []

    async def follow() -> None:
        found.append(await follower.follow())
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        nursery.start_soon(follower.leave_when_asked, nursery.cancel_scope)
        nursery.start_soon(Wait(follower.me, follower.awaits).tell)
    return found[0] if found else Finish("left", f"SIGTERM at {name}")


@dataclass
class _Follower:
    job: Job
    name: str
    rank: Rank
    say: Callable[[str], None]
    has_met: bool = False

    @property
    def me(self) -> str:
        return f"rank {self.rank.number} of {self.rank.of} of {self.name}"

    def awaits(self) -> str:
        place = self.rank.coordinator or "the place that JAX finds"
        return "" if self.has_met else f"rank 0, at {place}"

    async def leave_when_asked(self, scope: trio.CancelScope) -> None:
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                if self.has_met:
                    await trio.sleep(LEAVE_S_MAX)
                scope.cancel()

    async def follow(self) -> Finish:
        self.say(f"{self.me} on {os.uname().nodename}")
        while True:
            self.has_met = False
            worker = self.job.worker_of(self.name)
            code, ended = await run_other_rank(self.me, worker, self.rank, self._meet)
            if code == HELD:
                return Finish("done", f"{self.me}: the learner has ended")
            if code == FOUND:
                return Finish("left", ended)
            self.say(f"{self.me}: {ended}; it waits for the learner's next incarnation")
            await trio.sleep(PAUSE_S)

    def _meet(self) -> None:
        self.has_met = True
