"""The environment of a worker: from the job file or from a tape, and nothing else."""

import pytest

from ddloco.job.config import Worker
from ddloco.workers import environment
from ddloco.workers.environment import (
    ALLOCATOR,
    ENTRY,
    FLAGS,
    FRACTION,
    HASH_SEED,
    PREALLOCATE,
    RECORDED,
    VISIBLE,
    fingerprinted,
    flags_of,
    worker_environment,
)

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


def test_strings_hash_alike_in_every_worker():
    """Whatever this process inherited; a job file may choose another seed, for all workers."""
    base = {**BASE, HASH_SEED: "77"}
    assert "0" == worker_environment(base, Worker())[HASH_SEED]
    chosen = worker_environment(base, Worker(env={HASH_SEED: "5"}))
    assert "5" == chosen[HASH_SEED]
    assert "5" == worker_environment(base, Worker(), fingerprinted(chosen))[HASH_SEED]


def test_workers_ask_for_huge_pages():
    """Unless somebody has set the allocator otherwise; a replay does, too, and no tape has it."""
    env = worker_environment(BASE, Worker())
    assert env[ALLOCATOR] == "glibc.malloc.hugetlb=1"
    assert worker_environment(BASE, Worker(), fingerprinted(env))[ALLOCATOR] == env[ALLOCATOR]
    assert worker_environment({**BASE, ALLOCATOR: "mine"}, Worker())[ALLOCATOR] == "mine"
    assert worker_environment(BASE, Worker(env={ALLOCATOR: "own"}))[ALLOCATOR] == "own"
    assert list(BASE) == list(env)[: len(BASE)], "a process finds the place of its title by them"


def with_plugin(folder, monkeypatch):
    """Let JAX seem to have a plugin for GPUs."""
    (folder / "jax_plugins" / "xla_cuda13").mkdir(parents=True)
    (folder / "jax_plugins" / "xla_cuda13" / "__init__.py").touch()
    monkeypatch.syspath_prepend(folder)


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """A function that makes a host with so many GPUs."""
    with_plugin(tmp_path, monkeypatch)

    def make(count):
        folder = tmp_path / f"dev{count}"
        folder.mkdir()
        for each in ["nvidiactl", "nvidia-uvm", "nvidia0x", *[f"nvidia{n}" for n in range(count)]]:
            (folder / each).touch()
        monkeypatch.setattr(environment, "DEVICES", folder)

    return make


@pytest.mark.parametrize(
    ("name", "base", "worker", "sees"),
    [
        ("learner-1.1", {}, Worker(), "1"),
        ("learner-6", {}, Worker(), "2"),
        ("learner-5.2", {VISIBLE: "2,3"}, Worker(), "3"),
        ("learner-5.2", {VISIBLE: "2"}, Worker(), "2"),
        ("syncer.1", {}, Worker(), None),
        ("node-7-b.1", {}, Worker(), None),
        ("learner-1.1", {}, Worker(mesh={"data": 4}), None),
        ("learner-1.1", {}, Worker(processes=2), None),
        ("learner-1.1", {VISIBLE: "3"}, Worker(env={VISIBLE: "0,1"}), "0,1"),
    ],
)
def test_each_learner_of_a_host_has_a_gpu_of_its_own(gpus, name, base, worker, sees):
    """By its number; unless it uses several, or the job file says which."""
    gpus(4)
    assert worker_environment(base, worker, name=name).get(VISIBLE) == sees


def test_with_one_gpu_there_is_nothing_to_choose(gpus):
    """All learners have the same environment, and are forked from one process."""
    gpus(1)
    first, second = (worker_environment({}, Worker(), name=f"learner-{n}.1") for n in (0, 1))
    assert first == second
    assert VISIBLE not in first


@pytest.mark.parametrize(
    ("count", "used", "sees"),
    [(4, "3", "3"), (2, "3", "1"), (0, "3", "3"), (2, "GPU-7f", "GPU-7f")],
)
def test_a_replay_finds_a_gpu_among_fewer(gpus, count, used, sees):
    """Which one of a kind it is does not change the arithmetic."""
    gpus(count)
    assert worker_environment({}, Worker(), {f"{ENTRY}{VISIBLE}": used})[VISIBLE] == sees


def test_arithmetic_on_gpus_is_deterministic_unless_the_user_says_otherwise(tmp_path, monkeypatch):
    """Where JAX has a plugin for GPUs; a replay takes the flags from the tape."""
    base = {"PATH": "/bin"}
    assert FLAGS not in worker_environment(base, Worker())
    with_plugin(tmp_path, monkeypatch)

    env = worker_environment(base, Worker())
    assert env[FLAGS] == "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"
    assert env[PREALLOCATE] == "false"
    own = {FLAGS: "--mine --xla_gpu_deterministic_ops=false", FRACTION: "0.4"}
    env = worker_environment(base, Worker(env=own))
    assert env[FLAGS] == f"{own[FLAGS]} --xla_gpu_autotune_level=0"
    assert PREALLOCATE not in env
    replayed = worker_environment(base, Worker(), {f"{ENTRY}{FLAGS}": "--then"})
    assert (replayed[FLAGS], replayed[PREALLOCATE]) == ("--then", "false")


