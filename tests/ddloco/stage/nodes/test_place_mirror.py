"""What a successor finds in the place is what the last holder had written."""

import pytest

from ddloco.stage.nodes.place_mirror import PIECE_BYTES, PlaceMirror
from snapshot import StorageError, open_place
from tests.bucket import found_by_fsspec

pytestmark = pytest.mark.filterwarnings("ignore")  # Those of the client for S3.


@pytest.fixture(params=["folder", "memory", "s3"])
def place(request, tmp_path):
    """A folder, and object stores."""
    if request.param == "s3":
        with found_by_fsspec(tmp_path / "bucket"):
            yield open_place("s3://bucket/run")
    elif request.param == "folder":
        yield open_place(tmp_path / "place")
    else:
        yield open_place(f"memory://mirror/{tmp_path.name}")


@pytest.fixture
def folder(tmp_path):
    """The run folder of a syncer that has merged and recorded."""
    run = tmp_path / "run"
    for name, data in {
        "kept/run": b"abc",
        "kept/incarnations.json": b"{}",
        "kept/syncer/fragment-0000.safetensors": b"one",
        "kept/syncer-1/fragment-0001.safetensors": b"of another shard",
        "kept/syncer/.partial": b"half",
        "tapes/syncer.1.tape": b"tape" * 10,
        "tapes/learner-0.1.tape": b"not ours",
        "syncer.address": b"tcp://10.0.0.1:5555",
        "job.toml": b"",
    }.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(data)
    return run


def files(folder):
    """All files below a folder."""
    found = (each for each in folder.rglob("*") if each.is_file())
    return {each.relative_to(folder).as_posix(): each.read_bytes() for each in found}


OURS = {
    "kept/run", "kept/incarnations.json", "kept/syncer/fragment-0000.safetensors",
    "tapes/syncer.1.tape",
}  # fmt: skip


def test_an_empty_folder_gets_what_the_actor_had(place, folder, tmp_path):
    """Nothing of other actors, nothing half written."""
    PlaceMirror(place, folder, "syncer").copy()
    brought = PlaceMirror(place, tmp_path / "new", "syncer").bring()
    assert OURS == set(brought)
    assert place.stat("syncer.address") is not None, "for its learners"
    assert [] == PlaceMirror(place, tmp_path / "shard", "syncer-1").bring()
    assert {name: data for name, data in files(folder).items() if name in OURS} == files(
        tmp_path / "new"
    )


def test_only_what_is_new_is_copied(place, folder, tmp_path):
    """Also after a restart of the process: a tape grows at its end, kept files are replaced."""
    writes = []
    put = place.put
    place.put = lambda name, data: (writes.append((name, len(data))), put(name, data))
    mirror = PlaceMirror(place, folder, "syncer")
    mirror.copy()
    first, tape = len(writes), folder / "tapes" / "syncer.1.tape"
    mirror.copy()
    assert first == len(writes)
    for again in (mirror, PlaceMirror(place, folder, "syncer")):
        writes.clear()
        with tape.open("ab") as file:
            file.write(b"more")
        again.copy()
        assert [4] == [length for name, length in writes if "tapes" in name]
    (folder / "kept/syncer/fragment-0000.safetensors").write_bytes(b"two")
    mirror.copy()
    PlaceMirror(place, tmp_path / "new", "syncer").bring()
    assert b"two" == (tmp_path / "new/kept/syncer/fragment-0000.safetensors").read_bytes()
    assert tape.read_bytes() == (tmp_path / "new/tapes/syncer.1.tape").read_bytes()


def test_a_long_tape_travels_in_pieces_and_ends_at_the_first_gap(place, folder, tmp_path):
    """What lies behind a piece that is missing cannot be read."""
    tape = folder / "tapes" / "syncer.1.tape"
    tape.write_bytes(bytes(range(256)) * (PIECE_BYTES // 128))
    PlaceMirror(place, folder, "syncer").copy()
    assert 2 == len(place.files("syncer/tapes"))
    PlaceMirror(place, tmp_path / "whole", "syncer").bring()
    assert tape.read_bytes() == (tmp_path / "whole/tapes/syncer.1.tape").read_bytes()
    place.remove(f"syncer/tapes/syncer.1.tape/{PIECE_BYTES:015}")
    PlaceMirror(place, tmp_path / "gap", "syncer").bring()
    assert tape.read_bytes()[:PIECE_BYTES] == (tmp_path / "gap/tapes/syncer.1.tape").read_bytes()


def test_a_tape_of_the_folder_is_not_made_shorter(place, folder):
    """The place lacks what the last second brought; the folder that comes back has it."""
    PlaceMirror(place, folder, "syncer").copy()
    tape = folder / "tapes" / "syncer.1.tape"
    tape.write_bytes(tape.read_bytes() + b"the last second")
    (folder / "kept/run").write_bytes(b"old")
    brought = PlaceMirror(place, folder, "syncer").bring()
    assert tape.read_bytes().endswith(b"the last second")
    assert "tapes/syncer.1.tape" not in brought
    assert b"abc" == (folder / "kept/run").read_bytes()


def test_whoever_has_lost_its_lease_copies_nothing(place, folder):
    """It is asked before each write."""

    def lost():
        raise OSError("syncer.2 acts as syncer now")

    with pytest.raises(OSError, match=r"syncer\.2 acts"):
        PlaceMirror(place, folder, "syncer", lost).copy()
    assert not place.files("syncer/kept")
    assert not place.files("syncer/tapes")


def test_a_failed_copy_is_made_again(place, folder, tmp_path):
    """Nothing counts as copied before it is there."""
    mirror, put = PlaceMirror(place, folder, "syncer"), place.put

    def full(name, data):
        raise StorageError(f"{name}: cannot be written: no space left on device")

    place.put = full
    with pytest.raises(StorageError):
        mirror.copy()
    place.put = put
    mirror.copy()
    assert OURS == set(PlaceMirror(place, tmp_path / "new", "syncer").bring())


@pytest.mark.parametrize(
    "name", ["kept/../../x", "kept/a/b", "tapes/../syncer.1.tape/0", "kept/.x"]
)
def test_names_that_lead_elsewhere_are_not_brought(place, folder, tmp_path, name):
    """A place may be written by others."""
    PlaceMirror(place, folder, "syncer").copy()
    listed = place.files

    def more(below):
        return {**listed(below), f"syncer/{name}": next(iter(listed("syncer/kept").values()))}

    place.files = more
    assert OURS == set(PlaceMirror(place, tmp_path / "new", "syncer").bring())
