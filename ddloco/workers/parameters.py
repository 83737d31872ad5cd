"""What a task's parameters are: their shapes, and their names in plans and files. It needs jax."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

WHOLE = "parameters"
"""The name of parameters that are a single array, whose path is empty."""


def shapes_and_names(init: Callable[[Any], Any], seed: int) -> tuple[Any, list[str]]:
    """The parameters as a pytree of shapes, and the name of each leaf, its path joined by "/"
    (``WHOLE`` if that is empty).

    Only shapes: a learner receives its parameters from the syncer, and creating its own would take
    longer than everything else it does before training.
    """
    key = jax.random.key(seed)
    try:
        shapes = jax.eval_shape(init, key)
    except Exception:  # noqa: BLE001, code that cannot be traced may still run, or say why not
        leaves, tree = jax.tree.flatten(init(key))
        shapes = jax.tree.unflatten(
            tree, [jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a)) for a in leaves]
        )
    paths, _ = jax.tree_util.tree_flatten_with_path(shapes)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
    return shapes, [name or WHOLE for name in names]
