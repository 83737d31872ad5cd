"""Small tasks for tests: one that trains in a millisecond a step, and ones that are wrong."""

import random
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Stream:
    """Batches of inputs and targets, numbered, so that any of them can be made again."""

    def __init__(self, shard: int, seed: int) -> None:
        self._key = (seed, shard)
        self._index = 0

    def next(self) -> tuple[Any, Any]:
        rng = np.random.default_rng([*self._key, self._index])
        self._index += 1
        x = rng.standard_normal((8, 16), np.float32)
        return x, np.sin(x[:, :4])

    def state(self) -> int:
        return self._index

    def restore(self, state: int) -> None:
        self._index = state


class Regression:
    """A two-layer network on a fixed function; some tensors in bfloat16."""

    def __init__(self, step_s: float = 0.0, dtype: str = "float32") -> None:
        self._step_s = step_s
        self._dtype = dtype

    def init(self, key: Any) -> Any:
        # numpy's numbers: compiling jax's takes two seconds of every test that starts a job. Nor
        # can this be traced, so such a task is tried here too.
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        dtype = jnp.dtype(self._dtype)

        def normal(*shape: int) -> Any:
            return jnp.asarray(rng.standard_normal(shape, np.float32))

        return {
            "embed": normal(16, 32) / 4,
            "blocks": {
                "0": {"w": (normal(32, 32) / 6).astype(dtype)},
                "1": {"w": (normal(32, 4) / 6).astype(dtype)},
            },
            "scale": jnp.ones(()),
        }

    def loss(self, params: Any, batch: Any) -> Any:
        x, y = batch
        hidden = jnp.tanh(x @ params["embed"])
        for block in params["blocks"].values():
            hidden = hidden @ block["w"].astype(jnp.float32)
        return jnp.mean((hidden * params["scale"] - y) ** 2)

    def batches(self, *, shard: int, shards: int, seed: int) -> Stream:
        assert shard < shards
        return Stream(shard, seed)

    def tokens(self, batch: Any) -> int:
        if self._step_s:
            time.sleep(self._step_s)  # A step that takes a while, on any machine.
        return len(batch[0])

    def evaluate(self, params: Any) -> float:
        batch = Stream(1000, 1000).next()
        return float(jax.jit(self.loss)(params, batch))


class Weighted(Stream):
    """Batches with a factor for their loss, ``factor`` for those ``wrong`` of ``every`` so many."""

    def __init__(self, shard: int, seed: int, wrong: range, every: int, factor: float) -> None:
        super().__init__(shard, seed)
        self._wrong = wrong
        self._every = every
        self._factor = factor

    def next(self) -> tuple[Any, Any, Any]:
        # Again and again: a learner may be through with many before the others have begun.
        wrong = self._index % self._every in self._wrong
        return *super().next(), np.float32(self._factor if wrong else 1.0)


class Straying(Regression):
    """On one shard some updates are wrong: multiplied by ``factor``, as by a broken chip."""

    def __init__(self, shard: int, first: int, last: int, every: int, factor: float) -> None:
        super().__init__(0.01)
        self._shard = shard
        self._wrong = range(first, last)
        self._every = every
        self._factor = factor

    def loss(self, params: Any, batch: Any) -> Any:
        return super().loss(params, batch[:2]) * (batch[2] if len(batch) > 2 else 1.0)

    def batches(self, *, shard: int, shards: int, seed: int) -> Stream:
        wrong = self._wrong if shard == self._shard else range(0)
        return Weighted(shard, seed, wrong, self._every, self._factor)


class Unscored(Regression):
    """Cannot say how good it is."""

    evaluate = None


class Astray(Regression):
    """Trains well, and the loss of its model is NaN."""

    def evaluate(self, params: Any) -> float:
        return float("nan")


class NotANumber(Regression):
    """Its loss is NaN at once."""

    def loss(self, params: Any, batch: Any) -> Any:
        return super().loss(params, batch) * jnp.nan


class Wobbly(Regression):
    """Differs between two runs of the same step."""

    def loss(self, params: Any, batch: Any) -> Any:
        noise = jax.pure_callback(
            lambda: np.float32(np.random.default_rng().normal()),
            jax.ShapeDtypeStruct((), jnp.float32),
        )
        return super().loss(params, batch) + jax.lax.stop_gradient(noise)


class Counting(Regression):
    """Keeps a whole number among its parameters, which cannot be averaged."""

    def init(self, key: Any) -> Any:
        return {**super().init(key), "count": jnp.zeros((), jnp.int32)}


class Wordy(Regression):
    """Has a parameter whose name is longer than one that is sent."""

    def init(self, key: Any) -> Any:
        return {**super().init(key), "w" * 600: jnp.zeros((4,), jnp.float32)}


def regression(step_s: float = 0.0, dtype: str = "float32") -> Regression:
    """The ordinary one."""
    return Regression(step_s, dtype)


