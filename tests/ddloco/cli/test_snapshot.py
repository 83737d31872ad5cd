"""`ddloco snapshot`: what people see of snapshots, and the exit codes that they get."""

import json
import os
from contextlib import asynccontextmanager
from functools import partial

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from ddloco.cli.parser import main
from ddloco.cli.snapshot import parameters
from ddloco.job.config import job_from
from ddloco.stage.files.run_folder import open_folder, run_of
from ddloco.stage.observers.observer_protocol import News
from snapshot import (
    Entry,
    Manifest,
    SnapshotError,
    Store,
    load_metadata,
    load_tensors,
    save_tensors,
)
from snapshot.record import Part


def ddloco(*arguments):
    """Type a command; give its exit code."""
    with pytest.raises(SystemExit) as left:
        main(["snapshot", *map(str, arguments)])
    return left.value.code


def part(store, who, *entries, clock=None):
    """A participant with one piece."""
    return Part(who, 5, clock or {who: 5}, (), {}, (store.write_piece(entries),))


def array(store, name, **tensors):
    """An array's blob, and what a piece says of it."""
    blob = store.write_tensors(tensors)
    return Entry("array", name, blob.digest, blob.size)


def fragment(value, dtype=np.float32):
    """A tensor that tells its version."""
    return np.full((2, 2), value, dtype)


def snapshot(store, order, parts, absent=None, **more):
    """Commit a snapshot."""
    facts = {"job": "quick", "digest": "abc", **more}
    return store.commit(Manifest(f"syncer-0.1:{order}", order, facts, tuple(parts), absent or {}))


def sharded(store, order):
    """Parts of two shards, which hold several versions, and of a learner, which has newer ones."""
    return [
        part(
            store,
            "syncer-0.1",
            array(store, f"theta/0/{order}", a=fragment(order)),
            array(store, f"theta/0/{order + 90}", a=fragment(order + 90)),
            array(store, f"theta/2/{order}", c=fragment(7, ml_dtypes.bfloat16)),
            array(store, f"outer/0/{order + 99}", steps=np.array([1])),
        ),
        part(store, "syncer-1.1", array(store, f"theta/1/{order + 5}", b=np.array(3.5))),
        part(store, "learner-0.1", array(store, "theta/0/900", a=fragment(-2))),
    ]


@pytest.fixture
def root(tmp_path):
    """Where a run keeps its snapshots."""
    return tmp_path / "run" / "snapshots"


@pytest.fixture
def store(root):
    """Give a store of two snapshots."""
    made = Store(root)
    for order in (1, 2):
        snapshot(
            made, order, sharded(made, order), {"learner-1.1": "it left"} if order == 2 else {}
        )
    return made


@asynccontextmanager
async def answering(said, *asked, owner):
    """An observer whose syncer says one thing."""
    assert owner

    class Observer:
        async def snapshot(self):
            return said

    yield Observer()


def news(event, **fields):
    """What a syncer says."""
    return News(1, 0, event, 0.0, "syncer.1:9", fields)


