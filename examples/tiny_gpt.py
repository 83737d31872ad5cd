"""A small byte-level GPT that learns to write Python, in plain JAX, in one file.

The text is the source of Python's own standard library, so there is nothing to download. Every
byte is a token. Every 16th file is held out; each learner trains on its own part of the others.

Train it alone for a minute, for comparison with a job of several learners:

    NPROC=1 .venv/bin/python -m examples.tiny_gpt

NPROC=1 gives XLA one thread. Then results are the same to the last bit whatever else runs, and with
one learner per core no performance is lost.
"""

import os
import sysconfig
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Size(NamedTuple):
    """The size of the model. Parameters: about 12 * layers * width ** 2."""

    layers: int
    width: int
    heads: int
    context: int  # how many bytes the model sees
    batch: int  # windows in one batch


SIZES = {
    "tiny": Size(layers=1, width=32, heads=2, context=32, batch=4),  # for tests: a millisecond
    "small": Size(layers=2, width=128, heads=4, context=64, batch=14),  # 0.4 M parameters
    "medium": Size(layers=6, width=384, heads=6, context=256, batch=32),  # 11 M: needs a GPU
    "large": Size(layers=10, width=640, heads=10, context=256, batch=16),  # 50 M
}

VOCABULARY = 256  # bytes
TEXT_BYTES_MAX = 4 << 20  # enough for a minute of training, and quick to read
HELD_OUT_EVERY = 16  # every 16th file is for evaluation only
BLOCK = 1 << 12  # bytes of a block of mixed shards
HELD_OUT_WINDOWS = 128  # windows of the held-out files in an evaluation
# Tests are repetitive; the others are not always installed.
SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "ensurepip"}

# ---------------------------------------------------------------------------------------------
# The text


