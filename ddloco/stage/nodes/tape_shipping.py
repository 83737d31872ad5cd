"""Ships tapes between hosts: the lane for tapes of an actor's endpoint, and what runs on it."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import trio

from clocks import actor_of, number_of
from ddloco.stage.files.run_folder import TAPES
from ddloco.stage.nodes.lease import Lease
from ddloco.stage.nodes.node import Beside
from ddloco.stage.nodes.runnable import Runnable
from ddloco.stage.process.log import Note
from ddloco.stage.tapes.receiver import TapeReceiver
from ddloco.stage.tapes.sender import TapeSender
from ddloco.stage.tapes.shipping_protocol import LANE
from ddloco.stage.tapes.side_channel import SideChannel
from replay.tape import SUFFIX
from transport import Endpoint

PREDECESSORS_MAX = 8
"""Former incarnations whose tapes are completed, one after the other. One that is older had eight
successors in this folder, who have shipped it."""


class TapeTransfer:
    """Runs a sender or a receiver of tapes beside an actor, and receives for it after the actor's
    driver has ended."""

    def __init__(self, attended: Beside, lane: SideChannel) -> None:
        self._attended = attended
        self._lane = lane

    async def run(self) -> None:
        await self._attended.run()

    async def finish(self, within_s: float) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._lane.run_alone)
            await self._attended.finish(within_s)
            nursery.cancel_scope.cancel()


def receive_tapes(
    program: Runnable, folder: Path, endpoint: Endpoint, note: Note, lease: Lease | None = None
) -> tuple[SideChannel, TapeTransfer]:
    """Let the lead, while it holds its lease, receive the other actors' tapes; returns its endpoint
    with a lane for them, and what runs beside it."""
    others = tuple(name for name in program.names if name != program.lead)
    settings = program.id, program.as_plain()
    holds = lease.holds if lease is not None else lambda: True
    receiver = TapeReceiver(folder / TAPES, others, settings, endpoint, note, holds=holds)
    lane = SideChannel(endpoint, LANE, receiver.take, receiver.heeds)
    return lane, TapeTransfer(receiver, lane)


async def ship_tapes(
    program: Runnable,
    incarnation: str,
    folder: Path,
    endpoint: Endpoint,
    *,
    note: Note,
    address: str,
) -> tuple[SideChannel, TapeTransfer]:
    """Let an actor ship its tape, and what is missing of its former ones, to the lead; returns its
    endpoint with a lane for each, and what runs beside it."""
    how = partial(_Shipped, program, folder=folder, note=note, address=address)
    shipped = how(incarnation, LANE, endpoint=endpoint)
    await shipped.dial()
    lane, formers = shipped.lane, list[_Shipped]()
    for each in _predecessors(folder / TAPES, incarnation):
        # The route names the tape's actor; a lane for each tape keeps their answers apart.
        label = f"{LANE}-{number_of(each)}"
        formers.append(how(each, label, endpoint=lane))
        lane = formers[-1].lane
    return lane, TapeTransfer(TapeSenders(shipped, formers), lane)


class _Shipped:
    """One tape that is shipped, and its connection to the lead."""

    def __init__(
        self,
        program: Runnable,
        incarnation: str,
        label: str,
        *,
        folder: Path,
        endpoint: Endpoint,
        note: Note,
        address: str,
    ) -> None:
        self._address = address
        self._endpoint = endpoint
        self._route, self._identity = f"{program.lead}/{label}", f"{incarnation}/{LANE}"
        path = folder / TAPES / f"{incarnation}.tape"
        self.sender = TapeSender(path, self._route, endpoint, program.tape, note)
        self.lane = SideChannel(endpoint, label, self.sender.take)

    async def dial(self) -> None:
        await self._endpoint.dial(self._address, route=self._route, identity=self._identity)

    async def complete(self) -> None:
        await self.dial()
        await self.sender.complete()
        await self._endpoint.disconnect(self._route)


def _predecessors(tapes: Path, incarnation: str) -> list[str]:
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
        await self._sender.finish(within_s)
