"""How the worker calls a task's loss: with what it takes besides parameters and batch."""

from typing import Any

import jax
import numpy as np

from ddloco.workers.task import Task, loss_takes

STEP_KEYS = 0x6B657973
"""Folded into the job's key, so that no key of a step is one that ``init`` derives from it."""


class TaskLoss:
    """The loss of one shard's batches.

    Args:
        task: the task.
        spec: its name in the job file, for messages.
        seed: the job's seed.
        shard: the data shard.

    Raises:
        TaskError: the loss takes other parameters than it would be given.
    """

    def __init__(self, task: Task, spec: str, seed: int, shard: int) -> None:
        self._task = task
        self._spec = spec
        self._seed = seed
        self._takes = loss_takes(task, spec)
        if "key" in self._takes:
            key = jax.random.fold_in(jax.random.key(seed), STEP_KEYS)
            self._key = jax.random.fold_in(key, shard)

    def of_shard(self, shard: int) -> "TaskLoss":
        """The loss of another shard's batches."""
        return TaskLoss(self._task, self._spec, self._seed, shard)

    def number(self, drawn: int) -> Any:
        """The number of a batch within its shard, as ``__call__`` wants it; None if it does not
        matter, so that nothing is copied to the device."""
        return np.uint32(drawn % 2**32) if "key" in self._takes else None

    def __call__(self, params: Any, batch: Any, number: Any) -> Any:
        """The loss of batch ``number`` of the shard."""
        extras: dict[str, Any] = {}
        if "key" in self._takes:
            extras["key"] = jax.random.fold_in(self._key, number)
        return self._task.loss(params, batch, **extras)
