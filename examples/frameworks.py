"""The same small classifier in Flax Linen, Flax NNX and Equinox, and data from Grain and PyTorch.

Each needs its own package (`flax`, `equinox`, `grain`, `torch`), and no package of ddloco's:

    ddloco run examples/batch_norm.toml --set job.task=examples.frameworks:linen --dir runs/linen
"""

import importlib
from collections.abc import Iterator
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.batch_norm import CLASSES, FEATURES, BatchNorm, Points


class Classifier:
    """What the tasks have in common: points as data, cross-entropy as loss."""

    batch = 64

    def batches(self, *, shard: int, shards: int, seed: int) -> Any:
        """Endless points; see `from_grain` for another source."""
        del shards, seed
        return Points(shard, 0, self.batch)

    def tokens(self, batch: Any) -> int:
        """The number of points."""
        return len(batch["y"])

    def score(self, logits: Any, labels: Any) -> tuple[Any, dict[str, Any]]:
        """The loss and the accuracy."""
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean(), {"accuracy": (logits.argmax(-1) == labels).mean()}

    def held_out(self) -> dict[str, Any]:
        """Points that no learner has."""
        return Points(10**6, 0, 4096).next()


class Linen(Classifier):
    """Flax Linen with batch normalisation, dropout, and gradients accumulated over two steps."""

    def __init__(self) -> None:
        nn = importlib.import_module("flax.linen")

        class Net(nn.Module):
            @nn.compact
            def __call__(self, x: Any, *, train: bool) -> Any:
                x = nn.BatchNorm(use_running_average=not train, momentum=0.95)(x)
                x = nn.relu(nn.Dense(64)(x))
                x = nn.Dropout(0.1, deterministic=not train)(x)
                return nn.Dense(CLASSES)(x)

        self._net = Net()

    def _begin(self, key: Any) -> Any:
        return self._net.init(key, jnp.zeros((1, FEATURES)), train=False)

    def init(self, key: Any) -> Any:
        """The collection `params`."""
        return self._begin(key)["params"]

    def init_state(self, key: Any) -> Any:
        """The other collections."""
        return {"batch_stats": self._begin(key)["batch_stats"]}

    def loss(self, params: Any, batch: Any, state: Any, key: Any) -> Any:
        """In training mode, with a random key for dropout."""
        rngs = {"dropout": key}
        variables = {"params": params, **state}
        logits, new = self._net.apply(
            variables, batch["x"], train=True, rngs=rngs, mutable=list(state)
        )
        loss, metrics = self.score(logits, batch["y"])
        return loss, new, metrics

    def evaluate(self, params: Any, state: Any) -> Any:
        """With the moving averages and without dropout."""
        batch = self.held_out()
        logits = self._net.apply({"params": params, **state}, batch["x"], train=False)
        loss, metrics = self.score(logits, batch["y"])
        return {"loss": loss, **metrics}

    def optimizer(self) -> Any:
        """AdamW, once for two batches."""
        return optax.MultiSteps(optax.adamw(6e-3), 2).gradient_transformation()


class Nnx(Classifier):
    """A whole Flax NNX module: its parameters are trained, all of its other variables are state."""

    def __init__(self) -> None:
        nnx = self._nnx = importlib.import_module("flax.nnx")

        class Net(nnx.Module):
            def __init__(self, rngs: Any) -> None:
                self.norm = nnx.BatchNorm(FEATURES, momentum=0.95, rngs=rngs)
                self.first = nnx.Linear(FEATURES, 64, rngs=rngs)
                self.dropout = nnx.Dropout(0.1, rngs=rngs)
                self.last = nnx.Linear(64, CLASSES, rngs=rngs)

            def __call__(self, x: Any) -> Any:
                return self.last(self.dropout(nnx.relu(self.first(self.norm(x)))))

        self._net = Net
        self._graph = nnx.graphdef(nnx.eval_shape(lambda: Net(nnx.Rngs(0))))

    def _begin(self, key: Any) -> Any:
        nnx = self._nnx
        _, params, rest = nnx.split(self._net(nnx.Rngs(key)), nnx.Param, ...)
        return params, rest

    def init(self, key: Any) -> Any:
        """The variables of type `nnx.Param`."""
        return self._begin(key)[0]

    def init_state(self, key: Any) -> Any:
        """All others: batch statistics, and the keys and counts of random streams."""
        return self._begin(key)[1]

    def loss(self, params: Any, batch: Any, state: Any) -> Any:
        """In training mode; the module changes its own variables."""
        net = self._nnx.merge(self._graph, params, state, copy=True)
        net.train()
        loss, metrics = self.score(net(batch["x"]), batch["y"])
        _, _, new = self._nnx.split(net, self._nnx.Param, ...)
        return loss, new, metrics

    def evaluate(self, params: Any, state: Any) -> Any:
        """With the moving averages and without dropout."""
        net = self._nnx.merge(self._graph, params, state)
        net.eval()
        batch = self.held_out()
        loss, metrics = self.score(net(batch["x"]), batch["y"])
        return {"loss": loss, **metrics}


