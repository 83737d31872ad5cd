"""Where tapes leave and arrive: an actor's endpoint with a lane for them, and who attends to it."""

import trio

from ddloco.harbour import Harbour
from ddloco.host import TAPES, Beside, Hosted
from ddloco.shipper import Shipper
from ddloco.shipping import LANE
from ddloco.sidelane import SideLane


class Quay:
    """What goes on beside an actor; when it has ended, somebody must still receive.

    Args:
        attended: ships or takes in tapes.
        lane: what comes for it.
    """

    def __init__(self, attended: Beside, lane: SideLane) -> None:
        self._attended = attended
        self._lane = lane

    async def run(self) -> None:
        """While the actor runs, its driver receives."""
        await self._attended.run()

    async def finish(self) -> None:
        """Afterwards nobody else does."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._lane.run_alone)
            await self._attended.finish()
            nursery.cancel_scope.cancel()


def take_in_tapes(hosted: Hosted) -> None:
    """Let a syncer take in its learners' tapes."""
    job, endpoint = hosted.job, hosted.endpoint
    folder = hosted.folder / TAPES
    others = (*job.syncer_names()[1:], *job.learner_names())
    harbour = Harbour(folder, others, job.id, endpoint, hosted.note)
    lane = SideLane(endpoint, LANE, harbour.take)
    hosted.endpoint, hosted.beside = lane, Quay(harbour, lane)


async def ship_tape(hosted: Hosted, lead: str, address: str) -> None:
    """Let an actor ship its tape to the syncer that leads, over a connection of its own.

    Raises:
        OSError: the address is none.
    """
    endpoint, incarnation = hosted.endpoint, hosted.incarnation
    route = f"{lead}/{LANE}"
    await endpoint.dial(address, route=route, identity=f"{incarnation}/{LANE}")
    path = hosted.folder / TAPES / f"{incarnation}.tape"
    shipper = Shipper(path, route, endpoint, hosted.job.tape, hosted.note)
    lane = SideLane(endpoint, LANE, shipper.take)
    hosted.endpoint, hosted.beside = lane, Quay(shipper, lane)
