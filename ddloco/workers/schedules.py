"""Learning rates that follow the global step. It needs jax, as a task does."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ddloco.job.config import Inner
from ddloco.workers.task import TaskError

GLOBAL_STEP = "global_step"
"""The extra argument of an optimizer's update: the newest global step that the learner holds."""

NOT_PASSED = (
    "follow_global_step was not given the global step: a transformation around it passes no extra "
    "arguments on; put follow_global_step last in the outermost optax.chain"
)


def follow_global_step(schedule: Callable[[Any], Any]) -> optax.GradientTransformation:
    """An optax transformation that multiplies updates by ``schedule(global step)``.

    Put it last: ``optax.chain(optax.adamw(1e-3), follow_global_step(schedule))``. Schedules that
    optax itself counts go by the learner's own steps, of which a fast learner takes more.
    """

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        del params
        if GLOBAL_STEP not in extra:
            raise TaskError(NOT_PASSED)
        scale = schedule(extra[GLOBAL_STEP])
        return jax.tree.map(lambda each: each * jnp.asarray(scale, each.dtype), updates), state

    def init(params: Any) -> Any:
        del params
        return optax.EmptyState()

    return optax.GradientTransformationExtraArgs(init, update)


def with_extra_arguments(optimizer: Any) -> optax.GradientTransformationExtraArgs:
    """Return the optimizer as one whose update may be given extra arguments, which are dropped if
    it takes none. optax decides by the type: ``optax.MultiSteps(...).gradient_transformation()``
    has the type that takes none, although its update hands them to the optimizer inside."""
    takes = inspect.signature(optimizer.update).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in takes.values()):
        return optax.GradientTransformationExtraArgs(optimizer.init, optimizer.update)
    if not isinstance(optimizer, optax.GradientTransformationExtraArgs):
        return optax.with_extra_args_support(optimizer)

    def update(updates: Any, state: Any, params: Any = None, **more: Any) -> Any:
        known = {name: each for name, each in more.items() if name in takes}
        return optimizer.update(updates, state, params, **known)

    return optax.GradientTransformationExtraArgs(optimizer.init, update)


def with_schedule(optimizer: Any, inner: Inner, steps: int) -> Any:
    """The optimizer with the schedule of ``[inner]``, if any, over ``steps`` global steps."""
    if inner.schedule is None:
        return optimizer
    decay: Any = {
        "cosine": optax.cosine_decay_schedule(1.0, steps),
        "linear": optax.linear_schedule(1.0, 0.0, steps),
    }[inner.schedule]
    return optax.chain(optimizer, follow_global_step(decay))
