"""What a task's loss is given besides parameters and batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ddloco.workers import rpc
from ddloco.workers.task import TaskError, loss_takes
from ddloco.workers.task_loss import TaskLoss, check_metrics, held_out
from tests.ddloco.workers.test_trainer import Harness, arena
from tests.tasks import Keyed, Misnamed, Regression

__all__ = ["arena"]


class Said:
    """A task that keeps the key that it was given."""

    def loss(self, params, batch, key):
        """No loss to speak of."""
        self.key = jax.random.key_data(key)
        return 0.0


def key_of(seed, shard, drawn):
    """The numbers of the key of one batch."""
    task = Said()
    loss = TaskLoss(task, "a:task", seed)
    loss(None, None, None, loss.number(shard, drawn))
    return tuple(np.asarray(task.key).tolist())


def test_every_batch_of_every_shard_has_its_own_key():
    """It depends on seed, shard and number, and on nothing else; `init` has another one."""
    keys = {key_of(seed, shard, n) for seed in (0, 1) for shard in (0, 1) for n in (1, 2, 3)}

    assert 12 == len(keys)
    assert key_of(1, 0, 2) == key_of(1, 0, 2)
    assert tuple(jax.random.key_data(jax.random.key(1)).tolist()) not in keys


def test_a_loss_is_given_what_it_takes():
    """A parameter called `key` is what asks for one, also with a default."""
    assert () == loss_takes(Regression(), "a:task")
    assert ("key",) == loss_takes(Keyed(), "a:task")


def test_a_loss_that_wants_something_else_is_refused():
    """When the task is loaded, in one line that says what can be had."""
    with pytest.raises(TaskError) as error:
        loss_takes(Misnamed(), "a:task")

    assert str(error.value) == (
        "task 'a:task': loss(params: Any, batch: Any, dropout_rng: Any) -> Any: missing a required "
        "argument: 'dropout_rng'; want loss(params, batch), and key, state and frozen if it "
        "needs them"
    )


def test_a_learner_that_returns_has_the_keys_that_it_would_have_had(arena):
    """Its steps begin at 1 again; the number of the batch in the shard does not."""
    donor = Harness(arena, task="tests.tasks:keyed")
    donor.begin()
    steps = [donor.train() for _ in range(3)]
    state, cursor = donor.state(), donor.trainer._last.cursor
    taker = Harness(arena, task="tests.tasks:keyed")
    taker.ask(taker.installing(state))

    assert donor.train() == taker.train(skipped=3, cursor=cursor)
    assert donor.train() == taker.train()
    assert 3 == len({loss for loss, _, _ in steps})


def test_without_the_number_of_the_batch_it_would_not(arena):
    """The test above can fail: the key is in the result."""
    donor = Harness(arena, task="tests.tasks:keyed")
    donor.begin()
    state = donor.state() if donor.train() else None
    taker = Harness(arena, task="tests.tasks:keyed")
    taker.ask(taker.installing(state))
    taker.trainer._leave_out(1, b"")
    taker.trainer._streams[taker.trainer._turn].used = 0

    assert donor.train() != taker.train()


def test_what_a_step_says_of_itself_beside_its_loss(arena):
    """The numbers of a dict that `loss` returns with the loss, as named by the task."""
    harness = Harness(arena, task="tests.tasks:measured")
    harness.begin()
    loss, _, _ = harness.train()
    metrics = harness.trainer._last.metrics

    assert ["batch", "root"] == list(metrics)
    assert 8.0 == metrics["batch"]
    assert loss**0.5 == pytest.approx(metrics["root"])


def test_an_evaluation_of_several_numbers(arena):
    """The one called `loss` is the held-out loss."""
    harness = Harness(arena, task="tests.tasks:measured")
    harness.begin()
    scored = harness.ask(rpc.Score(None))

    assert scored.loss**0.5 == pytest.approx(scored.metrics["root"])
    assert ["root"] == list(scored.metrics)
    assert (0.5, {}) == held_out("a:task", np.float32(0.5))


WRONG = [
    ([1.0], "metrics of loss: list; want a dict of named numbers"),
    ({3: 1.0}, "metrics of loss: '3' is no name of 1 to 64 printable characters"),
    ({"": 1.0}, "metrics of loss: '' is no name of 1 to 64 printable characters"),
    ({"grad": np.ones(3)}, "metrics of loss: 'grad' has the shape (3,); want a number"),
    ({str(n): 0.0 for n in range(33)}, "metrics of loss: 33 of them, at most 32"),
]


@pytest.mark.parametrize(("metrics", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_no_metrics_is_refused(metrics, said):
    """In one line that names it."""
    with pytest.raises(TaskError) as error:
        check_metrics("a:task", "loss", metrics)

    assert str(error.value) == f"task a:task: {said}"


def test_an_evaluation_without_a_held_out_loss_is_refused():
    """Its dict must say which number is the loss; jitted dicts lose the order of their names."""
    with pytest.raises(TaskError, match="evaluate returns 'accuracy'; want 'loss', the held-out"):
        held_out("a:task", {"accuracy": 1.0})


@pytest.mark.parametrize("found", ["0.5", b"1", True, np.bool_(True), (0.5, 1.0), np.ones(1), None])
def test_what_is_no_held_out_loss_is_refused(found):
    """Also what Python would make a number of."""
    with pytest.raises(
        TaskError, match=rf"evaluate returns a {type(found).__name__}; want the held"
    ):
        held_out("a:task", found)


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (jnp.zeros((8,)), r"float32 of the shape \(8,\)"),
        (jnp.int32(3), r"int32 of the shape \(\)"),
        ("low", "str"),
    ],
)
def test_a_loss_that_is_no_scalar_is_refused(loss, found):
    """The line names the method, what it returned, and what is wanted."""

    class Odd(Regression):
        def loss(self, params, batch):
            return loss

    with pytest.raises(TaskError, match=rf"^task a:task: loss returns {found}; want a scalar"):
        TaskLoss(Odd(), "a:task", 0)(None, None, None, None)


def test_a_loss_of_three_parts_is_refused():
    """It would be unclear which is which."""

    class Three(Regression):
        def loss(self, params, batch):
            return 1.0, {}, {}

    with pytest.raises(TaskError, match=r"returns 3 values; want loss or \(loss, metrics\)"):
        TaskLoss(Three(), "a:task", 0)(None, None, None, None)
