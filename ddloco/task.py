"""What user code must offer to be trained, and how a job file's task is found.

A task is any object with the four methods of `Task`; there is nothing to inherit from. It says
what the parameters are, what the loss is, and where batches come from. Everything about learners,
fragments and merging stays on our side of this protocol.
"""

import hashlib
import importlib
import inspect
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

if TYPE_CHECKING:
    import jax

REQUIRED = ("init", "loss", "batches", "tokens")
OPTIONAL = ("optimizer", "evaluate")


class TaskError(ValueError):
    """The task cannot be used; the message is one line for the person who named it."""


class Batches(Protocol):
    """An endless stream of batches that can be put back to where it was."""

    def next(self) -> Any:
        """Return the next batch, any pytree of numpy arrays, and move on."""
        ...

    def state(self) -> Any:
        """Return the position as JSON-like plain data."""
        ...

    def restore(self, state: Any) -> None:
        """Go to a position: the batches that follow equal those that followed it before."""
        ...


@runtime_checkable
class Task(Protocol):
    """What a learner trains.

    Optional methods: `optimizer(self) -> optax.GradientTransformation`, used in place of the job
    file's [inner] table; `evaluate(self, params) -> float`, a held-out loss, jitted by the task.
    """

    def init(self, key: "jax.Array") -> Any:
        """Return the parameters, a pytree of floating-point arrays, drawn from a JAX PRNG key."""
        ...

    def loss(self, params: Any, batch: Any) -> "jax.Array":
        """Return the scalar loss of one batch; pure and fit for jit."""
        ...

    def batches(self, *, shard: int, shards: int, seed: int) -> Batches:
        """Return the stream of learner `shard` of `shards`; shards share no data."""
        ...

    def tokens(self, batch: Any) -> int:
        """Return how many tokens the batch trains on; they weigh the learner's contribution."""
        ...


def load_task(spec: str, options: Mapping[str, Any]) -> Task:
    """Import `module:function`, call the function with `options`, and check what it returns.

    Raises:
        TaskError: with one line that names the module, the function or the missing method.
    """
    module_name, function_name = _split(spec)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise TaskError(f"task {spec!r}: cannot import {module_name}: {_said(error)}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise TaskError(f"task {spec!r}: {module_name} has no function {function_name}")
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        raise TaskError(
            f"task {spec!r}: {function_name} does not take these options: {error}"
        ) from (error)
    try:
        task = function(**options)
    except Exception as error:
        raise TaskError(f"task {spec!r}: {function_name} failed: {_said(error)}") from error
    for name in REQUIRED:
        if not callable(getattr(task, name, None)):
            raise TaskError(f"task {spec!r}: {type(task).__name__} has no method {name}")
    for name in OPTIONAL:
        if not callable(getattr(task, name, len)):
            raise TaskError(f"task {spec!r}: {type(task).__name__}.{name} is not a method")
    return cast("Task", task)


def task_digest(spec: str) -> str:
    """Return the SHA-256 in hex of the source file of the task's module.

    Only that one file is covered: what it imports, and the data it reads, are not.

    Raises:
        TaskError: there is no such module, or it has no source file.
    """
    module_name, _ = _split(spec)
    try:
        found = find_spec(module_name)
    except Exception as error:
        raise TaskError(f"task {spec!r}: cannot find {module_name}: {_said(error)}") from error
    if found is None or found.origin is None or not found.has_location:
        raise TaskError(f"task {spec!r}: {module_name} has no source file")
    return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()


def _split(spec: str) -> tuple[str, str]:
    module_name, colon, function_name = spec.partition(":")
    if not (colon and module_name and function_name):
        raise TaskError(f"task {spec!r} is not of the form module:function")
    return module_name, function_name


def _said(error: Exception) -> str:
    # A user's exception may speak over many lines; the promise is one.
    return " ".join(f"{type(error).__name__}: {error}".split())
