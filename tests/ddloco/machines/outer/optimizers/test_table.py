"""The outer optimizers: each against a plain float64 reference, with every merge rule."""

import typing
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddloco.job.config import OF_OPTIMIZER, OUTER_RATES, Outer, OuterOptimizerName
from ddloco.machines.outer import merge
from ddloco.machines.outer.merge import TensorSegment, WeightedFragment, merge_fragment
from ddloco.machines.outer.merge_rules import MERGE_RULES
from ddloco.machines.outer.optimizers.optimizer import STEPS, state_digest
from ddloco.machines.outer.optimizers.table import ADAM, OPTIMIZERS, usual_direction, zero_state
from tests.lab.merge_oracle import REFERENCES, STEP_REFERENCES

SIZE = 1500
ROUNDS = 6


def outer_of(optimizer, **more):
    """Settings under which every optimizer moves about as far."""
    return Outer(optimizer=optimizer, lr=OUTER_RATES.get(optimizer, 0.7), **more)


def contributions_to(theta, seed, learners=3):
    """What learners send that moved about as far as they do in a job."""
    rng = np.random.default_rng(seed)
    moved = [theta + np.float32(0.05) * rng.standard_normal(theta.size, np.float32)
             for _ in range(learners)]  # fmt: skip
    return [WeightedFragment(str(n), 1.0 + n, each.view(np.uint8)) for n, each in enumerate(moved)]


def steps_of(outer, segments, *, seed=0, state=None, **how):
    """Parameters and state after each of some merges."""
    theta = np.random.default_rng(99).standard_normal(SIZE, np.float32)
    state = state or zero_state(outer, theta)
    found = []
    for number in range(ROUNDS):
        given_ = contributions_to(theta, seed + number)
        done = merge_fragment(theta, state, given_, segments, outer=outer, **how)
        found.append((theta, given_, done))
        theta, state = done.theta, done.state
    return found


def test_every_name_of_the_settings_has_an_optimizer():
    """And every optimizer a name, and a reference; settings and rates belong to optimizers."""
    assert typing.get_args(OuterOptimizerName) == tuple(OPTIMIZERS)
    assert list(OPTIMIZERS) == list(STEP_REFERENCES)
    assert {*OF_OPTIMIZER.values(), *OUTER_RATES} <= set(OPTIMIZERS)


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_names_of_a_state(optimizer):
    """They are sorted, are no paths, are not the count's, and one may be the usual direction."""
    assert optimizer.state == tuple(sorted(optimizer.state))
    assert not any("/" in name or name == STEPS for name in optimizer.state)
    assert optimizer.usual in {"", *optimizer.state}


@given(
    st.sampled_from(list(OPTIMIZERS)),
    st.sampled_from(list(MERGE_RULES)),
    st.integers(0, 2**20),
    st.floats(0.0, 0.99),
    st.floats(0.0, 0.999),
)
@settings(deadline=None, max_examples=60)
def test_equals_a_plain_float64_reference(optimizer, rule, seed, decay, decay_of_squares):
    """Merge by merge, with every rule: parameters, and the whole state."""
    own = {name for name, of in OF_OPTIMIZER.items() if of == optimizer}
    values = {"momentum": decay, "b1": decay, "b2": decay_of_squares, "eps": 1e-3}
    outer = outer_of(optimizer, **{name: values[name] for name in own})
    segments = (TensorSegment(0, SIZE, rule, "float32", 0),)
    state = {}
    for number, (theta, given_, done) in enumerate(steps_of(outer, segments, seed=seed)):
        wide = theta.astype(np.float64)
        moves = np.array([wide - each.buffer.view(np.float32) for each in given_])
        delta = REFERENCES[rule](moves, np.array([each.weight for each in given_]))
        expected, state = STEP_REFERENCES[optimizer](wide, state, delta, outer)
        state = {**state, STEPS: np.array([number + 1.0])}
        np.testing.assert_allclose(done.theta, expected, rtol=1e-4, atol=1e-5)
        assert state.keys() == done.state.keys()
        for name, array in done.state.items():
            np.testing.assert_allclose(array, state[name], rtol=1e-3, atol=1e-5)
        state = {name: array.astype(np.float64) for name, array in done.state.items()}


@pytest.mark.parametrize("rule", list(MERGE_RULES))
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_blocks_and_threads_do_not_change_a_bit(optimizer, rule, monkeypatch):
    """Nor does whether a tensor lies alone in its fragment; task state has no outer state."""
    outer, cut = outer_of(optimizer), 700
    segments = (
        TensorSegment(0, cut, rule, "float32", 0),
        TensorSegment(cut, cut + 100, "average", "float32", 4 * cut, state=True),
        TensorSegment(cut + 100, SIZE, rule, "float32", 4 * (cut + 100)),
    )
    whole = [each for _, _, each in steps_of(outer, segments)]
    monkeypatch.setattr(merge, "BLOCK_ELEMENTS", 64)
    monkeypatch.setattr(merge, "CHUNK_BLOCKS", 2)
    with ThreadPoolExecutor(4) as pool:
        pooled = [each for _, _, each in steps_of(outer, segments, map_chunks=pool.map)]
    for one, other in zip(whole, pooled, strict=True):
        # RDA's norms are sums of blocks, so there only the number of threads is the same.
        assert np.allclose(one.theta, other.theta, rtol=1e-5, atol=1e-6)
        if rule != "rda":
            assert one.theta.tobytes() == other.theta.tobytes()
            assert state_digest(one.state) == state_digest(other.state)
        for name in OPTIMIZERS[optimizer].state:
            assert not one.state[name][cut : cut + 100].any()
    again = [each for _, _, each in steps_of(outer, segments)]
    for one, other in zip(pooled, again, strict=True):
        assert one.theta.tobytes() == other.theta.tobytes()
        assert state_digest(one.state) == state_digest(other.state)


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_the_state_of_another_optimizer_is_not_taken(optimizer):
    """It would be a mistake of this program, so it is an assertion."""
    theta = np.zeros(SIZE, np.float32)
    segments = (TensorSegment(0, SIZE, "average", "float32", 0),)
    for other in OPTIMIZERS.keys() - {optimizer}:
        state, outer = zero_state(outer_of(other), theta), outer_of(optimizer)
        with pytest.raises(AssertionError, match="the state of another optimizer"):
            merge_fragment(theta, state, contributions_to(theta, 1), segments, outer=outer)


def test_the_usual_direction_is_that_of_the_optimizer():
    """None without state: then the outlier test has the contributions alone."""
    theta = np.ones(3, np.float32)
    found = {name: usual_direction(outer_of(name), zero_state(outer_of(name), theta))
             for name in OPTIMIZERS}  # fmt: skip
    assert found["sgd"] is None
    assert found["nesterov"] is not None
    assert found["adam"] is not None


def test_every_byte_of_a_state_is_in_its_digest():
    """Of the count, of each array, and of their names."""
    theta = np.ones(3, np.float32)
    state = zero_state(outer_of("adam"), theta)
    others = [{**state, name: array + 1} for name, array in state.items()]
    others.append({"mean": state["mean"], "other": state["variance"], STEPS: state[STEPS]})
    assert len({state_digest(each) for each in [state, *others]}) == 1 + len(others)
    turned = dict(reversed(state.items()))
    assert state_digest(turned) == state_digest(state)
    assert set(ADAM.state) | {STEPS} == set(state)
