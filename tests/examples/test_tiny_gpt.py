"""The demonstration task: honest data, exact resumption, and something to learn."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from ddloco.workers.task import load_task
from examples import tiny_gpt

ROOT = Path(tiny_gpt.__file__).parents[1]

TWENTY_STEPS = """
import hashlib, jax
from examples.tiny_gpt import task
alone = task("tiny")
params = jax.jit(alone.init)(jax.random.key(0))
batches = alone.batches(shard=0, shards=2, seed=0)
step = jax.jit(lambda p, b: jax.tree.map(lambda x, g: x - 0.1 * g, p, jax.grad(alone.loss)(p, b)))
for _ in range(20):
    params = step(params, batches.next())
print(hashlib.sha256(b"".join(x.tobytes() for x in jax.tree.leaves(params))).hexdigest())
"""


@pytest.fixture(scope="module")
def task():
    """The smallest size, found as a job file would find it."""
    return load_task("examples.tiny_gpt:task", {"size": "tiny"})


def test_held_out_files_are_not_trained_on():
    """Training and held-out text share no file, and the order never changes."""
    training, held_out = tiny_gpt.corpus()

    assert training
    assert held_out
    assert not set(training) & set(held_out)
    assert list(training) == sorted(training, key=lambda path: path.as_posix())
    assert 0.02 < tiny_gpt.text(held_out=True).size / tiny_gpt.text(held_out=False).size < 0.2


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_shards_are_disjoint_and_complete(task, shards):
    """The learners' stretches follow one another and make up the whole text."""
    stretches = [task.batches(shard=m, shards=shards, seed=0).stretch for m in range(shards)]

    np.testing.assert_array_equal(np.concatenate(stretches), tiny_gpt.text(held_out=False))


def test_batches_resume_exactly(task):
    """A stream put back to an earlier state gives the same batches again."""
    stream = task.batches(shard=1, shards=3, seed=5)
    stream.next()
    state = stream.state()
    expected = [stream.next() for _ in range(3)]

    other = task.batches(shard=1, shards=3, seed=5)
    other.restore(state)

    np.testing.assert_array_equal(expected, [other.next() for _ in range(3)])
    assert stream.state() == other.state() == state + 3


def test_batches_differ_by_seed_shard_and_position(task):
    """No two streams, and no two batches of a stream, are the same."""
    keys = [(0, 0), (0, 1), (1, 0)]
    streams = [task.batches(shard=shard, shards=2, seed=seed) for seed, shard in keys]

    drawn = [stream.next() for stream in (*streams, *streams)]

    assert len(drawn) == len({batch.tobytes() for batch in drawn})
    assert drawn[0].shape == (4, 33)
    assert drawn[0].dtype == np.uint8
    assert task.tokens(drawn[0]) == 128


def test_parameters_have_readable_names():
    """The small size is a model of 0.4 to 1 M parameters with paths like blocks/0/attn/qkv."""
    shapes = jax.eval_shape(tiny_gpt.task().init, jax.random.key(0))

    leaves = jax.tree_util.tree_leaves_with_path(shapes)
    names = ["/".join(str(key.key) for key in path) for path, _ in leaves]
    assert {"blocks/0/attn/qkv", "blocks/1/mlp/up", "embed/token", "embed/position"} <= set(names)
    assert 400_000 < sum(leaf.size for _, leaf in leaves) < 1_000_000


def test_the_future_is_not_seen(task):
    """A byte's scores do not depend on the bytes after it."""
    params = task.init(jax.random.key(0))
    tokens = np.arange(32)[None]
    changed = np.where(np.arange(32) < 20, tokens, 7)

    one, other = (tiny_gpt.logits(params, t, task.size) for t in (tokens, changed))

    np.testing.assert_allclose(one[:, :20], other[:, :20], atol=1e-5)
    assert not np.allclose(one[:, 20:], other[:, 20:], atol=1e-3)


def test_the_loss_starts_at_chance_and_falls(task):
    """Sixty steps bring the held-out loss from ln 256 to well below it."""
    params = task.init(jax.random.key(0))
    optimizer = optax.adam(1e-2)
    moments = optimizer.init(params)
    batches = task.batches(shard=0, shards=1, seed=0)

    @jax.jit
    def step(params, moments, batch):
        updates, moments = optimizer.update(jax.grad(task.loss)(params, batch), moments)
        return optax.apply_updates(params, updates), moments

    before = task.evaluate(params)
    for _ in range(60):
        params, moments = step(params, moments, batches.next())

    assert before == pytest.approx(np.log(256), abs=0.1)
    assert task.evaluate(params) < 3.5


@pytest.mark.slow
def test_two_processes_agree_to_the_last_bit():
    """With NPROC=1, twenty steps in two processes give the same bytes."""
    environment = os.environ | {"NPROC": "1", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", TWENTY_STEPS]
    runs = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
        for _ in range(2)
    ]

    one, other = (run.communicate(timeout=120)[0] for run in runs)

    assert len(one) == 65
    assert one == other
