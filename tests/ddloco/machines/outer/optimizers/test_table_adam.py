"""Adam: the same as optax, finite whatever comes, and the count that its correction needs."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ddloco.job.config import Outer
from ddloco.machines.outer.block_kernel import NUMPY
from ddloco.machines.outer.optimizers.optimizer import OuterStep
from ddloco.machines.outer.optimizers.table import ADAM

SIZE = 300
OUTER = Outer(optimizer="adam", lr=0.01)


def taken(theta, state, delta, number, outer=OUTER, scale=1.0):
    """Parameters and moments after a step."""
    out, new = delta.copy(), [np.empty_like(theta) for _ in state]
    ADAM.take(OuterStep(outer, number, scale, NUMPY), theta, state, out, new)
    return out, new


def some(seed, size=SIZE):
    """Numbers of the size of changes."""
    return np.float32(0.05) * np.random.default_rng(seed).standard_normal(size, np.float32)


def test_it_is_optax_adam():
    """Many steps agree with ``optax.adam``."""
    theta = some(0)
    state = [np.zeros_like(theta), np.zeros_like(theta)]
    optimizer = optax.adam(OUTER.lr, b1=OUTER.b1, b2=OUTER.b2, eps=OUTER.eps)
    params = jnp.asarray(theta)
    theirs = optimizer.init(params)
    for number in range(1, 40):
        delta = some(number)
        theta, state = taken(theta, state, delta, number)
        updates, theirs = optimizer.update(jnp.asarray(delta), theirs)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(theta, np.asarray(params), rtol=1e-4, atol=1e-6)


def test_the_first_step_is_as_long_as_all_others():
    """Every element moves by the learning rate, whatever the length of the change."""
    theta = np.zeros(SIZE, np.float32)
    state = [np.zeros_like(theta), np.zeros_like(theta)]
    for number in (1, 2, 3, 1000):
        theta_then = theta
        theta, state = taken(theta, state, np.ones_like(theta), number)
        if number < 4:
            np.testing.assert_allclose(theta_then - theta, OUTER.lr / (1 + OUTER.eps), rtol=1e-3)


def test_a_count_that_was_forgotten_makes_another_step():
    """The correction of the second step is not that of the first; see the oracle in the simulator,
    which finds a count that a restarted syncer has forgotten."""
    theta, state = taken(some(0), [np.zeros(SIZE, np.float32)] * 2, some(1), 1)
    right, _ = taken(theta, state, some(2), 2)
    wrong, _ = taken(theta, state, some(2), 1)
    assert np.abs(right - wrong).max() > OUTER.lr / 10


@pytest.mark.parametrize("size", [1e-38, 1e-20, 1e20, 1e30, 3e38])
def test_a_change_of_any_size_leaves_numbers(size):
    """Squares that float32 cannot hold are its largest number, and are forgotten in time."""
    theta, state = np.zeros(4, np.float32), [np.zeros(4, np.float32)] * 2
    delta = np.array([size, -size, 0.0, 0.01], np.float32)
    theta, state = taken(theta, state, delta, 1)
    theta, state = taken(theta, state, np.zeros(4, np.float32), 2)
    for array in (theta, *state):
        assert np.isfinite(array).all()
    assert theta[2] == 0.0
