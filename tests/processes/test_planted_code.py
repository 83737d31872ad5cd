"""Faults planted in the code of a real task: what ``diff`` and ``replay`` say of them.

The second run follows the tapes of the first one, so that nothing but the code differs.
"""

import json
import os
import re

import jax
import pytest

from tests.commands import here
from tests.installed import DDLOCO, WORK
from tests.processes.conftest import call

TASK = """
import jax
import jax.numpy as jnp
import numpy as np

WIDTH = 8
SHARPNESS = 0.1


class Batches:
    def __init__(self, shard, seed):
        self.key, self.drawn = (seed, shard), 0

    def next(self):
        rng = np.random.default_rng([*self.key, self.drawn])
        self.drawn += 1
        x = rng.normal(size=(16, WIDTH)).astype("float32")
        return x, np.sin(x[:, :1])

    def state(self):
        return self.drawn

    def restore(self, state):
        self.drawn = state


class Net:
    def init(self, key):
        one, two = jax.random.split(key)
        return {
            "after": jax.random.normal(two, (WIDTH, 1)),
            "before": jax.random.normal(one, (WIDTH, WIDTH)),
            "scale": jnp.ones((1,)),
        }

    def loss(self, params, batch):
        x, y = batch
        hidden = jax.nn.gelu(x @ params["before"], approximate=True)
        found = SHARPNESS * params["scale"] * (hidden @ params["after"])
        return jnp.mean((found - y) ** 2)

    def batches(self, *, shard, shards, seed):
        return Batches(shard, seed)

    def tokens(self, batch):
        return len(batch[0])


def task():
    return Net()
"""

JOB = """
[job]
task = "net:task"
steps = 16
learners = 2
[sync]
fragments = 2
interval = 4
"""

OTHER_JAX = '''
"""Another version of jax, as far as a task can see: it says so, and its gelu is the exact one."""

import functools
import importlib.machinery
import sys


class Changed:
    """Loads modules of jax, and changes them."""

    def find_spec(self, name, path, target=None):
        if name not in {"jax.version", "jax.nn"}:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def changed(module):
            load(module)
            if name == "jax.version":
                module.__version__ = VERSION
            else:
                gelu = module.gelu
                module.gelu = lambda x, approximate=True: gelu(x, approximate=False)

        spec.loader.exec_module = changed
        return spec


sys.meta_path.insert(0, Changed())
'''


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A user's folder with a run in it."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "net.py").write_text(TASK)
    (folder / "job.toml").write_text(JOB)
    ran = ddloco(folder, "run", "job.toml", "--dir", "first")
    assert ran.returncode == 0, ran.stderr
    return folder


def ddloco(folder, *words, path=()):
    """Call a command in a folder; with ``path``, which is put before Python's own, as a process."""
    if not path:
        return here(*words, cwd=folder)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, path), str(WORK)])}
    return call([*DDLOCO, *words], cwd=folder, env=env)


def run_again(folder, name, path=()):
    """Run the job along the tapes of the first run, and compare the two."""
    ran = ddloco(folder, "run", "job.toml", "--schedule", "first", "--dir", name, path=path)
    assert ran.returncode == 0, ran.stderr
    compared = ddloco(folder, "diff", "first", name, "--json")
    return json.loads(compared.stdout), ddloco(folder, "diff", "first", name).stdout


@pytest.mark.slow
def test_with_nothing_changed_the_runs_are_equal(first):
    """So whatever the other tests find is what they planted."""
    found, _ = run_again(first, "same")
    assert found["same"]
    assert found["equal"] > 40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("was", "now"),
    [("approximate=True", "approximate=False"), ("SHARPNESS = 0.1", "SHARPNESS = 0.1000001")],
    ids=["gelu", "constant"],
)
def test_a_changed_line_is_shown_and_the_first_tensor_is_named(first, was, now):
    """The kind is code, with the line before and after; the replay of the first run with the
    changed task says that the arithmetic differs, in the same step."""
    [line] = [each.strip() for each in TASK.splitlines() if was in each]
    try:
        (first / "net.py").write_text(TASK.replace(was, now))
        found, said = run_again(first, f"changed-{was[:4]}")
        replayed = ddloco(first, "replay", "first", "--json")
    finally:
        (first / "net.py").write_text(TASK)
    [changed] = [each for each in found["recorded"] if each.startswith("task source: net.py")]
    assert f"| -{line}" in re.sub(r"([-+]) +", r"\1", changed)
    assert f"| +{line.replace(was, now)}" in re.sub(r"([-+]) +", r"\1", changed)
    assert {each["kind"] for each in found["first"]} == {"code"}
    assert re.search(r"differs? in (after|before|scale)", found["first"][0]["detail"]), said
    assert "cause: code" in said
    assert replayed.returncode == 1
    divergence = json.loads(replayed.stdout)["divergence"]
    assert re.search("the arithmetic differs|first tensor that differs", divergence["hint"])
    assert now in replayed.stderr.replace("\n", " ")


