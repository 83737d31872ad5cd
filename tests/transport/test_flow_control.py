"""What waits in one lane: credit, order, the newest of each statement."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.flow_control import WAITING_MAX, Outbox, OutboxFullError, QueuedMessage
from transport.message import Bye, Reset


def said(text, **options):
    return QueuedMessage(Reset(text), **options)


def texts(messages):
    return [message.body.reason for message in messages]


def test_credit_lets_go_of_a_window_and_no_more():
    """Without word from the receiver, as many messages leave as the window allows."""
    outbox = Outbox(2)
    for text in "abcde":
        outbox.put(said(text))

    assert texts(outbox.release()) == ["a", "b"]
    assert outbox.release() == []
    outbox.credited(1)
    assert texts(outbox.release()) == ["c"]
    outbox.credited(3)
    assert texts(outbox.release()) == ["d", "e"]


def test_credit_is_absolute():
    """Old word of credit that arrives again takes nothing back and gives nothing."""
    outbox = Outbox(1)
    for text in "abc":
        outbox.put(said(text))
    outbox.release()
    outbox.credited(1)
    outbox.release()

    outbox.credited(0)
    outbox.credited(1)

    assert outbox.release() == []
    assert outbox.taken == 1


def test_the_newest_replaces_the_older_in_its_place():
    """A newer message with the same key stands where the older one stood, which is given back."""
    outbox = Outbox(0)
    old, new = said("old", key="k"), said("new", key="k")
    for message in (said("first"), old, said("last", key="other")):
        assert outbox.put(message) is None

    assert outbox.put(new) is old

    assert texts(outbox.waiting) == ["first", "new", "last"]


def test_messages_without_a_key_never_replace_each_other():
    """Requests all wait; only statements with a key are conflated."""
    outbox = Outbox(0)

    assert [outbox.put(said(text)) for text in "aab"] == [None] * 3
    assert texts(outbox.waiting) == ["a", "a", "b"]


def test_what_is_free_of_charge_needs_no_credit_and_uses_none():
    """Word of credit passes where everything else is stopped, and takes no place of it."""
    outbox = Outbox(1)
    outbox.put(said("a"))
    outbox.put(said("b"))
    outbox.release()

    outbox.put_first(said("free", free_of_charge=True))

    assert texts(outbox.release()) == ["free"]
    assert outbox.sent == 1
    outbox.credited(1)
    assert texts(outbox.release()) == ["b"]


def test_only_what_is_free_of_charge_goes_first():
    """Nothing that costs credit jumps the queue."""
    with pytest.raises(AssertionError):
        Outbox(1).put_first(QueuedMessage(Bye("x")))


def test_a_full_lane_takes_no_more_but_still_conflates():
    """The limit is on what waits; a newer version of a waiting statement needs no room."""
    outbox = Outbox(0)
    outbox.put(said("k", key="k"))
    for index in range(WAITING_MAX - 1):
        outbox.put(said(str(index)))

    with pytest.raises(OutboxFullError, match=str(WAITING_MAX)):
        outbox.put(said("one too many"))
    assert outbox.put(said("newer", key="k")) is not None
    assert len(outbox.waiting) == WAITING_MAX


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.sampled_from(["", "x", "y"])),
            st.tuples(st.just("credit"), st.integers(0, 30)),
        ),
        max_size=40,
    ),
    st.integers(0, 3),
)
def test_what_leaves_is_in_order_and_within_credit(steps, window):
    """What leaves keeps places; of what waits each key's newest leaves, once."""
    outbox, left, expected = Outbox(window), [], []
    for number, (what, value) in enumerate(steps):
        if what == "credit":
            outbox.credited(min(value, outbox.sent))
        else:
            old = outbox.put(said(str(number), key=value))
            entry = (str(number), value)
            if old is None:
                expected.append(entry)
            else:
                index = [text for text, _ in expected].index(old.body.reason)
                assert expected[index][1] == value, "replaced by another statement"
                expected[index] = entry
        left += texts(outbox.release())
        assert outbox.sent - outbox.taken <= window
        assert outbox.sent == len(left)
    assert left == [text for text, _ in expected][: len(left)]
    waiting = [key for _, key in expected[len(left) :] if key]
    assert len(waiting) == len(set(waiting)), "two versions of one statement wait"
