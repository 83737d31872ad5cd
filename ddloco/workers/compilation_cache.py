"""Compiled programs on disk, so that only the first run of a task on a machine compiles it. JAX's
keys name the program, flags, devices and compiler, so it cannot change bits; each kind of processor
has a folder of its own. On some processors XLA rejects what it has compiled itself, and prints an
error for every program (jax-ml/jax#38445), so one small program is tried first."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import xxhash

PLACE = "JAX_COMPILATION_CACHE_DIR"
"""JAX's own variable. Where it is set, the user has chosen a place, and limits it."""

CACHE_DIR = PLACE.lower()
"""The same as a name in JAX's configuration."""

CACHE_BYTES_MAX = 2 * 2**30
"""The size of the cache; the programs that were not used for the longest time are deleted."""


def cache_folder(env: Mapping[str, str], processor: str) -> Path:
    """The folder for programs of this user that were compiled for a ``processor``."""
    said = env.get("XDG_CACHE_HOME", "")
    home = Path(said) if said.startswith("/") else Path.home() / ".cache"
    return home / "ddloco" / "compiled" / xxhash.xxh3_64_hexdigest(processor.encode())


def cache_settings(folder: Path) -> dict[str, str | int]:
    return {
        CACHE_DIR: str(folder),
        "jax_compilation_cache_max_size": CACHE_BYTES_MAX,
        "jax_persistent_cache_min_compile_time_secs": 0,
    }


def was_quiet(folder: Path, compiler: str, load: Callable[[], object]) -> bool:
    """Whether ``load``, which compiles and loads a program, prints nothing, or printed nothing when
    another worker called it: an empty file in the folder remembers that. Another compiler is tried
    again."""
    known = folder / f"quiet-{xxhash.xxh3_64_hexdigest(compiler.encode())}"
    if known.exists():
        return True
    quiet = is_quiet(load)
    if quiet:
        with suppress(OSError):  # The next worker tries again.
            known.touch()
    return quiet


def is_quiet(load: Callable[[], object]) -> bool:
    """Whether ``load`` prints nothing to standard error, neither from Python nor from a library."""
    with tempfile.TemporaryFile() as file:
        with _errors_to(file):
            load()
        return file.tell() == 0


@contextmanager
def _errors_to(file: IO[bytes]) -> Iterator[None]:
    kept = os.dup(2)
    try:
        os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