def test_take_prints_the_id_and_who_is_absent(monkeypatch, capsys):
    """The id first, for scripts; then a line for each who is not in it; the same as JSON."""
    absent = {"learner-1.1": "it left"}
    said = news("snapshot taken", snapshot="syncer.1:7", parts=["syncer.1"], absent=absent)
    monkeypatch.setattr("ddloco.cli.snapshot.open_observer", partial(answering, said))

    assert 0 == ddloco("take", "tcp://127.0.0.1:5")
    out = capsys.readouterr().out.splitlines()
    assert ["syncer.1-7", "syncer.1-7: without learner-1.1: it left"] == out
    assert 0 == ddloco("take", "tcp://127.0.0.1:5", "--json")
    told = json.loads(capsys.readouterr().out)
    assert {"id": "syncer.1-7", "participants": ["syncer.1"], "absent": absent} == told


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            news("snapshot discarded", snapshot="syncer.1:7", reason="the disk is full"),
            "a: the snapshot was discarded: the disk is full",
        ),
        (
            news("ended", status="done", reason="global step 40"),
            "a: the job ended before the snapshot was complete: global step 40",
        ),
    ],
)
def test_take_says_why_there_is_none(monkeypatch, capsys, said, line):
    """One line with the reason, and exit code 1."""
    monkeypatch.setattr("ddloco.cli.snapshot.open_observer", partial(answering, said))

    assert 1 == ddloco("take", "a")
    assert ("", f"ddloco: {line}\n") == capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere"], 2, "nowhere: unknown kind of address"),
        (["tcp://127.0.0.1:5", "--timeout", "0"], 2, "--timeout 0.0: want seconds"),
        (["tcp://127.0.0.1:5", "--keys", "none"], 2, "none/public.toml: cannot be read"),
        (["tcp://127.0.0.1:5", "--timeout", "0.2"], 1, "no answer from tcp://127.0"),
    ],
)
def test_take_wants_an_address_to_ask(capsys, arguments, code, said):
    """Bad input exits with 2, an address without an answer with 1, each with one line."""
    assert code == ddloco("take", *arguments)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"ddloco: {said}")


def test_a_list_is_one_line_for_each(store, root, capsys):
    """The newest first: name, order, who takes part, who does not and why, bytes, new ones."""
    assert 0 == ddloco("list", root)

    head, newer, older, absent = capsys.readouterr().out.splitlines()
    assert head.split() == ["id", "order", "participants", "absent", "bytes", "new", "bytes"]
    assert newer.split()[:4] == ["syncer-0.1-2", "2", "3", "1"]
    assert older.split()[:4] == ["syncer-0.1-1", "1", "3", "0"]
    assert older.split()[4] == older.split()[5] != newer.split()[5]
    assert absent == "syncer-0.1-2: without learner-1.1: it left"


def test_a_list_as_json(store, root, capsys):
    """``--json`` says the same, with names; shared bytes are not new."""
    assert 0 == ddloco("list", "--json", root)

    newer, older = json.loads(capsys.readouterr().out)
    assert {"job": "quick", "digest": "abc"} == newer["facts"]
    assert ["syncer-0.1", "syncer-1.1", "learner-0.1"] == newer["participants"]
    assert older["new_bytes"] == older["bytes"]
    assert 0 < newer["new_bytes"] < newer["bytes"]


def test_a_run_folder_is_a_place(store, root, capsys):
    """The run, its folder of snapshots and a URL of it are the same place."""
    said = set()
    for place in (root.parent, root, f"file://{root}"):
        assert 0 == ddloco("list", place)
        said.add(capsys.readouterr().out)
    assert 1 == len(said)


def test_a_manifest_that_cannot_be_read_is_listed(store, root, capsys):
    """It comes last, with the reason, and the exit code says that something was found."""
    (root / "snapshots" / "syncer-0.1-2.json").write_text("{}")

    assert 1 == ddloco("list", root)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"unreadable: {root}/snapshots/syncer-0.1-2.json: is not a manifest")
    assert 1 == ddloco("list", "--json", root)
    assert "problem" in json.loads(capsys.readouterr().out)[-1]


def test_what_is_intact_is_verified(store, root, capsys):
    """All snapshots, or one: how many bytes were read is said, shared ones once."""
    assert 0 == ddloco("verify", root)
    every = sum(path.stat().st_size for path in (root / "blobs").rglob("*") if path.is_file())
    said = capsys.readouterr().out
    assert said.startswith(f"2 of 2 snapshots intact; {every:,} bytes in ")

    for name in ("syncer-0.1-1", "syncer-0.1:1", "latest"):
        assert 0 == ddloco("verify", root, name)
        assert capsys.readouterr().out.startswith("1 of 1 snapshots intact; ")


