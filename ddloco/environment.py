"""The environment of a worker process: part of its fingerprint, so it is built, not inherited."""

import os
from collections.abc import Mapping
from pathlib import Path

from ddloco.config import Worker

FINGERPRINTED = ("NPROC", "XLA_", "JAX_", "OMP_", "CUDA_", "TF_")
"""Variables with these beginnings can change arithmetic."""

ENTRY = "env."
"""Their prefix among a fingerprint's entries."""


def worker_environment(
    base: Mapping[str, str], worker: Worker, recorded: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables for a worker: ours, the job file's, and the folder that tasks come from.

    Args:
        base: this process's environment.
        worker: ``[worker]`` of the job file: threads (NPROC) and more.
        recorded: a tape's fingerprint; its variables replace everything that can change
            arithmetic.
    """
    env = dict(base)
    if recorded is None:
        env["NPROC"] = str(worker.threads)
        env.update(worker.env)
    else:
        for name in [name for name in env if name.startswith(FINGERPRINTED)]:
            del env[name]
        for entry, value in recorded.items():
            if entry.startswith(ENTRY):
                env[entry.removeprefix(ENTRY)] = value
    path = [str(Path.cwd()), *filter(None, [env.get("PYTHONPATH")])]
    env["PYTHONPATH"] = os.pathsep.join(path)
    return env


def fingerprinted(env: Mapping[str, str]) -> dict[str, str]:
    """The entries of a fingerprint that an environment gives."""
    return {f"{ENTRY}{name}": env[name] for name in sorted(env) if name.startswith(FINGERPRINTED)}
