"""A classifier with batch normalisation: a task whose statistics are state, not parameters.

Learners use the statistics of each batch and keep a moving average of them. The average is not
trained: it is the task's state. Merges take the plain average of all learners' statistics, without
the outer optimizer's momentum, and `evaluate` uses that.

    ddloco run examples/batch_norm.toml --dir runs/norm
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

CLASSES, FEATURES = 10, 32
KEEP = 0.95
"""The share of the moving average that a step keeps."""


class Points:
    """Batches of points around ten centres; each feature has an offset and a scale of its own."""

    def __init__(self, shard: int, seed: int, size: int) -> None:
        world = np.random.default_rng(seed)
        self._centres = world.standard_normal((CLASSES, FEATURES))
        self._scale = 10.0 ** world.uniform(-2, 2, FEATURES)
        self._offset = 5 * self._scale * world.standard_normal(FEATURES)
        self._place = (seed, shard)
        self._size = size
        self._index = 0

    def next(self) -> dict[str, Any]:
        """Batch number ``index`` of the shard."""
        rng = np.random.default_rng([*self._place, self._index])
        self._index += 1
        y = rng.integers(CLASSES, size=self._size)
        x = self._centres[y] + rng.standard_normal((self._size, FEATURES))
        x = x * self._scale + self._offset
        return {"x": x.astype(np.float32), "y": y.astype(np.int32)}

    def state(self) -> int:
        """The number of batches used."""
        return self._index

    def restore(self, state: int) -> None:
        """Go to that batch."""
        self._index = state


class BatchNorm:
    """Two layers with batch normalisation before each."""

    def __init__(self, width: int, batch: int) -> None:
        self._sizes = (FEATURES, width, CLASSES)
        self._batch = batch

    def init(self, key: Any) -> Any:
        """Weights, biases, and what normalised values are multiplied by."""
        first, second = jax.random.split(key)
        one, two, three = self._sizes
        return {
            "0": {"w": jax.random.normal(first, (one, two)) / one**0.5, "gain": jnp.ones(one)},
            "1": {"w": jax.random.normal(second, (two, three)) / two**0.5, "gain": jnp.ones(two)},
            "bias": jnp.zeros(three),
        }

    def init_state(self, key: Any) -> Any:
        """Moving averages of mean and variance, and the number of steps."""
        del key
        layers = {
            str(layer): {"mean": jnp.zeros(size), "variance": jnp.ones(size)}
            for layer, size in enumerate(self._sizes[:2])
        }
        return {"layers": layers, "steps": jnp.zeros((), jnp.int32)}

    def loss(self, params: Any, batch: Any, state: Any) -> Any:
        """With the statistics of the batch; returns the loss, the new state, and the accuracy."""
        layers: dict[str, Any] = {}
        hidden = batch["x"]
        for name in ("0", "1"):
            found = {"mean": hidden.mean(0), "variance": hidden.var(0)}
            layers[name] = jax.tree.map(
                lambda old, new: KEEP * old + (1 - KEEP) * jax.lax.stop_gradient(new),
                state["layers"][name],
                found,
            )
            hidden = self._layer(params[name], found, hidden, last=name == "1")
        loss, accuracy = self._score(hidden + params["bias"], batch["y"])
        return loss, {"layers": layers, "steps": state["steps"] + 1}, {"accuracy": accuracy}

    def evaluate(self, params: Any, state: Any) -> Any:
        """With the moving averages, on points that no learner has."""
        batch = Points(10**6, 0, 4096).next()
        hidden = batch["x"]
        for name in ("0", "1"):
            layer = state["layers"][name]
            hidden = self._layer(params[name], layer, hidden, last=name == "1")
        loss, accuracy = self._score(hidden + params["bias"], batch["y"])
        return {"loss": loss, "accuracy": accuracy}

    def batches(self, *, shard: int, shards: int, seed: int) -> Points:
        """Endless points."""
        del shards, seed  # All shards are of one world; the numbers of their batches differ.
        return Points(shard, 0, self._batch)

    def tokens(self, batch: Any) -> int:
        """The number of points."""
        return len(batch["y"])

    def _layer(self, params: Any, found: Any, x: Any, *, last: bool) -> Any:
        normal = (x - found["mean"]) * jax.lax.rsqrt(found["variance"] + 1e-5)
        out = (normal * params["gain"]) @ params["w"]
        return out if last else jax.nn.relu(out)

    def _score(self, logits: Any, labels: Any) -> tuple[Any, Any]:
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean(), (logits.argmax(-1) == labels).mean()


def task(width: int = 64, batch: int = 64) -> BatchNorm:
    """Make the task; the arguments are the table ``[task]`` of the job file."""
    return BatchNorm(width, batch)
