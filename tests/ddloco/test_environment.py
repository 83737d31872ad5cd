"""The environment of a worker: from the job file or from a tape, and nothing else."""

import os
from pathlib import Path

from ddloco.config import Worker
from ddloco.environment import ENTRY, FINGERPRINTED, fingerprinted, worker_environment

BASE = {"PATH": "/bin", "NPROC": "8", "XLA_FLAGS": "--old", "HOME": "/root"}


def test_the_job_file_decides_the_threads():
    """NPROC comes from the job file, whatever this process inherited."""
    env = worker_environment(BASE, Worker(threads=2))

    assert env["NPROC"] == "2"
    assert (env["PATH"], env["HOME"]) == ("/bin", "/root")


def test_the_job_files_variables_are_added():
    """``env`` of the job file wins over what was inherited."""
    env = worker_environment(BASE, Worker(env={"XLA_FLAGS": "--new", "MINE": "1"}))

    assert (env["XLA_FLAGS"], env["MINE"]) == ("--new", "1")


def test_the_base_is_not_changed():
    """Building an environment touches nobody else's."""
    base = dict(BASE)

    worker_environment(base, Worker(env={"A": "1"}), {f"{ENTRY}NPROC": "4"})

    assert base == BASE


def test_tasks_are_found_where_the_command_was_given(tmp_path, monkeypatch):
    """The current folder comes first on the path, what was there stays behind it."""
    monkeypatch.chdir(tmp_path)

    assert worker_environment({}, Worker())["PYTHONPATH"] == str(Path.cwd())
    env = worker_environment({"PYTHONPATH": "/lib"}, Worker())
    assert env["PYTHONPATH"] == os.pathsep.join([str(tmp_path), "/lib"])


def test_a_recorded_fingerprint_replaces_all_that_changes_arithmetic():
    """In a replay nothing inherited, and nothing of today's job file, changes a bit."""
    base = {**BASE, "OMP_NUM_THREADS": "8", "JAX_ENABLE_X64": "1"}
    recorded = {f"{ENTRY}NPROC": "1", f"{ENTRY}XLA_FLAGS": "--then", "jax": "0.10"}

    env = worker_environment(base, Worker(threads=5, env={"XLA_FLAGS": "--now"}), recorded)

    assert fingerprinted(env) == {f"{ENTRY}NPROC": "1", f"{ENTRY}XLA_FLAGS": "--then"}
    assert "jax" not in env
    assert env["PATH"] == "/bin"


def test_a_fingerprint_holds_what_changes_arithmetic_in_order_of_names():
    """Only the variables that matter, sorted, each under its prefix."""
    env = {f"{name}X": "1" for name in reversed(FINGERPRINTED)} | {"HOME": "/", "MY_XLA_": "x"}

    entries = fingerprinted(env)

    assert list(entries) == sorted(f"{ENTRY}{name}X" for name in FINGERPRINTED)
    assert set(entries.values()) == {"1"}


def test_what_was_recorded_is_built_again():
    """A worker started from its own fingerprint has that fingerprint."""
    worker = Worker(threads=3, env={"XLA_FLAGS": "--a", "TF_X": "1"})
    recorded = fingerprinted(worker_environment(BASE, worker))

    again = worker_environment({"NPROC": "64", "CUDA_X": "1"}, Worker(), recorded)

    assert fingerprinted(again) == recorded
