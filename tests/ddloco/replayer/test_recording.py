"""Tapes belong together, to their folder's job; what does not is refused with file and field."""

import shutil

import msgspec
import pytest

from ddloco.cli.parser import main
from ddloco.job.config import job_from
from ddloco.job.protocol.tape_facts import SEMANTICS
from ddloco.replayer.recording import open_recording, run_folder_of
from ddloco.stage.actors.actor import ACTOR_SEMANTICS
from ddloco.stage.files.run_folder import open_folder
from ddloco.stage.files.trust import MARK_FILE, check_trust, content_of, is_ours, job_digest
from replay import Tape, TapeHeader, TapeWriter
from replay.tape import Event
from tests.lab import hostile_world

SEED = 0


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A simulated run: real tapes, a second to make, and nothing of them runs user code."""
    folder = tmp_path_factory.mktemp("world")
    drawn = hostile_world.draw(SEED, folder)
    open_folder(folder, drawn.job)
    hostile_world.happen(drawn)
    return folder


@pytest.fixture
def run(world, tmp_path):
    """A copy, to be damaged."""
    return shutil.copytree(world, tmp_path / "run")


@pytest.fixture
def said(capsys):
    """Call the command line; its exit code and its lines on standard error."""

    def called(*words):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        return ended.value.code, capsys.readouterr().err.splitlines()

    return called


def rewrite(path, record=lambda each: each, **header):
    """Write a tape again, with another header or other records; all its checks are right."""
    read = Tape(path)
    other = path.with_suffix(".other")
    writer = TapeWriter(other, msgspec.structs.replace(read.header, **header))
    for each in read.records():
        writer.append(record(each))
    writer.close()
    other.replace(path)


def a_tape(run):
    """One of its learners' tapes."""
    return next(iter(sorted((run / "tapes").glob("learner-0.1.tape"))))


def test_a_run_is_opened(world):
    """By its folder, its folder of tapes, or one tape."""
    assert len(open_recording(world)) == len(open_recording(world / "tapes"))
    assert len(open_recording(a_tape(world))) == 1
    assert {run_folder_of(path) for path in (world, world / "tapes", a_tape(world))} == {world}


CHANGED = [
    ({"job_id": "hostile-0-0123456789ab"}, "hostile-0-0123456789ab"),
    ({"job": {}}, "header: says job"),
    ({"semantics": (*SEMANTICS, "unheard-of")}, "semantics: recorded with unheard-of"),
    ({"semantics": SEMANTICS[1:]}, f"without {SEMANTICS[0]}"),
    ({"semantics": ()}, "semantics: recorded without"),
    ({"clock": {"junk": 3}}, "header: a clock, though the tape begins with event 1"),
    ({"clock": {"junk": 3}, "after": 2}, "clock entry 'junk' is no incarnation"),
    ({"clock": {"learner-1.1": -3}, "after": 2}, "-3 is not a count"),
    ({"clock": {"../../x.1": 3}, "after": 2}, "'../../x.1' is no incarnation"),
    ({"after": -1}, "want no negative numbers"),
    ({"part": -1}, "want no negative numbers"),
    ({"incarnation": "../../learner-0.1"}, "'../../learner-0.1' is no incarnation"),
    ({"incarnation": "learner-0"}, "'learner-0' is no incarnation"),
    ({"incarnation": "learner-0.01"}, "is no incarnation"),
    ({"incarnation": "learner-0\n.1"}, "is no incarnation"),
    ({"facts": {"state pieces": "many"}}, "facts: state pieces: 'many' is no count"),
    ({"facts": {"state pieces": "9" * 5000}}, "is no count"),
    ({"fingerprint": {"device": "simulated"}}, "fingerprint: arithmetic: missing"),
    ({"incarnation": "learner-1.1"}, "a tape of learner-1.1; its file is named for learner-0.1"),
]


@pytest.mark.parametrize(("header", "why"), CHANGED)
def test_a_header_that_does_not_belong(run, said, header, why):
    """By every command that reads tapes, in one line that names the file."""
    rewrite(a_tape(run), **header)

    for words in (("replay", run), ("tape", "verify", run)):
        code, lines = said(*words)
        assert code == 2
        assert len(lines) == 1
        assert why in lines[0]
        assert "learner-0.1.tape" in lines[0]


