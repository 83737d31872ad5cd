"""A learner on a mesh: the same losses within rounding, and no second copy of the model."""

import jax
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from ddloco.job.config import Inner
from ddloco.job.protocol.fragment_plan import make_plan
from ddloco.stage.arrays.shared_memory import ArenaView, SharedMemory
from ddloco.workers import rpc
from ddloco.workers.placement import unshared
from ddloco.workers.rpc import span_of
from ddloco.workers.task import TaskError
from ddloco.workers.tensor_sums import packed, tensor_sums
from ddloco.workers.trainer import Trainer
from tests.tasks import Regression

MESHES = [{"data": 8}, {"fsdp": 8}, {"data": 2, "model": 4}, {"data": 2, "fsdp": 2, "model": 2}]


class Divided(Regression):
    """The regression, with its matrices divided among the devices."""

    def sharding(self, params, mesh):
        """By the axes of the mesh; ``scale`` is a number and so is on every device."""
        rows = next((axis for axis in ("fsdp", "model") if axis in mesh.shape), None)
        columns = "model" if "model" in mesh.shape and rows != "model" else None
        matrix = PartitionSpec(rows, columns)
        return {"embed": matrix, "blocks": {"0": {"w": matrix}, "1": None}, "scale": None}


class Asking(Regression):
    """One whose ``init`` says where an array lies."""

    def init(self, key):
        """Parameters that are traced, and constrained."""
        noise = iter(jax.random.split(key, 3))

        def normal(*shape):
            return jax.random.normal(next(noise), shape) / 5

        embed = jax.lax.with_sharding_constraint(normal(16, 32), PartitionSpec(None, "model"))
        blocks = {"0": {"w": normal(32, 32)}, "1": {"w": normal(32, 4)}}
        return {"embed": embed, "blocks": blocks, "scale": jax.numpy.ones(())}


class Wrong(Regression):
    """One that says nonsense about where its arrays lie."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def sharding(self, params, mesh):
        """What the test wants."""
        del params, mesh
        return self.answer


def divided():
    """A task."""
    return Divided()


def asking():
    """A task."""
    return Asking()


def wrong(answer):
    """A task whose answer is written as Python."""
    return Wrong(eval(answer))  # noqa: S307, the test's own text


class Learner:
    """A trainer in this process, and a learner's requests."""

    def __init__(self, arena, task="divided", *, mesh=None, optimizer="adamw", **options):
        self.arena = arena
        self.trainer = Trainer(ArenaView(arena.filenos()))
        spec = f"tests.ddloco.workers.test_placement:{task}"
        inner = Inner(optimizer=optimizer, lr=1e-2)
        self.prepared = self.ask(rpc.Prepare(spec, options, inner, 1, 0, 1, mesh=mesh or {}))
        self.plan = make_plan(self.prepared.leaves, fragments=3, interval=3, strategy="balanced")
        self.state_bytes = self.ask(rpc.Lay(self.plan)).state_bytes
        self.ask(rpc.CompileAhead())

    def ask(self, request):
        """Fulfil one request."""
        return self.trainer.answer(request)

    def begin(self, source):
        """Take all fragments of an array of bytes in the first step's request."""
        spans = []
        for p in range(len(self.plan.fragments)):
            start, stop = self.plan.fragment_slice(p)
            region = self.arena.allocate(stop - start)
            region.data[:] = source[start:stop]
            spans.append(rpc.NewFragment(p, span_of(region)))
        return self.step(tuple(spans))

    def step(self, overwrites=(), skip=0):
        """One step; its loss, and all parameters after it."""
        out = self.arena.allocate(self.plan.total_bytes)
        done = self.ask(rpc.Train(1, overwrites, span_of(out), skip))
        return done.loss, out.data.copy(), done.tensors

    def state(self):
        """The whole state."""
        out = self.arena.allocate(self.state_bytes)
        self.ask(rpc.CopyOut(span_of(out)))
        return out


@pytest.fixture
def arena():
    """Shared memory; and no mesh is left behind."""
    arena = SharedMemory()
    before = jax.sharding.get_mesh()
    with jax.set_mesh(jax.make_mesh((1,), ("alone",))):
        yield arena
    assert jax.sharding.get_mesh() == before
    arena.close()


def first_parameters(arena):
    """The bytes that a syncer would send."""
    alone = Learner(arena)
    out = arena.allocate(alone.plan.total_bytes)
    alone.ask(rpc.Fill(span_of(out)))
    return out.data.copy()


def run(learner, source, steps=4):
    """The losses of the first steps."""
    return [learner.begin(source)[0], *(learner.step()[0] for _ in range(steps - 1))]


@pytest.mark.parametrize(
    ("axes", "optimizer"),
    [
        *(pytest.param(each, "adamw", marks=pytest.mark.slow) for each in MESHES[:-1]),
        (MESHES[-1], "adamw"),
        (MESHES[-1], "sgd"),
    ],
    ids=str,
)
def test_losses_are_those_of_one_device_within_rounding(arena, axes, optimizer):
    """With the same bytes at the beginning; and the same again to the bit on the same mesh."""
    source = first_parameters(arena)
    alone = run(Learner(arena, optimizer=optimizer), source)
    found = run(Learner(arena, mesh=axes, optimizer=optimizer), source)
    assert found == pytest.approx(alone, rel=1e-5)
    assert found == run(Learner(arena, mesh=axes, optimizer=optimizer), source)


