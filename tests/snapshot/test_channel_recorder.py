"""The cuts of one participant: what is new, what is in flight, what is waited for."""

import pytest

from snapshot.channel_recorder import ChannelRecorder

A, B = ("a.1", "bulk"), ("b.1", "bulk")


def test_of_each_initiator_the_newest_is_remembered():
    """A snapshot is new once; an older one of the same initiator never, another's is."""
    cuts = ChannelRecorder()
    assert cuts.new("i.1:5")
    cuts.begin("i.1:5", [A])
    assert not cuts.new("i.1:5")
    assert not cuts.new("i.1:4")
    assert cuts.new("i.1:6")
    assert cuts.new("j.1:0")
    cuts.see("i.1:6")
    assert not cuts.new("i.1:6")
    with pytest.raises(AssertionError):
        cuts.begin("i.1:6", [])


def test_what_comes_before_a_channels_marker_was_in_flight():
    """In each cut for itself, in order, by channel."""
    cuts = ChannelRecorder()
    assert 0 == cuts.heard(A, "before")
    cuts.begin("i.1:1", [A, B])
    assert 1 == cuts.heard(A, "one")
    cuts.begin("i.1:2", [A, B])
    assert 2 == cuts.heard(A, "two")
    cuts.marked("i.1:1", A)
    assert 1 == cuts.heard(A, "three")
    assert 0 == cuts.heard(("c.1", "bulk"), "of one who joined later")
    assert [] == cuts.complete()
    cuts.marked("i.1:1", B)
    (first,) = cuts.complete()
    assert {A: ["one", "two"]} == first.in_flight
    cuts.marked("i.1:2", A)
    cuts.marked("i.1:2", B)
    cuts.marked("i.1:7", B)
    (second,) = cuts.complete()
    assert {A: ["two", "three"]} == second.in_flight
    assert {} == first.broken == second.broken
    assert 0 == len(cuts)


def test_what_broke_is_not_waited_for():
    """Before its marker it is named with the reason, after it that makes no difference."""
    cuts = ChannelRecorder()
    cuts.begin("i.1:1", [A, B])
    cuts.marked("i.1:1", A)
    cuts.broken(A, "cut")
    cuts.broken(B, "cut")
    (cut,) = cuts.complete()
    assert {B: "cut"} == cut.broken


def test_who_is_given_up_is_named_in_order():
    """So that a replay writes the same."""
    cuts = ChannelRecorder()
    channels = [(f"p{n}", "bulk") for n in range(30)]
    cuts.begin("i.1:1", channels[::-1])
    cuts.give_up("i.1:1", "late")
    cuts.give_up("i.1:9", "unknown")
    (cut,) = cuts.complete()
    assert sorted(channels) == [*cut.broken]
    assert {"late"} == {*cut.broken.values()}


def test_what_is_dropped_is_forgotten():
    """With what was in flight; and it stays seen."""
    cuts = ChannelRecorder()
    cuts.begin("i.1:1", [A])
    cuts.drop("i.1:1")
    cuts.drop("i.1:1")
    assert (0, 0) == (len(cuts), cuts.heard(A, "x"))
    assert not cuts.new("i.1:1")
