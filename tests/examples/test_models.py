"""The models that people train: each trains, replays to the bit, and beats its lone learner."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file

from ddloco.workers.task import load_task
from tests.commands import here

ROOT = Path(__file__).parents[2]
MODELS = {"moe": "", "lora": "", "vit": "sklearn", "captions": "sklearn", "nnx_decoder": "flax"}
MODELS["gemma_text"] = "gemma"
FAST = ("lora",)
"""Of those that learn alone; a job of each is for the slow tests."""


def ddloco(*args):
    """A command's output; it must succeed."""
    done = here(*args, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def result(folder):
    """The result of a run."""
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return next(line for line in lines if line["event"] == "result")


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] * (each not in FAST)) for each in MODELS]
)
def test_it_learns(name):
    """Alone, in thirty steps of AdamW on its own batches."""
    if MODELS[name]:
        pytest.importorskip(MODELS[name])
    task = load_task(f"examples.{name}:task", {"size": "tiny"})
    params, optimizer = task.init(jax.random.key(0)), optax.adamw(1e-2)
    given = {"frozen": task.frozen()} if name == "lora" else {}

    def loss(each, batch, key):
        more = {"key": key} if name == "nnx_decoder" else {}
        found = task.loss(each, batch, **given, **more)
        return found[0] if isinstance(found, tuple) else found

    @jax.jit
    def step(each, moments, batch, key):
        value, gradient = jax.value_and_grad(loss)(each, batch, key)
        updates, moments = optimizer.update(gradient, moments, each)
        return optax.apply_updates(each, updates), moments, value

    moments, losses = optimizer.init(params), []
    stream = task.batches(shard=0, shards=2, seed=0)
    place = stream.state()
    first = stream.next()
    stream.restore(place)
    assert all(map(np.array_equal, jax.tree.leaves(first), jax.tree.leaves(stream.next())))
    for i in range(30):
        params, moments, value = step(params, moments, stream.next(), jax.random.key(i))
        losses.append(float(value))
    assert losses[-1] < losses[0] - 0.1
    assert task.tokens(stream.next()) > 0
    own = task.batches(shard=0, shards=2, seed=0, batch=3).next()
    assert len(jax.tree.leaves(own)[0]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_job_replays_and_beats_its_lone_learner(name, tmp_path):
    """Three learners see three times as much as one in as many steps."""
    if MODELS[name]:
        pytest.importorskip(MODELS[name])
    more = []
    if name == "lora":
        base = tmp_path / "base"
        ddloco("run", "examples/quickstart.toml", "--dir", base, "--set", "job.steps=100")
        more = [f"--set=task.base={base / 'model' / 'model.safetensors'}"]
    job, folder, lone = ROOT / "examples" / f"{name}.toml", tmp_path / "run", tmp_path / "lone"
    ddloco("run", job, "--dir", folder, *more)
    ddloco("run", job, "--dir", lone, "--set=job.method=lone", *more)
    assert result(folder)["held_out_loss"] < result(lone)["held_out_loss"]
    assert "identical" in ddloco("replay", folder)


def test_only_the_adapters_travel():
    """Of LoRA, the parameters are a twelfth of the model; at first they change nothing."""
    task = load_task("examples.lora:task", {"size": "small", "rank": 8})
    params, frozen = task.init(jax.random.key(1)), task.frozen()
    sent, whole = (sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) for tree in (params, frozen))
    assert sent == 131_072
    assert sent * 12 < whole
    same = jax.tree.map(jnp.array_equal, task.adapted(params, frozen), frozen)
    assert all(jax.tree.leaves(same))


def test_a_base_is_read_from_a_model_file(tmp_path):
    """As a run saves it, with the names of its tensors."""
    from safetensors.numpy import save_file

    from examples.lora import named

    task = load_task("examples.lora:task", {"size": "tiny"})
    saved = {name: np.asarray(leaf) + 1 for name, leaf in named(task.frozen()).items()}
    save_file(saved, tmp_path / "base.safetensors")
    other = load_task(
        "examples.lora:task", {"size": "tiny", "base": str(tmp_path / "base.safetensors")}
    )
    assert all(np.array_equal(saved[name], leaf) for name, leaf in named(other.frozen()).items())
    assert load_file(tmp_path / "base.safetensors").keys() == saved.keys()


def test_experts_are_chosen_evenly_at_first_and_two_for_each_byte():
    """The unevenness of a new router is nearly 1; a router that always chooses the same is 8/2."""
    from examples.moe import experts

    task = load_task("examples.moe:task", {"size": "tiny"})
    params = task.init(jax.random.key(0))["blocks"]["0"]["experts"]
    x = jax.random.normal(jax.random.key(1), (4, 16, 32))
    out, uneven = experts(params, x, 2)
    assert out.shape == x.shape
    assert float(uneven) == pytest.approx(1, abs=0.1)
    stuck = {**params, "router": jnp.zeros((32, 8)).at[:, :2].set(99.0), "norm": jnp.ones(32)}
    _, uneven = experts(stuck, jnp.ones((4, 16, 32)), 2)
    assert float(uneven) == pytest.approx(4, abs=0.1)


@pytest.mark.slow
def test_a_gan_has_two_optimizers():
    """The loss and the optimizer of the page about own tasks: both parts move, each by its own."""

    class Gan:
        def generate(self, params, key):
            return jax.random.normal(key, (64, 1)) * params["scale"] + params["shift"]

        def judge(self, params, x):
            return (x * params["w"] + params["b"]).sum(-1)

        def loss(self, params, batch, key):
            made = self.generate(params["generator"], key)
            held = jax.lax.stop_gradient
            real, fake = (
                self.judge(params["critic"], batch),
                self.judge(params["critic"], held(made)),
            )
            critic = jnp.mean(jax.nn.softplus(-real) + jax.nn.softplus(fake))
            generator = jnp.mean(jax.nn.softplus(-self.judge(held(params["critic"]), made)))
            return critic + generator, {"critic": critic, "generator": generator}

        def optimizer(self):
            each = {"critic": optax.adam(4e-2, b1=0.5), "generator": optax.adam(1e-2, b1=0.5)}
            return optax.partition(each, {"critic": "critic", "generator": "generator"})

    task = Gan()
    params = {
        "generator": {"scale": jnp.ones(1), "shift": jnp.zeros(1)},
        "critic": {"w": jnp.zeros(1), "b": jnp.zeros(1)},
    }
    optimizer = task.optimizer()
    state = optimizer.init(params)
    for i in range(200):
        key = jax.random.key(i)
        real = 3.0 + jax.random.normal(key, (64, 1))
        gradient = jax.grad(lambda each: task.loss(each, real, key)[0])(params)  # noqa: B023
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    assert float(params["generator"]["shift"][0]) > 1
