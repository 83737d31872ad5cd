"""A small Llama in plain JAX, whose trained weights Hugging Face transformers loads.

Root-mean-square norms, rotary positions, grouped-query attention, SwiGLU, and a head of its own or
the embedding's. Parameters have the names and shapes of transformers' LlamaForCausalLM, so export
is a change of separators:

    ddloco run examples/llama.toml --dir runs/llama
    ddloco snapshot export runs/llama model --format hf --to runs/llama-hf

Then `transformers.AutoModelForCausalLM.from_pretrained("runs/llama-hf")` gives the same logits.

The text is that of `examples/tiny_gpt.py`, as bytes, or as tokens of your own tokenizer: a file
that the package `tokenizers` reads, such as `python -m examples.llama_tokenizer` makes.
"""

import importlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from examples.tiny_gpt import VOCABULARY, ByteText, normalised, text


class Size(NamedTuple):
    """The size of the model. `heads` must be a multiple of `kv_heads`."""

    layers: int
    width: int
    hidden: int  # of the feed-forward layers
    heads: int
    kv_heads: int  # heads of keys and values; each serves heads / kv_heads queries
    context: int  # how many tokens the model sees
    batch: int  # windows in one batch


SIZES = {
    "tiny": Size(layers=2, width=32, hidden=64, heads=4, kv_heads=2, context=32, batch=4),
    "small": Size(layers=2, width=128, hidden=352, heads=8, kv_heads=2, context=64, batch=14),
}


# ---------------------------------------------------------------------------------------------
# The text


@cache
def tokenizer_of(path: str) -> Any:
    """Return a tokenizer from its file, such as tokenizer.json."""
    return importlib.import_module("tokenizers").Tokenizer.from_file(path)


@cache
def tokens_of(path: str, held_out: bool) -> np.ndarray:
    """Return the text as tokens, int32: its bytes, or those of the tokenizer in a file."""
    raw = text(held_out)
    if not path:
        return raw.astype(np.int32)
    lines = raw.tobytes().decode("utf-8", "replace").splitlines(keepends=True)
    encoded = tokenizer_of(path).encode_batch_fast(lines, add_special_tokens=False)
    return np.fromiter((token for line in encoded for token in line.ids), np.int32)


# ---------------------------------------------------------------------------------------------
# The model


def rotated(x: jax.Array, theta: float) -> jax.Array:
    """Turn queries or keys (batch, time, heads, depth) by angles that grow with the position.

    Element i of the first half of a head is paired with element i of the second half, as
    transformers does it. Other programs pair neighbours; their weights are in another order.
    """
    depth = x.shape[-1]
    frequencies = theta ** (-jnp.arange(0, depth, 2) / depth)
    angles = jnp.arange(x.shape[1])[:, None, None] * frequencies
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)


