"""A decoder written with Flax NNX, with dropout, on the text of the quickstart.

    pip install flax
    ddloco run examples/nnx_decoder.toml

A module is split into its graph and its parameters. Parameters are what is trained and sent.
Dropout draws from the key that `loss` is given, which belongs to the batch: a replay, and a learner
that returns, drop the same units again.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from examples.tiny_gpt import SIZES, VOCABULARY, ByteText, Size


class Block(nnx.Module):
    """Causal self-attention, then a feed-forward layer, each with dropout."""

    def __init__(self, size: Size, dropout: float, rngs: nnx.Rngs) -> None:
        width = size.width
        self.attention_norm = nnx.RMSNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            size.heads, width, dropout_rate=dropout, decode=False, rngs=rngs, keep_rngs=False
        )
        self.mlp_norm = nnx.RMSNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)
        self.dropout = nnx.Dropout(dropout)  # Each call gets a key.

    def __call__(self, x: jax.Array, rngs: nnx.Rngs | None) -> jax.Array:
        """Return the next layer's input; without ``rngs`` nothing is dropped."""
        mask = nnx.make_causal_mask(x[..., 0])
        still = rngs is None
        x += self.attention(self.attention_norm(x), mask=mask, deterministic=still, rngs=rngs)
        hidden = self.down(nnx.gelu(self.up(self.mlp_norm(x))))
        return x + self.dropout(hidden, deterministic=still, rngs=rngs)


class Decoder(nnx.Module):
    """Embeddings, blocks, and scores of the next byte."""

    def __init__(self, size: Size, dropout: float, rngs: nnx.Rngs) -> None:
        self.token_embed = nnx.Embed(VOCABULARY, size.width, rngs=rngs)
        self.position_embed = nnx.Embed(size.context, size.width, rngs=rngs)
        self.blocks = nnx.List([Block(size, dropout, rngs) for _ in range(size.layers)])
        self.norm = nnx.RMSNorm(size.width, rngs=rngs)
        self.head = nnx.Linear(size.width, VOCABULARY, use_bias=False, rngs=rngs)

    def __call__(self, tokens: jax.Array, rngs: nnx.Rngs | None = None) -> jax.Array:
        """Return scores: int (batch, time) -> float32 (batch, time, 256)."""
        x = self.token_embed(tokens) + self.position_embed(jnp.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x, rngs)
        return self.head(self.norm(x))


class NNXDecoder(ByteText):
    """The task for `ddloco`."""

    def __init__(self, size: Size, dropout: float) -> None:
        self.size, self.dropout = size, dropout
        self.graph = nnx.graphdef(nnx.eval_shape(lambda: Decoder(size, dropout, nnx.Rngs(0))))
        self.jitted_nats = jax.jit(self.nats)

    def init(self, key: jax.Array) -> Any:
        """Return the parameters of a new module."""
        return nnx.state(Decoder(self.size, self.dropout, nnx.Rngs(key)), nnx.Param)

    def nats(self, params: Any, batch: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Return the mean cross-entropy of the next byte."""
        model = nnx.merge(self.graph, params)
        tokens = jnp.asarray(batch, jnp.int32)
        scores = model(tokens[:, :-1], nnx.Rngs(dropout=key) if key is not None else None)
        return optax.softmax_cross_entropy_with_integer_labels(scores, tokens[:, 1:]).mean()

    def loss(self, params: Any, batch: jax.Array, key: jax.Array) -> jax.Array:
        """Return the loss with dropout."""
        return self.nats(params, batch, key)

    def evaluate(self, params: Any) -> float:
        """Return the loss over fixed windows of the held-out files, without dropout."""
        return float(self.jitted_nats(params, self.held_out()))


def task(size: str = "small", dropout: float = 0.1) -> NNXDecoder:
    """Return the task at one of TinyGPT's sizes."""
    return NNXDecoder(SIZES[size], dropout)
