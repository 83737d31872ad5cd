"""A run folder is made, joined, replaced, and never overwritten by accident."""

import os
from pathlib import Path

import pytest

from ddloco.job.config import job_from, load_job
from ddloco.job.job_folder import place_of, run_of_place
from ddloco.roles.job_program import program_of
from ddloco.stage.files.run_folder import (
    folders_to_make,
    make_folder,
    next_folder,
    open_folder,
    remove_unused,
    run_of,
)
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.files.trust import MARK_FILE
from ddloco.stage.nodes.node import sink_of
from ddloco.stage.process.log import ActorLog
from snapshot import Entry, Part, Store

JOB = job_from({"job": {"task": "x:y"}, "learner": {"learner-1": {"factor": 2.0}}}, "test")


def test_the_resolved_job_is_inside(tmp_path):
    """What is written reads back as the same job."""
    folder = open_folder(tmp_path / "a" / "b", JOB)

    assert load_job(folder / "job.toml") == JOB


def test_a_run_is_never_overwritten_by_accident(tmp_path):
    """A folder with tapes is refused, unless it is to be joined or replaced."""
    (tmp_path / "tapes").mkdir()
    (tmp_path / "tapes" / "syncer.1.tape").write_text("precious")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "snapshots" / "blobs").mkdir(parents=True)

    with pytest.raises(ConfigError, match="holds a run already"):
        open_folder(tmp_path, JOB)
    open_folder(tmp_path, JOB, join=True)
    assert (tmp_path / "tapes" / "syncer.1.tape").exists()
    open_folder(tmp_path, JOB, overwrite=True)
    assert not (tmp_path / "tapes").exists()
    assert not (tmp_path / "snapshots").exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_run_that_is_under_way_is_not_overwritten(tmp_path):
    """As long as one of its actors has the log open."""
    open_folder(tmp_path, JOB)
    logs = [ActorLog(tmp_path / "log.jsonl", f"learner-{n}.1") for n in (0, 1)]
    for log in logs:
        with pytest.raises(ConfigError, match=f"{tmp_path}: a run is under way there"):
            open_folder(tmp_path, JOB, overwrite=True)
        assert (tmp_path / "job.toml").exists()
        log.close()

    open_folder(tmp_path, JOB, overwrite=True)
    assert not (tmp_path / "log.jsonl").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    """A file where the folder should be, or a place for none: one line with path and reason."""
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match="file/run: this folder cannot be made: Not a directory"):
        open_folder(tmp_path / "file" / "run", JOB)
    with pytest.raises(ConfigError, match=r"file: is a file, want a folder$"):
        open_folder(tmp_path / "file", JOB)
    with pytest.raises(ConfigError, match=r"^/proc/x: this folder cannot be made: No such file"):
        open_folder(Path("/proc/x"), JOB)


@pytest.fixture
def for_all(tmp_path):
    """A place such as /tmp."""
    place = tmp_path / "for_all"
    place.mkdir()
    place.chmod(0o1777)
    return place


def test_a_folder_in_a_place_for_all_is_for_its_owner(for_all):
    """Nobody else can put anything into it, nor into those that it is in."""
    make_folder(for_all / "job" / "run")
    for each in (for_all / "job", for_all / "job" / "run"):
        assert each.stat().st_mode & 0o777 == 0o700 or each.name == "run"
    make_folder(for_all / "job" / "run")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder away")
