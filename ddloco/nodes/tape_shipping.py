"""Ships tapes between hosts: the lane for tapes of an actor's endpoint, and what runs on it."""

from collections.abc import Sequence
from pathlib import Path

import trio

from clocks import actor_of, number_of
from ddloco.config.run_folder import TAPES
from ddloco.nodes.node import Beside, Hosted
from ddloco.tapes.receiver import TapeReceiver
from ddloco.tapes.sender import TapeSender
from ddloco.tapes.shipping_protocol import LANE
from ddloco.tapes.side_channel import SideChannel
from replay.tape import SUFFIX

PREDECESSORS_MAX = 8
"""Former incarnations whose tapes are completed, one after the other. One that is older had eight
successors in this folder, who have shipped it."""


class TapeTransfer:
    """Runs a sender or a receiver of tapes beside an actor, and receives for it after the actor's
    driver has ended.

    Args:
        attended: the sender or receiver.
        lane: the endpoint with its lane.
    """

    def __init__(self, attended: Beside, lane: SideChannel) -> None:
        self._attended = attended
        self._lane = lane

    async def run(self) -> None:
        """Run while the actor runs, whose driver receives."""
        await self._attended.run()

    async def finish(self, within_s: float) -> None:
        """Run after the actor has ended, and receive from the endpoint."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._lane.run_alone)
            await self._attended.finish(within_s)
            nursery.cancel_scope.cancel()


def take_in_tapes(hosted: Hosted) -> None:
    """Let a syncer receive its learners' tapes."""
    job, endpoint = hosted.job, hosted.endpoint
    folder = hosted.folder / TAPES
    others = (*job.syncer_names()[1:], *job.learner_names())
    ours = job.id, job.as_plain()
    receiver = TapeReceiver(folder, others, ours, endpoint, hosted.note)
    lane = SideChannel(endpoint, LANE, receiver.take)
    hosted.endpoint, hosted.beside = lane, TapeTransfer(receiver, lane)


async def ship_tape(hosted: Hosted, lead: str, address: str) -> None:
    """Let an actor ship its tape to the leading syncer, over a connection of its own.

    Raises:
        OSError: the address is invalid.
    """
    shipped = _Shipped(hosted, hosted.incarnation, LANE, lead, address)
    await shipped.dial()
    formers = [
        # The route names the tape's actor; a lane for each tape keeps their answers apart.
        _Shipped(hosted, former, f"{LANE}-{number_of(former)}", lead, address)
        for former in _predecessors(hosted.folder / TAPES, hosted.incarnation)
    ]
    lane = formers[-1].lane if formers else shipped.lane
    hosted.beside = TapeTransfer(TapeSenders(shipped, formers), lane)


class _Shipped:
    """One tape that is shipped, and its connection to the syncer.

    Args:
        hosted: the actor; its endpoint becomes one that handles this tape's lane separately.
        incarnation: whose tape it is.
        label: the lane, unique among the tapes of this actor.
        lead: the syncer that leads.
        address: where it listens.
    """

    def __init__(
        self, hosted: Hosted, incarnation: str, label: str, lead: str, address: str
    ) -> None:
        self._endpoint, self._address = hosted.endpoint, address
        self._route, self._identity = f"{lead}/{label}", f"{incarnation}/{LANE}"
        path = hosted.folder / TAPES / f"{incarnation}.tape"
        self.sender = TapeSender(path, self._route, self._endpoint, hosted.job.tape, hosted.note)
        self.lane = SideChannel(self._endpoint, label, self.sender.take)
        hosted.endpoint = self.lane

    async def dial(self) -> None:
        """Connect; raises `OSError` if the address is impossible."""
        await self._endpoint.dial(self._address, route=self._route, identity=self._identity)

    async def complete(self) -> None:
        """Connect, ship the rest of a tape that no longer grows, and disconnect."""
        await self.dial()
        await self.sender.complete()
        await self._endpoint.disconnect(self._route)


def _predecessors(tapes: Path, incarnation: str) -> list[str]:
    """The newest of an actor's former incarnations that have a tape in this folder."""
    name, number = actor_of(incarnation), number_of(incarnation)
    there = {path.name.removesuffix(SUFFIX) for path in tapes.glob(f"{name}.*{SUFFIX}")}
    former = [each for each in there if actor_of(each) == name and 0 < number_of(each) < number]
    return sorted(former, key=number_of)[-PREDECESSORS_MAX:]


class TapeSenders:
    """The sender of an actor's tape, and those of its former incarnations, whose processes may
    have ended before all of it had arrived."""

    def __init__(self, shipped: _Shipped, formers: Sequence[_Shipped]) -> None:
        self._sender = shipped.sender
        self._formers = formers

    async def run(self) -> None:
        """Ship the actor's tape while it runs, and the former tapes, one after the other."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sender.run)
            for former in self._formers:
                await former.complete()

    async def finish(self, within_s: float) -> None:
        """Ship the rest of the actor's tape after it has ended."""
        await self._sender.finish(within_s)
