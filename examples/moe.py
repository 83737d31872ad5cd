"""A mixture of experts: each byte is worked on by two of eight experts, which a router chooses.

The text is that of `examples/tiny_gpt.py`. A balancing loss keeps the router from always choosing
the same experts. On a mesh with an axis `expert` each device has some of the experts, and XLA sends
the bytes to them:

    ddloco run examples/moe.toml
    ddloco run examples/moe.toml --set 'worker.mesh={expert=8}' \
        --set 'worker.env={JAX_NUM_CPU_DEVICES="8"}'
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from examples.tiny_gpt import VOCABULARY, ByteText, attention, normalised


class Size(NamedTuple):
    """The size of the model; the others of TinyGPT's sizes are read by what is shared with it."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    context: int = 64
    batch: int = 16
    experts: int = 8
    chosen: int = 2  # experts for each byte
    hidden: int = 128  # of each expert


SIZES = {"tiny": Size(layers=1, width=32, context=32, batch=8, hidden=32), "small": Size()}
BALANCE = 0.01  # weight of the balancing loss


def experts(params: dict[str, jax.Array], x: jax.Array, chosen: int) -> tuple[jax.Array, jax.Array]:
    """Return the mixed outputs of each position's experts, and how unevenly they are chosen.

    The unevenness is 1 if all experts have as much to do (Switch Transformer, equation 4). Every
    expert computes every position here, which small models can afford: what is not chosen has the
    weight 0.
    """
    x = normalised(x, params["norm"])
    chances = jax.nn.softmax(x @ params["router"])  # (batch, time, experts)
    best, _ = jax.lax.top_k(chances, chosen)
    weights = jnp.where(chances >= best[..., -1:], chances, 0.0)
    weights /= weights.sum(-1, keepdims=True)
    hidden = jax.nn.gelu(jnp.einsum("btw,ewh->bteh", x, params["up"]))
    out = jnp.einsum("bteh,ehw,bte->btw", hidden, params["down"], weights)
    share = jnp.mean(weights > 0, axis=(0, 1)) / chosen
    uneven = len(params["up"]) * jnp.sum(share * jnp.mean(chances, axis=(0, 1)))
    return out, uneven


class MixtureOfExperts(ByteText):
    """The task for `ddloco`."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.jitted_loss = jax.jit(self.loss)

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Return new parameters."""
        size = self.size
        keys = iter(jax.random.split(key, 2 + 5 * size.layers))

        def normal(*shape: int, scale: float = 0.02) -> jax.Array:
            return scale * jax.random.normal(next(keys), shape, jnp.float32)

        width, hidden = size.width, size.hidden
        out = 0.02 / (2 * size.layers) ** 0.5
        return {
            "embed": {"token": normal(VOCABULARY, width), "position": normal(size.context, width)},
            "blocks": {
                str(i): {
                    "attn": {
                        "norm": jnp.ones(width),
                        "qkv": normal(width, 3 * width),
                        "out": normal(width, width, scale=out),
                    },
                    "experts": {
                        "norm": jnp.ones(width),
                        "router": normal(width, size.experts),
                        "up": normal(size.experts, width, hidden),
                        "down": normal(size.experts, hidden, width, scale=out),
                    },
                }
                for i in range(size.layers)
            },
            "norm": jnp.ones(width),
        }

    def sharding(self, params: Any, mesh: Mesh) -> Any:
        """Return where parameters lie: experts on their own devices, all else on every device."""

        def spec(path: Any, _: Any) -> PartitionSpec | None:
            own = "expert" in mesh.shape and path[-1].key in {"up", "down"}
            return PartitionSpec("expert") if own else None

        return jax.tree_util.tree_map_with_path(spec, params)

    def loss(self, params: dict[str, Any], batch: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
        """Return the mean cross-entropy of the next byte plus the balancing loss, and both."""
        tokens = jnp.asarray(batch, jnp.int32)
        x = params["embed"]["token"][tokens[:, :-1]] + params["embed"]["position"]
        uneven = jnp.zeros(())
        for block in params["blocks"].values():
            x += attention(block["attn"], x, self.size.heads)
            found, more = experts(block["experts"], x, self.size.chosen)
            x, uneven = x + found, uneven + more / self.size.layers
        scores = jax.nn.log_softmax(normalised(x, params["norm"]) @ params["embed"]["token"].T)
        nats = -jnp.mean(jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1))
        return nats + BALANCE * uneven, {"nats": nats, "unevenness": uneven}

    def evaluate(self, params: dict[str, Any]) -> dict[str, float]:
        """Return the loss over fixed windows of the held-out files; without the balancing loss."""
        _, found = self.jitted_loss(params, self.held_out())
        return {"loss": float(found["nats"]), "unevenness": float(found["unevenness"])}


def task(size: str = "small") -> MixtureOfExperts:
    """Return the task at one of the SIZES."""
    return MixtureOfExperts(SIZES[size])
