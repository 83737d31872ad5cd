"""Whose states may act, and which places may be opened."""

import errno
import os
from pathlib import Path

import pytest
import tomli_w

from ddloco.job.config import job_from
from ddloco.stage.driver.resume import check_said
from ddloco.stage.files import trust
from ddloco.stage.files.run_folder import open_folder
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.files.trust import MARK_FILE, check_states, leave_place

ELSEWHERE = "s3://stranger/place"


@pytest.fixture
def job():
    """A job whose snapshots have a place of their own."""
    return job_from({"job": {"task": "a:b"}, "snapshot": {"place": "memory://own"}}, "test")


@pytest.fixture
def folder(tmp_path, job):
    """The folder of a run that this user recorded."""
    return open_folder(tmp_path / "run", job)


def test_places_of_a_run_of_ones_own_may_be_opened(folder, job, monkeypatch):
    """In its folder, in its settings, and where this user has continued from."""
    plain = job.as_plain()
    leave_place(folder, ELSEWHERE)
    for place in (folder / "snapshots", str(folder / "snapshots"), "memory://own", ELSEWHERE):
        check_states(folder, plain, place, trust=False)
    monkeypatch.chdir(folder.parent)
    check_states(Path("run"), plain, folder / "snapshots", trust=False)
    check_states(folder, plain, "run/snapshots", trust=False)


@pytest.mark.parametrize(
    "place",
    [ELSEWHERE, "/elsewhere", "file:///elsewhere", "memory://owns", "../run", "", "s3://x/../run"],
)
def test_other_places_are_refused_in_one_line(folder, job, place):
    """Whatever a tape's header names; ``--trust`` opens it."""
    inner = f"{folder}/../elsewhere" if place == "../run" else place or str(folder.parent)
    with pytest.raises(ConfigError, match="use --trust to open it") as error:
        check_states(folder, job.as_plain(), inner, trust=False)
    assert "\n" not in str(error.value)
    check_states(folder, job.as_plain(), inner, trust=True)


def test_a_mark_of_another_folder_or_place_is_no_mark(folder, job, tmp_path):
    """Nor is one for a job a mark for a place."""
    leave_place(folder, f"{ELSEWHERE}/more")
    other = open_folder(tmp_path / "other", job)
    leave_place(other, ELSEWHERE)
    with pytest.raises(ConfigError, match="use --trust to open it"):
        check_states(folder, job.as_plain(), ELSEWHERE, trust=False)


def test_states_of_another_user_do_not_act(folder, job):
    """Without the mark, or with another job than the marked one, wherever the states are."""
    plain = job.as_plain()
    changed = {**plain, "snapshot": {**plain["snapshot"], "place": ELSEWHERE}}
    with pytest.raises(ConfigError, match=r"was not recorded by this user .* use --trust if"):
        check_states(folder, changed, ELSEWHERE, trust=False)
    (folder / MARK_FILE).unlink()
    with pytest.raises(ConfigError, match=r"was not recorded by this user .* use --trust if"):
        check_states(folder, plain, folder / "snapshots", trust=False)
    check_states(folder, plain, folder / "snapshots", trust=True)


def test_a_run_continues_from_what_this_user_recorded_or_set(folder, job, tmp_path):
    """And from nothing else, whether the folder has a job, a program, or none."""
    within = str(folder / "snapshots")
    (folder / "tapes").mkdir()
    check_said(str(folder), within, "", trust=False)
    check_said(f"{within}/syncer.1-10", within, "", trust=False)
    check_said("s3://shared/run/latest", "s3://shared/run", "s3://shared/run", trust=False)
    bare = str(tmp_path / "bare")
    program = tmp_path / "program"
    (program / "tapes").mkdir(parents=True)
    (program / "job.toml").write_text(tomli_w.dumps({"program": "a:b", "options": {}}))
    for said, place in (
        ("s3://shared/run/latest", "s3://shared/run"),
        (f"{bare}/latest", bare),
        (str(program), str(program / "snapshots")),
    ):
        with pytest.raises(ConfigError, match="use --trust if you trust") as error:
            check_said(said, place, "s3://other", trust=False)
        assert "\n" not in str(error.value)
        check_said(said, place, "", trust=True)
    (folder / MARK_FILE).unlink()
    with pytest.raises(ConfigError, match="use --trust if you trust"):
        check_said(str(folder), within, within, trust=False)


def test_a_job_file_beside_its_place_is_no_run(tmp_path):
    """What a person wrote there has no mark; the place that it names is the new run's own."""
    (tmp_path / "job.toml").write_text('[snapshot]\nplace = "snaps"\n')
    place = str(tmp_path / "snaps")
    check_said(f"{place}/latest", place, place, trust=False)
    with pytest.raises(ConfigError, match="it is not the snapshot"):
        check_said(f"{place}/latest", place, "", trust=False)


def test_a_home_without_links_has_a_key(tmp_path, monkeypatch):
    """It is written under its name where the file system cannot link it."""

    def refused(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "link", refused)
    assert trust._key() == trust._key()
    assert [path.name for path in (tmp_path / "ddloco").iterdir()] == ["recorder.key"]
