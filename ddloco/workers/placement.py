"""Where a learner's arrays lie: on one device, or divided on a mesh of devices. It needs jax.
Fragments are copied shard by shard, so that no device and no host has a second copy of the whole
model."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec, Sharding

from ddloco.workers.group import Group
from ddloco.workers.parameters import named_leaves
from ddloco.workers.task import TaskError

BATCH_AXES = ("data", "fsdp")
"""The axes of a mesh among which the first dimension of a batch is divided, unless the task has a
``batch_sharding``."""


AT_ONCE_BYTES = 16 * 2**20
"""Bytes that may be on their way from a device at once: JAX holds them in host memory, too."""


def unshared(state: Any, params: Any) -> Any:
    """A state of the optimizer that has no array of the parameters and none twice, as that of
    optax's prodigy has: a step is given all of them to write its results into."""
    taken = {id(each) for each in jax.tree.leaves(params)}

    def own(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and id(leaf) in taken:
            return jnp.array(leaf, copy=True)
        taken.add(id(leaf))
        return leaf

    return jax.tree.map(own, state)


class OneDevice:
    """All arrays lie on the default device; a task may move them in its own way.

    Attributes:
        leaves: the sharding of what is in fragments, by leaf; None for the default device.
        moments: the same of an optimizer's state, and then of what is local in the task's state.
    """

    def __init__(self) -> None:
        self.leaves: list[Sharding | None] = []
        self.moments: list[Sharding | None] = []

    def lay(self, params: Any, merged: Sequence[Any], seed: int) -> None:
        """Decide where what is in fragments lies: the parameters, and the ``merged`` state, of
        these shapes."""
        del seed
        self.leaves = [None] * (len(jax.tree.leaves(params)) + len(merged))

    def lay_moments(self, params: Any, opt_state: Any, local: Sequence[Any]) -> None:
        """Decide where an optimizer's state lies, a tree of shapes, and the ``local`` state."""
        del params
        self.moments = [None] * (len(jax.tree.leaves(opt_state)) + len(local))

    def results(self, opt_state: Any, others: int) -> dict[str, Any]:
        """The arguments of ``jax.jit`` that fix where a step's results lie: new parameters,
        optimizer's state, and so many ``others``."""
        del opt_state, others
        return {}

    def params(self, init: Callable[[Any], Any], key: Any) -> Any:
        return init(key)

    def everywhere(self) -> dict[str, Any]:
        return {}

    def init(self, optimizer: Any, params: Any) -> Any:
        return unshared(optimizer.init(params), params)

    def state(self, state: Any) -> Any:
        return state

    def frozen(self, frozen: Any) -> Any:
        return jax.tree.map(jnp.asarray, frozen)

    def batch(self, batch: Any) -> Any:
        return batch

    def shapes(self, *trees: Any) -> tuple[Any, ...]:
        """The shapes of parameters, optimizer's state and task's state, for a step that is compiled
        before they are there."""
        return trees

    def put(self, view: Any, sharding: Sharding | None) -> Any:
        """An array on its devices with the numbers in ``view``, whose memory is used again."""
        del sharding
        return jnp.array(view, copy=True)

    def fetch_all(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Copy arrays into views of host memory. Few bytes are all on their way from a device
        before the first of them is waited for."""
        shards = [(view, *each) for array, view in pairs for each in shards_of(array)]
        few = sum(view.nbytes for _, view in pairs) <= AT_ONCE_BYTES
        for *_, shard in shards:
            if few and isinstance(shard, jax.Array) and jax.default_backend() != "cpu":
                shard.copy_to_host_async()
        for view, place, shard in shards:
            view[place] = np.asarray(shard)

    def all_finite(self, arrays: Sequence[Any]) -> bool:
        """Whether all numbers of the arrays are finite; on the host, where nothing is compiled."""
        shards = chain.from_iterable(map(shards_of, arrays))
        return all(bool(np.isfinite(np.asarray(shard)).all()) for _, shard in shards)

    def fingerprint(self) -> dict[str, str]:
        """What can change arithmetic: another division of a sum adds in another order."""
        return {}


class OnMesh(OneDevice):
    """Arrays are divided among the devices of a mesh, as the task says; ``axes`` has the number
    along each axis. ``TaskError`` if there are more or fewer devices; all are used, or one."""

    def __init__(self, axes: Mapping[str, int], task: Any, spec: str) -> None:
        super().__init__()
        self._axes, self._task, self._spec = axes, task, spec
        self._words = " ".join(f"{axis}={size}" for axis, size in axes.items())
        devices = jax.devices()
        wanted = math.prod(axes.values())
        if wanted not in {1, len(devices)}:
            said = f"mesh {self._words} needs {wanted} devices, here are {len(devices)}"
            cure = (
                f'; on a CPU set JAX_NUM_CPU_DEVICES = "{wanted}" in [worker.env]'
                if devices[0].platform == "cpu"
                else "; change worker.mesh, or CUDA_VISIBLE_DEVICES in [worker.env]"
            )
            raise TaskError(f"task {spec}: {said} ({devices[0].device_kind}){cure}")
        kinds = (AxisType.Auto,) * len(axes)
        self.mesh = jax.make_mesh(
            tuple(axes.values()), tuple(axes), axis_types=kinds, devices=devices[:wanted]
        )
        self._everywhere = NamedSharding(self.mesh, PartitionSpec())
        jax.set_mesh(self.mesh)

    def lay(self, params: Any, merged: Sequence[Any], seed: int) -> None:
        """Ask the task's ``sharding(params, mesh)``, or else take what its ``init`` asks for."""
        asked = getattr(self._task, "sharding", None)
        found = asked(params, self.mesh) if asked is not None else self._of_init(params, seed)
        placed = self._checked("sharding", found, params)
        self._params = jax.tree.unflatten(jax.tree.structure(params), placed)
        self.leaves = [*placed, *[self._everywhere] * len(merged)]

    def _of_init(self, params: Any, seed: int) -> Any:
        """The shardings of what ``init`` returns, from its compiled program: nothing is made."""
        try:
            program = jax.jit(self._task.init).lower(jax.random.key(seed)).compile()
        except Exception:  # noqa: BLE001, an init that cannot be traced says nothing of shardings
            return None
        found = [
            each if isinstance(each, NamedSharding) else None
            for each in jax.tree.leaves(program.output_shardings)
        ]
        return jax.tree.unflatten(jax.tree.structure(params), found)

    def _checked(self, method: str, found: Any, tree: Any) -> list[NamedSharding]:
        """What a method of the task returned, by leaf of ``tree``, of which it may be a prefix."""
        where = f"task {self._spec}: {method}(..., mesh)"
        try:
            each = jax.tree.leaves(jax.tree.broadcast(found, tree, is_leaf=_says), is_leaf=_says)
        except ValueError as error:
            raise TaskError(f"{where}: {' '.join(str(error).split())}"[:900]) from None
        placed: list[NamedSharding] = []
        for (name, leaf), one in zip(named_leaves(tree), each, strict=True):
            if not _says(one):
                kind = type(one).__name__
                raise TaskError(f"{where}: {name!r} is a {kind}; want a PartitionSpec or None")
            try:
                sharding = (
                    one
                    if isinstance(one, NamedSharding)
                    else NamedSharding(self.mesh, one or PartitionSpec())
                )
                sharding.shard_shape(np.shape(leaf))
            except (ValueError, IndexError) as error:
                raise TaskError(f"{where}: {name!r}: {' '.join(str(error).split())}") from None
            placed.append(sharding)
        return placed

    def lay_moments(self, params: Any, opt_state: Any, local: Sequence[Any]) -> None:
        """The optimizer's state follows: an array with a parameter's shape, whose path in the state
        ends with that parameter's, lies as the parameter does; all others are on every device."""
        known = {
            (tuple(map(str, path)), leaf.shape): placed
            for (path, leaf), placed in zip(
                jax.tree_util.tree_flatten_with_path(params)[0], self.leaves, strict=False
            )
        }
        self.moments = []
        for path, leaf in jax.tree_util.tree_flatten_with_path(opt_state)[0]:
            keys = tuple(map(str, path))
            tails = ((keys[start:], leaf.shape) for start in range(len(keys) + 1))
            self.moments.append(next((known[t] for t in tails if t in known), self._everywhere))
        self.moments += [self._everywhere] * len(local)

    def results(self, opt_state: Any, others: int) -> dict[str, Any]:
        """Parameters and the optimizer's state stay where they are, all others are everywhere."""
        tree = jax.tree.structure(opt_state)
        moments = jax.tree.unflatten(tree, self.moments[: tree.num_leaves])
        return {"out_shardings": (self._params, moments, *[self._everywhere] * others)}

    def params(self, init: Callable[[Any], Any], key: Any) -> Any:
        """The initial parameters, made where they belong if ``init`` can be traced."""
        if self.mesh.size > 1:
            with contextlib.suppress(Exception):
                return jax.jit(init, out_shardings=self._params)(key)
        return jax.device_put(init(key), self._params)

    def everywhere(self) -> dict[str, Any]:
        return {"out_shardings": self._everywhere}

    def init(self, optimizer: Any, params: Any) -> Any:
        """The optimizer's first state, made where it belongs."""
        tree = jax.tree.structure(jax.eval_shape(optimizer.init, params))
        moments = jax.tree.unflatten(tree, self.moments[: tree.num_leaves])
        return unshared(jax.jit(optimizer.init, out_shardings=moments)(params), params)

    def state(self, state: Any) -> Any:
        """A task's state, on every device."""
        return jax.device_put(state, self._everywhere)

    def frozen(self, frozen: Any) -> Any:
        """A task's frozen arrays, on every device, or as its ``frozen_sharding`` says."""
        asked = getattr(self._task, "frozen_sharding", None)
        found = asked(frozen, self.mesh) if asked is not None else None
        return self._divided("frozen_sharding", found, frozen)

    def _divided(self, method: str, found: Any, tree: Any) -> Any:
        """A tree of host arrays that all processes have, as a method of the task said."""
        placed = iter(self._checked(method, found, tree))
        return jax.tree.map(lambda leaf: OnMesh.put(self, np.asarray(leaf), next(placed)), tree)

    def batch(self, batch: Any) -> Any:
        """A batch, its first dimension divided, or as the task's ``batch_sharding`` says."""
        asked = getattr(self._task, "batch_sharding", None)
        spec = PartitionSpec(tuple(each for each in BATCH_AXES if each in self._axes) or None)
        found = (
            asked(batch, self.mesh)
            if asked is not None
            else jax.tree.map(lambda leaf: spec if np.ndim(leaf) else None, batch)
        )
        return self._divided("batch_sharding", found, batch)

    def shapes(self, *trees: Any) -> tuple[Any, ...]:
        params, opt_state, state = trees
        tree = jax.tree.structure(opt_state)
        moments = jax.tree.unflatten(tree, self.moments[: tree.num_leaves])
        states = jax.tree.map(lambda _: self._everywhere, state)
        return tuple(
            jax.tree.map(
                lambda leaf, placed: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed),
                *each,
            )
            for each in ((params, self._params), (opt_state, moments), (state, states))
        )

    def put(self, view: Any, sharding: Sharding | None) -> Any:
        """An array whose shards are copied from ``view`` one by one."""
        assert sharding is not None, "on a mesh every array has one"
        return jax.make_array_from_callback(view.shape, sharding, lambda at: view[at].copy())

    def fingerprint(self) -> dict[str, str]:
        return {"mesh": f"{self._words}, {self.mesh.size} devices"}


def _says(one: Any) -> bool:
    """Whether something says where an array lies."""
    return one is None or isinstance(one, PartitionSpec | NamedSharding)


Place = tuple[slice, ...]
"""Which part of an array a shard is."""

Key = tuple[tuple[int | None, int | None], ...]
"""The same, hashable."""


def shards_of(array: Any) -> list[tuple[Place, Any]]:
    """Return the place of each shard of an array, and the shard, once for each place. A shard is an
    array of its own: what JAX keeps of it on the host goes with it, while it would keep a host copy
    of the whole array for as long as the array lives."""
    if not isinstance(array, jax.Array):
        return [((), array)]
    found = {place_key(shard.index): shard for shard in array.addressable_shards}
    return [(shard.index, shard.data) for shard in found.values()]


def place_key(place: Any) -> Key:
    return tuple((each.start, each.stop) for each in place)


class OnGroup(OnMesh):
    """Arrays are divided among the devices of several processes; without axes, batches among all of
    them. Only rank 0 has the actor's memory: it sends each shard to the ranks that need it, and
    gets back those that only they have."""

    def __init__(self, axes: Mapping[str, int], task: Any, spec: str, group: Group) -> None:
        super().__init__(axes or {"data": len(jax.devices())}, task, spec)
        self._group = group

    def put(self, view: Any, sharding: Sharding | None) -> Any:
        assert sharding is not None, "on a mesh every array has one"
        own: dict[Key, Any] = {}
        for key, place, ranks in _owners(view.shape, sharding):
            if self._group.rank.number == 0:
                for rank in sorted(ranks - {0}):
                    self._group.send(rank, view[place])
                if 0 in ranks:
                    own[key] = view[place].copy()
            elif self._group.rank.number in ranks:
                shape = sharding.shard_shape(view.shape)
                own[key] = self._group.receive(0, shape, view.dtype)
        return jax.make_array_from_callback(view.shape, sharding, lambda at: own[place_key(at)])

    def fetch(self, array: Any, out: Any) -> None:
        """Copy an array into ``out`` of rank 0; a shard comes from the first rank that has it."""
        if not isinstance(array, jax.Array):
            out[...] = array
            return
        here = {place_key(shard.index): shard.data for shard in array.addressable_shards}
        for key, place, ranks in _owners(array.shape, array.sharding):
            first = min(ranks)
            if self._group.rank.number == first:
                numbers = np.asarray(here[key])
                if first:
                    self._group.send(0, numbers)
            elif self._group.rank.number == 0:
                shape = array.sharding.shard_shape(array.shape)
                numbers = self._group.receive(first, shape, out.dtype)
            else:
                continue
            if self._group.rank.number == 0:
                out[place] = numbers

    def fetch_all(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Copy arrays in their order: the ranks send each other their shards in it."""
        for array, view in pairs:
            self.fetch(array, view)

    def all_finite(self, arrays: Sequence[Any]) -> bool:
        """On the devices, so that all ranks say the same."""
        return all(bool(jnp.isfinite(each).all()) for each in arrays)

    def fingerprint(self) -> dict[str, str]:
        (said,) = super().fingerprint().values()
        return {"mesh": f"{said} of {self._group.rank.of} processes"}


def _owners(shape: tuple[int, ...], sharding: Sharding) -> list[tuple[Key, Place, set[int]]]:
    """Each place of an array of this shape, with the ranks that have it on their devices; in the
    same order on every rank."""
    found: dict[Key, tuple[Place, set[int]]] = {}
    for device, place in sharding.devices_indices_map(shape).items():
        found.setdefault(place_key(place), (place or (), set()))[1].add(device.process_index)
    return [(key, place, ranks) for key, (place, ranks) in found.items()]
