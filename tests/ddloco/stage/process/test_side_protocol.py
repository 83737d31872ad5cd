"""What the protocols beside the links have in common."""

import pytest
from msgspec import Struct

from ddloco.stage.process.side_protocol import (
    REFUSALS_LOGGED_MAX,
    Refusals,
    SideDecoder,
    SideProtocolError,
    encode,
)
from transport import Allowances


class Ask(Struct, tag=True):
    """A request."""

    n: int


DECODE = SideDecoder(Ask, 32)


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([], "a message of 0 parts, 1 to 1 expected"),
        ([encode(Ask(1)), b""], "a message of 2 parts, 1 to 1 expected"),
        ([b"x" * 33], "33 bytes, at most 32"),
        ([b"\xc1"], "MessagePack data is malformed"),
        ([encode({"type": "Ask", "n": "x"})], r"\$\.n"),
    ],
)
def test_what_is_not_in_the_protocol_is_refused(frames, said):
    """By one error, whose text names the part, the size or the field."""
    with pytest.raises(SideProtocolError, match=said):
        DECODE(frames)


def test_messages_are_read_as_they_were_written():
    """With bytes behind them, if the protocol has some."""
    assert DECODE([encode(Ask(7))]) == Ask(7)
    assert DECODE([encode(Ask(7)), b"bytes"], parts=2) == Ask(7)


def test_refusals_are_counted_and_the_first_are_logged():
    """So many that a log stays readable; names of peers are cut off."""
    notes = []
    refusals = Refusals("number refused", lambda *note: notes.append(note))
    for _ in range(REFUSALS_LOGGED_MAX + 5):
        refusals.add("x" * 100, "no")
    assert refusals.count == REFUSALS_LOGGED_MAX + 5
    assert len(notes) == REFUSALS_LOGGED_MAX
    assert notes[-1] == ("number refused", {"peer": "x" * 64, "reason": "no", "count": 20})


def test_each_actor_has_an_allowance_of_its_own():
    """One that has used it up does not take that of another, and gets more with time."""
    allowances = Allowances(at_once=2.0, per_s=0.5)
    assert [allowances.take("a", 0.0) for _ in range(3)] == [True, True, False]
    assert allowances.take("b", 0.0, amount=2.0)
    assert not allowances.take("a", 1.9)
    assert allowances.take("a", 4.0)
