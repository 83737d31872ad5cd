"""Text and image together: a decoder sees a handwritten digit and writes a sentence about it.

    pip install scikit-learn
    ddloco run examples/captions.toml

The patches of the picture come first, then the bytes of the sentence; each byte is predicted from
all that is before it. The pictures are those of `examples/vit.py`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from examples.tiny_gpt import VOCABULARY, attention, mlp, normalised
from examples.vit import PATCH, PATCHES, SIZES, Pictures, Size, blocks, digits, patches

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SENTENCES = ("a handwritten {}", "this is the digit {}", "somebody wrote {} here")
LENGTH = 32  # bytes of a sentence, padded with zeros that are not predicted


def sentence(digit: int, kind: int) -> np.ndarray:
    """Return a sentence about a digit, uint8 (LENGTH)."""
    text = SENTENCES[kind].format(WORDS[digit]).encode() + b"."
    return np.frombuffer(text.ljust(LENGTH, b"\0"), np.uint8)


class Captioned(Pictures):
    """Pictures with a sentence about each."""

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        """Return pictures, and sentences as uint8 (count, LENGTH)."""
        rng = np.random.default_rng([*self.key, self.index, 1])
        pictures, answers = super().next()
        kinds = rng.integers(len(SENTENCES), size=len(answers))
        return pictures, np.stack([sentence(*each) for each in zip(answers, kinds, strict=True)])


class Captions:
    """The task for `ddloco`."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.jitted_loss = jax.jit(self.loss)

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Return new parameters."""
        width = self.size.width
        keys = iter(jax.random.split(key, 4 + 4 * self.size.layers))

        def normal(rows: int, columns: int) -> jax.Array:
            return jax.random.normal(next(keys), (rows, columns)) / rows**0.5

        return {
            "embed": {
                "patch": normal(PATCH * PATCH, width),
                "byte": normal(VOCABULARY, width),
                "place": normal(PATCHES + LENGTH, width),
            },
            "blocks": blocks(normal, self.size),
            "norm": jnp.ones(width),
            "head": normal(width, VOCABULARY),
        }

    def loss(self, params: dict[str, Any], batch: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return the mean cross-entropy of a sentence's bytes, and the share of right ones."""
        pictures, sentences = batch
        written = jnp.asarray(sentences, jnp.int32)
        embed = params["embed"]
        seen = [patches(pictures) @ embed["patch"], embed["byte"][written]]
        x = jnp.concatenate(seen, axis=1) + embed["place"]
        for block in params["blocks"].values():
            x += attention(block["attn"], x, self.size.heads)
            x += mlp(block["mlp"], x)
        scores = normalised(x, params["norm"])[:, PATCHES - 1 : -1] @ params["head"]
        nats = -jnp.take_along_axis(jax.nn.log_softmax(scores), written[..., None], -1)[..., 0]
        told = written > 0
        right = (scores.argmax(-1) == written) & told
        return (nats * told).sum() / told.sum(), {"right bytes": right.sum() / told.sum()}

    def batches(self, *, shard: int, shards: int, seed: int, batch: int | None = None) -> Captioned:
        """Return the pictures of this shard, with sentences."""
        pictures, answers = digits(held_out=False)
        part = pictures[shard::shards], answers[shard::shards]
        return Captioned(part, batch or self.size.batch, (seed, shard))

    def tokens(self, batch: Any) -> int:
        """Return how many bytes the batch predicts."""
        return int(np.count_nonzero(batch[1]))

    def evaluate(self, params: dict[str, Any]) -> dict[str, float]:
        """Return loss and share of right bytes for one sentence about each held-out picture."""
        pictures, answers = digits(held_out=True)
        told = np.stack([sentence(digit, 0) for digit in answers])
        loss, found = self.jitted_loss(params, (pictures, told))
        return {"loss": float(loss), "right bytes": float(found["right bytes"])}


def task(size: str = "small") -> Captions:
    """Return the task at one of the sizes of `examples/vit.py`."""
    return Captions(SIZES[size])
