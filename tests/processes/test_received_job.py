"""Learners that have an address and a name only: the syncer sends the job and the task's source."""

import subprocess
import time
from contextlib import contextmanager

import pytest

from tests.commands import here
from tests.hosts.cluster import free_port
from tests.hosts.hosts import end
from tests.installed import DDLOCO

JOB = """
[job]
task = "own:task"
steps = 8
learners = 1

[sync]
fragments = 2
interval = 4
"""

OWN = """
import jax.numpy as jnp
from jax import random

from parts import deep


class Points:
    def init(self, key):
        return {"w": random.normal(key, (4,)), "v": jnp.zeros(2)}

    def loss(self, params, batch):
        return jnp.mean((params["w"] - batch) ** 2)

    def batches(self, *, shard, shards, seed):
        return deep.stream(shard)

    def tokens(self, batch):
        return 4


def task():
    return Points()
"""

DEEP = """
import numpy as np


class stream:
    def __init__(self, shard):
        self.n = shard

    def next(self):
        self.n += 1
        return np.full(4, self.n, np.float32)

    def state(self):
        return self.n

    def restore(self, n):
        self.n = n
"""


def call_in(folder, *words):
    """Run a command of ddloco in a folder to its end."""
    return here(*words, cwd=folder)


@contextmanager
def syncer(folder, *more):
    """A syncer in a folder with a job and its task; yields its address."""
    (folder / "parts").mkdir(parents=True)
    (folder / "job.toml").write_text(JOB)
    (folder / "own.py").write_text(OWN)
    (folder / "parts" / "deep.py").write_text(DEEP)
    address = f"tcp://127.0.0.1:{free_port()}"
    words = ["syncer", "job.toml", "--bind", address, "--dir", "run", "--with-parent", *more]
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            [*DDLOCO, *words],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        yield address
        assert process.wait(60) == 0, (folder / "said").read_text()
    finally:
        process.stdin.close()
        end([process])


@pytest.fixture
def empty(tmp_path):
    """The empty folder of another host."""
    (tmp_path / "there").mkdir()
    return tmp_path / "there"


def test_a_learner_in_an_empty_folder_trains_and_replays(tmp_path, empty):
    """It is told what runs, keeps it in its run folder, and a replay there finds the source."""
    with syncer(tmp_path / "here") as address:
        words = ["learner", "--connect", address, "--name", "learner-0"]
        refused = call_in(empty, *words)
        left_behind = list(empty.iterdir())
        trained = call_in(empty, *words, "--trust")
    assert refused.returncode == 2
    assert "without JOB.toml the syncer there decides what runs here" in refused.stderr
    assert not left_behind
    assert trained.returncode == 0, trained.stdout + trained.stderr
    run = empty / "runs" / "learner-0"
    kept = {str(path.relative_to(run)): path for path in run.rglob("*.py")}
    assert kept.keys() == {"source/own.py", "source/parts/deep.py"}
    assert kept["source/own.py"].read_text() == OWN
    assert "differs" not in trained.stderr
    replayed = call_in(empty, "replay", str(run))
    assert replayed.returncode in (0, 1), replayed.stderr  # The syncer's tape is not here.
    assert "identical as far as it was compared" in replayed.stdout
    kept["source/parts/deep.py"].write_text(DEEP + "# Somebody's.\n")
    tampered = call_in(empty, "replay", str(run))
    assert tampered.returncode == 2
    assert f"{run.relative_to(empty)}/source has it" in tampered.stderr


def test_with_keys_nothing_needs_to_be_trusted(tmp_path, empty):
    """The syncer proves who it is; a learner that comes back needs nobody to be told again."""
    assert call_in(tmp_path, "keys", "keys", "--learners", "1").returncode == 0
    keys = ["--keys", str(tmp_path / "keys")]
    words = [*keys, "--name", "learner-0", "--dir", "run"]
    with syncer(tmp_path / "here", *keys) as address:
        trained = call_in(empty, "learner", "--connect", address, *words)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    nobody = f"tcp://127.0.0.1:{free_port()}"
    left = call_in(empty, "learner", "--connect", nobody, *words, "--patience", "0.2")
    assert left.returncode == 75
    assert "syncer does not answer" in left.stdout


@pytest.mark.slow
def test_an_own_copy_is_used_and_the_difference_is_named(tmp_path, empty):
    """As with a job file: the host's own task trains, and the handshake warns."""
    (empty / "parts").mkdir()
    (empty / "own.py").write_text(OWN + "# Mine.\n")
    (empty / "parts" / "deep.py").write_text(DEEP)
    with syncer(tmp_path / "here") as address:
        words = ["learner", "--connect", address, "--name", "learner-0", "--dir", "run", "--trust"]
        trained = call_in(empty, *words)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert "task own:task differs: the source file own.py is " in trained.stderr
    assert (empty / "run" / "source" / "own.py").read_text() == OWN + "# Mine.\n"


def test_nobody_there_is_waited_for_with_patience(empty):
    """It says whom it waits for, and leaves with 75; --set needs a job file."""
    words = ["learner", "--connect", f"tcp://127.0.0.1:{free_port()}", "--name", "learner-0"]
    begun = time.monotonic()
    left = call_in(empty, *words, "--trust", "--patience", "1.5")
    assert left.returncode == 75
    assert "syncer does not answer at tcp://127.0.0.1" in left.stdout
    assert time.monotonic() - begun < 30
    refused = call_in(empty, *words, "--trust", "--set", "job.steps=3")
    assert refused.returncode == 2
    assert "--set job.steps=3: without JOB.toml" in refused.stderr
    assert not list(empty.iterdir())
