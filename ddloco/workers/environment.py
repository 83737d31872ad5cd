"""The environment of a worker process: part of its fingerprint, so it is built, not inherited.
Where JAX has a plugin for GPUs, workers get the flags with which arithmetic there is deterministic,
and each learner of one device gets one of the host's."""

import importlib.util
import pkgutil
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ddloco.job.config import Worker
from ddloco.stage.process.run_identity import UNSET, said_of_variable

HASH_SEED = "PYTHONHASHSEED"
"""By default Python chooses a new seed in every process, which changes the iteration order of sets
of strings: a task that builds a vocabulary from a set would have a different one in each worker.
Workers get 0."""

ALLOCATOR, HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"
"""XLA allocates and frees large arrays in every step, and by default there is a page fault for each
4 KiB of them: more time than the arithmetic takes. With this, glibc asks Linux for pages of 2 MiB:
a step of 100 MB that is bound by memory takes half as long, on two busy cores."""

FLAGS = "XLA_FLAGS"

GPU_FLAGS = {"--xla_gpu_deterministic_ops": "true", "--xla_gpu_autotune_level": "0"}
"""Without these a step on a GPU gives other bits each time: atomic additions come in any order, and
XLA chooses among algorithms by timing them. A job whose step does that cannot be replayed, so it is
refused at its first step."""

PREALLOCATE, FRACTION = "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION"
"""By default JAX takes 75 % of a GPU's memory at its start, so a second worker on it has none."""

VISIBLE = "CUDA_VISIBLE_DEVICES"

DEVICES = Path("/dev")
"""Where Linux has a file for each GPU, such as ``nvidia0``."""

NUMBERED = re.compile(r"-(\d+)(\.\d+)?$")
"""The end of an actor's name, such as ``learner-3`` or, with its incarnation, ``learner-3.1``."""

ENTRY = "env."
"""The prefix, among a fingerprint's entries, of environment variables that change arithmetic."""

RECORDED = frozenset({
    "NPROC", HASH_SEED, "XLA_FLAGS",
    "JAX_PLATFORMS", "JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION", "JAX_DEFAULT_PRNG_IMPL",
    "JAX_NUMPY_DTYPE_PROMOTION", "JAX_THREEFRY_PARTITIONABLE", "JAX_DEFAULT_DTYPE_BITS",
    "JAX_DISABLE_JIT", "JAX_DISABLE_MOST_OPTIMIZATIONS", "JAX_NUM_CPU_DEVICES",
    "JAX_ALLOW_F16_REDUCTIONS", "JAX_DEFAULT_DEVICE", "JAX_ENABLE_CUSTOM_PRNG", "JAX_ENABLE_PGLE",
    "JAX_EXEC_TIME_OPTIMIZATION_EFFORT", "JAX_LEGACY_PRNG_KEY", "JAX_MEMORY_FITTING_EFFORT",
    "JAX_MEMORY_FITTING_LEVEL", "JAX_OPTIMIZATION_LEVEL", "JAX_RANDOM_SEED_OFFSET",
    "JAX_SOFTMAX_CUSTOM_JVP", "JAX_THREEFRY_GPU_KERNEL_LOWERING",
    "OMP_NUM_THREADS", "OMP_DYNAMIC", "OMP_SCHEDULE", "OMP_PROC_BIND",
    "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE",
    "MKL_NUM_THREADS", "MKL_CBWR", "MKL_DYNAMIC", "MKL_ENABLE_INSTRUCTIONS",
    "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMEXPR_MAX_THREADS",
    VISIBLE, "CUDA_DEVICE_ORDER",
    "TF_CUDNN_DETERMINISTIC", "TF_DETERMINISTIC_OPS", "TF_ENABLE_ONEDNN_OPTS",
})  # fmt: skip
"""The variables that tapes record and that a replay takes from them: they change arithmetic, or the
order of what a task builds, and name no files. No other variable is on a tape, so that no secret of
the environment is (a prefix such as ``TF_`` is that of Terraform's variables, too)."""

OF_MACHINES = frozenset({"JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", "JAX_DEFAULT_DEVICE"})
"""Variables that differ where machines of several kinds are in one job."""

FLAG_CHARS_MAX = 200
"""Of a longer value a digest is told to the other hosts."""

