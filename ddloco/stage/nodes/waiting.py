"""Says for whom an actor or a process waits."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import trio

from clocks import MonotonicTime, actor_of
from ddloco.stage.files.run_folder import LOG_FILE
from ddloco.stage.nodes.node import HostedActor
from ddloco.stage.nodes.runnable import Runnable
from ddloco.stage.process.console import SafeConsole
from ddloco.stage.process.log import ActorLog

LOOK_S = 1.0
"""Interval, in seconds, at which somebody who waits is looked at."""

WAIT_TOLD_S = 4.0
"""How long somebody waits, in seconds, before this is said: actors on one host meet sooner."""

WAIT_AGAIN_S = 30.0
"""Then it is said again at this interval, in seconds."""

NAMED_MAX = 3
"""The number of peers that are named; the others are counted."""

WAITING = "waiting"


async def tell_waiting(whom: Callable[[], str], say: Callable[[str, float], None]) -> None:
    """Say for whom somebody waits (empty for nobody) and since how many seconds, after a few
    seconds and every half minute from then on, until cancelled."""
    since, told_s = trio.current_time(), WAIT_TOLD_S
    while True:
        await trio.sleep(LOOK_S)
        missing, now = whom(), trio.current_time()
        if not missing:
            since, told_s = now, WAIT_TOLD_S
        elif now - since >= told_s:
            say(missing, now - since)
            told_s += WAIT_AGAIN_S


@dataclass(frozen=True)
class Wait:
    """A process waits that is no actor yet, or that never is one.

    Attributes:
        folder: the run folder into whose log this is written; None for none.
    """

    name: str
    whom: Callable[[], str]
    folder: Path | None = None

    async def tell(self, *, on_screen: bool = True) -> None:
        console = SafeConsole(stderr=True)

        def say(missing: str, since_s: float) -> None:
            if on_screen:
                said = f"{self.name} waits for {missing}, since {since_s:.0f} s"
                console.print(said, soft_wrap=True, highlight=False)
            if self.folder is not None:
                began = MonotonicTime().began
                with closing(ActorLog(self.folder / LOG_FILE, f"{self.name}.0", began)) as log:
                    log.observe(WAITING, 0.0, 0, _fields(missing, since_s))

        await tell_waiting(self.whom, say)


async def tell_what_is_missing(addresses: Mapping[str, str], actor: HostedActor) -> None:
    """Log which peers an actor waits for, or for what of them; it is read from outside, so this is
    no event. ``addresses`` has those that it dials, and its own."""
    peers = peers_of(actor.program, actor.name, addresses)
    met: set[str] = set()
    heard, heard_at = 0, trio.current_time()

    def whom() -> str:
        if actor.driver is None or actor.finish is not None:
            return actor.awaits
        nonlocal heard, heard_at
        driven, now = actor.driver.actor, trio.current_time()
        known = sum(driven.clock[each] for each in driven.clock.others())
        if known != heard:
            heard, heard_at = known, now
        linked = {actor_of(peer) for peer in driven.links.peers()}
        met.update(linked)
        wanted = actor.program.awaits(actor.name, driven.machine, linked, met)
        missing = [peers[each] for each in wanted]
        return _named(missing) or actor.program.stands(driven.machine, now - heard_at)

    def say(missing: str, since_s: float) -> None:
        fields = _fields(missing, since_s)
        if actor.driver is None:  # Notes are kept until it has begun.
            actor.log.observe(WAITING, 0.0, 0, fields)
        else:
            actor.note(WAITING, fields)

    await tell_waiting(whom, say)


def peers_of(program: Runnable, name: str, addresses: Mapping[str, str]) -> dict[str, str]:
    said = {other: f"{other} at {addresses[other]}" for other in program.dials(name)}
    dialling = [other for other in program.names if name in program.dials(other)]
    return {other: f"{other}, which dials {addresses[name]}" for other in dialling} | said


def _fields(missing: str, since_s: float) -> dict[str, object]:
    return {"for": missing, "since_s": round(since_s, 1)}


def _named(peers: Sequence[str]) -> str:
    more = [f"{len(peers) - NAMED_MAX} more"] if len(peers) > NAMED_MAX else []
    return "; ".join([*peers[:NAMED_MAX], *more])
