"""The environment of a worker process: part of its fingerprint, so it is built, not inherited."""

import re
from collections.abc import Iterator, Mapping

from ddloco.config.job import Worker

HASH_SEED = "PYTHONHASHSEED"
"""Python draws another one for every process, and with it another order of every set of strings: a
task that builds a vocabulary from a set would have another one in each worker. Workers get 0."""

FINGERPRINTED = (
    "NPROC", "XLA_", "JAX_", "OMP_", "OPENBLAS_", "MKL_", "BLIS_", "NUMEXPR_", "CUDA_", "TF_",
    HASH_SEED,
)  # fmt: skip
"""Variables with these beginnings can change arithmetic, or the order of what a task makes."""

ENTRY = "env."
"""Their prefix among a fingerprint's entries."""

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
"""The variables that a replay takes from a tape: they change arithmetic, and name no file. Others
with the same beginnings say where to read programs, or where to write: no tape decides that."""

VALUE = re.compile(r"[A-Za-z0-9_.,:;=+ -]{0,4096}")
"""What a value from a tape may consist of: no NUL byte, which ends a process before it begins, and
no slash: several XLA flags name a file or a folder."""


def worker_environment(
    base: Mapping[str, str], worker: Worker, recorded: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables for a worker: ours, and the job file's.

    Args:
        base: this process's environment.
        worker: ``[worker]`` of the job file: threads (NPROC) and more.
        recorded: a tape's fingerprint; those of its variables that are in ``REPLAYED`` replace
            everything that can change arithmetic.
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
    """The variables of a tape that its replay has too: those that can do no harm, and those that
    the job file or this process has in the same words. What is left out is told as a difference."""
    for entry, value in recorded.items():
        name = entry.removeprefix(ENTRY)
        if not entry.startswith(ENTRY):
            continue
        harmless = name in REPLAYED and VALUE.fullmatch(value) is not None
        same = value in (worker.env.get(name), base.get(name))
        if harmless or (same and name.startswith(FINGERPRINTED)):
            yield name, value


def fingerprinted(env: Mapping[str, str]) -> dict[str, str]:
    """The entries of a fingerprint that an environment gives."""
    return {f"{ENTRY}{name}": env[name] for name in sorted(env) if name.startswith(FINGERPRINTED)}
