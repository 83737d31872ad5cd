"""A learner's stream: one of it, put back to where it stood, drawn again only where it must be."""

import json
from copy import deepcopy

import msgpack
import numpy as np
import pytest

from ddloco.job.protocol.messages import CURSOR_BYTES_MAX
from ddloco.workers import data_stream
from ddloco.workers.data_stream import (
    DataStream,
    is_position,
    pack_cursor,
    travelling,
    unpack_cursor,
)
from ddloco.workers.stream_state import packed_position
from ddloco.workers.task import TaskError


class Documents:
    """A stream over documents of several batches each: its state is neither a count nor short."""

    def __init__(self, per_document=3):
        self.per_document = per_document
        self.document = self.within = self.drawn = self.restored = 0

    def next(self):
        self.drawn += 1
        batch = (self.document, self.within)
        self.within += 1
        if self.within == self.per_document:
            self.document, self.within = self.document + 1, 0
        return batch

    def state(self):
        return {"document": self.document, "within": self.within}

    def restore(self, state):
        self.restored += 1
        self.document, self.within = state["document"], state["within"]


class Nowhere(Documents):
    """A stream that cannot say where it stands."""

    def state(self):
        return None


class Shared(Documents):
    """A stream that gives its own state away, which later batches change."""

    def __init__(self):
        super().__init__()
        self.where = {"at": 0}

    def next(self):
        self.where["at"] += 1
        return self.where["at"]

    def state(self):
        return self.where

    def restore(self, state):
        self.where = {"at": 0}


def digest(batch):
    """Any batch as bytes."""
    return json.dumps(batch).encode()


class Buffered(Documents):
    """A stream that shuffles, and whose position has its buffer."""

    asked = 0

    def state(self):
        self.asked += 1
        return {**super().state(), "buffer": ["x" * CURSOR_BYTES_MAX]}


def test_a_large_position_is_made_where_it_is_needed():
    """Once to know that it is one, and then for snapshots only: a step costs nothing."""
    stream = DataStream("t", buffered := Buffered(), deepcopy)
    assert (stream.is_large, buffered.asked) == (True, 1)
    drawn = []
    for _ in range(10):
        assert stream.draw_ahead() is None
        drawn.append(stream.next(1.0))
        assert stream.position_if_small() == b""
    assert buffered.asked == 1
    position, following = stream.position(), [stream.next() for _ in range(3)]
    other = DataStream("t", Documents(), deepcopy)
    other.go_to(position)
    assert following == [other.next() for _ in range(3)]


def test_a_position_that_becomes_small_is_sent_again():
    """The buffer has run empty."""
    stream = DataStream("t", buffered := Buffered(), deepcopy)
    buffered.state = lambda: {"document": 0, "within": 0}
    assert stream.position_if_small() == b""
    stream.position()
    assert not stream.is_large
    assert stream.draw_ahead() == (0, 0)


def test_it_goes_back_without_drawing_anything():
    """After a hundred batches, one call of restore and none of next."""
    stream = DataStream("t", Documents(), deepcopy)
    for _ in range(100):
        stream.next()
    position, following = stream.position(), [stream.next() for _ in range(3)]
    again = Documents()
    other = DataStream("t", again, deepcopy)
    other.go_to(position)
    assert (1, 0) == (again.restored, again.drawn)
    assert following == [other.next() for _ in range(3)]


def test_the_position_stays_before_a_batch_that_was_drawn_ahead():
    """It is the same batch later, drawn once; going elsewhere forgets it."""
    documents = Documents()
    stream = DataStream("t", documents, deepcopy)
    stream.next()
    before = stream.position()

    stream.draw_ahead()
    stream.draw_ahead()

    assert 2 == documents.drawn
    assert before == stream.position()
    assert (0, 1) == stream.next()
    assert 2 == documents.drawn
    assert before != stream.position()
    stream.draw_ahead()
    stream.go_to(before)
    assert (0, 1) == stream.next()


def test_data_that_end_are_missed_when_the_batch_is_used():
    """What a stream raises ahead of time waits until the batch is asked for."""
    documents = Documents()
    stream = DataStream("t", documents, deepcopy)
    stream.next()
    before = stream.position()

    def end():
        raise StopIteration("no more documents")

    documents.next = end
    stream.draw_ahead()

    assert before == stream.position()
    with pytest.raises(StopIteration, match="no more documents"):
        stream.next()


def test_batches_have_arrays_of_their_own():
    """A stream may change its arrays when it continues."""
    data = np.arange(4)

    class InPlace(Documents):
        def next(self):
            data[:] = data[::-1]
            return {"x": data[:2], "n": 2}

    stream = DataStream("t", InPlace(), deepcopy)
    first = stream.next()
    stream.draw_ahead()

    assert [3, 2] == first["x"].tolist()
    assert [0, 1] == stream.next()["x"].tolist()


