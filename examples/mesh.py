"""A learner of several devices: data parallel, FSDP and tensor parallel, on eight virtual devices.

The model is that of `examples/tiny_gpt.py`. The job file names the mesh, and `sharding` says which
part of each parameter lies on which device; XLA adds the communication. Run a job with

    ddloco run examples/mesh.toml

and compare the layouts, in losses and in memory per device, with

    JAX_NUM_CPU_DEVICES=8 python -m examples.mesh
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from examples.tiny_gpt import SIZES, TinyGPT

# The axes of each layout. Batches are divided along "data" and "fsdp".
MESHES = {
    "data parallel": {"data": 8},
    "FSDP": {"fsdp": 8},
    "tensor parallel": {"data": 2, "model": 4},
}
# What is multiplied first is divided by columns, and what follows it by rows.
COLUMNS, ROWS = ("qkv", "up"), ("out", "down")


class ShardedGPT(TinyGPT):
    """A TinyGPT whose parameters lie as the axes of the mesh ask for."""

    def sharding(self, params: Any, mesh: Mesh) -> Any:
        """Return a PartitionSpec for each parameter."""

        def spec(path: Any, leaf: Any) -> PartitionSpec:
            name = path[-1].key
            if "fsdp" in mesh.shape and leaf.ndim == 2:  # Vectors are small.
                return PartitionSpec("fsdp")
            if "model" in mesh.shape and name in COLUMNS:
                return PartitionSpec(None, "model")
            if "model" in mesh.shape and name in ROWS:
                return PartitionSpec("model")
            return PartitionSpec()

        return jax.tree_util.tree_map_with_path(spec, params)


def task(size: str = "small") -> ShardedGPT:
    """Return the task at one of the SIZES, with a batch that eight devices can share."""
    return ShardedGPT(SIZES[size]._replace(batch=16))


def losses(axes: dict[str, int], steps: int, size: str) -> tuple[list[float], int]:
    """Train alone on a mesh; return the losses, and the peak of memory on each device in bytes."""
    import optax  # noqa: PLC0415  not needed when learners import this module

    alone, optimizer = task(size), optax.adamw(1e-3)
    kinds = (jax.sharding.AxisType.Auto,) * len(axes)
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=kinds)
    rows = NamedSharding(mesh, PartitionSpec(tuple(axis for axis in axes if axis != "model")))

    def step(params: Any, moments: Any, batch: Any) -> tuple[Any, Any, Any]:
        value, gradient = jax.value_and_grad(alone.loss)(params, batch)
        updates, moments = optimizer.update(gradient, moments, params)
        return optax.apply_updates(params, updates), moments, value

    with jax.set_mesh(mesh):
        params = alone.init(jax.random.key(0))
        specs = alone.sharding(params, mesh)
        params = jax.tree.map(
            lambda leaf, spec: jax.device_put(leaf, NamedSharding(mesh, spec)), params, specs
        )
        moments = optimizer.init(params)  # Zeros like the parameters, each where its parameter is.
        stream = alone.batches(shard=0, shards=1, seed=0)
        batches = [jax.device_put(stream.next(), rows) for _ in range(steps)]
        kept = *jax.tree.map(lambda leaf: leaf.sharding, (params, moments)), None
        program = jax.jit(step, donate_argnums=(0, 1), out_shardings=kept)
        needs = program.lower(params, moments, batches[0]).compile().memory_analysis()
        found: list[float] = []
        for batch in batches:
            params, moments, value = program(params, moments, batch)
            found.append(float(value))
    assert needs is not None, "each of JAX's platforms tells it"
    peak = needs.argument_size_in_bytes + needs.output_size_in_bytes + needs.temp_size_in_bytes
    return found, peak - needs.alias_size_in_bytes  # What is donated is there once.


def main(steps: int = 20, size: str = "small") -> None:
    """Train with each layout, and print how far its losses are from those of one device."""
    alone, nbytes = losses({"data": 1}, steps, size)
    print(
        f"{'layout':16} {'mesh':16} {'last loss':>9} {'largest difference':>19} {'MB a device':>12}"
    )
    print(f"{'one device':16} {'':16} {alone[-1]:9.4f} {'':>19} {nbytes / 1e6:12.2f}")
    for name, axes in MESHES.items():
        found, nbytes = losses(axes, steps, size)
        worst = float(np.max(np.abs(np.asarray(found) - np.asarray(alone))))
        mesh = " ".join(f"{axis}={count}" for axis, count in axes.items())
        print(f"{name:16} {mesh:16} {found[-1]:9.4f} {worst:19.1e} {nbytes / 1e6:12.2f}")


if __name__ == "__main__":
    main()
