"""The numbers of one lane: the next, one again, one too far."""

from hypothesis import given
from hypothesis import strategies as st

from clocks import LaneSequence, Verdict


def test_the_numbers_of_a_sender_are_what_its_receiver_expects():
    """What is taken in order is judged to be next, from 0."""
    sender, receiver = LaneSequence(), LaneSequence()

    for number in range(5):
        assert number == sender.take()
        assert Verdict.NEXT is receiver.check(number)
    assert sender == receiver


def test_a_number_seen_before_is_a_duplicate():
    """A duplicate is named and does not move the count."""
    lane = LaneSequence(3)

    assert [lane.check(number) for number in range(3)] == [Verdict.DUPLICATE] * 3
    assert lane.expected == 3


def test_a_number_too_far_is_a_gap():
    """A gap is named and does not move the count, so the lost message would still be next."""
    lane = LaneSequence(3)

    assert Verdict.GAP is lane.check(4)
    assert Verdict.GAP is lane.check(2**62)
    assert Verdict.NEXT is lane.check(3)


@given(st.lists(st.integers(0, 8), max_size=30))
def test_what_is_judged_next_is_exactly_a_prefix_in_order(arrivals):
    """Whatever arrives, the accepted numbers are 0, 1, 2 and so on, each once."""
    lane = LaneSequence()

    accepted = [number for number in arrivals if lane.check(number) is Verdict.NEXT]

    assert list(range(len(accepted))) == accepted
