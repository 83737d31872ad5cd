"""How time was spent: overlaps against a ruler of whole seconds, and a ledger in a world."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddloco.simulation import goodput
from ddloco.simulation.goodput import Ledger, together, union

WHOLE = st.tuples(st.integers(0, 30), st.integers(1, 12)).map(lambda s: (s[0], s[0] + s[1]))
SPANS = st.lists(WHOLE, max_size=8)


def ticks(spans):
    """The whole seconds that lie in any of the spans."""
    return {second for begin, end in spans for second in range(begin, end)}


@settings(deadline=None)
@given(SPANS)
def test_a_union_is_the_same_time(spans):
    """In order, without overlaps or gaps of nothing, and no second more or less."""
    merged = union(spans)
    assert ticks(merged) == ticks(spans)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(merged))


@settings(deadline=None)
@given(st.lists(SPANS, min_size=1, max_size=4))
def test_time_together_is_in_all_of_them(lists):
    """As many seconds as lie in a span of every list."""
    expected = len(set.intersection(*map(ticks, lists)))
    assert expected == together(lists)


def test_together_needs_all_learners():
    """One that was never down makes the time of all of them nothing."""
    assert 0.0 == together([[(0.0, 9.0)], []])
    assert 2.5 == together([[(0.0, 4.5)], [(2.0, 9.0)]])


@pytest.fixture
def ledger(World, make_job, monkeypatch):
    """A ledger that watches a world of two learners, and folds every half a minute; the world."""
    monkeypatch.setattr(goodput, "FOLD_S", 30.0)
    world, kept = World(make_job(learners=2, steps=10**6)), Ledger()
    world._observers.append(kept)
    kept.watch(world)
    for name in world.job.learner_names():
        kept.started(world, world.nodes[name])
    return kept, world


def test_time_of_steps_is_good(ledger):
    """All of it but what passes until the first parameters, and the step that is not done yet."""
    kept, world = ledger
    world.run(100.0)
    results = kept.results(world)
    steps = sum(len(each) for each in world.learning.steps.values())
    assert steps == results["steps"]
    assert results["chip goodput"] == pytest.approx(100 * steps / 200.0)
    assert 98.0 < results["chip goodput"] < 100.0
    assert 100.0 == results["uptime"]
    assert len(world.merging.merges) == results["merges"]
    assert 100.0 / 3600 == results["hours"]


def test_it_is_down_only_when_all_learners_are(ledger):
    """One away is no loss of uptime; both away is, for as long as both are."""
    kept, world = ledger
    world.run(10.0)
    world.kill("learner-0")
    world.run(20.0)
    world.kill("learner-1")
    world.run(25.0)
    world.start("learner-0")
    world.run(50.0)
    assert 90.0 == pytest.approx(kept.results(world)["uptime"])
    world.start("learner-1")
    world.run(100.0)
    results = kept.results(world)
    assert 95.0 == pytest.approx(results["uptime"])
    assert results["chip goodput"] < 100 * (200 - 15 - 30) / 200


def test_folding_again_and_again_changes_nothing(ledger):
    """What is known is added up whenever asked, and forgotten."""
    kept, world = ledger
    world.run(10.0)
    world.kill("learner-0")
    world.kill("learner-1")
    for at in (11.0, 13.5, 20.0):
        world.run(at)
        assert at - 10.0 == pytest.approx(kept.results(world)["uptime"] * -at / 100 + at)
    assert not any(kept._down.values())


def test_it_folds_now_and_then(ledger):
    """So that memory stays flat: what was before the last fold is forgotten."""
    kept, world = ledger
    world.run(10.0)
    world.kill("learner-0")
    world.run(12.0)
    world.start("learner-0")
    assert kept._down["learner-0"]
    world.run(61.0)
    assert 60.0 == kept._folded
    assert not kept._down["learner-0"]
