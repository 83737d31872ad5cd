"""What a task's loss is given besides parameters and batch."""

import jax
import numpy as np
import pytest

from ddloco.workers.task import TaskError, loss_takes
from ddloco.workers.task_loss import TaskLoss
from tests.ddloco.workers.test_server import Desk, arena
from tests.tasks import Keyed, Misnamed, Regression

__all__ = ["arena"]


class Said:
    """A task that shows the key that it was given."""

    def loss(self, params, batch, key):
        """The key's numbers."""
        return jax.random.key_data(key)


def key_of(seed, shard, drawn):
    """The numbers of the key of one batch."""
    loss = TaskLoss(Said(), "a:task", seed, shard)
    return tuple(np.asarray(loss(None, None, loss.number(drawn))).tolist())


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
        "argument: 'dropout_rng'; want loss(params, batch), and key if it needs them"
    )


def test_a_learner_that_returns_has_the_keys_that_it_would_have_had(arena):
    """Its steps begin at 1 again; the number of the batch in the shard does not."""
    donor = Desk(arena, task="tests.tasks:keyed")
    donor.begin()
    steps = [donor.train() for _ in range(3)]
    state, cursor = donor.state(), donor.trainer._last.cursor
    taker = Desk(arena, task="tests.tasks:keyed")
    taker.ask(taker.installing(state))

    assert donor.train() == taker.train(skipped=3, cursor=cursor)
    assert donor.train() == taker.train()
    assert 3 == len({loss for loss, _, _ in steps})


def test_without_the_number_of_the_batch_it_would_not(arena):
    """The test above can fail: the key is in the result."""
    donor = Desk(arena, task="tests.tasks:keyed")
    donor.begin()
    state = donor.state() if donor.train() else None
    taker = Desk(arena, task="tests.tasks:keyed")
    taker.ask(taker.installing(state))
    taker.trainer._leave_out(1, b"")
    taker.trainer._drawn = 0

    assert donor.train() != taker.train()
