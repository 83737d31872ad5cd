"""Runs in one file: packed, unpacked elsewhere, replayed; and bundles that mean harm."""

import gzip
import io
import shutil
import tarfile

import pytest
import trio

from ddloco.cli.debug import bundle
from ddloco.cli.parser import parser
from ddloco.config.toml import ConfigError
from ddloco.config.trust import MARK_FILE
from ddloco.debugger.bundle import KNOWN, About, open_bundle, write_bundle
from ddloco.replayer.job_replay import replay_of_job
from ddloco.tapes.code_version import code_version
from ddloco.workers.task_sources import keep_sources


@pytest.fixture
def packed(folder, tmp_path):
    """The run, with a source, as a bundle."""
    copy = shutil.copytree(folder, tmp_path / "run")
    keep_sources(copy, {"my/task.py": "x = 1\n"})
    path = tmp_path / "run.ddloco.tar.gz"
    write_bundle(copy, path)
    return path


def tar(path, entries):
    """Write a tar file of these entries: name to bytes, or to a prepared member."""
    with tarfile.open(path, "w:gz") as file:
        for name, data in entries:
            entry = data if isinstance(data, tarfile.TarInfo) else tarfile.TarInfo(name)
            if isinstance(data, bytes):
                entry.size = len(data)
                file.addfile(entry, io.BytesIO(data))
            else:
                file.addfile(entry)
    return path


def test_a_run_replays_from_its_bundle(packed, tmp_path, folder):
    """Tapes, job file, log and source are there; the mark of who recorded it is not."""
    there = tmp_path / "elsewhere"
    about = open_bundle(packed, there)
    assert trio.run(replay_of_job(there).run).identical
    assert (there / "source" / "my" / "task.py").read_text() == "x = 1\n"
    assert (there / "log.jsonl").read_bytes() == (folder / "log.jsonl").read_bytes()
    assert not (there / MARK_FILE).exists()
    assert about.code == code_version()


def test_the_same_run_makes_the_same_bundle(packed, tmp_path):
    """No times and no owners are in it."""
    again = tmp_path / "again.ddloco.tar.gz"
    write_bundle(tmp_path / "run", again)
    assert again.read_bytes() == packed.read_bytes()


def test_what_may_name_people_can_be_left_out(packed, tmp_path):
    """With ``--redact`` there is neither log nor source."""
    path, there = tmp_path / "redacted.tar.gz", tmp_path / "there"
    assert write_bundle(tmp_path / "run", path, redact=True).redacted
    open_bundle(path, there)
    assert {each.name for each in there.iterdir()} == {"job.toml", "tapes"}


ABOUT = ("bundle.json", b'{"job": "x", "code": "y", "fingerprint": {}, "task": ""}')


def link(kind, target):
    """A member that is a link."""
    entry = tarfile.TarInfo("tapes/a.1.tape")
    entry.type, entry.linkname = kind, target
    return entry


@pytest.mark.parametrize(
    "entries",
    [
        [("../evil.py", b"x")],
        [("/etc/passwd", b"x")],
        [("snapshots/../../evil", b"x")],
        [("source/../evil.py", b"x")],
        [("source/.hidden.py", b"x")],
        [(".recorded-by", b"x")],
        [("model/model.safetensors", b"x")],
        [("tapes/a.1.tape", link(tarfile.SYMTYPE, "/etc/passwd"))],
        [("tapes/a.1.tape", link(tarfile.LNKTYPE, "/etc/passwd"))],
        [("job.toml", b"x"), ("job.toml", b"y")],
    ],
)
def test_nothing_is_unpacked_that_does_not_belong(entries, tmp_path):
    """Names that lead elsewhere, links, marks of trust, and files that come twice."""
    path = tar(tmp_path / "evil.tar.gz", [ABOUT, *entries])
    with pytest.raises(ConfigError, match="evil"):
        open_bundle(path, tmp_path / "there")
    assert {each.name for each in tmp_path.iterdir()} <= {"evil.tar.gz", "there"}


@pytest.mark.parametrize(
    "data",
    [b"", b"no archive", gzip.compress(b"no tar"), gzip.compress(bytes(1024))[:-9]],
    ids=["empty", "other", "compressed", "half"],  # Compressed bytes name the time.
)
def test_what_is_no_bundle_is_said_in_one_line(data, tmp_path, capsys):
    """Empty, another file, half of one."""
    path = tmp_path / "x.ddloco.tar.gz"
    path.write_bytes(data)
    words = ["bundle", str(path), "--to", str(tmp_path / "there")]
    assert bundle(parser().parse_args(words)) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_run_that_is_not_there_is_named(tmp_path, capsys, monkeypatch):
    """And no folder is made for it."""
    monkeypatch.chdir(tmp_path)
    assert bundle(parser().parse_args(["bundle", str(tmp_path / "nothere")])) == 2
    assert capsys.readouterr().err == f"ddloco: {tmp_path}/nothere: no such folder or bundle\n"
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_bundle_is_refused_anywhere(packed, tmp_path):
    """Whatever byte it ends at."""
    data = packed.read_bytes()
    for part in (1, 2, 3, 5, 9):
        short = tmp_path / f"short-{part}.tar.gz"
        short.write_bytes(data[: len(data) * part // 10])
        with pytest.raises(ConfigError):
            open_bundle(short, tmp_path / f"there-{part}")


def test_the_command_packs_unpacks_and_says_what_differs(packed, tmp_path, capsys, monkeypatch):
    """Both ways with one command; nothing is overwritten."""
    monkeypatch.chdir(tmp_path)
    assert bundle(parser().parse_args(["bundle", "run", "--to", "one.tar.gz"])) == 0
    assert "open it with: ddloco bundle one.tar.gz" in capsys.readouterr().out
    assert bundle(parser().parse_args(["bundle", "one.tar.gz", "--to", "opened"])) == 0
    assert "replay it with: ddloco replay opened" in capsys.readouterr().out
    assert bundle(parser().parse_args(["bundle", "one.tar.gz", "--to", "opened"])) == 2
    assert bundle(parser().parse_args(["bundle", "run", "--to", "one.tar.gz"])) == 2
    capsys.readouterr()


def test_versions_that_differ_are_named():
    """What the replay wants, and what is here."""
    about = About("x", code_version(), {"python": "3.10.1", "jax": "0.1", "cpu": "y"}, "")
    here = {"python": "3.11.7", "jax": "0.1"}
    assert about.differences(here) == ["python: recorded with 3.10.1, here is 3.11.7"]


def test_known_names():
    """Those that a run folder has."""
    for name in ("tapes/learner-1.2@340.tape", "source/a/b.py", "snapshots/blobs/ab/cdef"):
        assert KNOWN.fullmatch(name), name
