"""Runs in one file: packed, unpacked elsewhere, replayed; and bundles that mean harm."""

import gzip
import hashlib
import os
import shutil
import tarfile
import tracemalloc
from pathlib import Path

import msgspec
import pytest
import trio

from ddloco.cli.debug import bundle
from ddloco.cli.parser import parser
from ddloco.debugger.bundle import FORMAT, KNOWN, BundleAbout, open_bundle, write_bundle
from ddloco.replayer.replay_of import replay_of
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.files.trust import MARK_FILE
from ddloco.stage.process.code_version import code_version
from ddloco.workers.task_sources import keep_sources


@pytest.fixture
def packed(folder, tmp_path):
    """The run, with a source, as a bundle."""
    copy = shutil.copytree(folder, tmp_path / "run")
    keep_sources(copy, {"my/task.py": "x = 1\n"})
    path = tmp_path / "run.ddloco.tar.gz"
    write_bundle(copy, path)
    return path


def listed(name, data):
    """An entry of the list."""
    return {"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def member(name, data, **changed):
    """A member as tar writes it, with changes of its header."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o644
    form = changed.pop("form", tarfile.USTAR_FORMAT)
    for key, value in changed.items():
        setattr(entry, key, value)
    return entry.tobuf(form) + data + bytes(-len(data) % 512)


ABOUT = {"job": "x", "code": "y", "fingerprint": {}, "task": "", "format": FORMAT}
JOB = b"job"


def archive(path, files, *members, end=bytes(1024), **about):
    """A bundle that lists these files and has these members."""
    first = msgspec.json.encode({**ABOUT, "files": files, **about})
    path.write_bytes(gzip.compress(member("bundle.json", first) + b"".join(members) + end))
    return path


def refused(path, tmp_path, capsys):
    """It is: with one line that names the file, code 2, and nothing left."""
    before = {*tmp_path.rglob("*")}
    words = ["bundle", str(path), "--to", str(tmp_path / "deep" / "there")]
    assert bundle(parser().parse_args(words)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert str(path) in said.err
    assert said.err[:-1].isprintable()
    assert before == {*tmp_path.rglob("*")}
    return said.err


def test_a_small_file_does_not_fill_a_disk(tmp_path, capsys):
    """It may list 64 MiB, and beyond that so many times its own size."""
    files = [{**listed("log.jsonl", JOB), "size": 2**26 + 1}]
    said = refused(archive(tmp_path / "bomb.tar.gz", files), tmp_path, capsys)
    assert f"lists {2**26 + 1} bytes in a file of " in said
    assert f"want at most {2**26}" in said


def test_a_run_replays_from_its_bundle(packed, tmp_path, folder):
    """Tapes, job file, log and source are there; the mark of who recorded it is not."""
    there = tmp_path / "elsewhere"
    about = open_bundle(packed, there)
    assert trio.run(replay_of(there).run).identical
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


@pytest.mark.parametrize(
    "name",
    [
        *("../evil.py", "/etc/passwd", "snapshots/../../evil", "source/../evil.py", "", "tapes"),
        *("source/.hidden.py", ".recorded-by", "model/model.safetensors", "bundle.json"),
        *("tapes/a.1.tape\0", "tapes/\x1b[2J.tape", "tapes/ä.tape", "source/" + 30 * "a/" + "b.py"),
        "source/" + "/".join(["a" * 60] * 6) + ".py",
    ],
)
def test_nothing_is_unpacked_that_does_not_belong(name, tmp_path, capsys):
    """Names that lead elsewhere, marks of trust, names that are too long."""
    path = archive(tmp_path / "evil.tar.gz", [listed(name, JOB)], member("job.toml", JOB))
    refused(path, tmp_path, capsys)


def sparse():
    """A member that is 200 bytes long and unpacks to eight GiB."""
    data = bytearray(member("job.toml", JOB, type=tarfile.GNUTYPE_SPARSE))
    data[386:410] = b"%011o\0%011o\0" % (8**11 - 1, 0)
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        member("job.toml", JOB, type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("job.toml", JOB, type=tarfile.LNKTYPE, linkname="/etc/passwd"),
        member("job.toml", JOB, type=tarfile.FIFOTYPE),
        member("job.toml", JOB, type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        member("job.toml", JOB, type=tarfile.DIRTYPE),
        member("job.toml", JOB, type=tarfile.CONTTYPE),
        member("job.toml", JOB, size=-(2**60), form=tarfile.GNU_FORMAT),
        member("job.toml", JOB, size=2**60, form=tarfile.GNU_FORMAT),
        member("job.toml", JOB, size=2),
        member("././@LongLink", b"a" * 4096, type=tarfile.GNUTYPE_LONGNAME),
        member("a", b"", type=tarfile.XHDTYPE, size=6 * 10**9),
        member("a", b"30 path=" + b"a" * 21 + b"\n", type=tarfile.XHDTYPE),
        member("a", b"", type=tarfile.XGLTYPE, size=6 * 10**9),
        sparse(),
        member("job.toml", JOB, mode=0o4755),
        member("job.toml", b"joc"),
        member("log.jsonl", JOB),
        member("job.toml", JOB) * 2,
        member("job.toml", JOB) + member("log.jsonl", JOB),
        member("job.toml", JOB)[:-1] + b"x",
        member("job.toml", JOB)[:514],
        b"",
    ],
    ids=lambda data: f"{len(data)}-{data[156:157]!r}",
)
def test_only_what_is_listed_is_read(data, tmp_path, capsys):
    """No link, device or folder, no header that announces another, no other size or content."""
    path = archive(tmp_path / "evil.tar.gz", [listed("job.toml", JOB)], data)
    tracemalloc.start()
    refused(path, tmp_path, capsys)
    assert tracemalloc.get_traced_memory()[1] < 2**25
    tracemalloc.stop()


@pytest.mark.parametrize(
    "about",
    [
        {"files": [listed("job.toml", JOB)] * 2},
        {"files": [{**listed("job.toml", JOB), "size": -(2**60)}]},
        {"files": [{**listed("job.toml", JOB), "size": 2**40}]},
        {"files": [{**listed(f"tapes/{n}.tape", JOB), "size": 2**33 - 1} for n in range(9)]},
        {"files": [{**listed("job.toml", JOB), "sha256": "0" * 64}]},
        {"files": [listed("log.jsonl", JOB)]},
        {"format": 1},
        {"task": "x; rm -rf ~"},
        {"task": "a:b\x1b[2J"},
        {"task": 5},
        {"more": 5},
        {"job": [[[]]]},
    ],
)
def test_what_a_list_says_is_compared(about, tmp_path, capsys):
    """Files that come twice, impossible sizes, other digests, tasks that are commands."""
    files = about.pop("files", [listed("job.toml", JOB)])
    path = archive(tmp_path / "evil.tar.gz", files, member("job.toml", JOB), **about)
    refused(path, tmp_path, capsys)


@pytest.mark.parametrize("text", [b"[" * 200_000, b'{"job": ' + b"[" * 200_000, b"\xff", b"{}"])
def test_a_description_that_is_nested_or_no_text_is_one_line(text, tmp_path, capsys):
    """Before anything is unpacked."""
    path = tmp_path / "evil.tar.gz"
    path.write_bytes(gzip.compress(member("bundle.json", text) + bytes(1024)))
    assert "bundle.json: " in refused(path, tmp_path, capsys)


@pytest.mark.parametrize(
    "data",
    [b"", b"no archive", gzip.compress(b"no tar"), gzip.compress(bytes(1024))[:-9]],
    ids=["empty", "other", "compressed", "half"],  # Compressed bytes name the time.
)
def test_what_is_no_bundle_is_said_in_one_line(data, tmp_path, capsys):
    """Empty, another file, half of one."""
    path = tmp_path / "x.ddloco.tar.gz"
    path.write_bytes(data)
    refused(path, tmp_path, capsys)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path, capsys):
    """A FIFO that nobody writes to, and a device without an end."""
    os.mkfifo(tmp_path / "fifo")
    assert "is a FIFO" in refused(tmp_path / "fifo", tmp_path, capsys)
    assert "is a device" in refused(Path("/dev/zero"), tmp_path, capsys)


def test_every_flipped_byte_is_found(packed, tmp_path, capsys):
    """In the header, in every region, in the checksum: a bundle is whole or it is refused."""
    data = packed.read_bytes()
    shutil.rmtree(tmp_path / "run")
    spread = range(10, len(data), max(len(data) // 60, 1))
    for at in (0, 1, 2, 3, *spread, *range(len(data) - 8, len(data))):
        packed.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        refused(packed, tmp_path, capsys)
    for end in (data[:-1], data[:-4], data[:-8], data + b"x", data + gzip.compress(b"x")):
        packed.write_bytes(end)
        refused(packed, tmp_path, capsys)
    packed.write_bytes(data)
    open_bundle(packed, tmp_path / "there")


def test_contents_that_are_changed_and_packed_again_are_found(packed, tmp_path, capsys):
    """With a right checksum of the whole, as of somebody who means it."""
    data = bytearray(gzip.decompress(packed.read_bytes()))
    shutil.rmtree(tmp_path / "run")
    for at in range(0, len(data), max(len(data) // 60, 1)):
        data[at] ^= 0x55
        packed.write_bytes(gzip.compress(data, compresslevel=1))
        refused(packed, tmp_path, capsys)
        data[at] ^= 0x55


def test_what_cannot_be_packed_leaves_no_file(folder, tmp_path):
    """A name that a plain header cannot hold."""
    copy = shutil.copytree(folder, tmp_path / "run")
    keep_sources(copy, {"/".join(["a" * 60] * 6) + ".py": "x = 1\n"})
    with pytest.raises(ConfigError, match="too long"):
        write_bundle(copy, tmp_path / "x.tar.gz")
    assert not (tmp_path / "x.tar.gz").exists()


@pytest.mark.parametrize("name", ["log.jsonl", "job.toml", "source/my/task.py"])
def test_no_link_is_packed(name, folder, tmp_path):
    """Whoever gave a run away could have made it lead to a file of whoever sends it on."""
    copy = shutil.copytree(folder, tmp_path / "run")
    (copy / name).parent.mkdir(parents=True, exist_ok=True)
    (copy / name).touch()
    (copy / name).rename(tmp_path / "elsewhere")
    (copy / name).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(ConfigError, match=f"{name}: is a link, not a regular file"):
        write_bundle(copy, tmp_path / "x.tar.gz")
    assert not (tmp_path / "x.tar.gz").exists()


def test_a_run_that_is_not_there_is_named(tmp_path, capsys, monkeypatch):
    """And no folder is made for it."""
    monkeypatch.chdir(tmp_path)
    assert bundle(parser().parse_args(["bundle", str(tmp_path / "nothere")])) == 2
    assert capsys.readouterr().err == f"ddloco: {tmp_path}/nothere: no such folder or bundle\n"
    assert list(tmp_path.iterdir()) == []


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
    about = BundleAbout("x", code_version(), {"python": "3.10.1", "jax": "0.1", "cpu": "y"}, "")
    here = {"python": "3.11.7", "jax": "0.1"}
    assert about.differences(here) == ["python was 3.10.1, is 3.11.7"]


def test_known_names():
    """Those that a run folder has."""
    for name in ("tapes/learner-1.2@340.tape", "source/a/b.py", "snapshots/blobs/ab/cdef"):
        assert KNOWN.fullmatch(name), name