VALUE = re.compile(r"[A-Za-z0-9_.,:;=+ -]{0,4096}")
"""Allowed values of variables from a tape: no NUL byte, with which no process can be started, and
no slash, because several XLA flags name a file or a folder."""


def worker_environment(
    base: Mapping[str, str],
    worker: Worker,
    recorded: Mapping[str, str] | None = None,
    name: str = "",
) -> dict[str, str]:
    """Return the variables for a worker: this process's, and the job file's. Those of ``recorded``,
    a tape's fingerprint, take the place of all ``RECORDED`` ones. The number in the actor's name
    decides which GPU is its own."""
    env = dict(base)
    # Behind the others: glibc moves it, and a process finds the place of its title by the first.
    env.setdefault(ALLOCATOR, HUGE_PAGES)
    env[HASH_SEED] = "0"
    if recorded is None:
        env["NPROC"] = str(worker.threads)
        env.update(worker.env)
        if gpu_plugins():
            env[FLAGS] = _with_gpu_flags(env.get(FLAGS, ""))
            _choose_gpu(env, worker, name)
            _share_gpu(env)
        return env
    for known in RECORDED - {HASH_SEED}:
        env.pop(known, None)
    env.update(_taken(base, worker, recorded))
    if gpu_plugins():
        _find_gpu(env)
        _share_gpu(env)
    return env


def gpu_plugins() -> bool:
    """Whether a plugin of JAX for GPUs is installed; looked for without importing JAX."""
    found = importlib.util.find_spec("jax_plugins")
    places = (found and found.submodule_search_locations) or ()
    return any("cuda" in each.name or "rocm" in each.name for each in pkgutil.iter_modules(places))


def _with_gpu_flags(given: str) -> str:
    known = {flag.partition("=")[0] for flag in given.split()}
    missing = [f"{name}={value}" for name, value in GPU_FLAGS.items() if name not in known]
    return " ".join([given, *missing]).strip()


def _choose_gpu(env: dict[str, str], worker: Worker, name: str) -> None:
    """Let an actor of one device see only that one of several GPUs which its number chooses.
    Otherwise all would take the first."""
    number = NUMBERED.search(name)
    if number is None or VISIBLE in worker.env or worker.mesh or worker.processes > 1:
        return
    gpus = env[VISIBLE].split(",") if VISIBLE in env else _gpus()
    if len(gpus) > 1:
        env[VISIBLE] = gpus[int(number[1]) % len(gpus)]


def _find_gpu(env: dict[str, str]) -> None:
    """Let a replay use another GPU of this host where the one that was used is none of them."""
    used, gpus = env.get(VISIBLE, ""), _gpus()
    if gpus and used.isdecimal() and used not in gpus:
        env[VISIBLE] = gpus[int(used) % len(gpus)]


def _gpus() -> list[str]:
    found = len([each for each in DEVICES.glob("nvidia[0-9]*") if each.name[6:].isdecimal()])
    return [str(number) for number in range(found)]


def _share_gpu(env: dict[str, str]) -> None:
    """Let the workers of one host share a GPU's memory, unless the user has divided it."""
    if FRACTION not in env:
        env.setdefault(PREALLOCATE, "false")


def _taken(
    base: Mapping[str, str], worker: Worker, recorded: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the variables of a tape that its replay uses: those with a harmless value, and those
    with the same value in the job file or in this process. The replay reports the others as
    differences."""
    for entry, value in recorded.items():
        name = entry.removeprefix(ENTRY)
        if not entry.startswith(ENTRY) or name not in RECORDED:
            continue
        if VALUE.fullmatch(value) is not None or value in (worker.env.get(name), base.get(name)):
            yield name, value


def flags_of(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of JAX in which learners of one job should not differ, set or not."""
    names = [each for each in RECORDED if each.startswith(("XLA_", "JAX_"))]
    values = {each: env.get(each, UNSET) for each in sorted({*names} - OF_MACHINES)}
    return {
        f"{ENTRY}{name}": value if len(value) <= FLAG_CHARS_MAX else said_of_variable(value)
        for name, value in values.items()
    }


def fingerprinted(env: Mapping[str, str]) -> dict[str, str]:
    return {f"{ENTRY}{name}": env[name] for name in sorted(RECORDED) if name in env}
