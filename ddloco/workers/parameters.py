"""What a task's parameters are: their shapes, and their names in plans and files. It needs jax."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ddloco.workers.task import TaskError

WHOLE = "parameters"
"""The name of parameters that are a single array, whose path is empty."""


def shapes_and_names(init: Callable[[Any], Any], seed: int) -> tuple[Any, list[str]]:
    """Return the parameters as a pytree of shapes, and the name of each leaf, its path joined by
    "/" (``WHOLE`` if that is empty). Only shapes: creating its own parameters would take a learner
    longer than all else that it does before training. ``TaskError`` if a leaf is no array."""
    key = jax.random.key(seed)
    try:
        shapes = jax.eval_shape(init, key)
    except Exception:  # noqa: BLE001, code that cannot be traced may still run, or say why not
        made = init(key)
        _check_arrays(made, getattr(init, "__qualname__", "init"))
        leaves, tree = jax.tree.flatten(made)
        shapes = jax.tree.unflatten(
            tree, [jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a)) for a in leaves]
        )
    return shapes, [name for name, _ in named_leaves(shapes)]


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    found = [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in paths]
    return [(name or WHOLE, leaf) for name, leaf in found]


def _check_arrays(made: Any, maker: str) -> None:
    for name, leaf in named_leaves(made):
        try:
            jnp.result_type(leaf)
        except (TypeError, ValueError):
            said = getattr(leaf, "__name__", None) or repr(leaf)
            kind = f"{type(leaf).__name__} {said}".replace("\n", " ")[:80]
            raise TaskError(
                f"{maker}(key): {name!r} is no array but the {kind}; return arrays only (with "
                "Equinox: eqx.filter(net, eqx.is_inexact_array))"
            ) from None


@jax.jit
def mixed(own: Any, newer: Any, mixing: float) -> Any:
    """Keep ``mixing`` of the own values of an array, and take the rest of the newer ones."""
    return (mixing * own + (1.0 - mixing) * newer).astype(newer.dtype)


@jax.jit
def carried(own: Any, newer: Any, since: Any) -> Any:
    """Take the newer values of an array, and the steps from ``since`` to the own ones again."""
    return (newer + (own - since)).astype(newer.dtype)