@pytest.mark.parametrize("whose", ["job", "job/run"])
def test_a_folder_that_somebody_else_made_in_such_a_place_is_refused(for_all, whose):
    """It may have links to files of this user in it; and so may one behind a link."""
    make_folder(for_all / "job" / "run")
    os.chown(for_all / whose, 2001, 2001)
    (for_all / "link").symlink_to(for_all / "job" / "run")
    for folder in (for_all / "job" / "run", for_all / "link", for_all / "job" / "run" / "new"):
        with pytest.raises(ConfigError, match=r"belongs to another user, in .* everybody may"):
            make_folder(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder away")
def test_where_not_everybody_may_write_the_owner_decides(tmp_path):
    """Such as a project's folder, or a volume of a container."""
    make_folder(tmp_path / "project" / "run")
    os.chown(tmp_path / "project", 2001, 2001)
    os.chown(tmp_path / "project" / "run", 2001, 2001)
    for each in tmp_path.parents:
        if each.stat().st_mode & 0o002:
            pytest.skip(f"everybody may write to {each}")
    make_folder(tmp_path / "project" / "run")


def test_only_a_folder_that_was_made_and_not_used_is_removed(tmp_path):
    """With what was made around it; not once anything was recorded, and not if it existed."""
    run = tmp_path / "runs" / "x"
    made = folders_to_make(run)
    open_folder(run, JOB)
    assert folders_to_make(run) == []
    remove_unused([])
    (run / "log.jsonl").write_text("said")
    remove_unused(made)
    assert (run / "job.toml").exists()
    (run / "log.jsonl").unlink()
    remove_unused(made)
    assert list(tmp_path.iterdir()) == []


def test_next_folder_is_the_first_free_number(tmp_path):
    """Without --dir, runs are numbered."""
    assert tmp_path / "job-1" == next_folder(tmp_path, "job")
    (tmp_path / "job-1").mkdir()
    assert tmp_path / "job-2" == next_folder(tmp_path, "job")


def test_joining_leaves_the_job_file_alone(tmp_path):
    """Actors that start together read it while others join: it is never written again."""
    open_folder(tmp_path, JOB)
    before = (tmp_path / "job.toml").stat()
    open_folder(tmp_path, JOB, join=True)

    assert (tmp_path / "job.toml").stat() == before
    assert [MARK_FILE, "job.toml"] == sorted(path.name for path in tmp_path.iterdir())


def test_the_place_of_a_job(tmp_path):
    """Its snapshots are in its run folder, unless it names another place."""
    elsewhere = job_from({"job": {"task": "x:y"}, "snapshot": {"place": "memory://there"}}, "test")

    assert place_of(JOB, tmp_path) == tmp_path / "snapshots"
    assert place_of(elsewhere, tmp_path) == "memory://there"


def test_snapshots_tell_of_their_job(tmp_path):
    """Its id and name are in the manifest, and as many stay as it says."""
    job = job_from({"job": {"task": "x:y", "name": "small"}, "snapshot": {"keep": 1}}, "test")
    sink = sink_of(program_of(job), tmp_path)
    blob = sink.write_bytes(b"state")
    piece = sink.write_piece([Entry("state", "frozen", blob.digest, blob.size)])
    for number in (3, 5):
        part = Part("syncer.1", number, {"syncer.1": number}, (), {}, (piece,))
        sink.commit(f"syncer.1:{number}", [part], {})

    [left] = [each.manifest for each in Store(tmp_path).snapshots()]
    assert left.snapshot == "syncer.1:5"
    assert left.facts == {"job": job.id, "name": "small"}


def test_a_run_has_a_name_in_a_shared_place(tmp_path):
    """Its folder keeps it; another folder, or the same one overwritten, is another run."""
    job = job_from({"job": {"task": "x:y"}, "snapshot": {"place": str(tmp_path / "p")}}, "test")
    one = open_folder(tmp_path / "one", job)
    other = open_folder(tmp_path / "other", job)

    assert "" == run_of_place(JOB, one, make=True)
    assert "" == run_of_place(job, one)
    first = run_of_place(job, one, make=True)
    assert first == run_of(one) == run_of_place(job, one) == run_of_place(job, one, make=True)
    assert first != run_of(other, make=True)
    assert first != run_of_place(job, open_folder(one, job, overwrite=True), make=True)


@pytest.mark.parametrize("there", ["", "0123", "not a run ab"])
def test_a_run_that_was_cut_short_is_named_anew(tmp_path, there):
    """A file that holds no whole name names no run; who makes one writes it again."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "run").write_text(there)

    assert "" == run_of(tmp_path)
    made = run_of(tmp_path, make=True)
    assert 12 == len(made)
    assert made == run_of(tmp_path) == run_of(tmp_path, make=True)
