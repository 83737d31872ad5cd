"""How requests are read from the socket between an actor and its worker."""

import socket

import pytest

from ddloco.workers import rpc
from ddloco.workers.rpc import RequestReader, framed

REQUESTS = [rpc.CompileAhead(), rpc.Train(7, (), None, 0, b""), rpc.Fill(rpc.Span(1, 2))]


@pytest.fixture
def ends():
    """The actor's end of a socket, and the worker's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_requests_sent_together_are_read_one_by_one(ends):
    """An actor sends those that follow each other at once."""
    ours, theirs = ends
    reader = RequestReader(theirs)
    ours.sendall(b"".join(map(framed, REQUESTS)))
    assert [reader.next() for _ in REQUESTS] == REQUESTS
    ours.close()
    assert reader.next() is None


def test_a_request_may_arrive_in_pieces(ends):
    """A long one does not fit the socket's buffer."""
    ours, theirs = ends
    reader = RequestReader(theirs)
    long = rpc.Prepare("x" * 300_000, {}, rpc.Inner(), seed=1, shard=0, shards=1)
    whole = framed(long) + framed(REQUESTS[0])
    sent = []

    class Slow:
        def recv(self, most):
            """A few bytes at a time."""
            piece = whole[len(b"".join(sent)) :][: min(most, 1 + 7919 * len(sent))]
            sent.append(piece)
            return piece

    ours.sendall(b"x")  # The socket stays readable.
    reader._link = Slow()
    assert [reader.next(), reader.next()] == [long, REQUESTS[0]]
    assert len(sent) > 5


@pytest.mark.parametrize("cut", [0, 2, 9])
def test_a_socket_that_closes_is_the_end(ends, cut):
    """Also in the middle of a request: the actor has been killed."""
    ours, theirs = ends
    reader = RequestReader(theirs)
    ours.sendall(framed(REQUESTS[2])[:cut])
    ours.close()
    assert reader.next() is None