def attention(params: Any, x: jax.Array, size: Size, theta: float) -> jax.Array:
    """Causal attention in which each head of keys and values serves several heads of queries."""
    batch, length, width = x.shape
    depth = width // size.heads

    def heads(name: str, count: int) -> jax.Array:
        return (x @ params[name]["weight"].T).reshape(batch, length, count, depth)

    q = rotated(heads("q_proj", size.heads), theta)
    k = rotated(heads("k_proj", size.kv_heads), theta)
    v = heads("v_proj", size.kv_heads)
    q = q.reshape(batch, length, size.kv_heads, size.heads // size.kv_heads, depth)
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", q, k) / depth**0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    gathered = jnp.einsum("bhgqk,bkhd->bqhgd", jax.nn.softmax(scores), v)
    return gathered.reshape(batch, length, width) @ params["o_proj"]["weight"].T


def mlp(params: Any, x: jax.Array) -> jax.Array:
    """A gated feed-forward layer (SwiGLU), applied to each position separately."""
    gate = jax.nn.silu(x @ params["gate_proj"]["weight"].T)
    return (gate * (x @ params["up_proj"]["weight"].T)) @ params["down_proj"]["weight"].T


# ---------------------------------------------------------------------------------------------
# The task


class Llama(ByteText):
    """The task for `ddloco`: init, loss, batches, tokens, a held-out loss, and an export.

    Args:
        size: the size of the model.
        tied: whether the head is the embedding.
        theta: the base of the rotary frequencies.
        tokenizer: the file of a tokenizer; empty for bytes.
    """

    def __init__(self, size: Size, *, tied: bool, theta: float, tokenizer: str) -> None:
        self.size = size
        self.tied = tied
        self.theta = theta
        self.tokenizer = tokenizer
        self.vocabulary = tokenizer_of(tokenizer).get_vocab_size() if tokenizer else VOCABULARY
        self.jitted_loss = jax.jit(self.loss)

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Return new parameters; all matrices are (outputs, inputs)."""
        size, keys = self.size, iter(jax.random.split(key, 2 + 7 * self.size.layers))

        def matrix(outputs: int, inputs: int) -> dict[str, jax.Array]:
            return {"weight": 0.02 * jax.random.normal(next(keys), (outputs, inputs), jnp.float32)}

        def norm() -> dict[str, jax.Array]:
            return {"weight": jnp.ones(size.width)}

        kv_width = size.width // size.heads * size.kv_heads
        layers = {
            str(i): {
                "input_layernorm": norm(),
                "self_attn": {
                    "q_proj": matrix(size.width, size.width),
                    "k_proj": matrix(kv_width, size.width),
                    "v_proj": matrix(kv_width, size.width),
                    "o_proj": matrix(size.width, size.width),
                },
                "post_attention_layernorm": norm(),
                "mlp": {
                    "gate_proj": matrix(size.hidden, size.width),
                    "up_proj": matrix(size.hidden, size.width),
                    "down_proj": matrix(size.width, size.hidden),
                },
            }
            for i in range(size.layers)
        }
        embedding = matrix(self.vocabulary, size.width)
        model = {"embed_tokens": embedding, "layers": layers, "norm": norm()}
        head = {} if self.tied else {"lm_head": matrix(self.vocabulary, size.width)}
        return {"model": model, **head}

    def logits(self, params: dict[str, Any], tokens: jax.Array) -> jax.Array:
        """Return the scores of each next token: int (batch, time) -> (batch, time, vocabulary)."""
        model = params["model"]
        x = model["embed_tokens"]["weight"][tokens]
        for i in range(self.size.layers):
            layer = model["layers"][str(i)]
            seen = normalised(x, layer["input_layernorm"]["weight"])
            x += attention(layer["self_attn"], seen, self.size, self.theta)
            x += mlp(layer["mlp"], normalised(x, layer["post_attention_layernorm"]["weight"]))
        head = params.get("lm_head", model["embed_tokens"])
        return normalised(x, model["norm"]["weight"]) @ head["weight"].T

    def loss(self, params: dict[str, Any], batch: jax.Array) -> jax.Array:
        """Return the mean cross-entropy of the next token, in nats per token."""
        scores = jax.nn.log_softmax(self.logits(params, batch[:, :-1]))
        return -jnp.mean(jnp.take_along_axis(scores, batch[:, 1:, None], axis=-1))

    def data(self, *, held_out: bool) -> np.ndarray:
        """Return the text as tokens."""
        return tokens_of(self.tokenizer, held_out)

    def evaluate(self, params: dict[str, Any]) -> float:
        """Return the mean loss over fixed windows of the held-out files, in nats per token."""
        return float(self.jitted_loss(params, self.held_out()))

    def hugging_face(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the files of a model folder of transformers by name."""
        size = self.size
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocabulary,
            "hidden_size": size.width,
            "intermediate_size": size.hidden,
            "num_hidden_layers": size.layers,
            "num_attention_heads": size.heads,
            "num_key_value_heads": size.kv_heads,
            "max_position_embeddings": size.context,
            "rms_norm_eps": 1e-6,
            "rope_theta": self.theta,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied,
            "torch_dtype": "float32",
            "bos_token_id": None,
            "eos_token_id": None,
        }
        paths, _ = jax.tree_util.tree_flatten_with_path(params)
        name = jax.tree_util.keystr
        tensors = {name(path, simple=True, separator="."): leaf for path, leaf in paths}
        files: dict[str, Any] = {"config.json": config, "model.safetensors": tensors}
        if self.tokenizer:
            files["tokenizer.json"] = Path(self.tokenizer).read_text()
        return files


def task(
    size: str = "small", *, tied: bool = True, theta: float = 10_000.0, tokenizer: str = ""
) -> Llama:
    """Return the task at one of the SIZES."""
    return Llama(SIZES[size], tied=tied, theta=theta, tokenizer=tokenizer)
