"""The reference merge against the paper's formulas and against the kernel; and that it objects."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from msgspec.structs import replace

from ddloco.job.config import Outer
from ddloco.machines.outer.merge import TensorSegment, WeightedFragment, merge_fragment
from ddloco.machines.outer.merge_rules import MERGE_RULES
from ddloco.machines.outer.optimizers.optimizer import STEPS
from ddloco.replayer.invariants.base import Violation
from ddloco.workers.simulated import work
from tests.lab.merge_oracle import REFERENCES, average, median, radial

N = 16
weights_st = st.lists(st.floats(0.125, 8.0), min_size=1, max_size=4)


def test_the_average_is_weighted():
    """sum(w d) / sum(w), element for element."""
    moves, weights = np.array([[2.0, 0.0], [6.0, 8.0]]), np.array([3.0, 1.0])
    assert [3.0, 2.0] == average(moves, weights).tolist()


def test_the_radial_average_has_the_mean_of_norms():
    """Appendix D.2 by hand: norms 3 and 8, directions along x and y, weights 3 and 1."""
    moves, weights = np.array([[3.0, 0.0], [0.0, 8.0]]), np.array([3.0, 1.0])
    length, direction = (3 * 3 + 1 * 8) / 4, np.array([0.75, 0.25])
    expected = length * direction / np.sqrt(0.75**2 + 0.25**2)
    np.testing.assert_allclose(radial(moves, weights), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        ([[3.0, 4.0]], [3.0, 4.0]),
        ([[3.0, 4.0], [3.0, 4.0]], [3.0, 4.0]),
        ([[3.0, 4.0], [0.0, 0.0]], [1.5, 2.0]),
        ([[0.0, 0.0], [0.0, 0.0]], [0.0, 0.0]),
        ([[1.0, 2.0], [-3.0, -6.0]], [-1.0, -2.0]),
    ],
)
def test_the_radial_average_at_its_edges(moves, expected):
    """One learner, equal ones, one that did not move, none that moved, and no direction at all."""
    found = radial(np.array(moves), np.ones(len(moves)))
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_median_is_that_of_each_element():
    """Without weights, but for those that are zero; of an even number the mean of two."""
    moves = np.array([[1.0, 5.0], [2.0, -9.0], [8.0, 6.0], [100.0, 100.0]])
    assert [2.0, 5.0] == median(moves, np.array([1.0, 9.0, 1.0, 0.0])).tolist()
    assert [5.0, 5.5] == median(moves, np.ones(4)).tolist()


@given(st.data(), weights_st)
def test_scaling_and_turning(data, weights):
    """Twice the moves is twice the result; as many times the weights changes nothing."""
    moves = data.draw(nps.arrays(np.float64, (len(weights), 3), elements=st.floats(-4.0, 4.0)))
    w = np.array(weights)
    for mean in REFERENCES.values():
        np.testing.assert_allclose(mean(moves, 7.0 * w), mean(moves, w), rtol=1e-9, atol=1e-9)
    # Below the smallest normal numbers nothing scales: a product there keeps few bits or none.
    doubled = 2 * average(moves, w)
    np.testing.assert_allclose(average(2 * moves, w), doubled, rtol=1e-9, atol=1e-300)
    longest = np.linalg.norm(moves, axis=1).max()
    assert np.linalg.norm(radial(moves, w)) <= longest * (1 + 1e-9) + 1e-150


@settings(deadline=None)
@given(st.data(), weights_st, st.sampled_from(list(REFERENCES)))
def test_it_agrees_with_the_kernel(data, weights, rule):
    """Every rule, and the outer step on top of them, to the precision of float32."""
    floats = st.integers(-512, 512).map(lambda n: n / 64)
    draw = lambda: data.draw(nps.arrays(np.float32, N, elements=floats))  # noqa: E731
    theta, momentum = draw(), draw()
    state = {"momentum": momentum, STEPS: np.array([4])}
    outer = Outer(lr=0.7, momentum=0.9)
    params = [draw() for _ in weights]
    moves = theta.astype(np.float64) - np.array(params, np.float64)
    given_ = [
        WeightedFragment(f"learner-{i}", w, p.view(np.uint8))
        for i, (w, p) in enumerate(zip(weights, params, strict=True))
    ]
    segments = (TensorSegment(0, N, rule, "float32", 0),)
    done = merge_fragment(theta, state, given_, segments, outer=outer)

    units = moves / np.maximum(np.linalg.norm(moves, axis=1), 1e-30)[:, None]
    if 1e-7 < np.linalg.norm(average(units, np.array(weights))) < 1e-4:
        return  # So near to having no direction that float32 decides.
    delta = REFERENCES[rule](moves, np.array(weights))
    velocity = 0.9 * momentum.astype(np.float64) + delta
    np.testing.assert_allclose(done.state["momentum"], velocity, rtol=1e-3, atol=1e-3)
    stepped = theta - 0.7 * (delta + 0.9 * velocity)
    np.testing.assert_allclose(done.theta, stepped, rtol=1e-3, atol=1e-3)


# In a world.


@pytest.fixture
def numbers(World, make_job):
    """A short job with numbers, and an oracle beside it."""
    job = make_job(learners=3, fragments=3, interval=3, steps=9, overlap=2, quorum=2)
    return World(job, {"learner-1": 1.3}, arithmetic=True)


@pytest.mark.parametrize("rule", list(REFERENCES))
def test_it_agrees_with_a_whole_job(World, make_job, rule):
    """Every merge of a job is what the reference makes of it, by each rule for all tensors."""
    job = make_job(learners=3, fragments=3, interval=3, steps=9, overlap=2, quorum=2)
    job = replace(job, outer=replace(job.outer, merge=rule, average=()))
    numbers = World(job, {"learner-1": 1.3}, arithmetic=True)
    numbers.run(99.0)
    assert numbers.over
    assert 9 == len(numbers.merging.merges)


@pytest.mark.parametrize("rule", list(REFERENCES))
def test_a_rule_that_merges_as_another_is_objected_to(World, make_job, monkeypatch, rule):
    """The kernel's rule is replaced by the next one of the table."""
    names = list(MERGE_RULES)
    other = MERGE_RULES[names[(names.index(rule) + 1) % len(names)]]
    monkeypatch.setitem(MERGE_RULES, rule, other)
    job = make_job(learners=3, fragments=3, interval=3, steps=9, overlap=2, quorum=2)
    job = replace(job, outer=replace(job.outer, merge=rule, average=()))
    with pytest.raises(Violation, match="model-oracle"):
        World(job, {"learner-1": 1.3}, arithmetic=True).run(99.0)


