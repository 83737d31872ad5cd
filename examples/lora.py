"""LoRA: a trained model stays as it is, and learners train small adapters of its matrices.

The model below is a TinyGPT that another job has trained; only the adapters are parameters, so only
they are sent, merged and saved:

    ddloco run examples/quickstart.toml --dir runs/base
    ddloco run examples/lora.toml --set task.base=runs/base/model/model.safetensors

Without `base` the model is a new one, which shows how it works. The adapters learn English: the
documentation strings of Python's standard library, of which the base has seen code above all.
"""

import re
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

from examples.tiny_gpt import SIZES, Size, TinyGPT, init, text

ADAPTED = ("qkv", "out", "up", "down")
DOCSTRING = re.compile(rb'"""(.{80,}?)"""', re.DOTALL)


@cache
def english(held_out: bool) -> np.ndarray:
    """Return the long documentation strings of the training or the held-out files, as uint8."""
    found = DOCSTRING.findall(text(held_out).tobytes())
    return np.frombuffer(b"\n\n".join(found), np.uint8)


def named(tree: Any) -> dict[str, Any]:
    """Return the leaves of a tree by their paths, as a model file names them."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    keystr = jax.tree_util.keystr
    return {keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


class LoRA(TinyGPT):
    """The task for `ddloco`: adapters of a frozen TinyGPT."""

    def __init__(self, size: Size, rank: int, base: str) -> None:
        super().__init__(size)
        self.rank = rank
        self.base = base

    def frozen(self) -> Any:
        """Return the model below. It is neither trained nor sent; the tape has its digest."""
        new = init(jax.random.key(0), self.size)
        if not self.base:
            return new
        saved = load_file(self.base)
        return jax.tree.unflatten(jax.tree.structure(new), [saved[name] for name in named(new)])

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Return new adapters: the second matrix is zero, so that at first nothing changes."""
        below = jax.eval_shape(lambda: init(jax.random.key(0), self.size))
        adapters: dict[str, Any] = {}
        for i, (name, leaf) in enumerate(named(below).items()):
            if name.rpartition("/")[2] in ADAPTED:
                rows, columns = leaf.shape
                first = jax.random.normal(jax.random.fold_in(key, i), (rows, self.rank))
                adapters[name] = {"a": first / rows**0.5, "b": jnp.zeros((self.rank, columns))}
        return adapters

    def adapted(self, params: dict[str, Any], frozen: Any) -> Any:
        """Return the model with what the adapters add to it."""

        def with_adapter(path: Any, leaf: jax.Array) -> jax.Array:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            adapter = params.get(name)
            return leaf if adapter is None else leaf + adapter["a"] @ adapter["b"]

        return jax.tree_util.tree_map_with_path(with_adapter, frozen)

    def loss(self, params: dict[str, Any], batch: jax.Array, frozen: Any) -> jax.Array:  # type: ignore[override]
        """Return the mean cross-entropy of the next byte, in nats per byte."""
        return super().loss(self.adapted(params, frozen), batch)

    def data(self, *, held_out: bool) -> np.ndarray:
        """Return documentation strings."""
        return english(held_out)

    def evaluate(self, params: dict[str, Any], frozen: Any) -> float:  # type: ignore[override]
        """Return the mean loss over fixed windows of held-out documentation."""
        return float(self.jitted_loss(params, self.held_out(), frozen))


def task(size: str = "small", rank: int = 8, base: str = "") -> LoRA:
    """Return the task: adapters of this rank, for the model in the file `base`."""
    return LoRA(SIZES[size], rank, base)
