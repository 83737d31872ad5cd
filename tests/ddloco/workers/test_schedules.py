"""Learning rates that follow the global step, and optimizers that adapt to the loss."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ddloco.job.config import Inner
from ddloco.workers import rpc
from ddloco.workers.rpc import span_of
from ddloco.workers.schedules import follow_global_step, with_extra_arguments, with_schedule
from ddloco.workers.task import TaskError
from tests.ddloco.workers.test_trainer import Harness, arena

__all__ = ["arena"]


def moved(harness, t):
    """How far a step at global step ``t`` moves the parameters."""
    before = harness.state().data[: harness.plan.total_bytes].view(np.float32).copy()
    harness.step += 1
    out = harness.arena.allocate(harness.plan.total_bytes)
    harness.ask(rpc.Train(harness.step, (), span_of(out), 0, b"", t))
    return float(np.abs(out.data.view(np.float32) - before).max())


def test_updates_are_scaled_by_the_global_step():
    """Whatever the optimizer counts itself; types stay what they are."""
    optimizer = optax.chain(optax.sgd(1.0), follow_global_step(lambda t: 1.0 - t / 100))
    params = {"a": jnp.ones(2), "b": jnp.ones(2, jnp.bfloat16)}
    updates, _ = optimizer.update(params, optimizer.init(params), params, global_step=75)

    assert [-0.25, -0.25] == updates["a"].tolist()
    assert jnp.bfloat16 == updates["b"].dtype


@pytest.mark.parametrize(("schedule", "half"), [("linear", 0.25), ("cosine", 0.146447)])
def test_the_schedule_of_a_job_ends_with_it(arena, schedule, half):
    """It is at zero at the last global step, however many steps the learner has taken."""
    optimizer = with_schedule(optax.sgd(1.0), Inner(schedule=schedule), 40)
    ones = {"w": jnp.ones(1)}
    scales = [
        -float(optimizer.update(ones, optimizer.init(ones), ones, global_step=t)[0]["w"][0])
        for t in (0, 30, 40)
    ]

    assert pytest.approx([1.0, half, 0.0], abs=1e-6) == scales


def test_a_step_knows_its_global_step(arena):
    """With `[inner] schedule` a learner's rate depends on it; without, it does not."""
    harness = Harness(arena, schedule="linear", optimizer="sgd", b1=0.0, lr=0.1)
    harness.begin()
    harness.train()

    assert moved(harness, 0) > 0
    assert 0 == moved(harness, 1000)


@pytest.mark.parametrize("outermost", [True, False], ids=["around", "inside"])
def test_gradients_are_accumulated_under_a_schedule(arena, monkeypatch, outermost):
    """`MultiSteps` around an optimizer that follows the global step, and inside of a chain of both,
    as the page about tasks shows them."""

    def optimizer(self):
        follows = follow_global_step(lambda t: 1.0 - t / 100)
        if outermost:
            inside = optax.chain(optax.sgd(1.0), follows)
            return optax.MultiSteps(inside, 2).gradient_transformation()
        return optax.chain(optax.MultiSteps(optax.sgd(1.0), 2).gradient_transformation(), follows)

    monkeypatch.setattr("tests.tasks.Regression.optimizer", optimizer, raising=False)
    harness = Harness(arena)
    harness.begin()
    harness.train()

    assert moved(harness, 0) > 0  # The second of two.
    assert pytest.approx([0, 0], abs=1e-7) == [moved(harness, 0), moved(harness, 100)]


def test_a_schedule_that_is_not_told_the_step_says_where_it_belongs():
    """Not `KeyError: 'global_step'`."""
    inside = optax.chain(optax.sgd(1.0), follow_global_step(lambda t: 1.0))
    several = optax.MultiSteps(inside, 2).gradient_transformation()
    optimizer = with_extra_arguments(optax.chain(several, optax.scale(1.0)))
    ones = {"w": jnp.ones(1)}

    with pytest.raises(TaskError, match="put follow_global_step last in the outermost"):
        optimizer.update(ones, optimizer.init(ones), ones, global_step=1)


def test_an_optimizer_that_takes_some_extra_arguments_gets_those():
    """Its own error says which one it lacks, as that of SAM in one step."""
    optimizer = with_extra_arguments(
        optax.contrib.sam(optax.sgd(1.0), optax.sgd(0.1), opaque_mode=True)
    )
    ones = {"w": jnp.ones(1)}
    with pytest.raises(ValueError, match="grad_fn must be provided"):
        optimizer.update(ones, optimizer.init(ones), ones, global_step=1, value=1.0)


def test_an_optimizer_may_adapt_to_the_loss(arena, monkeypatch):
    """`reduce_on_plateau` needs it as `value`; and the state of it travels."""
    adapting = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1))
    monkeypatch.setattr("ddloco.workers.trainer.inner_optimizer", lambda inner: adapting)
    donor = Harness(arena)
    donor.begin()
    for _ in range(3):
        donor.train()
    state, taker = donor.state(), Harness(arena)
    taker.ask(taker.installing(state))

    assert donor.trainer._opt_state[1].best_value < np.inf
    assert donor.train() == taker.train(skipped=3)
