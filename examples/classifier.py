"""A small classifier: three spirals in the plane, told apart by a network with two hidden layers.

The points are drawn with numpy, so there is nothing to download. Each learner draws its own.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

CLASSES = 3
BATCH = 64  # points in one batch
HELD_OUT = 1024  # points in an evaluation
HELD_OUT_SHARD = 10_000  # no learner has this number


def spirals(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points, float32 (count, 2), and their classes, int32 (count)."""
    classes = rng.integers(CLASSES, size=count)
    radius = rng.uniform(0.05, 1.0, count)
    angle = 4.0 * radius + 2 * np.pi * classes / CLASSES + rng.normal(0.0, 0.1, count)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return points.astype(np.float32), classes.astype(np.int32)


class Points:
    """Batches of points. The state is the number of batches drawn.

    Each batch has its own random generator, keyed by the batch's number, so that a stream can be
    restored without drawing the batches before.
    """

    def __init__(self, seed: int, shard: int, count: int = BATCH) -> None:
        self.key = (seed, shard)
        self.count = count
        self.index = 0

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the next batch."""
        rng = np.random.default_rng([*self.key, self.index])
        self.index += 1
        return spirals(rng, self.count)

    def state(self) -> int:
        """Return the number of batches drawn."""
        return self.index

    def restore(self, state: int) -> None:
        """Go to the position after `state` batches."""
        self.index = state


class Classifier:
    """The task for `ddloco`: init, loss, batches, tokens, and a held-out loss."""

    def __init__(self, width: int) -> None:
        self.sizes = (2, width, width, CLASSES)
        self.jitted_loss = jax.jit(self.loss)

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Return new parameters: weights and biases of each layer."""
        layers = zip(self.sizes[:-1], self.sizes[1:], strict=True)
        keys = jax.random.split(key, len(self.sizes) - 1)
        return {
            f"layer{i}": {
                "w": jax.random.normal(keys[i], shape) * (2 / shape[0]) ** 0.5,
                "b": jnp.zeros(shape[1]),
            }
            for i, shape in enumerate(layers)
        }

    def scores(self, params: dict[str, Any], points: jax.Array) -> jax.Array:
        """Return the score of each class: float32 (points, classes)."""
        x = points
        for i, layer in enumerate(params.values()):
            x = (x if i == 0 else jax.nn.relu(x)) @ layer["w"] + layer["b"]
        return x

    def loss(self, params: dict[str, Any], batch: Any) -> jax.Array:
        """Return the mean cross-entropy, in nats per point."""
        points, classes = batch
        log_likelihood = jax.nn.log_softmax(self.scores(params, points))
        return -jnp.mean(jnp.take_along_axis(log_likelihood, classes[:, None], axis=-1))

    def batches(self, *, shard: int, shards: int, seed: int) -> Points:
        """Return the points of one learner."""
        return Points(seed, shard)

    def tokens(self, batch: Any) -> int:
        """Return how many points the batch has: the weight of the learner's contribution."""
        return len(batch[1])

    def evaluate(self, params: dict[str, Any]) -> float:
        """Return the mean loss of points that no learner trains on."""
        return float(self.jitted_loss(params, Points(0, HELD_OUT_SHARD, HELD_OUT).next()))


def task(width: int = 64) -> Classifier:
    """Return the task; `[task] width` in the job file sets the size of the hidden layers."""
    return Classifier(width)
