"""Norms, largest elements and what is not finite of tensors, without holding on to them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ddloco.workers.tensor_measures import TensorMeasures, measured


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32"])
def test_a_tensor_is_measured(dtype):
    """Of the elements that are finite."""
    found = measured("w", np.asarray(jnp.array([[3, -4], [0, 0]], dtype)))
    assert (found.name, found.dtype, found.shape) == ("w", dtype, (2, 2))
    assert (found.norm, found.largest, found.not_finite) == (5.0, 4.0, 0)


def test_what_is_not_finite_is_counted():
    """And left out of the rest; nothing has no norm."""
    found = measured("w", np.array([np.nan, np.inf, -np.inf, 2.0]))
    assert (found.norm, found.largest, found.not_finite) == (2.0, 2.0, 3)
    assert measured("w", np.zeros((0, 3))).norm == 0.0


def test_names_are_matched_and_updates_are_differences():
    """In the order of names; random keys and shapes have no numbers."""
    measures = TensorMeasures()
    others = {"optimizer:/count": np.array(2, np.int32), "key": jax.random.key(0)}
    shapes = {"a": jax.ShapeDtypeStruct((2,), jnp.float32)}
    assert [] == measures("a", shapes, others)
    assert ["optimizer:/count"] == [each.name for each in measures("*", {}, others)]
    assert [] == measures("update:/*", {"a": jnp.ones(4), "b": jnp.ones(4)}, others)
    found = measures("update:/*", {"a": 3 * jnp.ones(4), "b": jnp.ones(4)}, others)
    assert [("update:/a", 4.0), ("update:/b", 0.0)] == [(each.name, each.norm) for each in found]


def test_what_was_measured_may_be_donated():
    """No view is left of it, with which JAX would copy in place of reusing its memory."""
    measures, step = TensorMeasures(), jax.jit(lambda x: x + 1, donate_argnums=0)
    array = jnp.ones(1000)
    step(jnp.ones(1000))
    for _ in range(3):
        measures("*", {"a": array}, {})
        before = array
        array = step(array)
        assert before.is_deleted()
