"""Jobs whose settings are drawn at random: whatever they combine, they replay to the bit.

Each setting has tests of its own. This finds what goes wrong between two of them: a run with
snapshots diverged if the task had several options, which no test combined.
"""

import random

import pytest

from tests.processes.conftest import Job, replay
from tests.tasks import PYTREES

SEEDS = 20
FAST = 6
"""The one that every run of the tests tries: a learner and two syncers, as processes, with
snapshots."""
SNAPSHOTS_MAX = 2
"""Of so many snapshots a replay begins with each."""

TASKS = {
    "regression": "step_s = {step_s}\ndtype = '{dtype}'",
    "stateful": "step_s = {step_s}",
    "measured": "step_s = {step_s}",
    "keyed": "step_s = {step_s}",
    "wide": "step_s = {step_s}",
    "shaped": "tree = '{tree}'\nstep_s = {step_s}\ndtype = '{dtype}'",
    "straying": "shard = 1\nfirst = 10\nlast = 12\nevery = 40\nfactor = {factor}",
}
"""Their options are not in alphabetical order."""

CHOICES = {
    "job.steps": (40, 60, 80),
    "sync.interval": (4, 8, 12),
    "sync.overlap": (1, 2, 3),
    "sync.grace": (0.0, 0.5),
    "sync.pull": ("unmerged", "fresh"),
    "sync.staleness": (1, 2, 4),
    "sync.fragmentation": ("balanced", "tensor"),
    "inner.optimizer": ("adamw", "adam", "sgd"),
    "inner.warmup": (0, 5),
    "inner.clip": (0.0, 1.0),
    "outer.momentum": (0.0, 0.6, 0.9),
    "outer.merge": ("rda", "average", "median"),
    "compress.up": ("bfloat16", "int8", "int4", "e3m0", "int1"),
    "compress.down": ("float32", "bfloat16", "int8"),
    "compress.rounding": ("nearest", "stochastic"),
    "compress.feedback": ("true", "false"),
    "snapshot.every_steps": (0, 7, 15),
    "transport.kind": ("inproc", "ipc", "tcp"),
    "learner.learner-0.factor": (1.0, 3.0),
}

FAULTS = {
    "crash": "for_s = 0.5",
    "stall": "for_s = 0.4",
    "slow": "for_s = 1\nfactor = 3",
    "leave": "for_s = 0.5",
    "cut": "for_s = 0.5",
    "reset": "",
    "delay": "for_s = 1\ndelay_s = 0.05",
    "bandwidth": "for_s = 1\nmbit = 5",
}


def drawn(folder, seed):
    """A job, and the words of its command."""
    rng = random.Random(f"job {seed}")
    task, learners = rng.choice(list(TASKS)), rng.randint(1, 4)
    options = TASKS[task].format(
        step_s=rng.choice([0.0, 0.01]),
        dtype=rng.choice(["float32", "bfloat16", "float16"]),
        tree=rng.choice(list(PYTREES)),
        factor=rng.choice(["nan", "-1.0", "1000.0", "inf"]),
    )
    job = Job(
        folder,
        f"[job]\nname = 'random'\ntask = 'tests.tasks:{task}'\nlearners = {learners}\n"
        f"syncers = {rng.choice([1, 1, 2])}\n[task]\n{options}\n",
    )
    words = [f"--set={key}={rng.choice(values)}" for key, values in CHOICES.items()]
    words += [f"--set=sync.fragments={rng.randint(2, 4)}", "--set=snapshot.keep=20"]
    words += [f"--set=sync.quorum={rng.randint(1, learners)}"]
    words += data_shards(random.Random(f"data {seed}"), learners)
    if rng.random() < 0.5:
        return job, words
    (folder / "chaos.toml").write_text(
        "\n".join(fault(rng, learners) for _ in range(rng.randint(0, 4)))
    )
    return job, [*words, "--processes", f"--chaos={folder / 'chaos.toml'}"]


def data_shards(rng, learners):
    """In every other job the data shards move between learners, some of which are soon gone."""
    if rng.random() < 0.5:
        return []
    shards = learners + rng.choice([0, 1, 3])
    return [f"--set=job.shards={shards}", f"--set=elastic.gone_s={rng.choice([0.3, 300.0])}"]


def fault(rng, learners):
    """A fault of one learner in the first two seconds."""
    what, who = rng.choice(list(FAULTS)), rng.randrange(learners)
    at_s = round(rng.uniform(0.0, 2.0), 2)
    return f"[[fault]]\nwhat = '{what}'\nwho = 'learner-{who}'\nat_s = {at_s}\n{FAULTS[what]}\n"


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.slow] * (seed != FAST)) for seed in range(SEEDS)]
)
def test_a_random_job_replays(tmp_path, seed):
    """It ends well, and its replays from the beginning and from its snapshots are identical."""
    job, words = drawn(tmp_path, seed)
    done = job.run(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    snapshots = sorted((job.run_folder / "snapshots" / "snapshots").glob("*.json"))
    begins = [f"--from={each.stem}" for each in snapshots[:SNAPSHOTS_MAX]]
    for more in ([], *([each] for each in begins)):
        replayed = replay(job.run_folder, *more)
        assert replayed.returncode == 0, (words, more, replayed.stdout, replayed.stderr)
        assert "identical" in replayed.stdout
