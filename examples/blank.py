"""The smallest task that runs: a line through points. Put your model and your data in its place.

Everything is deterministic: randomness comes from the JAX key, the seed and the batch's number, and
no clock is read. A replay then gives the same bits.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class Batches:
    """Your data: an endless stream for one learner."""

    def __init__(self, shard: int, seed: int) -> None:
        self.key = (seed, shard)
        self.index = 0

    def next(self) -> Any:
        """Return the next batch, any pytree of numpy arrays."""
        rng = np.random.default_rng([*self.key, self.index])
        self.index += 1
        x = rng.normal(size=(32, 1)).astype(np.float32)
        return x, 2 * x + 1

    def state(self) -> Any:
        """Return the position as plain data, so that a learner that returns repeats no batch."""
        return self.index

    def restore(self, state: Any) -> None:
        """Go to a position."""
        self.index = state


class Task:
    """Your model."""

    def init(self, key: jax.Array) -> Any:
        """Return the parameters, any pytree of floating-point arrays."""
        return {"slope": jax.random.normal(key, (1,)), "offset": jnp.zeros(1)}

    def loss(self, params: Any, batch: Any) -> jax.Array:
        """Return the loss of one batch, a scalar; pure, and jit-able."""
        x, y = batch
        return jnp.mean((params["slope"] * x + params["offset"] - y) ** 2)

    def batches(self, *, shard: int, shards: int, seed: int) -> Batches:
        """Return the data of learner `shard` of `shards`; shards share no data."""
        return Batches(shard, seed)

    def tokens(self, batch: Any) -> int:
        """Return the weight of the batch, such as the number of its tokens."""
        return len(batch[0])

    def evaluate(self, params: Any) -> float:
        """Return the held-out loss. This method is optional."""
        return float(self.loss(params, Batches(10_000, 0).next()))


def task() -> Task:
    """Return the task. Arguments of this function are set in `[task]` of the job file."""
    return Task()
