"""A task that is nothing but parameters: as many megabytes as are asked for, in steps of a given
length, whose arithmetic costs one pass over them."""

import time
from typing import Any

import jax.numpy as jnp
import numpy as np

LEAVES = 8
TOKENS = 100


class Numbers:
    """Batches: the number of each, and others for each shard."""

    def __init__(self, shard: int) -> None:
        self._index = 0
        self._shard = shard

    def next(self) -> Any:
        """The next one."""
        self._index += 1
        return np.full(1, self._index % 7 + self._shard, np.float32)

    def state(self) -> int:
        """How many there were."""
        return self._index

    def restore(self, state: int) -> None:
        """Go on after so many."""
        self._index = state


class Slab:
    """Equal tensors that are pulled towards a number."""

    def __init__(self, megabytes: float, step_s: float) -> None:
        self._elements = int(megabytes * 1e6) // 4 // LEAVES
        self._step_s = step_s

    def init(self, key: Any) -> Any:
        """The same for every key."""
        del key
        return {f"w{n}": jnp.asarray(np.full(self._elements, n, np.float32)) for n in range(LEAVES)}

    def loss(self, params: Any, batch: Any) -> Any:
        """Mean distance from the batch's number."""
        return sum(jnp.mean((each - batch) ** 2) for each in params.values())

    def batches(self, *, shard: int, shards: int, seed: int) -> Numbers:
        """Without end."""
        del shards, seed
        return Numbers(shard)

    def tokens(self, batch: Any) -> int:
        """A fixed count; a step takes its time here."""
        del batch
        time.sleep(self._step_s)
        return TOKENS


def slab(megabytes: float = 4.0, step_s: float = 0.05) -> Slab:
    """The task of that size."""
    return Slab(megabytes, step_s)
