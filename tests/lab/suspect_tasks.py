"""Five small tasks, and faults that one learner has from a batch on. A fault of the optimizer is
told to it by the gradient of one element, which is taken out again: all learners have one program.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

WIDTH, BATCH, SIGNAL = 24, 16, 1e6
"""Features of a batch and of the layers, examples in it, and the gradient that is a signal."""

Arrays = dict[str, Any]


class Base(NamedTuple):
    """A task: the shapes of its tensors, its loss, and how a batch is drawn."""

    shapes: dict[str, tuple[int, ...]]
    loss: Callable[[Arrays, Any, Any], Any]
    draw: Callable[[np.random.Generator], tuple[Any, Any]]


def _fixed(*shape: int) -> Any:
    return np.random.default_rng(7).standard_normal(shape) / np.sqrt(shape[0])


def _of_teacher(rng: np.random.Generator) -> tuple[Any, Any]:
    x = rng.standard_normal((BATCH, WIDTH))
    return x, np.tanh(x @ _fixed(WIDTH, WIDTH)) @ _fixed(WIDTH, 4)


def _of_classes(rng: np.random.Generator) -> tuple[Any, Any]:
    which = rng.integers(0, 5, BATCH)
    return _fixed(5, WIDTH)[which] * 3 + rng.standard_normal((BATCH, WIDTH)) * 0.4, np.eye(5)[which]


def _of_words(rng: np.random.Generator) -> tuple[Any, Any]:
    words = rng.zipf(1.6, BATCH) % 12
    return np.eye(WIDTH)[words], np.eye(12)[(words * 5 + 3) % 12]


def _of_itself(rng: np.random.Generator) -> tuple[Any, Any]:
    x = rng.standard_normal((BATCH, 3)) @ _fixed(3, WIDTH)
    return x, x


def _of_noise(rng: np.random.Generator) -> tuple[Any, Any]:
    return rng.standard_normal((BATCH, WIDTH)), np.eye(2)[rng.integers(0, 2, BATCH)]


def _hidden(params: Arrays, x: Any) -> Any:
    return jnp.tanh(x @ params["first"] + params["bias"]) @ params["second"]


def _squared(params: Arrays, x: Any, y: Any) -> Any:
    return jnp.mean((_hidden(params, x) - y) ** 2)


def _crossed(params: Arrays, x: Any, y: Any) -> Any:
    return jnp.mean(optax.softmax_cross_entropy(_hidden(params, x), y))


def _layers(out: int) -> dict[str, tuple[int, ...]]:
    return {"first": (WIDTH, WIDTH), "bias": (WIDTH,), "second": (WIDTH, out)}


BASES = {
    "teacher": Base(_layers(4), _squared, _of_teacher),
    "classes": Base(_layers(5), _crossed, _of_classes),
    "words": Base(_layers(12), _crossed, _of_words),
    "itself": Base(_layers(WIDTH), _squared, _of_itself),
    "noise": Base(_layers(2), _crossed, _of_noise),
}

SIGNALLED = {"flip": False, "state": False, "rate": True, "frozen": True}
"""Faults of the optimizer, and whether they last."""

DATA_S = 0.03
"""How long a slow stream takes for a batch."""


class Stream:
    """The batches of one learner, with its fault."""

    def __init__(self, task: "Task", shard: int, seed: int) -> None:
        self._task, self._shard, self._seed, self._index = task, shard, seed, 0

    def next(self) -> Arrays:
        """One batch."""
        task, self._index = self._task, self._index + 1
        mine, fault = self._shard == task.who, task.fault
        now, since = mine and self._index == task.at, mine and self._index >= task.at
        shard = 0 if mine and fault == "twins" else self._shard
        number = task.at if since and fault == "one batch" else self._index
        rng = np.random.default_rng([self._seed, shard, number])
        x, y = BASES[task.base].draw(rng)
        if since and fault == "garbage":
            y = 3 * rng.permutation(y) + (BASES[task.base].loss is _squared) * 3.0
        if now and fault == "nan":
            x = x * np.nan
        if mine and fault == "slow data":
            time.sleep(DATA_S)
        told = since if SIGNALLED.get(fault) else now
        work = task.slower if self._shard == task.slow else 1
        return {
            "x": x.astype(np.float32),
            "y": y.astype(np.float32),
            "told": np.float32(told and fault in SIGNALLED),
            "mine": np.float32(mine and fault == "tokens"),
            "work": np.int32(work),
        }

    def state(self) -> int:
        """Its place."""
        return self._index

    def restore(self, state: int) -> None:
        """Go to a place."""
        self._index = state


class Task:
    """A base, with a fault of learner ``who`` from batch ``at`` on; learner ``slow`` computes each
    step ``slower`` times."""

    def __init__(
        self,
        base: str,
        fault: str = "",
        who: int = -1,
        at: int = 0,
        slow: int = -1,
        slower: int = 1,
    ) -> None:
        self.base, self.fault, self.who, self.at = base, fault, who, at
        self.slow, self.slower = slow, slower

    def init(self, key: Any) -> Arrays:
        """Normal values, biases of zero."""
        shapes = BASES[self.base].shapes
        keys = jax.random.split(key, len(shapes))
        return {
            name: jax.random.normal(k, shape) / shape[0] ** 0.5 * (len(shape) > 1)
            for (name, shape), k in zip(sorted(shapes.items()), keys, strict=True)
        }

    def loss(self, params: Arrays, batch: Arrays) -> Any:
        """That of the base; a signal, which is worth nothing; and work that changes nothing."""
        value = BASES[self.base].loss(params, batch["x"], batch["y"])
        first = params["first"][0, 0]
        value += batch["told"] * SIGNAL * (first - jax.lax.stop_gradient(first))
        again = jnp.ones((WIDTH * 8, WIDTH * 8))
        spent = jax.lax.fori_loop(0, batch["work"], lambda _, x: jnp.tanh(x @ again * 1e-3), again)
        return value + 0.0 * jax.lax.stop_gradient(spent.mean())

    def batches(self, *, shard: int, shards: int, seed: int) -> Stream:
        """Its stream."""
        del shards
        return Stream(self, shard, seed)

    def tokens(self, batch: Arrays) -> int:
        """The examples; ten times as many where that is the fault."""
        return BATCH * (10 if self.fault == "tokens" and batch["mine"] else 1)

    def evaluate(self, params: Arrays) -> float:
        """The loss of examples that nobody has trained on."""
        rng = np.random.default_rng(99)
        pairs = [BASES[self.base].draw(rng) for _ in range(16)]
        x, y = (np.concatenate(each).astype(np.float32) for each in zip(*pairs, strict=True))
        return float(BASES[self.base].loss(jax.tree.map(jnp.asarray, params), x, y))

    def optimizer(self) -> optax.GradientTransformation:
        """Adam with a clipped gradient, and what the signal makes of it."""
        inner, fault = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(3e-3)), self.fault

        def init(params: Any) -> Any:
            return inner.init(params), jnp.zeros(())

        def update(grads: Arrays, state: Any, params: Any = None) -> Any:
            state, mean = state
            hit = jnp.abs(grads["first"][0, 0]) > SIGNAL / 10
            grads = {**grads, "first": grads["first"].at[0, 0].multiply(jnp.where(hit, 0.0, 1.0))}
            updates, state = inner.update(grads, state, params)
            spoilt = jnp.nan if fault == "state" else 0.0
            mean = jnp.where(hit, spoilt, 0.9 * mean + 0.1 * optax.global_norm(grads))
            if fault == "flip":
                one = updates["second"].at[0, 0].add(jnp.where(hit, 1e3, 0.0))
                updates = {**updates, "second": one}
            if fault == "rate":
                updates = jax.tree.map(lambda each: each * jnp.where(hit, 40.0, 1.0), updates)
            if fault == "frozen":
                still = updates["second"] * jnp.where(hit, 0.0, 1.0)
                updates = {**updates, "second": still}
            return updates, (state, mean)

        return optax.GradientTransformation(init, update)


def task(**options: Any) -> Task:
    """For ``job.task``."""
    return Task(**options)