def test_each_device_has_its_part_only(arena):
    """Of parameters and of the optimizer's moments, which follow them."""
    learner = Learner(arena, mesh={"fsdp": 8})
    learner.begin(first_parameters(arena))
    first = jax.devices()[0]

    def held(tree):
        leaves = jax.tree.leaves(tree)
        return sum(
            shard.data.nbytes
            for leaf in leaves
            for shard in leaf.addressable_shards
            if shard.device == first
        )

    params = learner.trainer._params
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    everywhere = params["blocks"]["1"]["w"].nbytes + params["scale"].nbytes
    assert held(params) == (whole - everywhere) / 8 + everywhere
    counts = 4
    assert held(learner.trainer._opt_state) == 2 * held(params) + counts


def test_a_state_continues_on_another_mesh(arena):
    """Copied out shard by shard, installed in other shards: what is copied out again is equal."""
    donor = Learner(arena, mesh={"data": 2, "model": 4})
    donor.begin(first_parameters(arena))
    donor.step()
    state = donor.state()
    for axes in ({}, {"fsdp": 8}, {"data": 2, "model": 4}):
        taker = Learner(arena, mesh=axes)
        taker.ask(rpc.Install((span_of(state),)))
        assert (taker.state().data == state.data).all()
        loss, whole, _ = taker.step(skip=2)
        if axes == {"data": 2, "model": 4}:
            there, here, _ = donor.step()
            assert loss == there
            assert (whole == here).all()


def test_the_sums_of_tensors_do_not_depend_on_the_mesh(arena):
    """They are computed where the shards are, and are those of the whole tensors."""
    learner = Learner(arena, mesh={"data": 2, "fsdp": 2, "model": 2})
    _, _, sums = learner.begin(first_parameters(arena))
    params = jax.tree.map(np.asarray, learner.trainer._params)
    by_name = dict(zip(learner.trainer._names, jax.tree.leaves(params), strict=True))
    leaves = [by_name[leaf.name] for each in learner.plan.fragments for leaf in each]
    assert sums == packed(tensor_sums(leaves))


def test_what_init_asks_for_holds(arena):
    """Without ``sharding``, from the compiled ``init``, of which nothing is executed."""
    learner = Learner(arena, "asking", mesh={"data": 2, "model": 4})
    learner.begin(first_parameters(arena))
    specs = jax.tree.map(lambda leaf: leaf.sharding.spec, learner.trainer._params)
    assert specs["embed"] == PartitionSpec(None, "model")
    assert specs["scale"] == PartitionSpec()


def test_the_mesh_is_in_the_fingerprint(arena):
    """Another mesh adds in another order; one device has no such entry."""
    assert "mesh" not in Learner(arena).prepared.fingerprint
    found = Learner(arena, mesh={"data": 2, "model": 4}).prepared.fingerprint
    assert found["mesh"] == "data=2 model=4, 8 devices"


def test_other_numbers_of_devices_are_refused(arena):
    """With what would be right."""
    with pytest.raises(TaskError, match=r"mesh data=3 needs 3 devices, here are 8 .* set JAX_NUM"):
        Learner(arena, mesh={"data": 3})


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("{'embed': None}", "sharding"),
        ("3", "'blocks/0/w' is a int; want a PartitionSpec or None"),
        ("PartitionSpec('nowhere')", "nowhere"),
        ("{'embed': None, 'blocks': None, 'scale': PartitionSpec('data')}", "'scale'"),
    ],
)
def test_a_wrong_sharding_is_one_line(arena, answer, said):
    """It names the task, the parameter and what is wrong."""
    with pytest.raises(TaskError, match="sharding") as raised:
        Learner(arena, "wrong", mesh={"data": 8}, answer=answer)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_batch_that_cannot_be_divided_is_one_line(arena):
    """Eight rows among seven devices."""
    learner = Learner(arena, mesh={"data": 8})
    learner.trainer._placement.batch((np.ones((8, 3)), np.float32(1)))
    with pytest.raises(TaskError, match="batch_sharding"):
        learner.trainer._placement.batch((np.ones((7, 3)), np.float32(1)))


def test_a_sharding_may_be_made_by_the_task(arena):
    """A NamedSharding in place of a PartitionSpec."""
    learner = Learner(arena, mesh={"data": 8})
    mesh = learner.trainer._placement.mesh
    assert NamedSharding(mesh, PartitionSpec()) in learner.trainer._placement.leaves


@pytest.mark.parametrize("name", ["prodigy", "cocob", "dowg"])
def test_a_first_state_shares_no_memory(name):
    """Some optimizers keep the first parameters, or one array twice; a step writes into all."""
    params = {"a": jax.numpy.ones((4, 3)), "b": jax.numpy.zeros(2)}
    shared = getattr(optax.contrib, name)().init(params)
    own = unshared(shared, params)
    leaves = [*jax.tree.leaves(params), *jax.tree.leaves(own)]
    places = [each.unsafe_buffer_pointer() for each in leaves if each.size]
    assert len(set(places)) == len(places)
    assert jax.tree.all(jax.tree.map(np.array_equal, own, shared))
