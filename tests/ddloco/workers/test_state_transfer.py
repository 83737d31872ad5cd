"""The state of a peer, from the pieces that arrived to the worker process."""

import numpy as np
import pytest

from ddloco.job.protocol.work import InstallState
from ddloco.stage.arrays.array_table import ArrayTable, HostCopy
from ddloco.stage.arrays.shared_memory import SharedMemory
from ddloco.workers import rpc
from ddloco.workers.state_transfer import StateTransfer
from transport import Payload, describe


@pytest.fixture
def arrays():
    """An actor's arrays, with memory that its worker shares."""
    arena = SharedMemory()
    yield ArrayTable(arena)
    arena.close()


class Worker:
    """Accepts every state, and keeps the requests."""

    def __init__(self):
        self.requests = []

    async def expect(self, request, answer):
        """Answer a request."""
        assert answer is rpc.Installed
        self.requests.append(request)
        return rpc.Installed(sound=True)


def payload(data):
    """A piece as it arrives."""
    return Payload(describe(data, (("state", (len(data),), "uint8"),)), data)


async def test_pieces_that_arrived_in_shared_memory_are_not_copied(arrays):
    """The worker reads them where they are; another piece is copied, and the copy is freed."""
    region = arrays.shared.allocate(4096)
    arrays.put("copied", HostCopy(region))
    arrived = arrays.allocate(8192)
    arrays.put("arrived", payload(arrived))
    other = np.full(64, 7, np.uint8)
    arrays.put("other", payload(other))
    worker = Worker()
    work = InstallState(5, ("copied", "arrived", "other"))
    done = await StateTransfer(arrays, worker).install(work)
    assert done.work == 5
    assert done.sound
    (request,) = worker.requests
    first, second, third = request.pieces
    assert rpc.span_of(region) == first
    assert rpc.span_of(arrays.shared.find(arrived)) == second
    lent = arrays.shared.allocate(64)  # The copy's memory is used again.
    assert rpc.span_of(lent) == third
    assert other.tobytes() == lent.data.tobytes()