def test_what_is_damaged_is_named(store, root, capsys):
    """One line for each file, once; the other snapshot is intact."""
    blob = max((root / "blobs").rglob("*"), key=lambda path: path.is_file() and path.stat().st_size)
    digest = json.loads((root / "snapshots" / "syncer-0.1-2.json").read_text())
    digest = digest["manifest"]["parts"][0]["contents"][0]
    piece = root / "blobs" / digest[:2] / digest
    piece.write_bytes(piece.read_bytes()[:-1] + b"x")
    assert blob.is_file()

    assert 1 == ddloco("verify", root)
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{piece}: is not what was written")
    assert last.startswith("1 of 2 snapshots intact")
    assert 0 == ddloco("verify", root, "syncer-0.1-1")
    capsys.readouterr()
    assert 1 == ddloco("verify", "--json", root, "syncer-0.1-2")
    assert 1 == len(json.loads(capsys.readouterr().out)["problems"]["syncer-0.1-2"])


def test_a_model_is_exported(store, root, tmp_path, capsys):
    """The newest version of each fragment that a syncer holds, of all shards, with its origin."""
    target = tmp_path / "out" / "model.safetensors"

    assert 0 == ddloco("export", root.parent, "latest", "--to", target)

    model = safetensors.numpy.load_file(target)
    assert {"a", "b", "c"} == set(model)
    assert (model["a"] == 92).all()
    assert 3.5 == model["b"]
    assert ml_dtypes.bfloat16 == model["c"].dtype
    about = load_metadata(target)
    assert ("syncer-0.1:2", "92,7,2", "quick") == (
        about["snapshot"],
        about["versions"],
        about["job"],
    )
    made, said = capsys.readouterr().out.splitlines()
    assert made == f"made the folder {tmp_path / 'out'}"  # It may have been a slip of the pen.
    assert said == f"{target}: 3 tensors of 3 fragments, 32 bytes"


@pytest.mark.parametrize(
    ("parts", "absent", "said"),
    [
        (lambda store: sharded(store, 3)[1:], {}, "lacks fragment 0"),
        (lambda store: [sharded(store, 3)[0]], {}, "lacks fragment 1"),
        (
            lambda store: sharded(store, 3)[:1],
            {"syncer-1.1": "it was gone"},
            r"lacks the syncer syncer-1.1 \(it was gone\)",
        ),
        (lambda store: sharded(store, 3)[2:], {}, "lacks fragment 0"),
        (
            lambda store: [
                part(
                    store,
                    "syncer.1",
                    array(store, "theta/0/1", a=fragment(1)),
                    array(store, "theta/1/1", a=fragment(2)),
                )
            ],
            {},
            "has a in two fragments",
        ),
    ],
)
def test_no_half_model_is_exported(store, root, tmp_path, capsys, parts, absent, said):
    """Without a shard or a fragment there is no model, and one line says which is missing."""
    snapshot(store, 3, parts(store), absent)

    assert 1 == ddloco("export", root, "latest", "--to", tmp_path / "x")
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "x").exists()
    with pytest.raises(SnapshotError, match=said):
        parameters(store, store.manifest("syncer-0.1:3"))


def test_a_damaged_model_is_not_exported(store, root, tmp_path, capsys):
    """The file that is damaged is named."""
    for path in (root / "blobs").rglob("*"):
        if path.is_file() and b"F64" in path.read_bytes():
            path.write_bytes(path.read_bytes()[:-1] + b"x")

    assert 1 == ddloco("export", root, "latest", "--to", tmp_path / "x")
    assert "is not what was written" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("list", "{tmp}/none"), "{tmp}/none: there are no snapshots"),
        (("verify", "{tmp}"), "{tmp}: there are no snapshots"),
        (("list", "{tmp}/file"), "{tmp}/file: there are no snapshots"),
        (("list", "nothing://x"), "nothing://x: "),
        (("verify", "{root}", "a.1-1"), "{root}: no snapshot a.1-1; there is syncer-0.1-2; "),
        (("verify", "{root}", "../x"), "a snapshot is named after an event"),
        (("export", "{root}", "a.1:1", "--to", "{tmp}/x"), "no snapshot a.1-1"),
        (("export", "{root}", "latest", "--to", "{tmp}/file"), "{tmp}/file: exists"),
        (("export", "{root}", "latest", "--to", "{tmp}/file/x"), "{tmp}/file: File exists"),
    ],
)
def test_bad_input_is_one_line(store, root, tmp_path, capsys, arguments, said):
    """A place, a name or a file that will not do: exit code 2, and what would be right."""
    (tmp_path / "file").write_text("")
    places = {"tmp": tmp_path, "root": root}

    assert 2 == ddloco(*(each.format(**places) for each in arguments))

    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("ddloco: ")
    assert said.format(**places) in err


