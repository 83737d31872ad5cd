"""What a task carries from step to step beside its parameters: merged, or each learner's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ddloco.job.protocol.fragment_plan import is_state
from ddloco.job.protocol.messages import COUNTERS_MAX
from ddloco.workers import rpc
from ddloco.workers.rpc import span_of
from ddloco.workers.task import TaskError, load_task
from ddloco.workers.task_loss import TaskLoss
from ddloco.workers.task_state import StateLayout
from tests.ddloco.workers.test_trainer import Harness, arena
from tests.tasks import Regression, Stateful

__all__ = ["arena"]

STATEFUL = "tests.tasks:stateful"


def made(key):
    """A state with leaves of all kinds."""
    return {
        "mean": jnp.arange(3.0),
        "keys": jax.random.split(key, 2),
        "bits": jnp.arange(4, dtype=jnp.uint32),
        "half": jnp.ones((2, 2), jnp.bfloat16),
        "legacy": jax.random.key(7, impl="rbg"),
    }


def test_floats_are_merged_and_the_rest_is_local():
    """From shapes alone; keys are stored as their numbers, and are the same keys again."""
    layout = StateLayout(jax.eval_shape(made, jax.random.key(1)))
    state = made(jax.random.key(1))
    merged, local = layout.merged_of(state), layout.local_of(state)
    again = layout.joined(
        [np.asarray(each) for each in merged], [np.asarray(each) for each in local]
    )

    assert ["state:/half", "state:/mean"] == layout.names
    assert all(map(is_state, layout.names))
    assert [(each.shape, each.dtype) for each in layout.local] == [
        (each.shape, each.dtype) for each in local
    ]
    assert not any(jnp.issubdtype(each.dtype, jax.dtypes.prng_key) for each in local)
    assert jax.random.bits(again["keys"][1]) == jax.random.bits(state["keys"][1])
    assert jax.random.bits(again["legacy"]) == jax.random.bits(state["legacy"])


def test_a_task_without_a_state_has_an_empty_one():
    """Nothing is added to fragments or to moments."""
    layout = StateLayout(None)

    assert ([], [], []) == (layout.names, layout.local, layout.merged_of(None))
    assert layout.joined([], []) is None


def test_who_takes_over_a_state_goes_on_with_all_of_it(arena):
    """Statistics, counts and keys: the next steps are the same to the bit."""
    donor = Harness(arena, task=STATEFUL)
    donor.begin()
    for _ in range(3):
        donor.train()
    state, cursor = donor.state(), donor.trainer._last.cursor
    taker = Harness(arena, task=STATEFUL)
    taker.ask(taker.installing(state))

    assert donor.train() == taker.train(skipped=3, cursor=cursor)
    assert donor.train() == taker.train()
    assert {"steps": 5.0} == taker.trainer._last.metrics


def test_without_what_is_local_it_would_not(arena):
    """The test above can fail: the count and the key are among the bytes."""
    donor = Harness(arena, task=STATEFUL)
    donor.begin()
    donor.train()
    state = donor.state()
    local = donor.trainer._moments._leaves[-2:]
    assert 2 == len(donor.trainer._layout.local)
    for start, _, _ in local:
        state.data[start : start + 4] ^= 1
    taker = Harness(arena, task=STATEFUL)
    taker.ask(taker.installing(state))

    assert donor.train() != taker.train(skipped=1)


def test_a_global_fragment_replaces_what_is_merged_and_leaves_the_rest(arena):
    """The mean comes from the others, the count continues."""
    harness = Harness(arena, task=STATEFUL)
    harness.begin()
    harness.train()
    name = "state:/mean"
    fragment, index = next(
        (p, i)
        for p, leaves in enumerate(harness.plan.fragments)
        for i, leaf in enumerate(leaves)
        if leaf.name == name
    )
    start, stop = harness.plan.fragment_slice(fragment)
    at = harness.plan.tensor_offset(fragment, index) - start
    region = arena.allocate(stop - start)
    region.data[:] = harness.state().data[start:stop]
    region.data[at : at + 64].view(np.float32)[:] = 100.0
    out = arena.allocate(harness.plan.total_bytes)
    harness.ask(rpc.Train(2, (rpc.NewFragment(fragment, span_of(region)),), span_of(out), 0))
    mean = np.asarray(harness.trainer._state["mean"])

    assert (mean > 80).all()
    assert 2 == int(harness.trainer._state["steps"])


def test_learners_begin_with_keys_of_their_own(arena):
    """Two learners on two shards would else draw the same numbers."""
    losses = {}
    for shard in (0, 1):
        harness = Harness(arena, task=STATEFUL)
        harness.trainer._shard = shard
        harness.begin()
        losses[shard] = harness.train()[0]

    assert losses[0] != losses[1]


def test_the_held_out_loss_is_of_the_merged_state(arena):
    """A syncer's worker has the model's fragments, the counters of a learner as far as they are
    told and of their kind, and the rest as `init_state` makes it."""
    harness = Harness(arena, task=STATEFUL)
    harness.begin()
    harness.train()
    assert harness.trainer._last.counters == (1,)
    trained, syncer = harness.state(), Harness(arena, task=STATEFUL)
    span = rpc.Span(trained.offset, syncer.plan.total_bytes)
    scored = syncer.ask(rpc.Score(span))
    told = [syncer.ask(rpc.Score(span, each)).metrics["steps"] for each in ((7,), (2**40,), ())]
    mean = np.abs(np.asarray(harness.trainer._state["mean"])).max()

    assert told == [7, 7, 7]  # A syncer evaluates once; what is none changes nothing.
    assert scored.metrics["steps"] == 0
    assert pytest.approx(mean) == scored.metrics["mean"]
    assert 0 < mean


def test_whole_numbers_of_any_shape_are_told():
    """As many as a message holds, in the order of the leaves; a leaf that does not fit is named."""
    shapes = {
        "a": jnp.zeros((2, 3), jnp.int32), "b": jnp.zeros((), jnp.int8), "c": jnp.zeros(2),
        "d": jnp.ones(COUNTERS_MAX, jnp.int32), "e": jnp.zeros(1, jnp.uint32),
        "f": jnp.zeros(0, jnp.int32),
    }  # fmt: skip
    layout = StateLayout(shapes)
    assert layout.untold == ["d"]
    assert "evaluate gets d of the task's state" in layout.untold_said
    there = {**shapes, "a": jnp.arange(6, dtype=jnp.int32).reshape(2, 3), "b": jnp.int8(7)}
    told = [int(each) for leaf in layout.counters_of(there) for each in leaf.ravel()]
    assert told == [0, 1, 2, 3, 4, 5, 7, 0]
    for wrong in ([], told[:3], [2**40, *told[1:]]):
        assert not layout.with_counters(shapes, wrong)["a"].any()
    found = layout.with_counters(shapes, told)
    assert [each.tolist() for each in (found["a"], found["b"])] == [[[0, 1, 2], [3, 4, 5]], 7]
    assert found["d"].all()


class Changing(Stateful):
    """Returns another state than it is given."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def loss(self, params, batch, state):
        """With the change."""
        return jnp.float32(0), self.change(state)