@pytest.mark.slow
def test_another_version_of_jax_is_named_as_the_environment(first, tmp_path):
    """It is recorded on the tapes; the task's source is the same, so it is not blamed."""
    other = f"{jax.__version__}.9"
    (tmp_path / "sitecustomize.py").write_text(OTHER_JAX.replace("VERSION", repr(other)))
    found, said = run_again(first, "other-jax", path=[tmp_path])
    assert {each["kind"] for each in found["first"]} == {"environment"}, said
    assert f"environment: jax {jax.__version__} and {other}, of learner-0" in found["recorded"]
    assert not any("code" in each or "source" in each for each in found["recorded"])
    assert re.search(r"differs? in (after|before|scale)", found["first"][0]["detail"]), said


def story(folder, was, now, *more):
    """Run along the tapes of a first run with a changed line of the task, or other settings.

    Steps are so slow that a pull is answered while the second one runs, with what the first made.
    """
    task = TASK.replace("return len(batch[0])", 'return __import__("time").sleep(0.04) or 16')
    (folder / "net.py").write_text(task)
    (folder / "job.toml").write_text(JOB.replace("interval = 4", "interval = 2\noverlap = 1"))
    assert ddloco(folder, "run", "job.toml", "--dir", "first").returncode == 0
    (folder / "net.py").write_text(task.replace(was, now))
    ran = ddloco(folder, "run", "job.toml", "--schedule", "first", "--dir", "second", *more)
    assert ran.returncode == 0, ran.stderr
    return ddloco(folder, "diff", "first", "second").stdout


@pytest.mark.slow
def test_a_tensor_that_stands_still_is_named_where_its_update_differs(tmp_path):
    """And the others are not; what was before it is called equal, and nothing after it."""
    was, now = 'x @ params["before"]', 'x @ jax.lax.stop_gradient(params["before"])'
    said = story(tmp_path, was, now)
    assert "the same parameters" not in said
    told = " ".join(said.split())
    assert re.search(r"^DIFFERENT CODE: the update of inner step 1 of learner-[01].1 ", told), said
    differs = "differs in before (after, scale equal); its loss, its batch and the parameters"
    assert f"{differs} before it are equal" in told
    assert "batches: " in said


def test_another_learning_rate_is_seen_in_the_update_and_not_in_a_loss(tmp_path):
    """The loss of a step is of the parameters before it."""
    said = story(tmp_path, "WIDTH = 8", "WIDTH = 8", "--set=inner.lr=0.002")
    assert "the same parameters" not in said
    first = "^DIFFERENT CONFIGURATION: the update of inner step 1 of learner-[01].1$"
    assert re.search(first, said, re.MULTILINE), said
    assert "how differs in " in " ".join(said.split())


SPOILING = """
import os
import optax

SPOILT_AT = int(os.environ.get("SPOILT_AT", "0"))


def spoiling(inner):
    def init(params):
        return inner.init(params), jnp.zeros((), jnp.int32)

    def spoilt(leaf, bad):
        return jnp.where(bad, jnp.nan, leaf) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    def update(gradients, state, params=None):
        updates, moments = inner.update(gradients, state[0], params)
        bad = state[1] + 1 == SPOILT_AT
        return updates, (jax.tree.map(lambda leaf: spoilt(leaf, bad), moments), state[1] + 1)

    return optax.GradientTransformation(init, update)


def task():
    Net.optimizer = lambda self: spoiling(optax.adam(1e-3))
    Net.tokens = lambda self, batch: __import__("time").sleep(0.02) or len(batch[0])
    return Net()
"""
"""An optimizer whose moments are NaN after one step of the learner that has this variable."""


@pytest.mark.slow
def test_nan_in_an_optimizer_state_is_put_down_to_its_learner_and_step(tmp_path):
    """The moments of step 10 spoil the parameters in step 11, which the loss of step 12 shows; the
    syncer refuses what the learner sends, and no other loss breaks."""
    (tmp_path / "net.py").write_text(TASK.rpartition("def task")[0] + SPOILING)
    job = JOB.replace("steps = 16", "steps = 40").replace("learners = 2", "learners = 3")
    (tmp_path / "job.toml").write_text(f'{job}[learner.learner-1.env]\nSPOILT_AT = "10"\n')
    assert ddloco(tmp_path, "run", "job.toml", "--dir", "run").returncode == 0
    said = ddloco(tmp_path, "why", "run", "loss").stdout
    assert re.search(r"the loss of learner-1.1 left its band at inner step 12 .*: nan", said), said
    # If it was ahead, a contribution that stands out had been merged before.
    assert "most suspect: learner-1.1: " in said, said
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert {"learner-1.1"} == {each["learner"] for each in log if each["event"] == "starts over"}
