"""A state saved and restored: this store, plain files, and Orbax, side by side.

One process has a model's state on the CPU (24 arrays of random float32: parameters and Adam's two
moments), saves and restores it with each in turn, several times; medians.

* Saved: seconds until it is committed, divided by those of one ``write`` and fsync of as many bytes
  to the same file system. Here that is blobs with their digests, the list of them and the manifest,
  all durable.
* Restored: seconds until the arrays are JAX's again, divided by one plain read of as many bytes.
  Here every byte is held against its digest as it is read; Orbax compares nothing.
* Orbax is its ``StandardCheckpointer`` as it comes (it compresses a little and writes in threads
  of its own), after a save and a restore that do not count. It is no dependency: where it is not
  installed (``pip install orbax-checkpoint`` into the same environment), a line says so.
"""

import gc
import os
import shutil
import tempfile
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from bench_return import available_bytes
from tools import median, say

from clocks import VectorClock
from snapshot import Entry, Manifest, Part, Store

BEYOND = """\
Of 15 ms for 30 MB hashing takes 7 (BLAKE3, 4.1 GB/s), reading 3.5, as much as a plain read, \
handing 24 arrays to JAX 3, the manifest with the list of blobs 1. The aim at this size would \
need arrays that are not hashed."""

SIZES_MB = (10.0, 100.0, 1000.0)
AIMS = {"saved": "", "restored": " (aim 2)"}
STATES, LEAVES = 3, 24
TIMES, TIMES_OF_BIG = 5, 2
BIG_MB = 1000.0
ME = "learner-0.1"
MEMORY_FACTOR = 5
"""Copies of a state at once: here, in the page cache, restored twice, as bytes."""
SPARE_BYTES = 2e9

Tree = dict[str, jax.Array]


def measure(quick: bool) -> dict[str, Any]:
    """Seconds to save and to restore, by megabytes of parameters and by whom."""
    figures: dict[str, Any] = {}
    for megabytes in (1.0,) if quick else SIZES_MB:
        need, free = megabytes * 1e6 * STATES * MEMORY_FACTOR + SPARE_BYTES, available_bytes()
        if need > free:
            said = f"it needs about {need / 1e9:.0f} GB of memory, {free / 1e9:.0f} are free"
            figures[f"{megabytes:.0f}"] = f"not run: {said}"
            continue
        figures[f"{megabytes:.0f}"] = told = one_size(megabytes)
        say(f"{megabytes:.0f} MB: {told}")
    return figures


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    said: list[str] = []
    for megabytes, each in figures.items():
        if isinstance(each, str):
            said.append(f"{megabytes} MB: {each}")
            continue
        state = f"{megabytes} MB of parameters, a state of {each['state_mb']:.0f} MB"
        for what in ("saved", "restored"):
            own, plain = each["own"][what], each["plain"][what]
            words = f"{state}: {what} in {own:.2f} s, {own / plain:.1f} times plain{AIMS[what]} "
            words += f"({plain:.2f} s)"
            if "orbax" in each:
                orbax = each["orbax"][what]
                said.append(f"{words}; Orbax takes {orbax:.2f} s, {orbax / own:.1f} times as long")
            else:
                said.append(f"{words}; orbax-checkpoint is not installed")
    return said


def one_size(megabytes: float) -> dict[str, Any]:
    """All three, one after the other, on one state."""
    rng = np.random.default_rng(0)
    size = int(megabytes * 1e6) * STATES // 4 // LEAVES
    tree = {f"w{n:02d}": jnp.asarray(rng.standard_normal(size, np.float32)) for n in range(LEAVES)}
    jax.block_until_ready(tree)
    ways: dict[str, type[Way]] = {"own": Own, "plain": Plain, "orbax": Orbax}
    if find_spec("orbax") is None:
        del ways["orbax"]
    figures: dict[str, Any] = {"state_mb": size * 4 * LEAVES / 1e6}
    with tempfile.TemporaryDirectory() as folder:
        made = {who: way(Path(folder)) for who, way in ways.items()}
        took = {who: list[tuple[float, float]]() for who in ways}
        for n in range(1 + (TIMES if megabytes < BIG_MB else TIMES_OF_BIG)):
            for who, way in made.items():
                took[who].append(timed(way, f"{who}{n}", tree))
        for who, times in took.items():
            saved, restored = zip(*times[1:], strict=True)  # The first ones warm up.
            figures[who] = {"saved": median(saved), "restored": median(restored)}
    return figures


def timed(way: "Way", name: str, tree: Tree) -> tuple[float, float]:
    """Seconds to save, and to restore."""
    begun = time.perf_counter()
    way.save(name, tree)
    saved = time.perf_counter() - begun
    begun = time.perf_counter()
    restored = way.restore(name, tree)
    jax.block_until_ready(restored)
    seconds = time.perf_counter() - begun
    del restored
    gc.collect()
    way.forget(name)
    return saved, seconds


class Way:
    """One of the three.

    Args:
        folder: where.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, name: str, tree: Tree) -> None:
        """Return when it is there for good."""
        raise NotImplementedError

    def restore(self, name: str, tree: Tree) -> Any:
        """What was saved; ``tree`` has the same shapes."""
        raise NotImplementedError

    def forget(self, name: str) -> None:
        """Disks are finite."""
        shutil.rmtree(self.folder / name)


class Own(Way):
    """This store: a blob, the list of blobs, a manifest."""

    def save(self, name: str, tree: Tree) -> None:
        """As one participant's part."""
        store = Store(self.folder / name)
        blob = store.write_tensors({key: np.asarray(leaf) for key, leaf in tree.items()})
        content = store.write_piece([Entry("array", "state", blob.digest, blob.size)])
        clock: VectorClock = {ME: 1}
        store.commit(Manifest(f"{ME}:1", 1, {}, (Part(ME, 1, clock, (), {}, (content,)),), {}))

    def restore(self, name: str, tree: Tree) -> Any:
        """The newest intact one."""
        del tree
        store = Store(self.folder / name)

        def read(manifest: Manifest) -> Any:
            (part,) = manifest.parts
            (entry,) = store.read_piece(part.contents[0])
            return store.read_tensors(entry.digest)

        return jax.device_put(store.restore(read))


class Plain(Way):
    """One file, one write, one fsync; one read."""

    def save(self, name: str, tree: Tree) -> None:
        """All bytes, one array behind the other."""
        (self.folder / name).mkdir()
        with (self.folder / name / "file").open("wb", buffering=0) as file:
            for leaf in tree.values():
                file.write(np.asarray(leaf).data)
            os.fsync(file.fileno())

    def restore(self, name: str, tree: Tree) -> Any:
        """Into memory."""
        del tree
        return np.fromfile(self.folder / name / "file", np.uint8)


class Orbax(Way):
    """Its standard checkpointer."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._orbax = import_module("orbax.checkpoint")
        self._checkpointer = self._orbax.StandardCheckpointer()

    def save(self, name: str, tree: Tree) -> None:
        """It writes in the background; wait for that."""
        self._checkpointer.save(self.folder / name, tree)
        self._checkpointer.wait_until_finished()

    def restore(self, name: str, tree: Tree) -> Any:
        """With the shapes that it wants to be told."""
        abstract = jax.tree.map(self._orbax.utils.to_shape_dtype_struct, tree)
        return self._checkpointer.restore(self.folder / name, abstract)
