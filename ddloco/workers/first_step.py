"""The check that a task's step is deterministic: the first step runs twice from the same state.

The device holds one state at a time. The state before the step waits in host memory, and of the
first result only the digests of its arrays are kept.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xxhash


@dataclass(frozen=True, slots=True)
class _Saved:
    """One array in host memory, and the devices that it is bound to; None if it is not."""

    data: Any
    sharding: Any


class SavedTree:
    """A copy of a tree of arrays in host memory.

    Random keys and arrays of weak type stay on the device, because a host array cannot hold their
    types. Both are small.

    Args:
        tree: the arrays; they may be donated once this has returned.
    """

    def __init__(self, tree: Any) -> None:
        leaves, self._structure = jax.tree.flatten(tree)
        self._leaves = [_saved(leaf) for leaf in leaves]

    def restore(self) -> Any:
        """Return the tree on its devices; may be called once, because each copy is released."""
        leaves: list[Any] = []
        while self._leaves:
            leaves.append(_restored(self._leaves.pop(0)))
        return jax.tree.unflatten(self._structure, leaves)


def _saved(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array):
        return leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) or leaf.weak_type:
        return jnp.copy(leaf)
    # An array that is bound to its devices where it was not before would be compiled for again.
    return _Saved(np.array(leaf), leaf.sharding if leaf.committed else None)


def _restored(saved: Any) -> Any:
    if not isinstance(saved, _Saved):
        return saved
    # On a CPU the array may share the copy's memory; JAX does not write to it, even if donated.
    return jax.device_put(saved.data, saved.sharding).block_until_ready()


Named = tuple[str, str]
"""What an array belongs to, such as ``parameters``, and its name."""


def digests(arrays: Iterable[tuple[Named, Any]]) -> dict[Named, bytes]:
    """The xxh3-128 digest of each array's bytes."""
    return {
        named: xxhash.xxh3_128_digest(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        for named, array in arrays
    }


def difference(before: Mapping[Named, bytes], after: Mapping[Named, bytes]) -> str:
    """The first array whose digests differ, as ``NAME (WHAT)``; empty if none does."""
    for what, name in before:
        if before[what, name] != after[what, name]:
            return f"{name} ({what})"
    return ""