def straying(shard: int, first: int, last: int, every: int, factor: float) -> Straying:
    """With a shard on which batches ``first`` to ``last`` of ``every`` so many go wrong."""
    return Straying(shard, first, last, every, factor)


def unscored() -> Unscored:
    """Without ``evaluate``."""
    return Unscored()


def astray(step_s: float = 0.0) -> Astray:
    """With a held-out loss of NaN."""
    return Astray(step_s)


def not_a_number() -> NotANumber:
    """With a loss of NaN."""
    return NotANumber()


def wobbly() -> Wobbly:
    """Not deterministic."""
    return Wobbly()


def counting() -> Counting:
    """With an integer leaf."""
    return Counting()


def wordy() -> Wordy:
    """With a name that fits no message."""
    return Wordy()


class Vocabulary(Regression):
    """Its batches depend on the order of a set of strings, and on numbers drawn without a seed."""

    def __init__(self) -> None:
        super().__init__()
        words = ("learner", "syncer", "fragment", "quorum", "marker", "tape", "cut", "lane")
        self._order = [words.index(word) for word in set(words)]

    def batches(self, *, shard: int, shards: int, seed: int) -> Stream:
        stream = super().batches(shard=shard, shards=shards, seed=seed)
        stream._key = (*self._order, random.randrange(2**32), int(np.random.randint(2**31)))  # noqa: NPY002
        return stream


def vocabulary() -> Vocabulary:
    """A task with randomness that a process inherits."""
    return Vocabulary()


class Wordless(Regression):
    """Its batches have a number of tokens that cannot be."""

    def tokens(self, batch: Any) -> int:
        return -1


class Raising(Regression):
    """Its third batch raises, inside of jax's own calls."""

    def batches(self, *, shard: int, shards: int, seed: int) -> Stream:
        stream = super().batches(shard=shard, shards=shards, seed=seed)
        follow = stream.next

        def nothing(x: Any) -> Any:
            raise KeyError("nothing at the third batch")

        def draw() -> Any:
            return follow() if stream.state() < 3 else jax.tree.map(nothing, (1, 2))

        stream.next = draw  # type: ignore[method-assign]
        return stream


def wordless() -> Wordless:
    """With fewer than no tokens."""
    return Wordless()


def raising() -> Raising:
    """With an error of its own."""
    return Raising()


class Wide(Regression):
    """Four megabytes in each of four fragments, for links that are slow."""

    def init(self, key: Any) -> Any:
        return super().init(key) | {f"wide/{at}": jnp.zeros(2**20) for at in range(4)}

    def loss(self, params: Any, batch: Any) -> Any:
        wide = sum(jnp.sum(params[f"wide/{at}"][:8]) for at in range(4))
        return super().loss(params, batch) + 1e-3 * (wide - 1.0) ** 2


def wide(step_s: float = 0.0) -> Wide:
    """A model that takes half a minute over a slow link, fragment by fragment."""
    return Wide(step_s)


class Keyed(Regression):
    """Drops inputs at random, with the key of the step."""

    def loss(self, params: Any, batch: Any, key: Any = None) -> Any:
        if key is None:
            return super().loss(params, batch)
        x, y = batch
        return super().loss(params, (x * jax.random.bernoulli(key, 0.9, x.shape), y))


def keyed(step_s: float = 0.0) -> Keyed:
    """With dropout."""
    return Keyed(step_s)


class Misnamed(Regression):
    """Its loss takes an argument that it never gets."""

    def loss(self, params: Any, batch: Any, dropout_rng: Any) -> Any:
        return super().loss(params, batch)


def misnamed() -> Misnamed:
    """With a loss that cannot be called."""
    return Misnamed()


class Measured(Keyed):
    """Says more of a step than its loss, and more of a model."""

    def loss(self, params: Any, batch: Any, key: Any = None) -> Any:
        loss = super().loss(params, batch, key)
        return loss, {"root": jnp.sqrt(loss), "batch": jnp.int32(len(batch[0]))}

    def evaluate(self, params: Any) -> Any:
        loss = Keyed.loss(self, params, Stream(1000, 1000).next())
        return {"root": jnp.sqrt(loss), "loss": loss}


def measured(step_s: float = 0.0) -> Measured:
    """With metrics."""
    return Measured(step_s)


class Stateful(Regression):
    """Keeps the mean of its inputs, a count of its steps, and a random key of its own."""

    def init_state(self, key: Any) -> Any:
        return {"mean": jnp.zeros(16), "steps": jnp.zeros((), jnp.int32), "key": key}

    def loss(self, params: Any, batch: Any, state: Any = None) -> Any:
        x, y = batch
        if state is None:
            return super().loss(params, batch)
        key, now = jax.random.split(state["key"])
        noisy = x * jax.random.bernoulli(now, 0.9, x.shape)
        mean = 0.9 * state["mean"] + 0.1 * x.mean(0)
        new = {"mean": mean, "steps": state["steps"] + 1, "key": key}
        return super().loss(params, (noisy - mean, y)), new, {"steps": state["steps"] + 1}

    def evaluate(self, params: Any, state: Any) -> Any:
        x, y = Stream(1000, 1000).next()
        loss = super().loss(params, (x - state["mean"], y))
        mean = jnp.abs(state["mean"]).max()
        return {"loss": loss, "mean": mean, "steps": state["steps"]}


