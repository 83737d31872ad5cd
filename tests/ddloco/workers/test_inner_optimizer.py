"""The learner's own optimizer as the job file describes it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ddloco.job.config import Inner
from ddloco.workers.inner_optimizer import inner_optimizer


def params():
    """A matrix, a stack of matrices, a vector and an embedding."""
    keys = jax.random.split(jax.random.key(0), 4)
    return {
        "block": {"w": jax.random.normal(keys[0], (24, 8))},
        "stack": jax.random.normal(keys[1], (3, 8, 8)),
        "norm": jax.random.normal(keys[2], (8,)),
        "embed": jax.random.normal(keys[3], (16, 8)),
    }


def first_update(inner):
    """The update of the first step, for gradients that are the parameters."""
    optimizer, given = inner_optimizer(inner), params()
    updates, _ = optimizer.update(given, optimizer.init(given), given)
    return jax.tree.map(np.asarray, updates)


def spread(matrix):
    """How many times the largest singular value is of the smallest."""
    found = np.linalg.svd(matrix, compute_uv=False)
    return found.max() / found.min()


def test_muon_makes_updates_of_matrices_orthogonal():
    """Stacked ones one by one; embeddings and vectors are updated as AdamW would."""
    inner = Inner(optimizer="muon", lr=0.1, clip=0.0)
    muon, adamw = first_update(inner), first_update(Inner(optimizer="adamw", lr=0.1, clip=0.0))
    before = params()
    for matrix, was in [(muon["block"]["w"], before["block"]["w"])] + [
        (muon["stack"][i], before["stack"][i]) for i in range(3)
    ]:
        assert spread(matrix) < max(2.0, spread(np.asarray(was)) / 5)
    for name in ("norm", "embed"):
        assert np.allclose(muon[name], adamw[name], rtol=1e-4)


def test_an_update_of_muon_is_as_large_as_one_of_adamw():
    """Root mean square 0.2 times the learning rate, which is AdamW's in training."""
    update = first_update(Inner(optimizer="muon", lr=0.1, clip=0.0))["block"]["w"]
    assert np.sqrt(np.mean(update**2)) == pytest.approx(0.02, rel=0.25)


def test_which_matrices_are_not_muons_is_a_setting():
    """By shell patterns of names."""
    inner = Inner(optimizer="muon", lr=0.1, clip=0.0, adamw=("block/*",))
    muon, adamw = first_update(inner), first_update(Inner(optimizer="adamw", lr=0.1, clip=0.0))
    assert np.allclose(muon["block"]["w"], adamw["block"]["w"], rtol=1e-4)
    assert spread(muon["embed"]) < 2.0


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "muon"])
def test_each_optimizer_lowers_a_loss(optimizer):
    """A quadratic, in fifty steps."""
    inner, given = Inner(optimizer=optimizer, lr=0.05, warmup=5), params()
    chosen = inner_optimizer(inner)

    def loss(each):
        return sum(jnp.mean(leaf**2) for leaf in jax.tree.leaves(each))

    @jax.jit
    def step(each, state):
        updates, state = chosen.update(jax.grad(loss)(each), state, each)
        return jax.tree.map(jnp.add, each, updates), state

    before, state = loss(given), chosen.init(given)
    for _ in range(50):
        given, state = step(given, state)
    assert loss(given) < before
