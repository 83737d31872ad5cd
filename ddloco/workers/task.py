"""The interface of user code to be trained, and how a job file's task is found.

A task is any object with the four methods of `Task`; no base class is needed. It defines the
parameters, the loss and the batches. It does not deal with learners, fragments or merging.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from ddloco.stage.files.run_folder import SOURCE
from ddloco.stage.process.entry_point import NamedError, called, check_function
from ddloco.stage.process.entry_sources import source_digests
from ddloco.workers.task_sources import keeps_module, kept_modules

if TYPE_CHECKING:
    import jax

REQUIRED = ("init", "loss", "batches", "tokens")
OPTIONAL = (
    *("optimizer", "evaluate", "init_state", "hugging_face"),
    *("frozen", "sharding", "frozen_sharding", "batch_sharding"),
)
EXTRAS = ("key", "state", "frozen")
"""What ``loss`` is given by name, besides parameters and batch, if it has such a parameter."""


class TaskError(ValueError):
    """The task cannot be used; the message is one line for the user who named it."""


class Batches(Protocol):
    """An endless stream of batches that can be restored to an earlier position."""

    def next(self) -> Any:
        """Return the next batch, any pytree of numpy arrays, and advance."""
        ...

    def state(self) -> Any:
        """Return the position as plain data (numbers, text, bytes, lists, tuples, dicts, arrays of
        numbers), or None if the stream cannot be restored: a learner that returns then draws its
        used batches again."""
        ...

    def restore(self, state: Any) -> None:
        """Go to a position: the same batches must follow as did the first time."""
        ...


@runtime_checkable
class Task(Protocol):
    """What a learner trains.

    Optional methods: `optimizer(self) -> optax.GradientTransformation`, used in place of the job
    file's [inner] table; `evaluate(self, params) -> float`, a held-out loss, jitted by the task.

    `init_state(self, key)` returns what is carried from step to step and not trained, any pytree of
    arrays. Then `loss` has a parameter `state` and returns the new one with the loss; `evaluate`
    may have such a parameter too.

    `frozen(self)` returns what is neither trained nor sent, such as a pretrained model below
    adapters: any pytree of arrays. `loss`, and `evaluate`, have a parameter `frozen` for it.

    `sharding(self, params, mesh)` says how parameters lie on a learner's `jax.sharding.Mesh`: given
    their shapes it returns a tree, or the beginning of one, of `PartitionSpec`, `NamedSharding` or
    None, for every device. Without it, what a traceable `init` asks for holds. By
    `frozen_sharding(self, frozen, mesh)` the frozen arrays are divided, too; by
    `batch_sharding(self, batch, mesh)` batches are divided in another way than along their first
    dimension, among the axes `data` and `fsdp`.

    `hugging_face(self, params)` returns the files of a model folder for other libraries, by name:
    plain data or text, and arrays by name for a name that ends with `.safetensors`. It may have a
    parameter `state`. `ddloco snapshot export --format hf` writes them.

    A `loss` with a parameter `key` is given a JAX PRNG key: another one for every batch of every
    shard, and the same one whenever that batch is trained on again, as in a replay.
    """

    def init(self, key: "jax.Array") -> Any:
        """Return the parameters, a pytree of floating-point arrays, drawn from a JAX PRNG key."""
        ...

    def loss(self, params: Any, batch: Any) -> "jax.Array":
        """Return the scalar loss of one batch; must be pure and jit-compatible."""
        ...

    def batches(self, *, shard: int, shards: int, seed: int) -> Batches:
        """Return the stream of learner `shard` of `shards`; shards share no data. It may have a
        parameter `batch`, for `[learner.NAME] batch`: another size than the task's own, or None."""
        ...

    def tokens(self, batch: Any) -> int:
        """Return how many tokens the batch trains on: the weight of the learner's contribution."""
        ...


def load_task(spec: str, options: Mapping[str, Any]) -> Task:
    """Import `module:function`, call the function with `options`, and check what it returns;
    ``TaskError`` names the module, the function or the missing method."""
    try:
        task = called("task", spec, options)
    except NamedError as error:
        raise TaskError(str(error)) from error
    for name in REQUIRED:
        if not callable(getattr(task, name, None)):
            raise TaskError(f"task {spec!r}: {type(task).__name__} has no method {name}")
    if ("state" in takes(task.loss)) is not hasattr(task, "init_state"):
        raise TaskError(
            f"task {spec!r}: a state needs both init_state(key) and loss(params, batch, state)"
        )
    if ("frozen" in takes(task.loss)) is not hasattr(task, "frozen"):
        raise TaskError(
            f"task {spec!r}: frozen arrays need both frozen() and loss(params, batch, frozen)"
        )
    for name in OPTIONAL:
        if not callable(getattr(task, name, len)):
            raise TaskError(f"task {spec!r}: {type(task).__name__}.{name} is not a method")
    return cast("Task", task)


def takes(function: Any) -> tuple[str, ...]:
    """Which of ``EXTRAS`` a function has parameters for."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # Of a function that is not written in Python.
        return ()
    return tuple(name for name in EXTRAS if name in parameters)


def loss_takes(task: Task, spec: str) -> tuple[str, ...]:
    """Which of ``EXTRAS`` the task's ``loss`` takes; ``TaskError`` if it cannot be called so."""
    found = takes(task.loss)
    try:
        signature = inspect.signature(task.loss)
    except (TypeError, ValueError):
        return found
    try:
        signature.bind(None, None, **dict.fromkeys(found))
    except TypeError as error:
        *names, last = EXTRAS
        wanted = f"want loss(params, batch), and {', '.join(names)} and {last} if it needs them"
        raise TaskError(f"task {spec!r}: loss{signature}: {error}; {wanted}") from None
    return found


def stream_of(task: Task, spec: str, *, batch: int | None, **known: int) -> Callable[..., Batches]:
    """Return the task's ``batches``, with all but the shard given; ``TaskError`` if a learner has
    its own size of batches, and the task's have one size only."""
    if batch is None:
        return partial(task.batches, **known)
    if "batch" not in inspect.signature(task.batches).parameters:
        said = f"[learner.NAME] batch is {batch}, and batches() has no parameter batch"
        raise TaskError(f"task {spec!r}: {said}")
    return partial(task.batches, **known, batch=batch)


def check_task_name(spec: str) -> None:
    """Refuse, with ``TaskError``, a task that its module does not define, before anything is
    started."""
    try:
        check_function("task", spec)
    except NamedError as error:
        raise TaskError(str(error)) from error


def task_digests(spec: str, run_folder: Path | None = None) -> dict[str, str]:
    """Return the digests of the task's source files by path (see ``source_digests``), which the run
    folder may keep; see ``kept_modules``. ``TaskError`` if there is none."""
    kept = kept_modules(run_folder, spec) if run_folder else None
    try:
        return source_digests("task", spec, kept)
    except NamedError as error:
        said = str(error)
    if run_folder is not None and kept is None and keeps_module(run_folder, spec.partition(":")[0]):
        said += f"; {run_folder / SOURCE} has it: start there if you trust who wrote it"
    raise TaskError(said)
