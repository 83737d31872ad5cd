"""Whatever happens to a file, it is named, and what is intact is still found."""

import re
from collections import Counter
from functools import partial

import pytest

from snapshot import SnapshotError
from snapshot.storage import blob_name

POSITIONS = 25
"""Of each file; first and last byte among them."""


def files(root):
    """All files but the pointer."""
    return sorted(path for path in root.rglob("*") if path.is_file() and path.name != "LATEST")


def own_files(store, root, take):
    """What the newest of two snapshots consists of, and no other does."""
    take(store, 1)
    before = files(root)
    take(store, 2)
    return [path for path in files(root) if path not in before]


def damages(data):
    """A file's bytes, changed in every way that a disk may."""
    step = max(1, len(data) // POSITIONS)
    for at in {*range(0, len(data), step), len(data) - 1}:
        for flip in (1, 0x80):
            yield data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
    for length in {0, 1, len(data) // 2, len(data) - 1}:
        yield data[:length]
    yield data + b"x"
    yield bytes(len(data))


def harmed(path):
    """Damage a file in every way, and remove it; in the end it is whole again."""
    data = path.read_bytes()
    for changed in damages(data):
        path.write_bytes(changed)
        yield changed
    path.unlink()
    yield None
    path.write_bytes(data)


def test_every_damage_of_every_file_is_found_by_name(store, root, take):
    """Flipped, cut, longer, zeroed or gone: verify names the file, load the snapshot to take."""
    own = own_files(store, root, take)
    assert 6 == len(own), "a manifest, two blobs, three pieces"
    for path in own:
        for changed in harmed(path):
            problems = store.verify("syncer.1:20")
            assert any(line.startswith(f"{path}: ") for line in problems), (path, changed)
            assert all("\n" not in line for line in problems)
            with pytest.raises(SnapshotError, match=r"the newest intact snapshot is syncer.1-10"):
                store.load("syncer.1:20")
            assert 1 == store.load().order
    assert store.verify("syncer.1:20") == []


def everything(store, manifest):
    """Read all blobs of a snapshot, as an actor does that resumes; give its number."""
    pieces = [store.read_piece(digest) for part in manifest.parts for digest in part.contents]
    for digest in {each.digest for piece in pieces for each in piece}:
        store.read_bytes(digest)
    return manifest.order


def test_what_is_restored_is_intact(store, root, take):
    """Whatever is damaged, the newest is the one before, and the damaged one has its problems."""
    for path in own_files(store, root, take):
        for _ in harmed(path):
            assert 1 == store.restore(partial(everything, store))
            with pytest.raises(SnapshotError) as loaded:
                store.load("syncer.1:20")
            with pytest.raises(SnapshotError, match=re.escape(f"{loaded.value}")):
                store.restore(partial(everything, store), "syncer.1:20")
    assert 2 == store.restore(partial(everything, store))


def test_each_blob_is_read_once_when_it_is_restored(store, take, monkeypatch):
    """A piece twice: the sizes of all blobs are looked at before any is read."""
    take(store, 1)
    take(store, 2)
    parts = store.manifest("syncer.1-20").parts
    pieces = {blob_name(digest) for part in parts for digest in part.contents}
    opened, opens = [], store._place.open
    monkeypatch.setattr(store._place, "open", lambda name: opened.append(name) or opens(name))

    for snapshot in ("latest", "syncer.1-20"):
        opened.clear()
        assert 2 == store.restore(partial(everything, store), snapshot)
        blobs = Counter(name for name in opened if name.startswith("blobs"))
        assert blobs == {name: 1 + (name in pieces) for name in blobs}
        assert 7 == len(blobs), "one of arrays, two states, four pieces"


def test_what_is_not_damaged_but_not_understood_is_an_error(store, take):
    """An older snapshot is no way around settings that do not fit."""
    take(store, 1)
    take(store, 2)

    def read(manifest):
        raise SnapshotError(f"{manifest.id} is of another version")

    with pytest.raises(SnapshotError, match=r"syncer.1-20 is of another version"):
        store.restore(read)


def test_damaged_blobs_are_never_handed_out(store, root, take):
    """Reading a blob that is not as it was written raises, whatever it holds."""
    own_files(store, root, take)
    for path in files(root / "blobs"):
        for _ in harmed(path):
            for read in (store.read_bytes, store.read_tensors, store.read_piece):
                with pytest.raises(SnapshotError, match=re.escape(f"{path}: ")):
                    read(path.name)


def test_a_damaged_manifest_is_listed_by_name(store, root, take):
    """What cannot be read is not left out: its name and the reason come last."""
    take(store, 1)
    take(store, 2)
    (root / "snapshots" / "syncer.1-20.json").write_bytes(b"{}")
    (root / "snapshots" / "stray.json").write_bytes(b"")
    (root / "snapshots" / ".partial-1-a").write_bytes(b"")
    (root / "snapshots" / "notes.txt").write_bytes(b"")

    listed = store.snapshots()

    assert ["syncer.1-10", "stray", "syncer.1-20"] == [each.id for each in listed]
    assert [True, False, False] == [each.manifest is not None for each in listed]
    assert "stray" in listed[1].problem
    assert f"{root}/snapshots/syncer.1-20.json: is not a manifest" in listed[2].problem


def test_a_manifest_that_was_renamed_is_refused(store, root, take):
    """A snapshot has one name."""
    take(store, 1)
    folder = root / "snapshots"
    (folder / "syncer.1-10.json").rename(folder / "syncer.1-11.json")

    said = f"{folder}/syncer.1-11.json: is the manifest of syncer.1:10"
    assert [said] == store.verify("syncer.1:11")


def test_a_shared_blob_damages_all_that_share_it(store, root, take):
    """Both snapshots are damaged then, and none is called intact."""
    take(store, 1)
    take(store, 2)
    shared = store.write_bytes(b"what never changes")
    (root / blob_name(shared.digest)).write_bytes(b"What never changes")

    with pytest.raises(SnapshotError, match="no other snapshot is intact"):
        store.load("syncer.1:20")
    verifier = store.verifier()
    assert [1, 1] == [len(verifier.verify(f"syncer.1:{n}")) for n in (10, 20)]
    assert verifier.nbytes <= sum(path.stat().st_size for path in files(root))


def test_a_snapshot_that_is_not_there_is_named(store, take):
    """The file that would be it is named, and the snapshot to take instead."""
    take(store, 1)

    said = "snapshots/a.1-5.json: is missing; the newest intact snapshot is syncer.1-10"
    with pytest.raises(SnapshotError, match=said):
        store.load("a.1:5")


def test_damage_in_an_object_store_is_found(memory, take):
    """The same checks hold where files are objects."""
    take(memory, 1)
    take(memory, 2)
    place = memory._place

    def problems():
        return [line for number in (10, 20) for line in memory.verify(f"syncer.1:{number}")]

    for name in sorted(place.files("blobs")):
        with place.open(name) as file:
            data = bytes(file.read())
        place.put(name, data[:-1] + bytes([data[-1] ^ 1]))
        assert any(f"/{name}: is not what was written" in line for line in problems())
        place.remove(name)
        assert any(f"/{name}: is missing" in line for line in problems())
        place.put(name, data)
        assert problems() == []
