"""Causal order, checked against happened-before that is kept aside, event by event."""

import random
from dataclasses import dataclass
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clocks import CausalityError, VectorClock, causal_sort, inconsistencies, is_consistent_cut
from tests.clocks.deltas import changed

ACTORS = ("a", "b", "c.1", "é")


@dataclass(frozen=True)
class Happening:
    """An event of the simulation; ``causes`` are all events known to be before it."""

    actor: str
    number: int
    clock: VectorClock
    causes: frozenset

    @property
    def key(self):
        return (self.actor, self.number)


def simulate(seed, events=24):
    """Give a run's events by actor: ticks, sends and receives, chosen by a seed, over FIFO lanes.

    Messages carry deltas, as on the wire; happened-before is followed by sets of events instead.
    """
    rng = random.Random(seed)
    clocks = dict.fromkeys(ACTORS, VectorClock())
    past = dict.fromkeys(ACTORS, frozenset())
    told = dict.fromkeys(product(ACTORS, ACTORS), VectorClock())
    lanes = {pair: [] for pair in told}
    history = {actor: [] for actor in ACTORS}
    for _ in range(events):
        actor = rng.choice(ACTORS)
        full = sorted(pair for pair, lane in lanes.items() if lane and pair[1] == actor)
        causes = past[actor]
        if full and rng.random() < 0.6:
            delta, heard = lanes[rng.choice(full)].pop(0)
            clocks[actor] = clocks[actor].merge(delta)
            causes |= heard
        clock = clocks[actor] = clocks[actor].tick(actor)
        event = Happening(actor, clock[actor], clock, causes)
        history[actor].append(event)
        past[actor] = causes | {event.key}
        if rng.random() < 0.6:
            pair = (actor, rng.choice([other for other in ACTORS if other != actor]))
            lanes[pair].append((changed(clock, told[pair]), past[actor]))
            told[pair] = clock
    return history


seeds_st = st.integers(0, 2**32)


@settings(max_examples=60, deadline=None)
@given(seeds_st)
def test_clocks_say_happened_before_exactly(seed):
    """For all pairs, e happened before f if and only if VC(e) < VC(f)."""
    events = [event for sequence in simulate(seed).values() for event in sequence]

    for e, f in product(events, events):
        assert (e.key in f.causes) is (e.clock < f.clock), (e, f)


@settings(max_examples=60, deadline=None)
@given(seeds_st)
def test_a_causal_sort_is_a_linear_extension(seed):
    """Every event comes once, after all of its causes."""
    history = simulate(seed)
    seen = set()

    merged = causal_sort(history)

    for event in merged:
        assert event.causes <= seen
        seen.add(event.key)
    assert {event.key for sequence in history.values() for event in sequence} == seen
    assert len(merged) == len(seen)


@settings(max_examples=40, deadline=None)
@given(seeds_st, st.data())
def test_what_lies_after_a_cut_sorts_without_what_lies_before_it(seed, data):
    """Sequences may begin after a consistent cut; the order is that of all, without the rest."""
    history = simulate(seed)
    merged = causal_sort(history)
    before = merged[: data.draw(st.integers(0, len(merged)))]
    after = {actor: sum(event.actor == actor for event in before) for actor in ACTORS}

    rest = {actor: history[actor][after[actor] :] for actor in ACTORS}

    assert causal_sort(rest, (), after) == [event for event in merged if event not in before]


@settings(max_examples=40, deadline=None)
@given(seeds_st, st.permutations(ACTORS))
def test_a_causal_sort_does_not_depend_on_the_order_of_its_input(seed, order):
    """The same tapes give the same order, in whatever order they are given."""
    history = simulate(seed)

    assert causal_sort(history) == causal_sort({actor: history[actor] for actor in order})


@settings(max_examples=40, deadline=None)
@given(seeds_st, st.sampled_from(ACTORS))
def test_causes_in_actors_that_are_not_given_count_as_done(seed, missing):
    """Without one actor's events the others are still sorted, among themselves correctly."""
    history = simulate(seed)
    given_events = {actor: events for actor, events in history.items() if actor != missing}
    seen = set()

    for event in causal_sort(given_events):
        assert {cause for cause in event.causes if cause[0] != missing} <= seen
        seen.add(event.key)
    assert sum(map(len, given_events.values())) == len(seen)


def happening(actor, number, **clock):
    return Happening(actor, number, VectorClock({**clock, actor: number}), frozenset())


def test_among_what_may_come_next_small_numbers_and_names_go_first():
    """Ties are broken by number, then by name, never by chance."""
    history = {
        "b": [happening("b", 1), happening("b", 2)],
        "a": [happening("a", 1), happening("a", 2)],
    }

    assert [e.key for e in causal_sort(history)] == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]


def test_a_missing_cause_is_named():
    """A tape that lacks an event which another one heard of is no order."""
    history = {"a": [happening("a", 1)], "b": [happening("b", 1, a=2)]}

    with pytest.raises(
        CausalityError, match=r"b:1 follows from a:2, which never .*a has 1 events\)"
    ):
        causal_sort(history)


def test_what_was_cut_short_is_taken_as_having_happened():
    """A lost end is no contradiction; an event that knows of it follows all events that are
    left."""
    history = {"a": [happening("a", 1), happening("a", 2)], "b": [happening("b", 1, a=9)]}
    keys = [event.key for event in causal_sort(history, cut_short=["a", "nobody"])]

    assert [("a", 1), ("a", 2), ("b", 1)] == keys
    with pytest.raises(CausalityError):
        causal_sort(history, cut_short=["b"])


def test_a_cycle_is_named():
    """Two events that each follow from the other come from no run."""
    history = {"a": [happening("a", 1, b=1)], "b": [happening("b", 1, a=1)]}

    with pytest.raises(CausalityError, match="b:1 follows from a:1"):
        causal_sort(history)


def test_nothing_sorts_to_nothing():
    """No actors, or actors without events, have an empty order."""
    assert causal_sort({}) == []
    assert causal_sort({"a": [], "b": []}) == []


@settings(max_examples=60, deadline=None)
@given(seeds_st, st.data())
def test_a_cut_is_consistent_as_defined(seed, data):
    """A cut is consistent if and only if it holds every cause of every event that it holds."""
    history = simulate(seed)
    lengths = {actor: data.draw(st.integers(0, len(history[actor]))) for actor in ACTORS}
    inside = {event.key for a in ACTORS for event in history[a][: lengths[a]]}
    closed = all(event.causes <= inside for a in ACTORS for event in history[a][: lengths[a]])
    cut = {a: history[a][n - 1].clock if n else VectorClock() for a, n in lengths.items()}

    assert closed is is_consistent_cut(cut)
    assert closed is (inconsistencies(cut) == [])


def test_inconsistencies_name_who_knows_too_much():
    """The pair names the one who heard, then the one of whom."""
    cut = {"a": VectorClock({"a": 1}), "b": VectorClock({"a": 2, "b": 1})}

    assert inconsistencies(cut) == [("b", "a")]
    assert not is_consistent_cut(cut)
    assert is_consistent_cut({})
