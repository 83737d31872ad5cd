"""A vision transformer that reads handwritten digits: scikit-learn's, of 8 by 8 pixels.

    pip install scikit-learn
    ddloco run examples/vit.toml

Nothing is downloaded: the 1,797 pictures are part of scikit-learn. Every fifth one is held out, and
each learner trains on its own part of the others.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.tiny_gpt import normalised

SIDE, PATCH, CLASSES = 8, 2, 10
PATCHES = (SIDE // PATCH) ** 2
HELD_OUT_EVERY = 5


class Size(NamedTuple):
    """The size of the model."""

    layers: int
    width: int
    heads: int
    batch: int


SIZES = {"tiny": Size(1, 32, 2, 16), "small": Size(4, 64, 4, 32)}


@cache
def digits(held_out: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return pictures, float32 (count, 8, 8) from 0 to 1, and their digits, int32 (count)."""
    from sklearn.datasets import load_digits  # noqa: PLC0415  only those who train need it

    found: Any = load_digits()
    chosen = (np.arange(len(found.target)) % HELD_OUT_EVERY == 0) == held_out
    return (found.images[chosen] / 16).astype(np.float32), found.target[chosen].astype(np.int32)


class Pictures:
    """Random pictures of one part. The state is the number of batches drawn."""

    def __init__(
        self, part: tuple[np.ndarray, np.ndarray], batch: int, key: tuple[int, int]
    ) -> None:
        self.part, self.batch, self.key, self.index = part, batch, key, 0

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the next batch."""
        rng = np.random.default_rng([*self.key, self.index])
        self.index += 1
        pictures, answers = self.part
        chosen = rng.integers(len(answers), size=self.batch)
        return pictures[chosen], answers[chosen]

    def state(self) -> int:
        """Return the number of batches drawn."""
        return self.index

    def restore(self, state: int) -> None:
        """Go to the position after `state` batches."""
        self.index = state


def patches(pictures: jax.Array) -> jax.Array:
    """Cut pictures into patches: (count, 8, 8) -> (count, 16, 4)."""
    count, across = len(pictures), SIDE // PATCH
    cut = pictures.reshape(count, across, PATCH, across, PATCH)
    return cut.swapaxes(2, 3).reshape(count, PATCHES, PATCH * PATCH)


def attention(params: dict[str, jax.Array], x: jax.Array, heads: int) -> jax.Array:
    """Self-attention in both directions."""
    count, length, width = x.shape
    qkv = normalised(x, params["norm"]) @ params["qkv"]
    q, k, v = jnp.moveaxis(qkv.reshape(count, length, 3, heads, width // heads), 2, 0)
    chances = jax.nn.softmax(jnp.einsum("nqhd,nkhd->nhqk", q, k) / (width // heads) ** 0.5)
    return jnp.einsum("nhqk,nkhd->nqhd", chances, v).reshape(x.shape) @ params["out"]


def blocks(normal: Callable[[int, int], jax.Array], size: Size) -> dict[str, Any]:
    """Return new parameters of a transformer's blocks."""
    width = size.width
    return {
        str(i): {
            "attn": {
                "norm": jnp.ones(width),
                "qkv": normal(width, 3 * width),
                "out": normal(width, width) / 4,
            },
            "mlp": {
                "norm": jnp.ones(width),
                "up": normal(width, 4 * width),
                "down": normal(4 * width, width) / 4,
            },
        }
        for i in range(size.layers)
    }


class VisionTransformer:
    """The task for `ddloco`."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.jitted_loss = jax.jit(self.loss)

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Return new parameters."""
        width = self.size.width
        keys = iter(jax.random.split(key, 3 + 4 * self.size.layers))

        def normal(rows: int, columns: int) -> jax.Array:
            return jax.random.normal(next(keys), (rows, columns)) / rows**0.5

        return {
            "embed": {"patch": normal(PATCH * PATCH, width), "place": normal(PATCHES, width)},
            "blocks": blocks(normal, self.size),
            "norm": jnp.ones(width),
            "head": normal(width, CLASSES),
        }

    def scores(self, params: dict[str, Any], pictures: jax.Array) -> jax.Array:
        """Return the score of each digit: (count, 8, 8) -> (count, 10)."""
        x = patches(pictures) @ params["embed"]["patch"] + params["embed"]["place"]
        for block in params["blocks"].values():
            x += attention(block["attn"], x, self.size.heads)
            mlp = block["mlp"]
            x += jax.nn.gelu(normalised(x, mlp["norm"]) @ mlp["up"]) @ mlp["down"]
        return normalised(x, params["norm"]).mean(axis=1) @ params["head"]

    def loss(self, params: dict[str, Any], batch: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return the mean cross-entropy, and the share of right answers."""
        pictures, answers = batch
        scores = self.scores(params, pictures)
        loss = optax.softmax_cross_entropy_with_integer_labels(scores, answers).mean()
        return loss, {"accuracy": jnp.mean(scores.argmax(-1) == answers)}

    def batches(self, *, shard: int, shards: int, seed: int, batch: int | None = None) -> Pictures:
        """Return the pictures of this shard."""
        pictures, answers = digits(held_out=False)
        part = pictures[shard::shards], answers[shard::shards]
        return Pictures(part, batch or self.size.batch, (seed, shard))

    def tokens(self, batch: Any) -> int:
        """Return how many pictures the batch has."""
        return len(batch[1])

    def evaluate(self, params: dict[str, Any]) -> dict[str, float]:
        """Return loss and accuracy on the held-out pictures."""
        loss, found = self.jitted_loss(params, digits(held_out=True))
        return {"loss": float(loss), "accuracy": float(found["accuracy"])}


def task(size: str = "small") -> VisionTransformer:
    """Return the task at one of the SIZES."""
    return VisionTransformer(SIZES[size])
