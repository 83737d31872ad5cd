"""The JAX worker's state: one task, one model, one step at a time. It needs jax, as only the
modules of this folder do that say so. It is deterministic: the same requests give the same
bytes."""

import contextlib
import math
import os
import platform
import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import optax
import xxhash

from ddloco.job.protocol.fragment_plan import STATE, FragmentPlan, Leaf
from ddloco.job.protocol.messages import SHAPES_CHARS_MAX
from ddloco.job.protocol.state_layout import Moments
from ddloco.job.protocol.work import NAN_NAMES_MAX, STATE_STEPS, FromShard, OneStep
from ddloco.stage.arrays.shared_memory import PAGE, ArenaView
from ddloco.workers import rpc
from ddloco.workers.call_watch import CallWatch
from ddloco.workers.data_stream import (
    DataStream,
    ShardStream,
    is_position,
    pack_cursor,
    unpack_cursor,
)
from ddloco.workers.devices import (
    device_fingerprint,
    flags_off,
    keep_compiled_programs,
    open_devices,
)
from ddloco.workers.first_step import Named, SavedTree, difference, digests
from ddloco.workers.group import Group, OtherArena
from ddloco.workers.inner_optimizer import (
    count_places,
    counts_at,
    inner_optimizer,
    schedule_counts,
    with_counts,
)
from ddloco.workers.parameters import carried, mixed, named_leaves, shapes_and_names
from ddloco.workers.placement import OneDevice, OnGroup, OnMesh, unshared
from ddloco.workers.schedules import GLOBAL_STEP, with_extra_arguments, with_schedule
from ddloco.workers.task import Task, TaskError, load_task, stream_of
from ddloco.workers.task_environment import TaskReads, refuse_late_settings
from ddloco.workers.task_loss import TaskLoss, evaluated, said, value_and_gradient
from ddloco.workers.task_sources import sources_of
from ddloco.workers.task_state import StateLayout, is_key
from ddloco.workers.tensor_measures import OPTIMIZER, TensorMeasures
from ddloco.workers.tensor_sums import finding_nan, summing
from transport import DTYPES, Bytes, Pieces, aligned

STEP_MAX = 2**31 - 1
"""The largest global step that fits JAX's integers."""


CALLBACK = re.compile(r"\b(pure|io|debug)_callback\b")
"""The primitives by which a compiled function calls one of this host."""

ASKS = re.compile(r"\b(value|grad|value_fn)\b")
"""Arguments that an optimizer may require, in the words of Python's error."""

HOST_CALLBACK, STATE_UNTOLD = "host callback", "state untold"
"""Log event of a step that has one, where XLA has one thread only."""

DOES: dict[type, str] = {
    rpc.Prepare: "the task's module, its function, or batches()",
    rpc.Fill: "init()",
    rpc.CompileAhead: "next()",
    rpc.Train: "a step",
    rpc.ComputeGradient: "a gradient",
    rpc.Update: "the optimizer",
    rpc.Score: "evaluate()",
}


class CorruptionError(Exception):
    """A step that was run twice had two results."""


class Given(NamedTuple):
    """What a step is given besides the learner's state: a batch, its number, the global step, and
    the task's frozen arrays."""

    batch: Any
    number: Any
    t: Any
    frozen: Any


@dataclass(slots=True)
class StepUnderWay:
    """A step from its batch to its result, which may still be computed.

    Attributes:
        data_s: how long, in seconds, the device waited for its batch and the next one.
        begun_at: when the device was given it, in seconds.
        compiling_s: how long, in seconds, it was compiled before that; not counted for the first.
    """

    given: Given
    batch: Any
    digest: bytes
    data_s: float
    begun_at: float = 0.0
    compiling_s: float = 0.0
    loss: Any = None
    metrics: Any = None
    tokens: int = 0


def _shapes_of(batch: Any) -> str:
    """The shape and dtype of each array of a batch: ``8x129 int32``."""
    found = [(np.shape(each), np.result_type(each)) for each in jax.tree.leaves(batch)]
    said = ", ".join(f"{'x'.join(map(str, shape)) or 1} {dtype}" for shape, dtype in found)
    return said[:SHAPES_CHARS_MAX]


def _last_of(own: rpc.RestoredState) -> tuple[rpc.Trained | None, int]:
    """The result of a worker's last step; and, of a coordinator's, its last global step."""
    last = own.last
    return (None, last.t) if isinstance(last, rpc.Updated) else (last, 0)


def _has_bytes(leaf: Any) -> bool:
    return not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)


