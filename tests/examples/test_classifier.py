"""The classifier learns: its loss on points that it has not seen falls."""

import jax

from examples.classifier import task


def test_a_few_steps_of_plain_descent_lower_the_held_out_loss():
    """No learner's points are those of the evaluation, and the gradient points downhill."""
    alone = task(32)
    params, stream = alone.init(jax.random.key(0)), alone.batches(shard=0, shards=2, seed=0)
    before, gradient = alone.evaluate(params), jax.jit(jax.grad(alone.loss))
    for _ in range(60):
        slopes = gradient(params, stream.next())
        params = jax.tree.map(lambda each, slope: each - 0.3 * slope, params, slopes)

    assert alone.evaluate(params) < 0.8 * before


def test_batches_can_be_drawn_again():
    """A stream that is restored gives the same points."""
    first, again = (task().batches(shard=1, shards=2, seed=3) for _ in range(2))
    first.next()
    again.restore(first.state())

    assert (first.next()[0] == again.next()[0]).all()