def test_every_rule_has_a_reference():
    """A rule without one could not be checked in the simulator."""
    assert list(REFERENCES) == list(MERGE_RULES)


def changed_state(merged, name, factor):
    """A result with one array of the state multiplied."""
    return merged._replace(state={**merged.state, name: merged.state[name] * factor})


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("theta", lambda merged: merged._replace(theta=merged.theta + np.float32(0.01))),
        ("momentum", lambda merged: changed_state(merged, "momentum", np.float32(1.01))),
        ("steps", lambda merged: changed_state(merged, "steps", 2)),
        ("fates", lambda merged: merged._replace(accepted=merged.accepted[:1])),
        ("finite", lambda merged: merged._replace(theta=merged.theta * np.float32(np.nan))),
    ],
)
def test_a_wrong_merge_is_objected_to(numbers, monkeypatch, what, change):
    """A kernel that is a little off, forgets a contribution or gives NaN is found at once."""
    merge = work.merge_fragment

    def wrong(*arguments, **more):
        return change(merge(*arguments, **more))

    monkeypatch.setattr(work, "merge_fragment", wrong)
    with pytest.raises(Violation) as caught:
        numbers.run(99.0)
    named = {"finite": "finite", "fates": "token-conservation"}
    assert named.get(what, "model-oracle") == caught.value.invariant
    assert what in str(caught.value)


def test_what_is_no_number_is_left_out(numbers):
    """The reference refuses whom the kernel refuses, and the learner is healed afterwards."""
    numbers.run(3.2)
    numbers.nodes["learner-0"].simulated_work.poisoned = True
    numbers.run(5.0)
    numbers.nodes["learner-0"].simulated_work.poisoned = False
    numbers.run(99.0)
    assert {"learner-0.1"} == {fields["learner"] for _, fields in numbers.observed("refused")}
    assert "learner-0.1" in numbers.merging.merges[-1][3]