class Trainer:
    def __init__(
        self,
        arena: ArenaView | OtherArena,
        *,
        compiles_ahead: bool = True,
        saying: int | None = None,
        group: Group | None = None,
        tell: Callable[[str, dict[str, Any]], None] = lambda *_: None,
    ) -> None:
        self._arena = arena
        self._group = group
        self._tell = tell
        self._watch = CallWatch(tell)
        self._reads = TaskReads()
        self._measures = TensorMeasures()
        self._saying = saying
        """Where standard error goes while the devices are opened; see ``open_devices``."""
        self._compiles_ahead = compiles_ahead
        self._compiling: threading.Thread | None = None
        self._plan: FragmentPlan | None = None
        self._params: Any = None
        self._state: Any = None
        """The task's state, beside the parameters; see ``task_state``."""
        self._stated = False
        """Whether it is a state yet, and not its shapes only."""
        self._opt_state: Any = None
        self._installed: Sequence[rpc.Span] | None = None
        """Where the state is still in the actor's memory that was installed since the last step."""
        self._tried = False
        """Whether the first step has been run twice to check that it is deterministic."""
        self._sound = False
        self._spoilt = False
        self._last: rpc.Trained | None = None
        self._short = False
        """Whether the last step's cursor lacks a stream's large position."""
        self._updated = 0
        self._streams: dict[int, ShardStream] = {}
        """The open streams, by data shard; one, unless the job has ``job.shards``."""
        self._turn = 0
        """The data shard of the step that runs, or of the last one."""
        self._counts: list[int] = []
        self._count_places: list[int] | None = None
        """Where the counts of schedules are among the leaves of the optimizer's state."""
        self._gradient: Any = None
        self._device_s = 0.0
        """How long the device last needed for a step."""

    def was_sound(self, request: rpc.Request) -> bool:
        """Whether what is asked for has succeeded before, here or in an earlier incarnation: then
        an exception is no reason to take the task for wrong."""
        match request:
            case rpc.Train(t=t, skip=skip):
                return self._sound or t > 0 or skip > 0
            case rpc.ComputeGradient(batch=batch):
                return self._sound or batch > 1
            case rpc.Update(t=t):
                return t > 1
            case _:
                return self._sound

    def _patience_s(self, request: rpc.Request) -> float:
        """For how long, in seconds, a batch that cannot be drawn is tried again."""
        return self._retry_s if self.was_sound(request) else 0.0

    def answer(self, request: rpc.Request) -> rpc.Answer:
        with self._watch.during(DOES.get(type(request), "a copy")):
            return self._answer(request)

    def _answer(self, request: rpc.Request) -> rpc.Answer:
        match request:
            case rpc.Prepare():
                return self._prepare(request)
            case rpc.Lay(plan):
                return self._lay(plan)
            case rpc.Fill(out):
                self._initialise()
                self._copy_out(self._leaves(), out)
                return rpc.Ready()
            case rpc.Touch(out):
                self._arena.region(out.offset, out.nbytes)[::PAGE] = 0
                return rpc.Ready()
            case rpc.CompileAhead(returned):
                # The batch of a stream that draws all others again would be drawn for nothing.
                if self._compiles_ahead and (not returned or self._batches.position()):
                    self._compile_ahead()
                return rpc.Ready()
            case rpc.CopyOut(out):
                self._begin_moments()
                self._copy_out(self._leaves(), out, moments=True)
                return rpc.Copied(
                    self._last_whole() if not self._updated else rpc.Updated(self._updated)
                )
            case rpc.Install():
                return rpc.Installed(self._install(request))
            case rpc.CopyFragments(copies):
                leaves = self._leaves()
                for fragment, out in copies:
                    region = self._arena.region(out.offset, out.nbytes)
                    self._copy_fragment(leaves, fragment, region)
                return rpc.Ready()
            case rpc.Train():
                return self._train(request)
            case rpc.ComputeGradient():
                return self._differentiate(request)
            case rpc.Update():
                return self._update_with(request)
            case rpc.Score(source, counters):
                if source is not None:
                    self._begin_state()
                    self._take_in(self._read_in(source))
                    self._state = self._layout.with_counters(self._state, counters)
                return self._score()
            case rpc.MeasureDevices():
                return self._measure()
            case rpc.Look(wanted):
                return self._look(wanted)
            case rpc.Dismiss():
                return rpc.Ready()

    def _prepare(self, request: rpc.Prepare) -> rpc.Prepared:
        self._name = request.task
        # Random numbers that user code draws without a seed of its own depend on the job's seed.
        random.seed(f"{request.seed}/{request.shard}")
        np.random.seed([request.seed % 2**32, request.shard or 0])  # noqa: NPY002, user code's
        task = self._task = self._loaded(request)
        if self._saying is not None:
            open_devices(self._saying)
        keep_compiled_programs()
        self._seed = request.seed
        self._retry_s = request.retry_s
        self._shard = request.shard
        mesh = request.mesh
        self._loss = TaskLoss(task, request.task, request.seed)
        if self._group is not None:
            self._placement = OnGroup(mesh, task, request.task, self._group)
        else:
            self._placement = OnMesh(mesh, task, request.task) if mesh else OneDevice()
        self._params, names = shapes_and_names(task.init, self._seed)
        begin = getattr(task, "init_state", None)
        self._state = shapes_and_names(begin, self._seed)[0] if begin is not None else None
        self._layout = StateLayout(self._state)
        if request.shard is None and self._layout.untold and hasattr(task, "evaluate"):
            self._tell(STATE_UNTOLD, {"level": "warning", "reason": self._layout.untold_said})
        self._tree = jax.tree.structure(self._params)
        self._check_trained(names)
        self._placement.lay(self._params, self._layout.merged, self._seed)
        self._names = [*names, *self._layout.names]
        self._index = {name: index for index, name in enumerate(self._names)}
        leaves = tuple(
            Leaf(name, tuple(leaf.shape), np.dtype(leaf.dtype).name)
            for name, leaf in zip(self._names, self._leaves(), strict=True)
        )
        known = {"shards": request.shards, "seed": request.seed}
        self._stream = stream_of(task, request.task, batch=request.batch, **known)
        if request.shard is not None:
            self._turn = request.shard
            self._open(request.shard)
        self._take_frozen(task)
        self._optimizer = self._optimizer_of(request)
        self._lay_moments()
        self._update: Any = jax.jit(
            self._step, donate_argnums=(0, 1, 2), **self._placement.results(self._opt_shapes, 3)
        )
        self._apply: Any = jax.jit(self._take_step, donate_argnums=(0, 1))
        self._programs: Callable[[], int] = self._update._cache_size
        self._sums = summing(self._placement.everywhere())
        self._find_nan = finding_nan(self._placement.everywhere())
        self._leaves_if_corrupt = request.leaves_if_corrupt
        self._settings = dict(os.environ)
        found = {**device_fingerprint(), **self._placement.fingerprint(), **self._frozen_digest}
        found |= self._reads.new()
        return rpc.Prepared(leaves, found, sources_of(request.task.partition(":")[0]))

    def _take_frozen(self, task: Task) -> None:
        self._frozen = self._frozen_digest = {}
        make = getattr(task, "frozen", None)
        if make is not None:
            arrays = jax.tree.map(lambda leaf: leaf if is_key(leaf) else np.asarray(leaf), make())
            numbers = jax.tree.map(
                lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else leaf, arrays
            )
            self._frozen_digest = {"frozen": batch_digest(numbers).hex()}
            self._frozen = self._placement.frozen(arrays)

    @staticmethod
    def _loaded(request: rpc.Prepare) -> Task:
        before = dict(os.environ)
        task = load_task(request.task, request.options)
        refuse_late_settings(request.task, before)
        return task

    def _optimizer_of(self, request: rpc.Prepare) -> Any:
        make = getattr(self._task, "optimizer", None)
        if make is not None:
            return with_extra_arguments(make())
        inner = request.inner
        return with_extra_arguments(with_schedule(inner_optimizer(inner), inner, request.steps))

    def _lay_moments(self) -> None:
        try:
            self._opt_shapes = jax.eval_shape(self._optimizer.init, self._params)
        except Exception:  # noqa: BLE001, with such an optimizer the state cannot be transferred
            self._opt_shapes = None
        self._placement.lay_moments(self._params, self._opt_shapes, self._layout.local)

    def _lay(self, plan: FragmentPlan) -> rpc.Laid:
        self._plan = plan
        self._order = [self._index[leaf.name] for each in plan.fragments for leaf in each]
        leaves, self._moments_tree = jax.tree.flatten(self._opt_shapes)
        try:
            self._moments = Moments([*leaves, *self._layout.local], plan.total_bytes)
        except TypeError:  # Such a state cannot be transferred.
            return rpc.Laid(0)
        if self._opt_shapes is None:
            return rpc.Laid(0)
        return rpc.Laid(self._moments.stop)

    def _install(self, request: rpc.Install) -> bool:
        """Install a state in place of the current one; a peer's only if it is finite."""
        own = request.own
        if own is not None:
            self._go_to(own)
        params, leaves = self._read_state(request.pieces)
        if own is None and not self._placement.all_finite([*params, *leaves]):
            return False
        count = self._moments_tree.num_leaves
        self._take_in(params, leaves[count:])
        if own is not None:
            # If a snapshot is taken before the next step, it must contain the same again.
            self._last, self._updated = _last_of(own)
            self._spoilt = self._last is not None and not math.isfinite(self._last.loss)
        self._opt_state = jax.tree.unflatten(self._moments_tree, leaves[:count])
        self._installed = request.pieces
        return True

    def _read_state(self, pieces: Sequence[rpc.Span]) -> tuple[list[Any], list[Any]]:
        """Read a whole state: what is in fragments; the optimizer's state and what is local."""
        state = Pieces([self._arena.region(each.offset, each.nbytes) for each in pieces])
        params = self._read_leaves(state)
        views = zip(self._moments.read(state), self._placement.moments, strict=True)
        return params, [self._placement.put(view, sharding) for view, sharding in views]

    def _check_trained(self, names: list[str]) -> None:
        for name, leaf in zip(names, jax.tree.leaves(self._params), strict=True):
            if name.startswith(STATE):
                raise TaskError(
                    f"task {self._name}: parameter {name!r}: {STATE!r} begins a state's"
                )
            if not jnp.issubdtype(leaf.dtype, jnp.inexact):
                raise TaskError(
                    f"task {self._name}: parameter {name!r} is {leaf.dtype}, which cannot be "
                    "trained; return it from init_state(key) in place of init(key)"
                )

    def _initialise(self) -> None:
        self._params = self._placement.params(self._task.init, jax.random.key(self._seed))
        self._begin_state()

    def _begin_state(self) -> None:
        """Make the state. A learner has it from the global fragments, but for what is local."""
        if self._stated:
            return
        self._stated, begin = True, getattr(self._task, "init_state", None)
        if begin is None:
            return
        key = jax.random.key(self._seed)
        # So that random keys of two learners are two.
        own = key if self._shard is None else jax.random.fold_in(key, self._shard)
        made = jax.tree.map(lambda leaf: leaf if is_key(leaf) else jnp.asarray(leaf), begin(own))
        self._state = self._placement.state(made)

    def _step(self, params: Any, opt_state: Any, state: Any, given: "Given") -> tuple[Any, ...]:
        batch, number, t, frozen = given
        found, gradients = value_and_gradient(self._loss)(params, state, batch, number, frozen)
        loss, (after, metrics) = found

        def loss_at(other: Any, global_step: Any = t) -> Any:
            del global_step  # optax wants that a name for each extra argument is here.
            return self._loss(other, state, batch, number, frozen)[0]

        known = {"value": loss, "grad": gradients, "value_fn": loss_at}
        taken = self._take_step(params, opt_state, gradients, t, **known)
        return *taken, after, loss, metrics

    def _compile_ahead(self) -> None:
        """Trace and compile the step in a thread, from the first batch and the shapes of everything
        else. The batch is drawn here: a stream may want to be used in one thread only. What user
        code raises meanwhile it will raise again in the step itself."""
        with contextlib.suppress(Exception):
            batch = self._batches.draw_ahead()
            if batch is None:
                return
            given = self._placement.shapes(self._params, self._opt_shapes, self._state)
            number, t = self._loss.number(self._turn, 1), np.int32(0)
            given = *given, Given(self._placement.batch(batch), number, t, self._frozen)
            self._compiling = threading.Thread(target=self._compile, args=given, daemon=True)
            self._compiling.start()

    def _compile(self, *given: Any) -> None:
        with contextlib.suppress(Exception):
            self._update.lower(*given).compile()

    def _train(self, request: rpc.Train) -> rpc.Trained:
        """Run the steps of a request. The device is waited for at the last one only, and at one
        that runs twice."""
        if self._compiling is not None:
            self._compiling.join()
            self._compiling = None
        self._begin_state()
        for each in request.overwrites:
            self._overwrite(each)
        self._take_turn(request)
        first, self._tried = not self._tried, True
        before = self._batches.position() if first else b""
        steps: list[StepUnderWay] = []
        sums: Callable[[], bytes] = bytes
        corrupt, t = "", np.int32(min(request.t, STEP_MAX))
        for left in reversed(range(request.count)):
            step, opens = self._drawn(t, self._patience_s(request)), not steps
            if first and opens:
                self._batches.check(before, step.digest, batch_digest)
            once = self._run_once(step, request, first=first) if opens else {}
            steps.append(step)
            self._begin(step, first=first and opens)
            if not left:
                leaves = self._leaves()
                sums = self._sums([leaves[index] for index in self._order])
            step.tokens = self._tokens(step.batch)
            self._draw_ahead(steps, request.data, waits=not left)
            if once:
                now = self._params, self._opt_state, self._state, step.loss
                twice = self._digests(*now, request.check)
                corrupt = self._compared(once, twice, request.step, first=first)
        if first:
            refuse_late_settings(self._name, self._settings, started=True)
        return self._trained(request, steps, sums(), corrupt)

    def _trained(
        self, request: rpc.Train, steps: Sequence["StepUnderWay"], sums: bytes, corrupt: str
    ) -> rpc.Trained:
        told = [each.loss for each in steps], self._layout.counters_of(self._state)
        losses, counters = jax.device_get(told)
        *earlier, last = (
            OneStep(float(loss), each.tokens, each.digest)
            for loss, each in zip(losses, steps, strict=True)
        )
        self._sound, self._spoilt = True, not math.isfinite(last.loss)
        if request.out is not None:
            self._copy_out(self._leaves(), request.out)
        last_step = request.step + request.count - 1
        looks = (request.step - 1) // STATE_STEPS < last_step // STATE_STEPS
        self._last = rpc.Trained(
            last.loss,
            last.tokens,
            last.batch,
            self._cursor(self._batches.position_if_small()),
            said(steps[-1].metrics),
            tensors=sums,
            corrupt=corrupt,
            before=tuple(earlier),
            counters=tuple(int(each) for leaf in counters for each in leaf.ravel()),
            nan=self._nan() if looks else (),
            shapes=_shapes_of(steps[-1].batch) if looks else "",
        )
        self._short = self._batches.is_large
        return msgspec.structs.replace(
            self._last,
            reads=self._reads.new(),
            data_s=sum(each.data_s for each in steps),
            compiling_s=sum(each.compiling_s for each in steps),
        )

    def _nan(self) -> tuple[str, ...]:
        """The tensors of the optimizer's and the task's state with a NaN, the first few."""
        there = [(OPTIMIZER + name, leaf) for name, leaf in named_leaves(self._opt_state)]
        there += [(f"{STATE}{name}", leaf) for name, leaf in named_leaves(self._state)]
        floats = [
            (name, leaf)
            for name, leaf in there
            if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.inexact)
        ]
        found = self._find_nan([leaf for _, leaf in floats]) if floats else []
        names = [name for (name, _), has in zip(floats, found, strict=True) if has]
        return tuple(names[:NAN_NAMES_MAX])

    def _drawn(self, t: Any, retry_s: float) -> "StepUnderWay":
        """Draw the batch of the next step. Global step ``t`` is for schedules."""
        asked_at = time.monotonic()
        with self._watch.during("next()"):
            batch, number = self._draw(retry_s)
        data_s = time.monotonic() - asked_at
        given = Given(self._placement.batch(batch), number, t, self._frozen)
        return StepUnderWay(given, batch, batch_digest(batch), data_s)

    def _run_once(
        self, step: "StepUnderWay", request: rpc.Train, *, first: bool
    ) -> dict[Named, bytes]:
        """Make the optimizer's state where that is needed, and return the digests of what the step
        brings if it is to run twice, or none."""
        made_again: Callable[[], Any] | None = None
        if self._opt_state is None or (self._spoilt and request.overwrites):
            # The optimizer's moments of non-finite gradients would spoil the new parameters.
            counts = schedule_counts(self._opt_state) if self._spoilt else self._counts
            made_again = partial(self._first_moments, counts)
            self._opt_state = made_again()
        twice = first or request.check
        if first:
            self._warn_of_callbacks(step.given)
        with self._watch.during("compiling the first step" if first else "a step"):
            found = self._run_and_restore(step.given, request, made_again) if twice else {}
        self._installed = None  # The actor uses its memory again after these steps.
        return found

    def _begin(self, step: "StepUnderWay", *, first: bool) -> None:
        """Begin to compute a step. The call returns when it has been compiled, before it is
        computed; the first one is waited for, and what follows is compiled then."""
        step.begun_at, programs = time.monotonic(), self._programs()
        self._params, self._opt_state, self._state, step.loss, step.metrics = self._update(
            self._params, self._opt_state, self._state, step.given
        )
        if not first and self._programs() > programs:
            step.compiling_s = time.monotonic() - step.begun_at
            step.begun_at += step.compiling_s
        if first:
            step.loss.block_until_ready()
            self._device_s = time.monotonic() - step.begun_at

    def _warn_of_callbacks(self, given: Given) -> None:
        """Say that a step calls functions of this host while XLA has no thread for their arrays."""
        if os.environ.get("NPROC") != "1":
            return
        with contextlib.suppress(Exception):  # The step itself tells what cannot be traced.
            traced = self._update.trace(self._params, self._opt_state, self._state, given)
            if CALLBACK.search(str(traced.jaxpr)):
                reason = "the step calls back into Python, and may hang; set worker.threads = 2"
                self._tell(HOST_CALLBACK, {"level": "warning", "reason": reason})

    def _draw_ahead(
        self, steps: Sequence["StepUnderWay"], data: FromShard | None, *, waits: bool
    ) -> None:
        """Draw the next batch while the device computes the last one of ``steps``, and wait for the
        device if there is nothing else to do. Notes for how long the device waited for the batch.
        If it is done by then, it is not known since when: it needs as long as the last time that it
        was not."""
        last, drawing_at = steps[-1], time.monotonic()
        coming = self._turn if data is None else data.held[1 % len(data.held)]
        if coming in self._streams:
            with self._watch.during("next()"):
                self._streams[coming].data.draw_ahead()
        drawn_at = time.monotonic()
        if last.loss.is_ready():
            begun_at = max(drawing_at, last.begun_at + self._device_s)
            last.data_s += max(drawn_at - begun_at, 0.0)
        elif waits:
            last.loss.block_until_ready()
            self._device_s = (time.monotonic() - steps[0].begun_at) / len(steps)

    @property
    def _batches(self) -> DataStream:
        assert self._streams, "only learners train, and they have a shard"
        return self._streams[self._turn].data

    def _draw(self, retry_s: float) -> tuple[Any, Any]:
        batch, stream = self._batches.next(retry_s), self._streams[self._turn]
        stream.used += 1
        return batch, self._loss.number(self._turn, stream.used)

    def _cursor(self, position: bytes) -> bytes:
        if self._count_places is None:
            self._count_places = count_places(self._opt_state)
        return pack_cursor(position, counts_at(self._opt_state, self._count_places))

    def _last_whole(self) -> rpc.Trained | None:
        """The result of the last step, with the stream's position, however large that is."""
        if self._last is not None and self._short:
            cursor = self._cursor(self._batches.position())
            self._last, self._short = msgspec.structs.replace(self._last, cursor=cursor), False
        return self._last

    def _open(self, shard: int) -> None:
        stream = self._stream(shard=shard)
        self._streams[shard] = ShardStream(DataStream(self._name, stream, copied_batch, self._tell))

    def _take_turn(self, request: rpc.Train) -> None:
        """Go to the data shard of a step, and close those that the learner does not hold now."""
        data = request.data
        if data is not None:
            self._turn = data.held[0]
            if data.opens:
                self._open(self._turn)
            self._streams = {n: each for n, each in self._streams.items() if n in data.held}
        if request.skip:
            self._leave_out(request.skip, request.cursor)

    def _leave_out(self, count: int, cursor: bytes) -> None:
        """Skip ``count`` used batches: go to ``cursor`` if it is known, or else draw them."""
        position, counts = unpack_cursor(cursor)
        if self._opt_state is None:
            self._counts = counts
        self._streams[self._turn].used = count
        if is_position(position):
            self._batches.go_to(position)
        else:
            self._batches.draw_again(count)

    def _go_to(self, own: rpc.RestoredState) -> None:
        last, _ = _last_of(own)
        cursor = last.cursor if last is not None else b""
        for at, (shard, used, place) in reversed([*enumerate(own.shards)]):
            self._turn = shard
            self._open(shard)
            if used:
                self._leave_out(used, cursor if at == 0 and cursor else place)
        if not own.shards and own.drawn:
            self._leave_out(own.drawn, cursor)

    def _tokens(self, batch: Any) -> int:
        found = self._task.tokens(batch)
        try:
            tokens = int(found)
        except (TypeError, ValueError):
            said = f"tokens(batch) is {repr(found)[:80]}; want a whole number, 0 or more"
            raise TaskError(f"task {self._name}: {said}") from None
        if tokens < 0:
            raise TaskError(f"task {self._name}: tokens(batch) is {tokens}; want 0 or more")
        return tokens

    # Data-parallel jobs: replicas compute gradients, the coordinator computes the update.

    def _differentiate(self, request: rpc.ComputeGradient) -> rpc.Trained:
        if self._layout.names or self._layout.local:
            raise TaskError(
                f"task {self._name}: has a state, which data-parallel jobs cannot merge"
            )
        self._take_in(self._read_in(request.source))
        # A replica that came back, or resumes, goes to its place in the data.
        missing = request.batch - 1 - self._streams[self._turn].used
        if missing > 0:
            self._batches.draw_again(missing)
            self._streams[self._turn].used += missing
        drawn, number = self._draw(self._patience_s(request))
        given = self._params, None, self._placement.batch(drawn), number, self._frozen
        once: dict[Named, bytes] | None = None
        if self._gradient is None:
            self._gradient = jax.jit(value_and_gradient(self._loss))
            once = self._gradient_digests(self._gradient(*given)[1])
        (loss, (_, metrics)), gradient = self._gradient(*given)
        if once is not None:
            self._check_same(once, self._gradient_digests(gradient))
        self._copy_out(jax.tree.leaves(gradient), request.out)
        numbers = float(loss), self._tokens(drawn), batch_digest(drawn)
        self._sound = True
        return rpc.Trained(*numbers, metrics=said(metrics))

    def _gradient_digests(self, gradient: Any) -> dict[Named, bytes]:
        return digests(_named("gradient", self._names, jax.tree.leaves(gradient)))

    def _begin_moments(self) -> None:
        """Make what updates need. A coordinator that continues from a snapshot of before its first
        update has no parameters yet; those of the seed are the ones that it was at."""
        if self._opt_state is None:
            if not self._stated:
                self._initialise()
            self._opt_state = unshared(self._optimizer.init(self._params), self._params)

    def _update_with(self, request: rpc.Update) -> rpc.Ready:
        self._begin_moments()
        if request.t != self._updated:
            gradient = jax.tree.unflatten(self._tree, self._read_in(request.source))
            t, given = np.int32(min(request.t, STEP_MAX)), (self._params, self._opt_state)
            self._params, self._opt_state = self._apply(*given, gradient, t)
            self._updated = request.t
        self._copy_out(self._leaves(), request.out)
        return rpc.Ready()

    def _take_step(
        self, params: Any, opt_state: Any, gradient: Any, t: Any, **known: Any
    ) -> tuple[Any, Any]:
        """Take one step of the optimizer. ``value``, the loss, is for those that adapt to it;
        ``grad`` and ``value_fn`` are for those that look for the length of a step."""
        update = partial(self._optimizer.update, gradient, opt_state, params, **{GLOBAL_STEP: t})
        try:
            updates, opt_state = update(**known)
        except TypeError as error:
            # Some transformations make operands of what they pass on; a function is none.
            simple = {name: each for name, each in known.items() if name == "value"}
            try:
                updates, opt_state = update(**simple)
            except TypeError:
                if known or not ASKS.search(str(error)):
                    raise error from None
                raise TaskError(
                    f"task {self._name}: its optimizer asks for the loss of a batch ({error}), "
                    "which the syncer of a data-parallel job does not have; want another optimizer "
                    "or job.method"
                ) from None
        return optax.apply_updates(params, updates), opt_state

    def _first_moments(self, counts: list[int]) -> Any:
        """The optimizer's state before its first step, with its schedules at ``counts``."""
        fresh = self._placement.init(self._optimizer, self._params)
        return with_counts(fresh, counts, self._streams[self._turn].used - 1)

    def _run_and_restore(
        self, given: "Given", request: rpc.Train, made_again: Callable[[], Any] | None
    ) -> dict[Named, bytes]:
        """Run the first step, restore the state before it, and return the digests of the result.
        What was installed or overwritten since the last step is read again, and a state of the
        optimizer that can be ``made_again`` is made: only the rest is saved on the host."""
        leaves, installed = self._leaves(), self._installed
        replaced = [each for each in request.overwrites if each.replaces]
        for each in replaced:
            for leaf in self._laid.fragments[each.fragment]:
                leaves[self._index[leaf.name]] = None
        moments = self._opt_state if made_again is None else None
        before = leaves, self._layout.local_of(self._state), moments
        saved = SavedTree(before if installed is None else None)
        del before
        del leaves, moments
        params, moments, state, loss, _ = self._update(
            self._params, self._opt_state, self._state, given
        )
        found = self._digests(params, moments, state, loss, request.check)
        del params, moments, state  # The device has room for one state.
        self._params = self._opt_state = None
        if installed is None:
            leaves, local, self._opt_state = saved.restore()
        else:
            leaves, own = self._read_state(installed)
            count = self._moments_tree.num_leaves
            self._opt_state = jax.tree.unflatten(self._moments_tree, own[:count])
            local = own[count:]
        for each in replaced:
            self._fill_in(leaves, each.fragment, self._region(each.span))
        self._take_in(leaves, local)
        if made_again is not None:
            self._opt_state = made_again()
        return found

    def _digests(
        self, params: Any, opt_state: Any, state: Any, loss: Any, all_of_it: bool
    ) -> dict[Named, bytes]:
        """The digests of what a step gives, by what it is and its name; with ``all_of_it`` also
        those of the optimizer's state."""
        merged, local = self._layout.merged_of(state), self._layout.local_of(state)
        parameters = self._names[: self._tree.num_leaves]
        found = digests(
            [
                (("loss", "loss"), loss),
                *_named("parameters", parameters, jax.tree.leaves(params)),
                *_named("state", self._layout.names, merged),
                *_named("state", [f"whole number or key {i}" for i in range(len(local))], local),
            ]
        )
        if all_of_it:
            rows = [(("optimizer's state", name), leaf) for name, leaf in named_leaves(opt_state)]
            found |= digests((row, leaf) for row, leaf in rows if _has_bytes(leaf))
        return found

    def _check_same(self, before: dict[Named, bytes], after: dict[Named, bytes]) -> None:
        """Refuse a task whose first step gives two results; names the first tensor that differs."""
        found = difference(before, after)
        if found:
            raise TaskError(
                f"task {self._name}: differs between two runs of the same step, in {found}; "
                f"such a run could not be replayed{flags_off()}"
            )

    def _compared(
        self, once: dict[Named, bytes], twice: dict[Named, bytes], step: int, *, first: bool
    ) -> str:
        """Return what differs between two runs of a step, and where; empty if nothing does.
        ``TaskError`` if it is the first step; ``CorruptionError`` if the machine has computed
        wrongly, and is not to be used any more."""
        if first:
            self._check_same(once, twice)
        found = difference(once, twice)
        if not found:
            return ""
        kind = jax.devices()[0].device_kind
        own = ", ".join(str(device.id) for device in jax.local_devices())
        said = f"{found} on {kind} {own} of {platform.node()}"
        if self._leaves_if_corrupt or self._group is not None:  # Others may not have noticed.
            raise CorruptionError(f"silent corruption: step {step} had two results, in {said}")
        return said

    def _score(self) -> rpc.Scored:
        found = evaluated(
            *(self._name, self._task, self._params, self._state), lambda: self._frozen
        )
        return rpc.Scored(*found) if found is not None else rpc.Scored(None)

    def _look(self, wanted: str) -> rpc.Looked:
        trained = dict(zip(self._names, self._leaves(), strict=True))
        moments = {OPTIMIZER + name: leaf for name, leaf in named_leaves(self._opt_state)}
        found = tuple(self._measures(wanted, trained, moments))
        return rpc.Looked(found, () if found else (*trained, *moments))

    def _measure(self) -> rpc.Devices:
        batch = self._placement.batch(self._batches.draw_ahead())
        number, t = self._loss.number(self._turn, 1), np.int32(0)
        known = self._placement.shapes(self._params, self._opt_shapes, self._state)
        program = self._update.lower(*known, Given(batch, number, t, self._frozen)).compile()
        needs, (first, *_) = program.memory_analysis(), jax.local_devices()
        told = first.memory_stats() or {}
        return rpc.Devices(
            first.device_kind,
            len(jax.devices()) if self._placement.everywhere() else 1,
            needs.argument_size_in_bytes
            + needs.output_size_in_bytes
            + needs.temp_size_in_bytes
            - needs.alias_size_in_bytes,
            told.get("bytes_limit"),
        )

    # Conversion between the pytree and the plan's flat layout.

    @property
    def _laid(self) -> FragmentPlan:
        assert self._plan is not None, "laid out before anything is copied"
        return self._plan

    def _views(self, fragment: int, data: Bytes | Pieces, at: int = 0) -> list[tuple[int, Any]]:
        """(leaf index, array view) of each tensor in a fragment's bytes, which begin at ``at``."""
        begin = self._laid.fragment_slice(fragment)[0] - at
        views: list[tuple[int, Any]] = []
        for index, leaf in enumerate(self._laid.fragments[fragment]):
            start = self._laid.tensor_offset(fragment, index) - begin
            view = data[start : start + leaf.nbytes].view(DTYPES[leaf.dtype])
            views.append((self._index[leaf.name], view.reshape(leaf.shape)))
        return views

    def _leaves(self) -> list[Any]:
        """Everything that is in fragments: the parameters, and the merged part of the state."""
        return [*jax.tree.leaves(self._params), *self._layout.merged_of(self._state)]

    def _take_in(self, leaves: list[Any], local: list[Any] | None = None) -> None:
        """Replace what is in fragments; with ``local`` also the rest of the state."""
        count = self._tree.num_leaves
        self._params = jax.tree.unflatten(self._tree, leaves[:count])
        if local is None:
            local = self._layout.local_of(self._state)
        else:
            self._stated = True
        self._state = self._layout.joined(leaves[count:], local)

    def _overwrite(self, newer: rpc.NewFragment) -> None:
        leaves = self._leaves()
        own = list(leaves)
        self._fill_in(leaves, newer.fragment, self._region(newer.span))
        if not newer.replaces and not self._spoilt:
            since: list[Any] = [None] * len(leaves)
            if newer.since is not None:
                self._fill_in(since, newer.fragment, self._region(newer.since))
            for leaf in self._laid.fragments[newer.fragment]:
                i = self._index[leaf.name]
                leaves[i] = (
                    mixed(own[i], leaves[i], newer.mixing)
                    if newer.since is None
                    else carried(own[i], leaves[i], since[i])
                )
        self._take_in(leaves)

    def _region(self, span: rpc.Span) -> Bytes:
        return self._arena.region(span.offset, span.nbytes)

    def _fill_in(self, leaves: list[Any], fragment: int, data: Bytes | Pieces, at: int = 0) -> None:
        for index, view in self._views(fragment, data, at):
            leaves[index] = self._placement.put(view, self._placement.leaves[index])

    def _read_in(self, span: rpc.Span) -> list[Any]:
        return self._read_leaves(self._arena.region(span.offset, span.nbytes))

    def _read_leaves(self, source: Bytes | Pieces) -> list[Any]:
        leaves: list[Any] = [None] * len(self._names)
        for fragment in range(len(self._laid.fragments)):
            self._fill_in(leaves, fragment, source, self._laid.fragment_slice(fragment)[0])
        return leaves

    def _copy_out(self, leaves: list[Any], span: rpc.Span, *, moments: bool = False) -> None:
        """Write all leaves in the plan's layout; with ``moments`` after them the optimizer's state,
        and what is local in the task's."""
        out = self._arena.region(span.offset, span.nbytes)
        parts = [
            (p, out[slice(*self._laid.fragment_slice(p))]) for p in range(len(self._laid.fragments))
        ]
        pairs = [(leaves[i], view) for p, part in parts for i, view in self._views(p, part)]
        if moments:
            own = [*jax.tree.leaves(self._opt_state), *self._layout.local_of(self._state)]
            pairs += zip(own, self._moments.read(out), strict=True)
        self._placement.fetch_all(pairs)
        for p, part in parts:
            self._clear_padding(p, part)
        if moments:
            self._moments.clear_padding(out)

    def _copy_fragment(self, leaves: list[Any], fragment: int, out: Bytes) -> None:
        """Write a fragment in the plan's layout, with zero padding: its memory may be used."""
        pairs = [(leaves[index], view) for index, view in self._views(fragment, out)]
        self._placement.fetch_all(pairs)
        self._clear_padding(fragment, out)

    def _clear_padding(self, fragment: int, out: Bytes) -> None:
        plan = self._laid
        begin = plan.fragment_slice(fragment)[0]
        for index, leaf in enumerate(plan.fragments[fragment]):
            end = plan.tensor_offset(fragment, index) + leaf.nbytes - begin
            out[end : aligned(end)] = 0


def _named(what: str, names: Sequence[str], arrays: Sequence[Any]) -> list[tuple[Named, Any]]:
    return [((what, name), array) for name, array in zip(names, arrays, strict=True)]


def copied_batch(batch: Any) -> Any:
    return jax.tree.map(
        lambda leaf: np.array(leaf) if isinstance(leaf, np.ndarray) else leaf, batch
    )


def batch_digest(batch: Any) -> bytes:
    """xxh3-128 over a batch's leaves: shapes, dtypes, bytes."""
    digest = xxhash.xxh3_128()
    for leaf in jax.tree.leaves(batch):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{array.shape}|{array.dtype}|".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.digest()