def stateful(step_s: float = 0.0) -> Stateful:
    """With a state beside its parameters."""
    return Stateful(step_s)


class Layer(NamedTuple):
    """A pair of weights with names."""

    inner: Any
    outer: Any


PYTREES = {
    "layers": lambda a, b: [{"w": a}, {"w": b}],
    "numbers": lambda a, b: {0: {"w": a}, 1: {"w": b}},
    "digits": lambda a, b: {"0000": a, "0001": b},
    "named": Layer,
    "nested": lambda a, b: [[a], [[b], ()]],
    "pair": lambda a, b: (a, {"b": None, "c": b}),
    "single": lambda a, b: a @ b,
    "stored": lambda a, b: {"state": a, "theta": b},
    "alone": lambda a, b: {"state": a @ b},
    "written": lambda a, b: {"a/b.c d": a, "größe/\u4e2d": b},
    "dots": lambda a, b: {".": a, "..": {"": b}},
    "empty": lambda a, b: {"a": a, "b": b, "none": jnp.zeros((0, 3))},
}
"""Pytrees of two weight matrices, whose leaves get names of all kinds."""


class Shaped(Regression):
    """A linear model whose parameters are one of ``PYTREES``."""

    def __init__(self, tree: str, step_s: float, dtype: str) -> None:
        super().__init__(step_s, dtype)
        self._tree = tree

    def init(self, key: Any) -> Any:
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        a, b = (
            jnp.asarray(rng.standard_normal(shape, np.float32) / 4, jnp.dtype(self._dtype))
            for shape in ((16, 8), (8, 4))
        )
        return PYTREES[self._tree](a, b)

    def loss(self, params: Any, batch: Any) -> Any:
        x, y = batch
        for weight in jax.tree.leaves(params):
            x = x @ weight.astype(jnp.float32) if weight.size else x
        return jnp.mean((x - y) ** 2)


def shaped(tree: str, step_s: float = 0.0, dtype: str = "float32") -> Shaped:
    """With parameters in a pytree of this shape."""
    return Shaped(tree, step_s, dtype)


class Ending(Stream):
    """Has three batches."""

    def next(self) -> tuple[Any, Any]:
        if self._index == 3:
            raise StopIteration
        return super().next()


class Finite(Regression):
    """Its data ends."""

    def batches(self, *, shard: int, shards: int, seed: int) -> Stream:
        return Ending(shard, seed)


def finite() -> Finite:
    """With three batches."""
    return Finite()


class Flipping(Regression):
    """One whose step gives another result in one of its executions, as broken hardware does.

    Args:
        call: which execution of the step by this process.
    """

    def __init__(self, call: int) -> None:
        super().__init__(step_s=0.02)
        self._call = call
        self._calls = 0

    def _noise(self, loss: Any) -> Any:
        self._calls += 1
        return np.asarray(1.0 + (self._calls == self._call), loss.dtype)

    def loss(self, params: Any, batch: Any) -> Any:
        found = super().loss(params, batch)
        kind = jax.ShapeDtypeStruct((), found.dtype)
        return found * jax.pure_callback(self._noise, kind, jax.lax.stop_gradient(found))


def flipping(call: int = 0) -> Flipping:
    """Return it."""
    return Flipping(call)


class Adapted(Regression):
    """One whose first matrix is frozen, and whose batches have any size."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self._scale = scale

    def frozen(self) -> Any:
        rng = np.random.default_rng(5)
        embed = self._scale * rng.standard_normal((16, 32), np.float32)
        return {"embed": embed, "noise": jax.random.key(5)}

    def init(self, key: Any) -> Any:
        params = super().init(key)
        del params["embed"]
        return params

    def loss(self, params: Any, batch: Any, frozen: Any) -> Any:  # type: ignore[override]
        return super().loss({**params, **frozen}, batch)

    def batches(  # type: ignore[override]
        self, *, shard: int, shards: int, seed: int, batch: int | None = None
    ) -> Any:
        class Sized(Stream):
            def next(self) -> tuple[Any, Any]:
                x, y = super().next()
                return x[:batch], y[:batch]

        del shards
        return Sized(shard, seed)

    def evaluate(self, params: Any, frozen: Any) -> float:  # type: ignore[override]
        return float(self.loss(params, Stream(1000, 1000).next(), frozen))


def adapted(scale: float = 1.0) -> Adapted:
    """Return it."""
    return Adapted(scale)
