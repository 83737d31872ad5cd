"""A task whose parameters are large and whose step is bound by memory, for ``bench_step``."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

ROWS, COLUMNS, BATCH = 24, 1024, 4


class Batches:
    """The same small batch again and again."""

    def next(self) -> Any:
        return np.ones((COLUMNS, BATCH), np.float32)

    def state(self) -> int:
        return 0

    def restore(self, state: int) -> None:
        del state


class LargeTask:
    """As many megabytes of float32 in 24 tensors, each read, differentiated and updated once."""

    def __init__(self, megabytes: int) -> None:
        self._rows = max(megabytes * 2**20 // (4 * COLUMNS * ROWS), 1)

    def init(self, key: Any) -> Any:
        del key
        return {f"w{n:02}": jnp.full((self._rows, COLUMNS), 1e-3) for n in range(ROWS)}

    def sharding(self, params: Any, mesh: Any) -> Any:
        """All columns divided: the number of rows is odd at some sizes."""
        del params, mesh
        return PartitionSpec(None, "fsdp")

    def batch_sharding(self, batch: Any, mesh: Any) -> None:
        """The batch on every device: it is small, and its first dimension is the columns."""
        del batch, mesh

    def loss(self, params: Any, batch: Any) -> Any:
        return sum(jnp.mean((w @ batch) ** 2) for w in params.values())

    def tokens(self, batch: Any) -> int:
        return BATCH

    def batches(self, *, shard: int, shards: int, seed: int) -> Batches:
        del shard, shards, seed
        return Batches()


def task(megabytes: int) -> LargeTask:
    """The task, by its size."""
    return LargeTask(megabytes)
