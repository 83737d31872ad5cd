"""How the worker calls a task's loss, and what loss and evaluation may return besides a number."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from ddloco.job.protocol.messages import METRICS_MAX
from ddloco.workers.task import Task, TaskError, loss_takes, takes

STEP_KEYS = 0x6B657973
"""Folded into the job's key, so that no key of a step is one that ``init`` derives from it."""

NAME_CHARS_MAX = 64
"""The length of a metric's name, which is in every report and in a table's header."""


class TaskLoss:
    """The loss of a batch. A random key belongs to the batch: to its data shard, and its number in
    that. ``TaskError`` if the loss takes other parameters than it would be given."""

    def __init__(self, task: Task, spec: str, seed: int) -> None:
        self._task = task
        self._spec = spec
        self._takes = loss_takes(task, spec)
        if "key" in self._takes:
            self._key = jax.random.fold_in(jax.random.key(seed), STEP_KEYS)

    def number(self, shard: int, drawn: int) -> Any:
        """A batch's shard and its number in that, as ``__call__`` wants them; None if they do not
        matter, so that nothing is copied to the device."""
        return np.array([shard, drawn % 2**32], np.uint32) if "key" in self._takes else None

    def __call__(
        self, params: Any, state: Any, batch: Any, number: Any, frozen: Any = None
    ) -> tuple[Any, tuple[Any, dict[str, Any]]]:
        """Return the loss of the batch with this ``number``; the new state, and the task's own
        metrics. ``TaskError`` if the task's loss returns something else."""
        extras: dict[str, Any] = {}
        if "key" in self._takes:
            of_shard = jax.random.fold_in(self._key, number[0])
            extras["key"] = jax.random.fold_in(of_shard, number[1])
        if "state" in self._takes:
            extras["state"] = state
        if "frozen" in self._takes:
            extras["frozen"] = frozen
        found = self._task.loss(params, batch, **extras)
        loss, *more = cast("tuple[Any, ...]", found) if isinstance(found, tuple) else (found,)
        stated = "state" in self._takes
        if not stated <= len(more) <= stated + 1:
            wanted = (
                "(loss, state) or (loss, state, metrics)" if stated else "loss or (loss, metrics)"
            )
            raise TaskError(
                f"task {self._spec}: loss returns {1 + len(more)} values; want {wanted}"
            )
        if stated:
            new = more.pop(0)
            self._check_state(state, new)
            state = new
        self._check_scalar(loss)
        return loss, (state, self._scalars(more[0]) if more else {})

    def _check_scalar(self, loss: Any) -> None:
        try:
            shape, dtype = jnp.shape(loss), jnp.result_type(loss)
        except (TypeError, ValueError):
            found = f"{type(loss).__name__}"
        else:
            if shape == () and jnp.issubdtype(dtype, jnp.floating):
                return
            found = f"{dtype} of the shape {shape}"
        wanted = "want a scalar, a floating-point number of the shape ()"
        raise TaskError(f"task {self._spec}: loss returns {found}; {wanted}")

    def _check_state(self, before: Any, after: Any) -> None:
        """Check that a step leaves the state as it is, but for its numbers."""
        (was, tree), (found, new) = (
            jax.tree_util.tree_flatten_with_path(each) for each in (before, after)
        )
        where = f"task {self._spec}: the state that loss returns"
        if tree != new:
            raise TaskError(f"{where} is another tree than init_state's: {new}, want {tree}"[:900])
        for (path, old), (_, leaf) in zip(was, found, strict=True):
            kinds = [f"{jnp.result_type(each)}{list(jnp.shape(each))}" for each in (leaf, old)]
            if kinds[0] != kinds[1]:
                name = jax.tree_util.keystr(path, simple=True, separator="/")
                raise TaskError(f"{where}: {name!r} is {kinds[0]}, in init_state's {kinds[1]}")

    def _scalars(self, metrics: Any) -> dict[str, Any]:
        check_metrics(self._spec, "loss", metrics)
        return {name: jnp.asarray(value, jnp.float32) for name, value in metrics.items()}


def value_and_gradient(loss: TaskLoss) -> Callable[..., Any]:
    """A function of the same arguments that returns ((loss, (state, metrics)), gradient)."""
    return jax.value_and_grad(loss, has_aux=True)


def evaluated(
    spec: str, task: Any, params: Any, state: Any, frozen: Callable[[], Any]
) -> tuple[float, dict[str, float]] | None:
    """Return the held-out loss and the other metrics of a model; None if the task has no
    ``evaluate``. ``TaskError`` if it returned something else."""
    evaluate = getattr(task, "evaluate", None)
    if evaluate is None:
        return None
    extras: dict[str, Any] = {"state": state} if "state" in takes(evaluate) else {}
    extras |= {"frozen": frozen()} if "frozen" in takes(evaluate) else {}
    return held_out(spec, evaluate(params, **extras))


def held_out(spec: str, found: Any) -> tuple[float, dict[str, float]]:
    """Return the held-out loss, and the other metrics, that ``evaluate`` returned; else
    ``TaskError``."""
    if not isinstance(found, dict):
        with suppress(TypeError, ValueError):
            if not jnp.issubdtype(jnp.result_type(found), jnp.bool_):
                return float(found), {}
        kind = type(found).__name__
        want = "want the held-out loss, or a dict with it as 'loss'"
        raise TaskError(f"task {spec}: evaluate returns a {kind}; {want}")
    check_metrics(spec, "evaluate", found)
    metrics = said(cast("dict[str, Any]", found))
    if "loss" not in metrics:
        names = ", ".join(map(repr, metrics))
        raise TaskError(f"task {spec}: evaluate returns {names}; want 'loss', the held-out loss")
    return metrics.pop("loss"), metrics


def said(metrics: dict[str, Any]) -> dict[str, float]:
    """Metrics as plain numbers, in the order of their names."""
    return {name: float(metrics[name]) for name in sorted(metrics)}


def check_metrics(spec: str, method: str, metrics: Any) -> None:
    """Check that ``method`` of the task returned named scalars; else ``TaskError``."""
    where = f"task {spec}: metrics of {method}"
    if not isinstance(metrics, dict):
        raise TaskError(f"{where}: {type(metrics).__name__}; want a dict of named numbers")
    named = cast("dict[Any, Any]", metrics)
    if len(named) > METRICS_MAX:
        raise TaskError(f"{where}: {len(named)} of them, at most {METRICS_MAX}")
    for name, value in named.items():
        good = isinstance(name, str) and name.isprintable() and 0 < len(name) <= NAME_CHARS_MAX
        if not good:
            said = f"{str(name)[:80]!a} is no name of 1 to {NAME_CHARS_MAX} printable characters"
            raise TaskError(f"{where}: {said}")
        if jnp.shape(value) != ():
            raise TaskError(f"{where}: {name!r} has the shape {jnp.shape(value)}; want a number")