def test_headers_of_two_jobs(run, said):
    """Each right by itself, under one id as text or two."""
    plain = Tape(a_tape(run)).header.job
    other = {**plain, "job": {**plain["job"], "seed": plain["job"]["seed"] + 1}}
    rewrite(a_tape(run), job=other, job_id=f"{plain['job']['name']}-{job_digest(other)}")

    assert 2 == said("replay", run)[0]
    code, [line] = said("tape", "verify", run)
    assert (code, True) == (2, "of job" in line)


def test_a_folder_of_another_job(run, said):
    """All tapes agree, and job.toml does not."""
    file = run / "job.toml"
    file.write_text(file.read_text().replace("seed = ", "seed = 1"))

    code, [line] = said("replay", run)
    assert code == 2
    assert str(file) in line


def test_swapped_files(run, said):
    """Two tapes under each other's names."""
    one, other = (run / "tapes" / f"learner-{n}.1.tape" for n in (0, 1))
    one.rename(run / "x")
    other.rename(one)
    (run / "x").rename(other)

    code, [line] = said("replay", run)
    assert code == 2
    assert "its file is named for learner-0.1" in line


@pytest.mark.parametrize("event", [b"\x07", b"\xc0", b"\x93\x01\x02\x03", b"\xa3abc", b"\xff",
                                   b"\x81\xa4type\xaeMessageArrived", b"\xd4\x05\x00"])  # fmt: skip
def test_an_event_that_is_none(run, said, event):
    """A number, nothing, a list, text; an arrival without its fields: one line, no traceback."""

    def change(record):
        if isinstance(record, Event) and record.n == 5:
            return msgspec.structs.replace(record, event=msgspec.Raw(event))
        return record

    rewrite(a_tape(run), change)
    for words in (("replay", run), ("tape", "verify", run)):
        code, lines = said(*words)
        assert (code, len(lines)) == (2, 1)
        assert "event 5 is unknown to this version" in lines[0]


def test_without_the_syncers_tape_nothing_is_held(run, said, capsys):
    """Whose merges they were stands on its tape alone."""
    for path in (run / "tapes").glob("syncer*.tape"):
        path.unlink()
    with pytest.raises(SystemExit) as ended:
        main(["tape", "verify", str(run)])

    out = capsys.readouterr().out
    assert ended.value.code == 1
    assert "gap: syncer" in out
    assert "not held: parts of the run are missing" == out.splitlines()[-1]


def test_nothing_replayed_is_not_identical(run, said):
    """Tapes that hold a header alone."""
    for path in (run / "tapes").glob("*.tape"):
        header = Tape(path).header
        path.unlink()
        TapeWriter(path, header).close()

    code, [line] = said("replay", run)
    assert code == 2
    assert "nothing to replay: no tape has an event" in line


# Who is trusted.


def test_own_runs_are_known(tmp_path, monkeypatch):
    """By a mark that travels with the folder, for this job alone and this user alone."""
    job = job_from({"job": {"task": "x:y"}}, "test")
    plain = job.as_plain()
    folder = open_folder(tmp_path / "run", job)
    assert is_ours(folder, plain)
    assert is_ours(shutil.copytree(folder, tmp_path / "copy"), plain)
    assert is_ours(folder, {**plain, "transport": {**plain["transport"], "keys": "/elsewhere"}})
    assert not is_ours(folder, {**plain, "job": {**plain["job"], "task": "subprocess:getoutput"}})
    assert not is_ours(folder, {**plain, "task": {"cmd": "touch x"}})
    before = (folder / MARK_FILE).read_text()
    open_folder(folder, job, join=True)
    assert before == (folder / MARK_FILE).read_text()

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "others"))
    assert not is_ours(folder, plain)
    open_folder(folder, job, join=True)
    assert is_ours(folder, plain)


