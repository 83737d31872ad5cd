"""Says which peers an actor waits for."""

from collections.abc import Mapping

import trio

from clocks import actor_of
from ddloco.stage.nodes.node import HostedActor
from ddloco.stage.nodes.runnable import Runnable

LOOK_S = 1.0
"""Interval, in seconds, at which an actor's links are looked at while it waits for peers."""

WAIT_TOLD_S = 5.0
"""How long, in seconds, an actor waits for peers before this is logged: actors on one host meet
sooner. Then twice as long, each time."""


def peers_of(program: Runnable, name: str, addresses: Mapping[str, str]) -> dict[str, str]:
    """The peers of an actor by name, and how they are reached, for people."""
    dialled = {other: f"{other} at {addresses[other]}" for other in program.dials(name)}
    dialling = {
        other: f"{other}, which dials {addresses[name]}"
        for other in program.names
        if name in program.dials(other)
    }
    return dialling | dialled


async def tell_waiting(actor: HostedActor, peers: Mapping[str, str]) -> None:
    """Log which peers an actor has not met yet, until it ends or has met all of them.

    The links are read from outside, so that this is no event.
    """
    missing = dict(peers)
    told_at, pause_s = trio.current_time(), WAIT_TOLD_S
    while missing and actor.finish is None:
        await trio.sleep(LOOK_S)
        for peer in actor.driver.actor.links.peers() if actor.driver is not None else ():
            missing.pop(actor_of(peer), None)
        if missing and trio.current_time() - told_at >= pause_s:
            actor.note("waiting", {"for": "; ".join(missing.values())})
            told_at, pause_s = trio.current_time(), 2 * pause_s
