"""Small snapshots in small places, and a system that can be made to fail."""

import os

import ml_dtypes
import numpy as np
import pytest

from snapshot import Entry, Manifest, Store
from snapshot.record import Part

CALLS = ("open", "write", "fsync", "replace", "rename", "link", "unlink", "mkdir", "utime")
"""All by which a place is changed."""


def arrays(version):
    """A fragment: what changes with each version, and what never does."""
    return {
        "layer/w": np.full((3, 2), version, np.float32),
        "layer/b": np.full(4, version, ml_dtypes.bfloat16),
        "count": np.array(version),
    }


def part_of(store, who, number, entries, **more):
    """One participant's part, in two pieces."""
    pieces = [store.write_piece(entries[:1]), store.write_piece(entries[1:])]
    return Part(who, number, {who: number}, (), {}, tuple(pieces), **more)


def entry(kind, name, blob):
    """What a piece says of a blob."""
    return Entry(kind, name, blob.digest, blob.size)


def draft(store, order, **facts):
    """Write all that a snapshot consists of, and give its manifest before it is committed."""
    theta = store.write_tensors(arrays(order))
    state = store.write_bytes(b"state %d" % order)
    same = store.write_bytes(b"what never changes")
    parts = (
        part_of(
            store,
            "syncer.1",
            10 * order,
            [entry("state", "machine", state), entry("array", f"theta/0/{order}", theta)],
        ),
        part_of(
            store,
            "learner-0.1",
            10 * order,
            [entry("state", "machine", same), entry("worker", "moments", theta)],
        ),
    )
    return Manifest(f"syncer.1:{10 * order}", order, {"job": "small", **facts}, parts, {})


class Watched:
    """The module os, with a hook that is called before each call that changes a place.

    What is durable is for him to model: an fsync takes time and shows nothing.
    """

    def __init__(self, before):
        self._before = before

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in CALLS:
            return real

        def call(*args, **more):
            self._before(name, args)
            return None if name == "fsync" else real(*args, **more)

        return call


@pytest.fixture(name="draft")
def drafter():
    """Write a snapshot's blobs; give its manifest."""
    return draft


@pytest.fixture
def take():
    """Write a snapshot and commit it."""
    return lambda store, order, **facts: store.commit(draft(store, order, **facts))


@pytest.fixture
def store(tmp_path):
    """Give a store in a folder that does not exist yet."""
    return Store(tmp_path / "runs" / "place")


@pytest.fixture
def root(tmp_path):
    """Where that store is."""
    return tmp_path / "runs" / "place"


@pytest.fixture
def watch(monkeypatch):
    """Let a function see each call to the system before it happens."""

    def watching(before):
        watched = Watched(before)
        monkeypatch.setattr("snapshot.local_storage.os", watched)
        monkeypatch.setattr("snapshot.local_storage.make_durable", watched.fsync)

    return watching


@pytest.fixture
def memory():
    """Give a store in memory that fsspec keeps, and empty it afterwards."""
    fsspec = pytest.importorskip("fsspec")
    yield Store("memory://bucket/place")
    files = fsspec.filesystem("memory")
    if files.exists("/bucket"):
        files.rm("/bucket", recursive=True)
