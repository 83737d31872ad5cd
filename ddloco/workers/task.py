"""What user code must offer to be trained, and how a job file's task is found.

A task is any object with the four methods of `Task`; there is nothing to inherit from. It says
what the parameters are, what the loss is, and where batches come from. Everything about learners,
fragments and merging stays on our side of this protocol.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from ddloco.runtime.entry_point import NamedError, called, source_digest

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
        """Return the position as plain data (numbers, text, bytes, lists, dicts), or None where the
        stream cannot be put back: a learner that returns then draws its used batches again."""
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
    try:
        task = called("task", spec, options)
    except NamedError as error:
        raise TaskError(str(error)) from error
    for name in REQUIRED:
        if not callable(getattr(task, name, None)):
            raise TaskError(f"task {spec!r}: {type(task).__name__} has no method {name}")
    for name in OPTIONAL:
        if not callable(getattr(task, name, len)):
            raise TaskError(f"task {spec!r}: {type(task).__name__}.{name} is not a method")
    return cast("Task", task)


def task_digest(spec: str) -> str:
    """Return the SHA-256 in hex of the source file of the task's module; see ``source_digest``.

    Raises:
        TaskError: there is no such module, or it has no source file.
    """
    try:
        return source_digest("task", spec)
    except NamedError as error:
        raise TaskError(str(error)) from error
