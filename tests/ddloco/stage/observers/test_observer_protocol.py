"""The language of observers: whatever comes is read, or refused with one kind of error."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddloco.stage.observers.observer_fragments import cut
from ddloco.stage.observers.observer_protocol import (
    PIECE_BYTES,
    Fragment,
    FragmentPiece,
    Reader,
    Told,
    decode_ask,
)
from ddloco.stage.process.side_protocol import SideProtocolError, encode
from transport import Payload, TensorMeta, describe


def fragment(seq=1, count=PIECE_BYTES // 2):
    """A fragment of two pieces: what is said of it, and its payload."""
    data = np.arange(count, dtype=np.float32).view(np.uint8)
    payload = Payload(describe(data, [("w", (count,), "float32")]), data)
    return Fragment(seq, 0, 4, payload.tensors), payload


def test_pieces_become_a_fragment_again():
    """A fragment is whole with its last piece, and its bytes are those that were sent."""
    said, payload = fragment()
    first, second = cut(said, payload.data)
    reader = Reader()

    assert reader.feed(first) is None
    whole, got = reader.feed(second)
    assert said == whole
    assert (payload.data == got.data).all()


def test_a_fragment_that_stops_is_forgotten():
    """What comes after it is read, and the same fragment may begin again."""
    said, payload = fragment()
    first, second = cut(said, payload.data)
    reader = Reader()
    reader.feed(first)

    assert (Told(2, {}), None) == reader.feed([encode(Told(2, {}))])
    again = list(cut(fragment(seq=3)[0], payload.data))
    assert reader.feed(again[0]) is None
    assert reader.feed(again[1]) is not None
    with pytest.raises(SideProtocolError, match="piece 1 of a fragment that was not begun"):
        reader.feed(second)


def test_broken_bytes_are_refused():
    """A tensor whose bytes changed on the way is named."""
    said, payload = fragment(count=16)
    (frames,) = cut(said, np.zeros_like(payload.data))
    with pytest.raises(SideProtocolError, match="tensor w: bytes do not match"):
        Reader().feed(frames)


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "parts"),
        ([b"x", b"y", b"z"], "parts"),
        ([encode(FragmentPiece(1, 1)), b"x"], "not begun"),
        ([encode(fragment()[0]), b"short"], "received 5, expected 1048576"),
        ([encode(Fragment(1, 0, 0, (TensorMeta("w", (2**40,), "float32", 32, b"x" * 16),)))], "at"),
        ([encode(Fragment(1, 0, 0, (TensorMeta("w", (1,), "int8", 8, b"x" * 16),)))], "int8"),
    ],
)
def test_what_is_no_notice_is_refused(frames, reason):
    """Sizes, kinds and order are checked before anything is kept."""
    with pytest.raises(SideProtocolError, match=reason):
        Reader().feed(frames)


@given(st.lists(st.binary(max_size=64), max_size=3))
def test_rubbish_raises_nothing_else(frames):
    """Whatever bytes come, either end refuses them as it refuses everything."""
    for read in (decode_ask, Reader().feed):
        with suppress(SideProtocolError):
            read(frames)