def test_one_that_cannot_say_where_it_stands_is_drawn_again(capsys, monkeypatch):
    """And says how far it is, if that takes long."""
    nowhere = Nowhere()
    stream = DataStream("slow", nowhere, deepcopy)
    assert b"" == stream.position()
    monkeypatch.setattr(data_stream, "TOLD_EVERY_S", -1.0)
    stream.draw_again(4)
    assert 4 == nowhere.drawn
    lines = capsys.readouterr().err.splitlines()
    assert "ddloco: task slow: 4 of 4 used batches drawn again" == lines[-1]


def test_a_stream_that_does_not_go_back_is_refused():
    """The first batch is drawn once more; another one is the task's mistake, in one line."""
    stream = DataStream("wrong", Shared(), deepcopy)
    stream.next()
    before = stream.position()
    first = digest(stream.next())
    with pytest.raises(TaskError, match=r"task wrong: .*same batch again"):
        stream.check(before, first, digest)
    good = DataStream("good", Documents(), deepcopy)
    before = good.position()
    good.check(before, digest(good.next()), digest)
    assert (0, 1) == good.next()
    good.check(b"", b"", digest)


def test_a_state_that_is_no_plain_data_is_refused():
    """When the stream is opened, before anything is trained; in a line that says what it may be."""
    odd = Documents()
    odd.state = lambda: {1, 2}
    with pytest.raises(TaskError, match=r"task odd: .*plain data"):
        DataStream("odd", odd, deepcopy)


@pytest.mark.parametrize(("size", "kept"), [(100, True), (CURSOR_BYTES_MAX, False)])
def test_a_large_position_stays_at_home(size, kept):
    """Schedules are few numbers: they travel with every report all the same."""
    cursor = pack_cursor(bytes(size), [7, 9])
    position, counts = unpack_cursor(travelling(cursor))
    assert ([7, 9], kept) == (counts, position == bytes(size))
    assert len(travelling(cursor)) <= CURSOR_BYTES_MAX
    assert b"" == travelling(b"")


class Flaky(Documents):
    """A stream that raises a number of times where it stands, after it has moved on."""

    def __init__(self, times, error=None):
        super().__init__()
        self.times, self.error = times, error or ConnectionError("away")

    def next(self):
        batch = super().next()
        if self.times:
            self.times -= 1
            raise self.error
        return batch


@pytest.fixture
def slept(monkeypatch):
    """The pauses between tries, which are not made."""
    found = []
    monkeypatch.setattr(data_stream.time, "sleep", found.append)
    return found


@pytest.mark.parametrize("ahead", [False, True])
def test_a_stream_that_raises_is_tried_again(slept, ahead):
    """From where it stood, with growing pauses, each of which is told."""
    told = []
    stream = DataStream("t", Flaky(3), deepcopy, lambda event, fields: told.append((event, fields)))
    if ahead:
        stream.draw_ahead()
    assert (0, 0) == stream.next(60.0)
    assert (0, 1) == stream.next(60.0)
    assert [0.5, 1.0, 2.0] == slept
    assert ["data failed"] * 3 + ["data again"] == [event for event, _ in told]
    assert {"level": "warning", "reason": "ConnectionError: away", "again_s": 0.5} == told[0][1]


@pytest.mark.parametrize(
    ("retry_s", "error", "pauses"),
    [
        (0.0, ConnectionError("away"), []),
        (2.0, ConnectionError("away"), [0.5, 1.0, 0.5]),
        (100.0, ConnectionError("away"), [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 8.5]),
        (60.0, StopIteration(), []),
        (60.0, UnicodeDecodeError("utf-8", b"x", 0, 1, "damaged"), []),
        (60.0, KeyError("no such column"), []),
    ],
)
def test_it_is_tried_for_so_long(slept, retry_s, error, pauses):
    """Then its last exception is raised; a stream that is at its end is not tried again."""
    stream = DataStream("t", Flaky(99, error), deepcopy)
    with pytest.raises(type(error)):
        stream.next(retry_s)
    assert pauses == slept


def test_a_generator_that_has_raised_is_at_its_end(slept):
    """What it raised is what is told, not that it has nothing more."""

    def batches():
        yield 1
        raise ConnectionError("away")

    class Generated(Nowhere):
        def __init__(self):
            super().__init__()
            self.batches = batches()

        def next(self):
            return next(self.batches)

    stream = DataStream("t", Generated(), deepcopy)
    assert 1 == stream.next(60.0)
    with pytest.raises(ConnectionError):
        stream.next(60.0)
    assert [0.5] == slept


@pytest.mark.parametrize(
    "cursor",
    [
        b"",
        b"any cursor",
        b"\xc1",
        msgpack.packb(["text", [1]]),
        msgpack.packb([b"", ["a"]]),
        msgpack.packb([b"", [1], 2]),
    ],
)
def test_a_cursor_of_nonsense_says_nothing(cursor):
    """It may come from a peer: whoever is given it draws from the beginning."""
    assert unpack_cursor(cursor) == (b"", [])


@pytest.mark.parametrize(
    "position", [b"", b"\xc1", b"\x81", b"\xd4\x01\x07", b"\x91" * 5000 + b"\x00", b"\x01\x02"]
)
def test_a_position_of_nonsense_is_none(position):
    """Nor does it end whoever is given it."""
    assert not is_position(position)
    assert is_position(packed_position({"n": (1, 2**70)}))
