"""A task's state: what is carried from step to step beside the parameters, and is not trained. Its
floating-point leaves are *merged*: part of the fragments, averaged. The others are *local*: each
learner has its own, which travels with its optimizer's moments; a random key is stored as its
numbers. Local leaves of whole numbers are *counters*: learners tell them, and the model is
evaluated with those of a learner, as far as they are ``COUNTERS_MAX`` numbers together."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddloco.job.protocol.fragment_plan import STATE
from ddloco.job.protocol.messages import COUNTERS_MAX


class StateLayout:
    """How a state is divided into merged and local leaves; ``shapes`` is an empty tree if there is
    none."""

    def __init__(self, shapes: Any) -> None:
        paths, self._tree = jax.tree_util.tree_flatten_with_path(shapes)
        self._merges = [jnp.issubdtype(leaf.dtype, jnp.inexact) for _, leaf in paths]
        self._keys = [_key_type(leaf) for _, leaf in paths]
        self._counters: list[int] = []
        self.untold: list[str] = []
        """The names of leaves of whole numbers that learners do not tell."""
        told = 0
        for n, (path, leaf) in enumerate(paths):
            if not _is_counter(leaf):
                continue
            if told + leaf.size <= COUNTERS_MAX:
                told += leaf.size
                self._counters.append(n)
            else:
                self.untold.append(jax.tree_util.keystr(path, simple=True, separator="/"))
        named = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
        self.names = [
            STATE + name for name, merges in zip(named, self._merges, strict=True) if merges
        ]
        self.merged = self.merged_of(shapes)
        self.local = jax.eval_shape(self.local_of, shapes)

    @property
    def untold_said(self) -> str:
        return (
            f"evaluate gets {', '.join(self.untold)[:200]} of the task's state as init_state makes "
            f"it: learners tell {COUNTERS_MAX} whole numbers of their states"
        )

    def merged_of(self, state: Any) -> list[Any]:
        leaves = jax.tree.leaves(state)
        return [leaf for leaf, merges in zip(leaves, self._merges, strict=True) if merges]

    def local_of(self, state: Any) -> list[Any]:
        rows = zip(jax.tree.leaves(state), self._merges, self._keys, strict=True)
        return [
            leaf if key is None else jax.random.key_data(leaf)
            for leaf, merges, key in rows
            if not merges
        ]

    def counters_of(self, state: Any) -> list[Any]:
        """The leaves of a state that are counters."""
        leaves = jax.tree.leaves(state)
        return [leaves[n] for n in self._counters]

    def with_counters(self, state: Any, counters: Sequence[int]) -> Any:
        """The state with these counters, as far as they are of its kinds; others stay."""
        leaves, at = jax.tree.leaves(state), 0
        for n in self._counters:
            values, at = counters[at : (end := at + leaves[n].size)], end
            bounds = np.iinfo(leaves[n].dtype)
            if len(values) == leaves[n].size and all(
                bounds.min <= each <= bounds.max for each in values
            ):
                found = np.array(values, leaves[n].dtype).reshape(leaves[n].shape)
                leaves[n] = jax.device_put(found, leaves[n].sharding)
        return jax.tree.unflatten(self._tree, leaves)

    def joined(self, merged: Sequence[Any], local: Sequence[Any]) -> Any:
        parts, others = iter(merged), iter(local)
        leaves: list[Any] = []
        for merges, key in zip(self._merges, self._keys, strict=True):
            leaf = next(parts) if merges else next(others)
            leaves.append(leaf if key is None else key(leaf))
        return jax.tree.unflatten(self._tree, leaves)


def _is_counter(leaf: Any) -> bool:
    whole = jnp.issubdtype(leaf.dtype, jnp.integer)
    return whole and jnp.iinfo(leaf.dtype).max < 2**63  # So that a message can hold it.


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed random key, which is no array of numbers."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _key_type(leaf: Any) -> Callable[[Any], Any] | None:
    """A function from a random key's numbers to the key; None for a leaf that is not a key."""
    if not is_key(leaf):
        return None
    found: list[Any] = []
    # Of a shape the kind of key is known to a tracer only.
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), leaf)
    return partial(jax.random.wrap_key_data, impl=found[0])