def test_flags_are_told_to_other_hosts_set_or_not():
    """Those of JAX, but for what differs between machines; a long value as a digest."""
    told = flags_of({"XLA_FLAGS": "--a=b", "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "x" * 300})
    assert (told["env.XLA_FLAGS"], told["env.JAX_DISABLE_JIT"]) == ("--a=b", "not set")
    assert told["env.JAX_ENABLE_X64"].startswith("sha256 ")
    assert not {"env.JAX_PLATFORMS", "env.NPROC", "env.CUDA_VISIBLE_DEVICES"} & set(told)


def test_the_base_is_not_changed():
    """Building an environment leaves the one that it is built from as it is."""
    base = dict(BASE)

    worker_environment(base, Worker(env={"A": "1"}), {f"{ENTRY}NPROC": "4"})

    assert base == BASE


def test_a_recorded_fingerprint_replaces_all_that_changes_arithmetic():
    """In a replay nothing inherited, and nothing of today's job file, changes a bit."""
    base = {**BASE, "OMP_NUM_THREADS": "8", "JAX_ENABLE_X64": "1"}
    recorded = {f"{ENTRY}NPROC": "1", f"{ENTRY}XLA_FLAGS": "--then", "jax": "0.10"}

    env = worker_environment(base, Worker(threads=5, env={"XLA_FLAGS": "--now"}), recorded)

    told = {f"{ENTRY}NPROC": "1", f"{ENTRY}XLA_FLAGS": "--then", f"{ENTRY}{HASH_SEED}": "0"}
    assert fingerprinted(env) == told
    assert "jax" not in env
    assert env["PATH"] == "/bin"


def test_a_fingerprint_holds_what_changes_arithmetic_in_order_of_names():
    """Only the variables that matter, sorted, each under its prefix."""
    env = dict.fromkeys(RECORDED, "1") | {"HOME": "/", "MY_XLA_": "x"}

    entries = fingerprinted(env)

    assert list(entries) == sorted(f"{ENTRY}{name}" for name in RECORDED)
    assert set(entries.values()) == {"1"}


@pytest.mark.parametrize(
    "name", ["TF_VAR_token", "JAX_SECRET", "XLA_", "CUDA_X", "OMP_TOOL_LIBRARIES", "AWS_SECRET"]
)
def test_no_other_variable_is_on_a_tape(name):
    """A prefix does not make a variable harmless: Terraform keeps tokens in TF_VAR_ ones."""
    assert fingerprinted({name: "secret"}) == {}


def test_what_was_recorded_is_built_again():
    """A worker started from its own fingerprint has that fingerprint."""
    worker = Worker(threads=3, env={"XLA_FLAGS": "--a"})
    recorded = fingerprinted(worker_environment(BASE, worker))

    again = worker_environment({"NPROC": "64", "CUDA_VISIBLE_DEVICES": "1"}, worker, recorded)

    assert fingerprinted(again) == recorded


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_PRELOAD", "/home/me/theirs.so"),
        ("PYTHONPATH", "/home/me"),
        ("PATH", "/home/me"),
        ("JAX_COMPILATION_CACHE_DIR", "/home/me/theirs"),
        ("TF_VAR_token", "theirs"),
        ("CUDA_INJECTION64_PATH", "/home/me/theirs.so"),
        ("XLA_FLAGS", "--xla_dump_to=/home/me"),
        ("XLA_FLAGS", "--a\0b"),
        ("NPROC", "1\n2"),
        ("OMP_NUM_THREADS", "9" * 5000),
    ],
)
def test_a_tape_has_no_say_in_what_runs(name, value):
    """Names that say where programs and files are, and values that could, are not taken."""
    env = worker_environment(BASE, Worker(), {f"{ENTRY}{name}": value})

    assert env.get(name) != value


def test_what_this_process_says_itself_is_no_say_of_a_tape():
    """The folder of compiled programs is this process's own, and a flag with a path is used where
    this process has the same."""
    base = {**BASE, "JAX_COMPILATION_CACHE_DIR": "/home/me/cache", "XLA_FLAGS": "--x=/home/me"}

    env = worker_environment(base, Worker(), fingerprinted(base))

    assert fingerprinted(env) == {**fingerprinted(base), f"{ENTRY}{HASH_SEED}": "0"}
    assert env["JAX_COMPILATION_CACHE_DIR"] == "/home/me/cache"
