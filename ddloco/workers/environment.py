"""The environment of a worker process: part of its fingerprint, so it is built, not inherited."""

import re
from collections.abc import Iterator, Mapping

from ddloco.config.job import Worker

HASH_SEED = "PYTHONHASHSEED"
"""By default Python chooses a new seed in every process, which changes the iteration order of sets
of strings: a task that builds a vocabulary from a set would have a different one in each worker.
Workers get 0."""

FINGERPRINTED = (
    "NPROC", "XLA_", "JAX_", "OMP_", "OPENBLAS_", "MKL_", "BLIS_", "NUMEXPR_", "CUDA_", "TF_",
    HASH_SEED,
)  # fmt: skip
"""Variables with these prefixes can change arithmetic, or the order of what a task builds."""

ENTRY = "env."
"""The prefix of environment variables among a fingerprint's entries."""

REPLAYED = frozenset({
    "NPROC", HASH_SEED, "XLA_FLAGS",
    "JAX_PLATFORMS", "JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION", "JAX_DEFAULT_PRNG_IMPL",
    "JAX_NUMPY_DTYPE_PROMOTION", "JAX_THREEFRY_PARTITIONABLE", "JAX_DEFAULT_DTYPE_BITS",
    "JAX_DISABLE_JIT", "JAX_DISABLE_MOST_OPTIMIZATIONS", "JAX_NUM_CPU_DEVICES",
    "OMP_NUM_THREADS", "OMP_DYNAMIC", "OMP_SCHEDULE", "OMP_PROC_BIND",
    "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE",
    "MKL_NUM_THREADS", "MKL_CBWR", "MKL_DYNAMIC", "MKL_ENABLE_INSTRUCTIONS",
    "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMEXPR_MAX_THREADS",
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
    "TF_CUDNN_DETERMINISTIC", "TF_DETERMINISTIC_OPS", "TF_ENABLE_ONEDNN_OPTS",
})  # fmt: skip
"""The variables that a replay takes from a tape: they change arithmetic and name no files. Other
variables with the same prefixes say where to read programs or write files; a tape must not set
them."""

VALUE = re.compile(r"[A-Za-z0-9_.,:;=+ -]{0,4096}")
"""Allowed values of variables from a tape: no NUL byte, with which no process can be started, and
no slash, because several XLA flags name a file or a folder."""


def worker_environment(
    base: Mapping[str, str], worker: Worker, recorded: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables for a worker: this process's, and the job file's.

    Args:
        base: this process's environment.
        worker: ``[worker]`` of the job file: threads (NPROC) and more.
        recorded: a tape's fingerprint; its variables that are in ``REPLAYED`` replace everything
            that can change arithmetic.
    """
    env = dict(base)
    env[HASH_SEED] = "0"
    if recorded is None:
        env["NPROC"] = str(worker.threads)
        env.update(worker.env)
    else:
        for name in [name for name in env if name.startswith(FINGERPRINTED)]:
            if name != HASH_SEED:
                del env[name]
        env.update(_taken(base, worker, recorded))
    return env


def _taken(
    base: Mapping[str, str], worker: Worker, recorded: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """The variables of a tape that its replay uses: harmless ones, and those with the same value in
    the job file or in this process. The replay reports the others as differences."""
    for entry, value in recorded.items():
        name = entry.removeprefix(ENTRY)
        if not entry.startswith(ENTRY):
            continue
        harmless = name in REPLAYED and VALUE.fullmatch(value) is not None
        same = value in (worker.env.get(name), base.get(name))
        if harmless or (same and name.startswith(FINGERPRINTED)):
            yield name, value


def fingerprinted(env: Mapping[str, str]) -> dict[str, str]:
    """The entries of a fingerprint that come from an environment."""
    return {f"{ENTRY}{name}": env[name] for name in sorted(env) if name.startswith(FINGERPRINTED)}
