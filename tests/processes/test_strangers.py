"""Runs that somebody else recorded: the states in their snapshots decide nothing.

The attack is that of a host that may write where the snapshots are: the syncer's frozen state is
written again, so that its machine would start a process with an environment of the attacker's.
"""

import random
import shutil
from pathlib import Path

import msgspec
import pytest

import ddloco
from ddloco.stage.driver import resume
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.files.trust import MARK_FILE
from replay import open_tapes
from snapshot import Entry, Store
from tests.processes.conftest import JOB, SNAPSHOTS, Job, call_here
from tests.seeds import seeds
from tests.snapshot.state_fuzz import alike, holders_of

FEW = ("--set=sync.quorum=2", "--set=job.steps=30")


@pytest.fixture(scope="module")
def recorded(pictured, resumed):
    """A run with snapshots, and one that continued from the first of them; look at them only."""
    return pictured.run_folder, resumed.run_folder, pictured.snapshots()[0]


def forge(place, snapshot, changed):
    """Commit a snapshot again with another state of the syncer, by the project's own store."""
    store = Store(place)
    manifest = store.load(snapshot)
    parts = []
    for part in manifest.parts:
        contents = []
        for digest in part.contents:
            entries = [*store.read_piece(digest)]
            for at, entry in enumerate(entries):
                if part.who.startswith("syncer") and entry.kind == "state":
                    blob = store.write_bytes(changed(bytes(store.read_bytes(entry.digest))))
                    entries[at] = Entry(entry.kind, entry.name, blob.digest, blob.size)
            contents.append(store.write_piece(entries))
        parts.append(msgspec.structs.replace(part, contents=tuple(contents)))
    for path in place.rglob(f"{snapshot}.json"):
        path.unlink()
    store.commit(msgspec.structs.replace(manifest, parts=tuple(parts)))


def attack(state):
    """A state whose machine's next decision would start a process of the attacker's choice."""
    version, plain = msgspec.msgpack.decode(state)
    plain["machine"]["_advance"] = {"type": "ddloco.workers.forking:ForkServerProcess"}
    return msgspec.msgpack.encode([version, plain])


QUESTIONS = (
    ("why", "merge", "28"),
    ("why", "absent", "learner-1", "28"),
    ("why", "event"),
    ("diff",),
    ("report",),
    ("status",),
    ("replay",),
    ("replay", "--task=tests.tasks:linear"),
    ("replay", "--until"),
)


def ask(question, folder, *more):
    """Ask a question about the run in a folder; what it says, and its exit code."""
    last = open_tapes(folder)[-1]
    event = f"{last.incarnation}:{last.events - 5}"
    words = {
        ("why", "event"): ["why", str(folder), "event", event],
        ("status",): ["status", str(folder), "--at", event],
        ("diff",): ["diff", str(folder), str(folder)],
        ("report",): ["report", str(folder), "--out", str(folder / "report.html")],
        ("replay", "--until"): ["replay", str(folder), "--until", event],
    }.get(question)
    if words is None and question[0] == "why":
        words = [question[0], str(folder), *question[1:]]
    if words is None:
        words = [*question, str(folder)]
    return call_here(*words, *more)


def refused_in_one_line(found):
    """With the one code; returns what it says."""
    assert found.returncode == 2, found.stdout + found.stderr
    assert found.stderr.count("\n") == 1, found.stderr
    return found.stderr


@pytest.fixture
def strange(recorded, tmp_path):
    """The second run, as somebody else's: without the mark of who recorded it."""
    folder = Path(shutil.copytree(recorded[1], tmp_path / "strange"))
    (folder / MARK_FILE).unlink()
    return folder


@pytest.mark.parametrize("question", QUESTIONS, ids=" ".join)
def test_states_of_strangers_do_not_act(strange, question):
    """Whatever is asked: one line, which names the option."""
    assert "--trust" in refused_in_one_line(ask(question, strange))


@pytest.mark.parametrize("question", QUESTIONS[:6], ids=" ".join)
def test_ones_own_run_needs_no_option_and_a_strangers_goes_with_it(recorded, strange, question):
    """The detector is quiet: what this user recorded, in the folder that this user named."""
    assert ask(question, recorded[1]).returncode == 0
    assert ask(question, strange, "--trust").returncode == 0


def test_a_place_that_only_tapes_name_is_not_opened(recorded, strange):
    """With the mark of the job alone: this user has recorded it, and never named that place."""
    marks = (recorded[1] / MARK_FILE).read_text().split()
    assert len(marks) == 2
    refusals = []
    for mark in marks:
        (strange / MARK_FILE).write_text(f"{mark}\n")
        refusals.append(refused_in_one_line(ask(("why", "merge", "28"), strange)))
    assert str(recorded[0] / "snapshots") in refusals[0]
    assert "use --trust to open it" in refusals[0]


def test_python_asks_too(strange):
    """``ddloco.open`` reads, and states act with ``trust``."""
    with pytest.raises(ConfigError, match="--trust"):
        _ = ddloco.open(strange).merges
    assert ddloco.open(strange).steps()
    assert ddloco.open(strange, trust=True).merges


def test_a_run_continues_only_from_what_this_user_recorded(recorded, tmp_path):
    """``run --from``: in one line, before anything is made."""
    folder = Path(shutil.copytree(recorded[0], tmp_path / "strange"))
    (folder / MARK_FILE).unlink()
    third = Job(tmp_path, JOB + SNAPSHOTS)
    found = third.run(*FEW, f"--from={folder / 'snapshots' / 'latest'}")
    assert "--trust" in found.stderr
    assert not third.run_folder.exists()


def test_a_forged_state_is_refused_where_it_is_trusted(recorded, strange, tmp_path):
    """The state that started a process: one line names the blob, in ``why`` and ``run --from``."""
    place = Path(shutil.copytree(recorded[0], tmp_path / "forged")) / "snapshots"
    forge(place, recorded[2], attack)
    inside = strange / "snapshots"
    shutil.rmtree(inside, ignore_errors=True)
    shutil.copytree(place, inside)
    third = Job(tmp_path, JOB + SNAPSHOTS)
    went_on = third.run(*FEW, f"--from={inside / recorded[2]}", "--trust")
    for found in (call_here("replay", str(strange), "--trust", f"--from={recorded[2]}"), went_on):
        said = refused_in_one_line(found)
        assert "unknown field `_advance` - at `$.machine`" in said


@pytest.mark.parametrize("seed", seeds(12, fast=4))
def test_absurd_states_that_are_trusted_are_one_line(recorded, tmp_path, monkeypatch, seed):
    """Right types, absurd content: an answer, a difference or one line, and no traceback."""
    rng = random.Random(f"absurd {seed}")

    def changed(state):
        plain = msgspec.msgpack.decode(state)
        for _ in range(rng.choice([1, 2, 4])):
            alike(rng, [*holders_of(plain)])
        return msgspec.msgpack.encode(plain)

    place = Path(shutil.copytree(recorded[0], tmp_path / "forged")) / "snapshots"
    forge(place, recorded[2], changed)
    read = resume.read_start_point
    monkeypatch.setattr(resume, "read_start_point", lambda _, *more: read(place, *more))
    for question in QUESTIONS[:6]:
        found = ask(question, recorded[1])
        assert found.returncode in {0, 1, 2}
        assert found.stderr.count("\n") <= 1, found.stderr
