"""A small Gemma of Google's `gemma` package, from random weights, on a folder of your own text.

    pip install 'ddloco[gemma]' tokenizers
    python -m examples.llama_tokenizer tokenizer.json
    ddloco run examples/gemma_text.toml --set task.folder=path/to/text \
        --set task.tokenizer=tokenizer.json

Without a folder the text is that of the quickstart, and without a tokenizer each byte is a token.
Of the package only the model is used. Importing it takes some ten seconds, since it brings
TensorFlow along; training does not need that.
"""

import importlib
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples import tiny_gpt
from examples.llama import Size, tokenizer_of

SIZES = {
    "tiny": Size(layers=2, width=32, heads=2, kv_heads=1, hidden=64, context=32, batch=4),
    "small": Size(layers=4, width=128, heads=4, kv_heads=1, hidden=384, context=64, batch=14),
}
HELD_OUT_EVERY = 16  # every 16th stretch of a folder's text is for evaluation only
STRETCH = 1 << 14  # bytes


@cache
def text(folder: str, held_out: bool) -> bytes:
    """Return the training or the held-out part of a folder's text, in order of the paths."""
    if not folder:
        return tiny_gpt.text(held_out).tobytes()
    files = sorted(Path(folder).rglob("*.txt"))
    if not files:
        raise ValueError(f"task.folder {folder}: no file in it ends with .txt")
    whole = b"\n".join(path.read_bytes() for path in files)
    stretches = [whole[at : at + STRETCH] for at in range(0, len(whole), STRETCH)]
    return b"".join(
        each for i, each in enumerate(stretches) if ((i + 1) % HELD_OUT_EVERY == 0) == held_out
    )


@cache
def tokens_of(folder: str, tokenizer: str, held_out: bool) -> np.ndarray:
    """Return the text as tokens, int32: its bytes, or those of the tokenizer in a file."""
    raw = text(folder, held_out)
    if not tokenizer:
        return np.frombuffer(raw, np.uint8).astype(np.int32)
    lines = raw.decode("utf-8", "replace").splitlines(keepends=True)
    encoded = tokenizer_of(tokenizer).encode_batch_fast(lines, add_special_tokens=False)
    return np.fromiter((token for line in encoded for token in line.ids), np.int32)


class GemmaText(tiny_gpt.ByteText):
    """The task for `ddloco`."""

    def __init__(self, size: Size, folder: str, tokenizer: str) -> None:
        gm = importlib.import_module("gemma.gm")  # Only those who train need it.
        self.size, self.folder, self.tokenizer = size, folder, tokenizer
        vocabulary = tokenizer_of(tokenizer).get_vocab_size() if tokenizer else 256
        kinds = gm.nn.AttentionType
        config = gm.nn.config.TransformerConfig(
            num_embed=vocabulary,
            embed_dim=size.width,
            hidden_dim=size.hidden,
            num_heads=size.heads,
            head_dim=size.width // size.heads,
            num_kv_heads=size.kv_heads,
            final_logit_softcap=None,
            use_post_attn_norm=True,
            use_post_ffw_norm=True,
            use_qk_norm=True,
            # As in Gemma 3, most layers look back over a short window only.
            attention_types=[
                kinds.GLOBAL if i == size.layers - 1 else kinds.LOCAL_SLIDING
                for i in range(size.layers)
            ],
            sliding_window_size=max(size.context // 2, 1),
        )
        self.model: Any = gm.nn.Transformer(config=config, dtype=jnp.float32)
        self.jitted_loss = jax.jit(self.loss)

    def init(self, key: jax.Array) -> Any:
        """Return new parameters."""
        example = jnp.zeros((1, self.size.context), jnp.int32)
        return self.model.init(key, tokens=example)["params"]

    def loss(self, params: Any, batch: jax.Array) -> jax.Array:
        """Return the mean cross-entropy of the next token, in nats."""
        tokens = jnp.asarray(batch, jnp.int32)
        scores = self.model.apply({"params": params}, tokens=tokens[:, :-1]).logits
        return optax.softmax_cross_entropy_with_integer_labels(scores, tokens[:, 1:]).mean()

    def data(self, *, held_out: bool) -> np.ndarray:
        """Return the text as tokens."""
        return tokens_of(self.folder, self.tokenizer, held_out)

    def evaluate(self, params: Any) -> float:
        """Return the mean loss over fixed windows of the held-out text."""
        return float(self.jitted_loss(params, self.held_out()))


def task(size: str = "small", folder: str = "", tokenizer: str = "") -> GemmaText:
    """Return the task at one of the SIZES, for the text files in a folder."""
    return GemmaText(SIZES[size], folder, tokenizer)
