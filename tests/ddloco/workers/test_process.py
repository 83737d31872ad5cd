"""Requests to a worker: sent ahead, answered in order."""

import socket
from types import SimpleNamespace

import pytest
import trio

from ddloco.job.config import Inner
from ddloco.workers import rpc
from ddloco.workers.process import WorkerDiedError, WorkerProcess
from ddloco.workers.rpc import LENGTH_BYTES, framed

REQUESTS = [rpc.Touch(rpc.Span(0, size)) for size in (1, 2, 3)]


async def ended():
    """How the process ended."""
    return "exit status 1"


@pytest.fixture
def pair():
    """A worker's process without a process, and the worker's end of its socket."""
    ours, theirs = socket.socketpair()
    process = WorkerProcess(SimpleNamespace(wait=ended), ours)
    with ours, theirs:
        yield process, theirs


def received(theirs):
    """The next request that the worker gets."""
    size = int.from_bytes(theirs.recv(LENGTH_BYTES, socket.MSG_WAITALL), "little")
    return rpc.decode_request(theirs.recv(size, socket.MSG_WAITALL))


async def test_requests_are_sent_before_the_former_is_answered(pair):
    """So that the worker continues at once. Answers that arrive together are told apart."""
    process, theirs = pair
    coming = [answer for each in REQUESTS for answer in process.ask(each)]
    assert REQUESTS == [received(theirs) for _ in REQUESTS]
    theirs.sendall(b"".join(framed(rpc.Laid(n)) for n in (4, 5, 6)))
    answers = []

    async def hear(number, answer):
        answers.append((number, await answer))

    async with trio.open_nursery() as nursery:
        for number in (2, 0, 1):
            nursery.start_soon(hear, number, coming[number])
    assert [(0, rpc.Laid(4)), (1, rpc.Laid(5)), (2, rpc.Laid(6))] == answers


async def test_requests_may_be_sent_in_one_piece(pair):
    """Asked for together, they arrive together: the worker need not be woken for each."""
    process, theirs = pair
    coming = process.ask(*REQUESTS)
    assert b"".join(framed(each) for each in REQUESTS) == theirs.recv(65536)
    theirs.sendall(b"".join(framed(rpc.Laid(n)) for n in (4, 5, 6)))
    assert [rpc.Laid(4), rpc.Laid(5), rpc.Laid(6)] == [await each for each in coming]


@pytest.mark.parametrize("together", [False, True])
async def test_a_full_socket_delays_a_request_and_keeps_their_order(pair, together):
    """What the socket does not take is sent when the request's turn comes."""
    process, theirs = pair
    large = rpc.Prepare("task", {"text": "x" * 2**22}, Inner(), 1, 0, 1)
    requests = REQUESTS[0], large, REQUESTS[1]
    coming = process.ask(*requests) if together else [process.ask(each)[0] for each in requests]
    seen = []

    def work():
        for answer in (4, 5, 6):
            seen.append(received(theirs))
            theirs.sendall(framed(rpc.Laid(answer)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, work)
        assert [rpc.Laid(4), rpc.Laid(5), rpc.Laid(6)] == [await each for each in coming]
    assert ["Touch", "Prepare", "Touch"] == [type(each).__name__ for each in seen]


async def test_a_worker_that_ends_fails_all_requests(pair):
    """Each of them says how it ended."""
    process, theirs = pair
    coming = process.ask(*REQUESTS)
    theirs.close()
    for each in coming:
        with pytest.raises(WorkerDiedError, match="exit status 1"):
            await each


async def test_an_answer_may_be_left_alone(pair):
    """A task that is cancelled awaits no later answer, and nothing complains about that."""
    process, theirs = pair
    first, second = (process.expect(each, rpc.Laid) for each in REQUESTS[:2])
    theirs.sendall(framed(rpc.Laid(4)))
    assert rpc.Laid(4) == await first
    with trio.move_on_after(0.01) as patience:
        await process.expect(REQUESTS[2], rpc.Laid)
    assert patience.cancelled_caught
    del second
