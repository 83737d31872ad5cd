"""Vector clocks: the laws that everything else takes for granted, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clocks import ClockError, Order, VectorClock
from clocks.vector_clock import COUNT_MAX, NAME_BYTES_MAX, actor_of, is_incarnation, number_of
from tests.clocks.deltas import changed

NAMES = ("a.0", "b.1", "é", "z", "日本")
OPPOSITE = {
    Order.BEFORE: Order.AFTER,
    Order.AFTER: Order.BEFORE,
    Order.EQUAL: Order.EQUAL,
    Order.CONCURRENT: Order.CONCURRENT,
}

entries_st = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 4))
clocks_st = entries_st.map(VectorClock)


@given(clocks_st, clocks_st, clocks_st)
def test_merging_is_a_join(a, b, c):
    """Merge is commutative, associative, idempotent, and never below its operands."""
    assert a.merge(b) == b.merge(a)
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(a) == a
    assert a <= a.merge(b)
    assert b <= a.merge(b)


@given(clocks_st, clocks_st)
def test_merging_is_the_entry_wise_maximum(a, b):
    """Every entry of a merge is the larger of the two, whichever form the other side has."""
    largest = {name: max(a[name], b[name]) for name in NAMES}

    assert VectorClock(largest) == a.merge(b)
    assert a.merge(b) == a.merge(b.wire())


@given(clocks_st, st.sampled_from(NAMES))
def test_a_tick_is_strictly_after(clock, name):
    """One more event is after what was, by one in one entry, and changes nothing in place."""
    before = clock.wire()
    ticked = clock.tick(name)

    assert clock < ticked
    assert not ticked <= clock
    assert Order.AFTER is ticked.compare(clock)
    assert {**before, name: clock[name] + 1} == ticked.wire()
    assert before == clock.wire()


@given(clocks_st, clocks_st)
def test_comparing_agrees_with_its_definition(a, b):
    """Compare is antisymmetric, equal only for equal clocks, and entry-wise."""
    below = all(a[name] <= b[name] for name in NAMES)
    above = all(a[name] >= b[name] for name in NAMES)
    expected = {
        (True, True): Order.EQUAL,
        (True, False): Order.BEFORE,
        (False, True): Order.AFTER,
        (False, False): Order.CONCURRENT,
    }[below, above]

    assert expected is a.compare(b)
    assert OPPOSITE[expected] is b.compare(a)
    assert (a == b) is (expected is Order.EQUAL)
    assert (a <= b) is below
    assert (a < b) is (below and not above)


@given(clocks_st, clocks_st, clocks_st)
def test_happened_before_is_transitive(a, b, c):
    """What is before something before a third is before the third."""
    lower, middle, upper = a, a.merge(b), a.merge(b).merge(c)

    assert lower <= middle <= upper
    assert lower <= upper


@given(entries_st, st.data())
def test_the_wire_form_is_canonical(entries, data):
    """Equal clocks have equal wire forms, in order of UTF-8 bytes, whatever came first."""
    names = data.draw(st.permutations(sorted(entries)))
    one, other = VectorClock(entries), VectorClock({name: entries[name] for name in names})
    by_bytes = sorted((name for name in entries if entries[name]), key=str.encode)

    assert by_bytes == list(one.wire()) == list(other.wire()) == list(one) == list(other)
    assert one == other
    assert hash(one) == hash(other)
    assert one == VectorClock(one.wire())
    assert len(by_bytes) == len(one)


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 3)), max_size=6))
def test_growing_in_another_order_gives_the_same_wire_form(ticks):
    """Ticks and merges keep the wire form canonical too."""
    clock, twin = VectorClock(), VectorClock()
    for name, times in ticks:
        for _ in range(times):
            clock = clock.tick(name)
    for name, times in reversed(ticks):
        for _ in range(times):
            twin = VectorClock().tick(name).merge({name: twin[name] + 1}).merge(twin)

    assert list(clock.wire().items()) == list(twin.wire().items())


@given(st.lists(entries_st, min_size=1, max_size=6), clocks_st)
def test_deltas_along_a_lane_teach_as_much_as_whole_clocks(growth, receiver):
    """Merging what changed since the lane's last message equals merging the whole clock."""
    sender = told = VectorClock()
    by_delta = by_whole = receiver
    for news in growth:
        sender = sender.merge(news).tick("sender")
        delta = changed(sender, told)
        told = sender
        by_delta, by_whole = by_delta.merge(delta), by_whole.merge(sender)

        assert by_whole == by_delta
        assert delta["sender"] == sender["sender"]
        assert sorted(delta, key=str.encode) == list(delta)


def test_what_is_absent_counts_zero():
    """Zeros are not stored, and unknown names read as zero."""
    clock = VectorClock({"a": 0, "b": 2})

    assert 0 == clock["a"] == clock["nobody"]
    assert clock.wire() == {"b": 2}
    assert clock == VectorClock({"b": 2})
    assert clock != {"b": 2}
    assert repr(clock) == "VectorClock({'b': 2})"


@pytest.mark.parametrize("name", ["", "x" * (NAME_BYTES_MAX + 1), "é" * (NAME_BYTES_MAX // 2 + 1)])
def test_a_name_out_of_bounds_is_refused(name):
    """Names have 1 to 128 bytes, counted as bytes."""
    with pytest.raises(ClockError, match="a name has 1 to 128 bytes"):
        VectorClock({name: 1})


@pytest.mark.parametrize("count", [-1, COUNT_MAX + 1])
def test_a_count_out_of_bounds_is_refused(count):
    """Counts are neither negative nor longer than a signed 64-bit integer."""
    with pytest.raises(ClockError, match=r"clock entry a: .* is not a count"):
        VectorClock({"a": count})


def test_the_bounds_themselves_are_allowed():
    """The longest name and the largest count are still entries."""
    name = "é" * (NAME_BYTES_MAX // 2)

    assert VectorClock({name: COUNT_MAX})[name] == COUNT_MAX


def test_a_digit_that_is_no_number_is_part_of_a_name():
    """To Unicode a superscript two is a digit, to Python no integer; peers choose their names."""
    assert (actor_of("learner-0.²"), number_of("learner-0.²")) == ("learner-0.²", 0)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("learner-3.2", True),
        ("a.b.999999999", True),
        ("learner-3", False),
        ("learner-3.", False),
        ("learner-3.0", False),
        ("learner-3.02", False),
        ("learner-3.-1", False),
        ("learner-3.1000000000", False),
        ("learner-3.\u00b2", False),
        ("learner-3.\u0662", False),
        (".2", False),
        ("", False),
    ],
)
def test_an_incarnation_has_one_way_to_be_written(name, is_one):
    """Two names of one incarnation would be two entries, two tapes and two members."""
    assert is_one is is_incarnation(name)
