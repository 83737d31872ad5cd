"""The check of the first step: a state comes back from host memory as it was."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ddloco.workers.first_step import SavedTree, difference, digests


def trees():
    """A state with arrays of every kind that tasks and optimizers have."""
    return {
        "weights": jnp.arange(12.0).reshape(3, 4),
        "half": jnp.arange(5, dtype=jnp.bfloat16),
        "count": jnp.zeros([], jnp.int32),
        "empty": jnp.zeros((0, 3)),
        "weak": jnp.asarray(0.5),
        "key": jax.random.key(7),
        "bound": jax.device_put(np.ones(3, np.float32), jax.devices()[0]),
        "plain": 3,
    }


def plain(leaf):
    """What an array is: type, shape, bytes, and how JAX treats it."""
    if not isinstance(leaf, jax.Array):
        return leaf
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return str(leaf.dtype), np.asarray(jax.random.key_data(leaf)).tobytes()
    treated = leaf.weak_type, leaf.committed
    return str(leaf.dtype), leaf.shape, *treated, np.asarray(leaf).tobytes()


def test_a_donated_state_comes_back():
    """Values, types, weak types and bindings to devices are as they were before the donation."""
    tree = trees()
    before = {name: plain(leaf) for name, leaf in tree.items()}
    saved = SavedTree(tree)
    jax.jit(lambda each: jax.tree.map(lambda leaf: leaf, each), donate_argnums=0)(tree)
    restored = saved.restore()
    assert before == {name: plain(leaf) for name, leaf in restored.items()}


def test_a_restored_state_may_be_donated_too():
    """The copy that it came from does not change."""
    tree = {"weights": jnp.arange(1024.0)}
    saved = SavedTree(tree)
    (kept,) = saved._leaves[0].shards.values()
    restored = saved.restore()
    jax.block_until_ready(jax.jit(lambda each: each["weights"] + 1, donate_argnums=0)(restored))
    assert np.arange(1024.0, dtype=np.float32).tobytes() == kept.tobytes()


@pytest.mark.parametrize("changed", ["b", "c"])
def test_the_first_difference_is_named(changed):
    """One changed bit in one tensor is found, and a signed zero is a difference as well."""
    arrays = {name: np.zeros(4, np.float32) for name in "abc"}
    rows = [(("parameters", name), array) for name, array in arrays.items()]
    before = digests(rows)
    assert "" == difference(before, digests(rows))
    arrays[changed][2] = -0.0
    assert f"{changed} (parameters)" == difference(before, digests(rows))
