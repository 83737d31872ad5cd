"""The devices of a worker, their cache of programs, and the fingerprint. It needs jax."""

import os
import platform
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import xxhash

from ddloco.workers.compilation_cache import (
    CACHE_DIR,
    PLACE,
    cache_folder,
    cache_settings,
    was_quiet,
)
from ddloco.workers.environment import FLAGS, GPU_FLAGS, fingerprinted


def device_fingerprint() -> dict[str, str]:
    """Everything that can change arithmetic: versions, device, processor, threads, flags."""
    device = jax.devices()[0]
    return {
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "numpy": np.__version__,
        "optax": optax.__version__,
        "device": f"{device.platform} {device.device_kind}",
        "cpu": cpu_model(),
        "x64": str(jax.config.read("jax_enable_x64")),
        **fingerprinted(os.environ),
    }


def open_devices(saying: int) -> None:
    """Open JAX's devices. XLA ends the process if it is given a flag that it does not know, and
    says so on standard error only: until that is over, standard error is a file that the fork
    server reads when the process has ended. Called once the task's module has been imported, which
    may change flags."""
    sys.stderr.flush()
    ours = os.dup(2)
    os.dup2(saying, 2)
    try:
        jax.devices()
    finally:
        sys.stderr.flush()
        os.dup2(ours, 2)
        os.close(ours)
        with suppress(OSError):  # Nobody reads it, or its disk is full.
            os.write(2, os.pread(saying, os.fstat(saying).st_size, 0))
        os.ftruncate(saying, 0)


def flags_off() -> str:
    """The end of an error about arithmetic that is not deterministic: what to change, if this is a
    GPU without the flags for that."""
    given = os.environ.get(FLAGS, "").split()
    wanted = [f"{name}={value}" for name, value in GPU_FLAGS.items()]
    if jax.devices()[0].platform != "gpu" or set(wanted) <= set(given):
        return ""
    return f"; want {FLAGS} with {' '.join(wanted)}"


def keep_compiled_programs() -> None:
    """Let JAX use the cache of compiled programs, unless the user has chosen one or it is noisy.
    Called once the task's module has been imported, which may change settings, before anything is
    compiled."""
    if PLACE in os.environ or getattr(jax.config, CACHE_DIR) is not None:
        return
    before = {name: getattr(jax.config, name) for name in cache_settings(Path())}
    try:
        folder = cache_folder(os.environ, cpu_model())
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return  # No home, or one that cannot be written to: every run compiles.
    for name, value in cache_settings(folder).items():
        jax.config.update(name, value)

    def compiled_and_loaded() -> None:
        for _ in range(2):
            jax.block_until_ready(jax.jit(lambda x: x + 1)(jnp.zeros(8)))
            jax.clear_caches()

    compiler = f"jaxlib {version('jaxlib')} {os.environ.get('XLA_FLAGS', '')}"
    if not was_quiet(folder, compiler, compiled_and_loaded):
        for name, value in before.items():
            jax.config.update(name, value)


def cpu_model() -> str:
    """The processor's name, and a digest of its instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    known: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        known.setdefault(key.strip(), value.strip())
    isa = xxhash.xxh3_64_hexdigest(known.get("flags", known.get("Features", "")).encode())
    return f"{known.get('model name', platform.machine())} isa-{isa[:8]}"
