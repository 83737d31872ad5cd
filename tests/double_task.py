"""The quickstart's task with parameters in float64, where JAX has that."""

from typing import Any

import jax
import jax.numpy as jnp

from examples import tiny_gpt


def task(mixed: bool) -> Any:
    """The task."""
    found = tiny_gpt.task(mixed=mixed)
    init = found.init
    found.init = lambda key: jax.tree.map(lambda leaf: leaf.astype(jnp.float64), init(key))
    return found
