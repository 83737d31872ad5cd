"""Messages on their way in: what is kept of them, and for how long."""

from contextlib import suppress

import numpy as np
import pytest

from ddloco.job.protocol.messages import Contribution, JobBody, Progress
from ddloco.stage.arrays.reassembly import Reassembly
from transport import (
    PROTOCOL_VERSION,
    Assembler,
    Codec,
    Header,
    Payload,
    RemoteProtocolError,
    describe,
)
from transport.codec import CHUNK_BYTES

JOB = "job-1"


class Buffers:
    """Counts what is allocated and given back."""

    def __init__(self):
        self.held = 0

    def allocate(self, nbytes):
        """One more."""
        self.held += 1
        return np.empty(nbytes, np.uint8)

    def release(self, data):
        """One less."""
        self.held -= 1


@pytest.fixture
def buffers():
    """Nothing allocated yet."""
    return Buffers()


@pytest.fixture
def arrivals(buffers):
    """With the product's assemblers."""
    codec = Codec(JobBody, JOB)
    return Reassembly(
        lambda _: Assembler(codec, allocate=buffers.allocate, release=buffers.release)
    )


def frames_of(sender, body=None):
    """The ZeroMQ messages of one message: two of them where it carries a fragment."""
    payload = None
    if body is None:
        body = Contribution(1, 0, 0, 1, 1, 1)
        data = np.zeros(CHUNK_BYTES + 64, np.uint8)
        payload = Payload(describe(data, (("w", (len(data) // 4,), "float32"),)), data)
    tensors = payload.tensors if payload else ()
    header = Header(PROTOCOL_VERSION, JOB, sender, 1, 1, {sender: 1}, body, tensors)
    return Codec(JobBody, JOB).encode(header, payload)


def test_what_is_whole_leaves_nothing_behind(arrivals):
    """Thousands of peers that said something whole cost nothing."""
    for number in range(1, 2001):
        sender = f"learner-0.{number}"
        (frames,) = frames_of(sender, Progress(0, 0.0, (), (), ()))
        assert arrivals.feed(sender, "control", frames) is not None
    assert len(arrivals) == 0


def test_a_message_in_pieces_is_put_together(arrivals, buffers):
    """Its first piece waits for the second."""
    first, second = frames_of("learner-0.1")
    assert arrivals.feed("learner-0.1", "bulk", first) is None
    assert len(arrivals) == 1
    message = arrivals.feed("learner-0.1", "bulk", second)
    assert message.header.sender == "learner-0.1"
    assert (len(arrivals), buffers.held) == (0, 1), "whole: its buffer is the receiver's"


def test_a_newer_incarnation_takes_the_place_of_what_its_former_self_left(arrivals, buffers):
    """However often a learner dies in the middle of a fragment, one part of one is held."""
    for number in range(1, 50):
        sender = f"learner-0.{number}"
        assert arrivals.feed(sender, "bulk", frames_of(sender)[0]) is None
        assert (len(arrivals), buffers.held) == (1, 1)


def test_other_and_older_messages_change_nothing(arrivals):
    """Another actor or another lane gives nothing up; a former self that still speaks is refused
    while the newer one is in the middle of a message."""
    senders = [("learner-0.2", "bulk"), ("learner-1.7", "bulk"), ("learner-0.3", "control")]
    for sender, lane in senders:
        assert arrivals.feed(sender, lane, frames_of(sender)[0]) is None
    with pytest.raises(RemoteProtocolError, match=r"learner-0.2 is in the middle"):
        arrivals.feed("learner-0.1", "bulk", frames_of("learner-0.1")[0])
    (whole,) = frames_of("learner-0.1", Progress(0, 0.0, (), (), ()))
    assert arrivals.feed("learner-0.1", "bulk", whole) is not None
    assert arrivals.feed("learner-0.2", "bulk", frames_of("learner-0.2")[1]) is not None
    assert len(arrivals) == 2


@pytest.mark.parametrize("numbers", [range(1, 300), range(300, 0, -1)], ids=["up", "down"])
def test_whatever_a_peer_calls_itself_one_message_is_held(arrivals, buffers, numbers):
    """Incarnations without end, upwards or downwards, that each begin a fragment in either lane."""
    for number in numbers:
        for lane in ("control", "bulk"):
            sender = f"learner-0.{number}"
            with suppress(RemoteProtocolError):
                arrivals.feed(sender, lane, frames_of(sender)[0])
    assert (len(arrivals), buffers.held) == (2, 2)


def test_a_message_that_takes_long_is_told_of_now_and_then(arrivals):
    """Every five seconds how many bytes have come; nothing of one that is whole."""
    first, rest = frames_of("learner-0.1")
    assert arrivals.progress(0.0, "learner-0.1", "bulk") is None
    arrivals.feed("learner-0.1", "bulk", first)
    told = [arrivals.progress(at, "learner-0.1", "bulk") for at in (1.0, 3.0, 6.0, 9.0, 11.0)]
    assert [None, None, CHUNK_BYTES, None, CHUNK_BYTES] == told
    arrivals.feed("learner-0.1", "bulk", rest)
    assert arrivals.progress(30.0, "learner-0.1", "bulk") is None
