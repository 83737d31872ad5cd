"""A process of a learner whose actor is on another host: it follows that one's worker."""

import os
import signal
from collections.abc import Callable

import trio

from ddloco.job.config import Job
from ddloco.stage.actors.effects import Finish
from ddloco.stage.nodes.exit_codes import FOUND, HELD
from ddloco.workers.fork_protocol import Rank
from ddloco.workers.process import run_other_rank

PAUSE_S = 1.0
"""How long, in seconds, to wait before the next incarnation's processes meet."""

LEAVE_S_MAX = 30.0
"""How long, in seconds, a process that is asked to end waits for rank 0, which is asked, too."""


async def follow_rank(job: Job, name: str, rank: Rank, say: Callable[[str], None]) -> Finish:
    """Follow rank 0 through the incarnations of a learner, until it is done for good.

    Args:
        job: the job.
        name: the learner's name.
        rank: which of its processes this is.
        say: called with a line for people.
    """
    found: list[Finish] = []

    async def follow() -> None:
        found.append(await _follow(job, name, rank, say))
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        nursery.start_soon(_leave_when_asked, nursery.cancel_scope)
    return found[0] if found else Finish("left", f"SIGTERM at {name}")


async def _leave_when_asked(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            await trio.sleep(LEAVE_S_MAX)
            scope.cancel()


async def _follow(job: Job, name: str, rank: Rank, say: Callable[[str], None]) -> Finish:
    me = f"rank {rank.number} of {rank.of} of {name}"
    say(f"{me} on {os.uname().nodename}")
    while True:
        code, ended = await run_other_rank(me, job.worker_of(name), rank)
        if code == HELD:
            return Finish("done", f"{me}: the learner has ended")
        if code == FOUND:
            return Finish("left", ended)
        say(f"{me}: {ended}; it waits for the learner's next incarnation")
        await trio.sleep(PAUSE_S)