def test_a_run_without_snapshots_is_said_to_have_none(tmp_path, capsys):
    """A run folder is recognised by its job file."""
    (tmp_path / "job.toml").write_text("")

    assert 2 == ddloco("list", tmp_path)
    assert capsys.readouterr().err == f"ddloco: {tmp_path}/snapshots: there are no snapshots\n"


def test_a_url_is_a_place(capsys):
    """Whatever fsspec reaches is looked at in the same way."""
    fsspec = pytest.importorskip("fsspec")
    made = Store("memory://cli/run")
    snapshot(made, 1, sharded(made, 1))
    try:
        assert 0 == ddloco("verify", "memory://cli/run")
        assert "1 of 1 snapshots intact" in capsys.readouterr().out
    finally:
        fsspec.filesystem("memory").rm("/cli", recursive=True)


def test_a_runs_own_place_is_looked_at(tmp_path, capsys):
    """The one that its job file names, and there its own snapshots alone."""
    place, runs = tmp_path / "place", [tmp_path / "one", tmp_path / "other"]
    for number, folder in enumerate(runs):
        plain = {"job": {"task": "x:y", "seed": number}, "snapshot": {"place": str(place)}}
        job = job_from(plain, "test")
        open_folder(folder, job)
        store = Store(place, run_of(folder, make=True))
        snapshot(store, 7 + number, sharded(store, 1), run=store.run)

    for number, folder in enumerate(runs):
        assert 0 == ddloco("list", folder, "--json")
        [row] = json.loads(capsys.readouterr().out)
        assert row["id"].endswith(f"_syncer-0.1-{7 + number}")
        assert 0 == ddloco("verify", folder, "latest")
        assert "1 of 1 snapshots intact" in capsys.readouterr().out
    assert 0 == ddloco("list", place)
    assert 2 == ddloco("verify", place, "latest")
    assert "holds snapshots of 2 runs" in capsys.readouterr().err


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_manifest_that_is_no_file_is_told(tmp_path, capsys, make):
    """It is listed, and is not intact."""
    snapshot(Store(tmp_path), 1, sharded(Store(tmp_path), 1))
    make(tmp_path / "snapshots" / "syncer-0.1-9.json")

    assert 1 == ddloco("list", tmp_path)
    assert "syncer-0.1-9.json" in capsys.readouterr().out
    assert 1 == ddloco("verify", tmp_path)
    assert "1 of 2 snapshots intact" in capsys.readouterr().out


def test_the_final_model_is_exported(tmp_path, capsys):
    """Its id is `model`; as a folder it needs a task, of a run of this user or a job file."""
    model = tmp_path / "run" / "model" / "model.safetensors"
    open_folder(tmp_path / "run", job_from({"job": {"task": "tests.tasks:regression"}}, "x"))
    with pytest.raises(SystemExit):
        main(["snapshot", "export", str(tmp_path / "run"), "model", "--to", str(tmp_path / "a")])
    assert "the run has no model yet" in capsys.readouterr().err

    save_tensors(model, {"w": np.ones(3, np.float32)})
    assert 0 == ddloco("export", tmp_path / "run", "model", "--to", tmp_path / "a")
    assert capsys.readouterr().out == f"{tmp_path / 'a'}: 1 tensors, 12 bytes\n"
    assert list(load_tensors(tmp_path / "a")) == ["w"]

    asked = ("export", tmp_path / "run", "model", "--to", tmp_path / "b", "--format", "hf")
    assert 2 == ddloco(*asked)
    assert "Regression has no method hugging_face(params)" in capsys.readouterr().err
    assert 2 == ddloco(*asked, "--job", tmp_path / "none.toml")
    assert "none.toml" in capsys.readouterr().err