@cache
def corpus() -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return the training files and the held-out files, always in the same order."""
    root = Path(sysconfig.get_path("stdlib"))
    found: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = set(folders) - SKIPPED  # The others are not even looked at.
        found += [
            Path(folder, name).relative_to(root)
            for name in names
            if name.endswith(".py") and not name.startswith("_sysconfigdata")  # differs by machine
        ]
    chosen: list[Path] = []
    total = 0
    for path in sorted(found, key=lambda path: path.as_posix()):
        total += (root / path).stat().st_size
        if total > TEXT_BYTES_MAX:
            break
        chosen.append(root / path)
    training = [path for i, path in enumerate(chosen) if (i + 1) % HELD_OUT_EVERY]
    return tuple(training), tuple(chosen[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY])


@cache
def text(held_out: bool) -> np.ndarray:
    """Return the training or the held-out files, one after the other, as uint8."""
    data = b"".join(path.read_bytes() for path in corpus()[held_out])
    return np.frombuffer(data, np.uint8)


class Windows:
    """Random windows of one stretch of text. The state is the number of batches drawn.

    Each batch has its own random generator, keyed by the batch's number, so that a stream can be
    restored without drawing the batches before.
    """

    def __init__(self, stretch: np.ndarray, size: Size, key: tuple[int, int]) -> None:
        self.stretch = stretch
        self.size = size
        self.key = key
        self.index = 0

    def next(self) -> np.ndarray:
        """Return windows of context + 1 bytes, uint8 (batch, context + 1)."""
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([*self.key, self.index])))
        self.index += 1
        length = self.size.context + 1
        starts = rng.integers(len(self.stretch) - length + 1, size=self.size.batch)
        return self.stretch[starts[:, None] + np.arange(length)]

    def state(self) -> int:
        """Return the number of batches drawn."""
        return self.index

    def restore(self, state: int) -> None:
        """Go to the position after `state` batches."""
        self.index = state


# ---------------------------------------------------------------------------------------------
# The model


def init(key: jax.Array, size: Size) -> dict[str, Any]:
    """Return the parameters: a nested dict with paths such as blocks/0/attn/qkv."""
    width = size.width
    keys = iter(jax.random.split(key, 2 + 4 * size.layers))

    def matrix(rows: int, columns: int, scale: float = 0.02) -> jax.Array:
        return scale * jax.random.normal(next(keys), (rows, columns), jnp.float32)

    # Outputs to the residual stream are smaller, because there are 2 * layers of them.
    out = 0.02 / (2 * size.layers) ** 0.5
    embed = {"token": matrix(VOCABULARY, width), "position": matrix(size.context, width)}
    blocks = {
        str(i): {
            "attn": {
                "norm": jnp.ones(width),
                "qkv": matrix(width, 3 * width),
                "out": matrix(width, width, out),
            },
            "mlp": {
                "norm": jnp.ones(width),
                "up": matrix(width, 4 * width),
                "down": matrix(4 * width, width, out),
            },
        }
        for i in range(size.layers)
    }
    return {"embed": embed, "blocks": blocks, "norm": jnp.ones(width)}


def logits(params: dict[str, Any], tokens: jax.Array, size: Size) -> jax.Array:
    """Return the scores of each next byte: int (batch, time) -> float32 (batch, time, 256)."""
    x = params["embed"]["token"][tokens] + params["embed"]["position"][: tokens.shape[1]]
    for i in range(size.layers):
        block = params["blocks"][str(i)]
        x += attention(block["attn"], x, size.heads)
        x += mlp(block["mlp"], x)
    # The token embedding is shared between input and output.
    return normalised(x, params["norm"]) @ params["embed"]["token"].T


def attention(params: dict[str, jax.Array], x: jax.Array, heads: int) -> jax.Array:
    """Causal self-attention."""
    batch, length, width = x.shape
    qkv = normalised(x, params["norm"]) @ params["qkv"]
    q, k, v = jnp.moveaxis(qkv.reshape(batch, length, 3, heads, width // heads), 2, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width // heads) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    gathered = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    return gathered.reshape(batch, length, width) @ params["out"]


def mlp(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """A feed-forward layer, applied to each position separately."""
    return jax.nn.gelu(normalised(x, params["norm"]) @ params["up"]) @ params["down"]


def normalised(x: jax.Array, gain: jax.Array) -> jax.Array:
    """Scale each position to unit root mean square."""
    return gain * x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


# ---------------------------------------------------------------------------------------------
# The task


class ByteText:
    """What tasks on this text share, whatever their model is: batches, tokens, held-out windows."""

    size: Any  # at least its context and batch
    mixed = False  # whether each shard has blocks from all over the text, not one stretch

    def data(self, *, held_out: bool) -> np.ndarray:
        """Return the training or the held-out text, as numbers."""
        return text(held_out)

    def batches(self, *, shard: int, shards: int, seed: int, batch: int | None = None) -> Windows:
        """Return windows of this shard's part of the training text."""
        data = self.data(held_out=False)
        size = self.size._replace(batch=batch or self.size.batch)
        if self.mixed:
            blocks = data[: len(data) // BLOCK * BLOCK].reshape(-1, BLOCK)
            return Windows(blocks[shard::shards].ravel(), size, (seed, shard))
        start, stop = (len(data) * edge // shards for edge in (shard, shard + 1))
        return Windows(data[start:stop], size, (seed, shard))

    def tokens(self, batch: np.ndarray) -> int:
        """Return how many bytes of the batch the model predicts."""
        return batch.shape[0] * (batch.shape[1] - 1)

    def held_out(self) -> np.ndarray:
        """Return fixed windows of the held-out text."""
        data, length = self.data(held_out=True), self.size.context + 1
        starts = np.linspace(0, len(data) - length, HELD_OUT_WINDOWS).astype(np.int64)
        return data[starts[:, None] + np.arange(length)]


class TinyGPT(ByteText):
    """The task for `ddloco`: init, loss, batches, tokens, and a held-out loss."""

    def __init__(self, size: Size, mixed: bool = False) -> None:
        self.size = size
        self.mixed = mixed
        self.jitted_loss = jax.jit(self.loss)

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Return new parameters."""
        return init(key, self.size)

    def loss(self, params: dict[str, Any], batch: jax.Array) -> jax.Array:
        """Return the mean cross-entropy of the next byte, in nats per byte."""
        batch = jnp.asarray(batch, jnp.int32)
        scores = jax.nn.log_softmax(logits(params, batch[:, :-1], self.size))
        return -jnp.mean(jnp.take_along_axis(scores, batch[:, 1:, None], axis=-1))

    def evaluate(self, params: dict[str, Any]) -> float:
        """Return the mean loss over fixed windows of the held-out files, in nats per byte."""
        return float(self.jitted_loss(params, self.held_out()))


def task(size: str = "small", mixed: bool = False) -> TinyGPT:
    """Return the task at one of the SIZES; shards that are mixed are like each other."""
    return TinyGPT(SIZES[size], mixed)


def main(steps: int = 700, seed: int = 0, rate: float = 2e-3) -> None:
    """Train alone, with AdamW and a short warm-up, and print the progress."""
    import optax  # noqa: PLC0415  not needed when learners import this module

    alone = task()
    optimizer = optax.adamw(optax.linear_schedule(0.0, rate, 50), weight_decay=0.01)
    params = alone.init(jax.random.key(seed))
    moments = optimizer.init(params)

    @jax.jit
    def step(params: Any, moments: Any, batch: jax.Array) -> tuple[Any, Any, jax.Array]:
        value, gradient = jax.value_and_grad(alone.loss)(params, batch)
        updates, moments = optimizer.update(gradient, moments, params)
        return optax.apply_updates(params, updates), moments, value

    batches = alone.batches(shard=0, shards=1, seed=seed)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    print(f"{count} parameters, {len(text(held_out=False))} bytes of text")
    started = time.perf_counter()
    recent = 0.0
    for i in range(1, steps + 1):
        params, moments, value = step(params, moments, batches.next())
        recent += float(value) / 50
        if i % 50 == 0:
            seconds = time.perf_counter() - started
            print(f"step {i:4}  loss {recent:.3f}  {seconds:6.1f} s")
            recent = 0.0
    print(f"held-out loss {alone.evaluate(params):.4f} nats per byte")


if __name__ == "__main__":
    main()