def test_a_key_is_for_its_owner_alone(tmp_path, monkeypatch):
    """And where none can be kept, runs continue without a mark."""
    job = job_from({"job": {"task": "x:y"}}, "test")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    open_folder(tmp_path / "run", job)
    [key] = (tmp_path / "state" / "ddloco").iterdir()
    assert (key.stat().st_mode & 0o777, len(key.read_bytes())) == (0o600, 32)

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "run" / "job.toml"))
    folder = open_folder(tmp_path / "more", job)
    assert not (folder / MARK_FILE).exists()
    with pytest.raises(ValueError, match="--trust"):
        check_trust(folder, job.as_plain())


def foreign(folder, task, options):
    """A run folder as another user may pass it on: everything in it fits together."""
    job = job_from({"job": {"task": task, "learners": 1}, "task": options}, "test")
    for name in ("syncer.1", "learner-0.1"):
        header = TapeHeader(name, job.id, job.as_plain(), "?", {}, SEMANTICS)
        writer = TapeWriter(folder / "tapes" / f"{name}.tape", header)
        writer.append(Event(1, 0.0, msgspec.Raw(b"\x81\xa4type\xa1x")))
        writer.close()
    return folder


@pytest.mark.parametrize("mark", ["", "0" * 64, "junk", "\xe9", "0" * 100_000])
def test_a_foreign_tape_executes_nothing(tmp_path, said, mark):
    """What it names is called only when the user says so; here that is a command of the shell."""
    ran = tmp_path / "ran"
    run = foreign(tmp_path / "run", "subprocess:getoutput", {"cmd": f"touch {ran}"})
    if mark:
        (run / MARK_FILE).write_text(mark)

    code, [line] = said("replay", run)
    assert code == 2
    assert "'subprocess:getoutput'" in line
    assert "--trust" in line
    assert not ran.exists()


def test_one_that_is_trusted_is_called(tmp_path, said):
    """So the test above can fail."""
    ran = tmp_path / "ran"
    run = foreign(tmp_path / "run", "subprocess:getoutput", {"cmd": f"touch {ran}"})

    assert 2 == said("replay", "--trust", run)[0]
    assert ran.exists()


def test_the_users_own_task_stands_in(tmp_path, said):
    """What the tape names is not called; the options are the tape's, and told when they don't
    fit."""
    ran = tmp_path / "ran"
    run = foreign(tmp_path / "run", "subprocess:getoutput", {"cmd": f"touch {ran}"})

    code, lines = said("replay", "--task", "tests.tasks:regression", run)
    assert code == 2
    assert "tests.tasks:regression" in lines[-1]
    assert not ran.exists()
    assert 2 == said("replay", "--task", "regression", run)[0]


def test_a_foreign_program_is_not_called(tmp_path, said):
    """Programs of ``perform`` are user code as well."""
    ran = tmp_path / "ran"
    plain = {"program": "subprocess:getoutput", "options": {"cmd": f"touch {ran}"}}
    header = TapeHeader("a.1", f"getoutput-{job_digest(plain)}", plain, "?", {}, ACTOR_SEMANTICS)
    writer = TapeWriter(tmp_path / "run" / "tapes" / "a.1.tape", header)
    writer.append(Event(1, 0.0, msgspec.Raw(b"\x81\xa4type\xa1x")))
    writer.close()

    code, [line] = said("replay", tmp_path / "run")
    assert (code, "program" in line) == (2, True)
    assert not ran.exists()
    assert 2 == said("replay", "--trust", tmp_path / "run")[0]
    assert ran.exists()


def test_what_no_recorder_wrote_has_no_content():
    """Settings that cannot be written in JSON match no recording."""
    assert content_of({"job": object()}) == b""
    assert content_of({"transport": 3})


def test_a_simulation_whose_task_is_none(run, said):
    """A tape that says that it is simulated, of a job that no simulation ran."""
    for path in (run / "tapes").glob("*.tape"):
        plain = Tape(path).header.job
        changed = {**plain, "task": {}}
        rewrite(path, job=changed, job_id=f"{plain['job']['name']}-{job_digest(changed)}")
    (run / "job.toml").unlink()

    code, [line] = said("replay", run)
    assert code == 2
    assert "task.tensors" in line