class Equinox(Classifier):
    """An Equinox module: its arrays are trained in float32, and computed with in bfloat16."""

    def __init__(self) -> None:
        self._eqx = importlib.import_module("equinox")
        shapes = self._eqx.filter_eval_shape(self._begin, jax.random.key(0))
        self._rest = self._eqx.filter(shapes, _is_array, inverse=True)

    def _begin(self, key: Any) -> Any:
        return self._eqx.nn.MLP(FEATURES, CLASSES, 64, 1, key=key)

    def init(self, key: Any) -> Any:
        """The arrays of the module."""
        return self._eqx.filter(self._begin(key), _is_array)

    def loss(self, params: Any, batch: Any) -> Any:
        """In mixed precision; inputs are normalised by hand, without a state."""
        half = jax.tree.map(lambda each: each.astype(jnp.bfloat16), params)
        x = jnp.asarray(batch["x"])
        x = ((x - x.mean(0)) / (x.std(0) + 1e-6)).astype(jnp.bfloat16)
        logits = jax.vmap(self._eqx.combine(half, self._rest))(x)
        return self.score(logits.astype(jnp.float32), batch["y"])

    def evaluate(self, params: Any) -> Any:
        """As in training, on other points."""
        loss, metrics = self.loss(params, self.held_out())
        return {"loss": loss, **metrics}


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | np.ndarray)


class GrainStream:
    """Batches from a Grain pipeline, which reports its own position.

    Args:
        dataset: a `grain.IterDataset`, endless: with `repeat()`.
    """

    def __init__(self, dataset: Any) -> None:
        self._iterator = iter(dataset)

    def next(self) -> Any:
        """The next batch."""
        return next(self._iterator)

    def state(self) -> Any:
        """The position, plain data."""
        return self._iterator.get_state()

    def restore(self, state: Any) -> None:
        """Go to a position."""
        self._iterator.set_state(state)


class FromGrain(Equinox):
    """The Equinox task with a finite data set, shuffled and batched by Grain."""

    def batches(self, *, shard: int, shards: int, seed: int) -> GrainStream:
        """Every so many-th point for each shard; endless, and shuffled again in every epoch."""
        grain = importlib.import_module("grain")
        points = Points(0, 0, 4096).next()
        source = [{"x": x, "y": y} for x, y in zip(points["x"], points["y"], strict=True)]
        data = grain.MapDataset.source(source).slice(slice(shard, None, shards))
        data = data.shuffle(seed=seed).repeat().batch(self.batch)
        return GrainStream(data.to_iter_dataset())


class TorchStream:
    """Batches from a map-style data set of PyTorch, with a position.

    The order of the items is a function of seed, shard and epoch, so the number of batches that
    were used gives the position of the stream, also while workers of the loader are ahead of it.

    Args:
        dataset: anything with a length and items; random augmentation must depend on the item only.
        batch: items of a batch; the rest of an epoch that fills none is left out.
        shard, shards: which part of the items is whose.
        seed: of the order.
        loader: arguments of `DataLoader`, such as `num_workers=2` and `multiprocessing_context`;
            use "spawn", because a fork of a process that runs JAX may hang.
    """

    def __init__(
        self, dataset: Any, *, batch: int, shard: int, shards: int, seed: int, **loader: Any
    ) -> None:
        self._dataset = dataset
        self._batch = batch
        self._items = np.arange(shard, len(dataset), shards)
        self._key = (seed, shard)
        self._loader = loader
        self.restore(0)

    def _order(self, first: int) -> Iterator[list[int]]:
        """The items of each batch, from batch number `first` on."""
        batches = len(self._items) // self._batch
        for epoch in count(first // batches):
            mixed = np.random.default_rng([*self._key, epoch]).permutation(self._items)
            rows = mixed[: batches * self._batch].reshape(batches, self._batch)
            yield from rows[max(0, first - epoch * batches) :].tolist()

    def next(self) -> Any:
        """The next batch: numpy arrays in place of tensors."""
        self._index += 1
        return jax.tree.map(np.asarray, next(self._iterator))

    def state(self) -> int:
        """The number of batches used."""
        return self._index

    def restore(self, state: int) -> None:
        """Go to that batch."""
        data = importlib.import_module("torch.utils.data")
        self._index = state
        order = self._order(state)
        self._iterator = iter(data.DataLoader(self._dataset, batch_sampler=order, **self._loader))


class Table:
    """A finite data set as PyTorch wants it: a length, and items by number."""

    def __init__(self, points: int) -> None:
        self._all = Points(0, 0, points).next()

    def __len__(self) -> int:
        return len(self._all["y"])

    def __getitem__(self, item: int) -> dict[str, Any]:
        return {name: column[item] for name, column in self._all.items()}


class FromTorch(BatchNorm):
    """The classifier with batch normalisation, with a finite data set of PyTorch."""

    def batches(self, *, shard: int, shards: int, seed: int) -> Any:
        """Every so many-th point for each shard; endless, and shuffled again in every epoch."""
        return TorchStream(Table(4096), batch=64, shard=shard, shards=shards, seed=seed)


linen, nnx, equinox, from_grain = Linen, Nnx, Equinox, FromGrain
"""What makes each task, by the names that job files use."""


def from_torch() -> FromTorch:
    """Plain JAX, with data from PyTorch."""
    return FromTorch(width=64, batch=64)
