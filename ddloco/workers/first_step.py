"""The check that a task's step is deterministic: the first step runs twice from the same state. The
devices hold one state at a time: the state before the step waits in host memory, and of the first
result only the digests are kept."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xxhash

from ddloco.workers.placement import place_key, shards_of


@dataclass(frozen=True, slots=True)
class _Saved:
    """One array in host memory: the numbers of each shard of this process, by place; ``sharding``
    is None if the array is not bound to its device."""

    shape: tuple[int, ...]
    shards: dict[Any, Any]
    sharding: Any


class SavedTree:
    """A copy of a tree of arrays in host memory; the arrays may be donated once it is made. Random
    keys and arrays of weak type stay on the device, because a host array cannot hold their types.
    Both are small."""

    def __init__(self, tree: Any) -> None:
        leaves, self._structure = jax.tree.flatten(tree, is_leaf=lambda leaf: leaf is None)
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
    shards = {place_key(place): np.array(shard) for place, shard in shards_of(leaf)}
    # An array that is bound to its devices where it was not before would be compiled for again.
    return _Saved(leaf.shape, shards, leaf.sharding if leaf.committed else None)


def _restored(saved: Any) -> Any:
    if not isinstance(saved, _Saved):
        return saved
    # On a CPU the array may share the copy's memory; JAX does not write to it, even if donated.
    if saved.sharding is None:
        (numbers,) = saved.shards.values()
        return jax.device_put(numbers).block_until_ready()
    made = jax.make_array_from_callback(
        saved.shape, saved.sharding, lambda place: saved.shards[place_key(place)]
    )
    return made.block_until_ready()


Named = tuple[str, str]
"""What an array belongs to, such as ``parameters``, and its name."""


def digests(arrays: Iterable[tuple[Named, Any]]) -> dict[Named, bytes]:
    """The xxh3-128 digest of each array's bytes, shard after shard."""
    found: dict[Named, bytes] = {}
    for named, array in arrays:
        digest = xxhash.xxh3_128()
        for _, numbers in shards_of(array):
            digest.update(np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data)
        found[named] = digest.digest()
    return found


def difference(before: Mapping[Named, bytes], after: Mapping[Named, bytes]) -> str:
    """The first array whose digests differ, as ``NAME (WHAT)``; empty if none does."""
    for what, name in before:
        if before[what, name] != after[what, name]:
            return f"{name} ({what})"
    return ""