CHANGES = [
    (lambda state: {**state, "more": 1.0}, "is another tree than init_state's"),
    (lambda state: {**state, "mean": jnp.zeros(3)}, r"'mean' is float32\[3\], .* float32\[16\]"),
    (lambda state: {**state, "steps": jnp.float32(1)}, r"'steps' is float32\[\], .* int32\[\]"),
]


@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_a_step_keeps_the_form_of_the_state(change, said):
    """What is of another shape or type is named."""
    task = Changing(change)
    loss = TaskLoss(task, "a:task", 0)

    with pytest.raises(TaskError, match=said):
        loss(None, task.init_state(jax.random.key(0)), None, None)


def test_a_loss_that_forgets_its_state_is_refused():
    """It must return it, with the loss."""

    class Forgetting(Regression):
        def loss(self, params, batch, state):
            return jnp.float32(0)

    with pytest.raises(TaskError, match=r"returns 1 values; want \(loss, state\) or"):
        TaskLoss(Forgetting(), "a:task", 0)(None, {}, None, None)


HALVES = """
from tests.tasks import Regression, Stateful
class Untaken(Regression):
    def init_state(self, key): return {}
class Absent(Regression):
    def loss(self, params, batch, state): return 0.0, state
"""


@pytest.mark.parametrize("name", ["Untaken", "Absent"])
def test_half_of_a_state_is_refused(name, tmp_path, monkeypatch):
    """When the task is loaded, in one line."""
    (tmp_path / "halves.py").write_text(HALVES)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(TaskError, match=r"a state needs both init_state\(key\) and loss\(params"):
        load_task(f"halves:{name}", {})


def test_data_parallel_jobs_have_no_state(arena):
    """Their replicas send gradients, with which no state comes."""
    harness = Harness(arena, task=STATEFUL)
    harness.begin()
    region = arena.allocate(harness.plan.total_bytes)

    with pytest.raises(TaskError, match="has a state, which data-parallel jobs cannot merge"):
        harness.ask(rpc.ComputeGradient(span_of(region), span_of(region), 1))


def test_whole_numbers_among_parameters_are_named(arena):
    """With where they belong."""
    with pytest.raises(TaskError) as error:
        Harness(arena, task="tests.tasks:counting")

    assert str(error.value) == (
        "task tests.tasks:counting: parameter 'count' is int32, which cannot be trained; return "
        "it from init_state(key) in place of init(key)"
    )
