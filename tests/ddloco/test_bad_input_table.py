# ruff: noqa: E501
"""Bad input of every kind, as a table: exit code 2 and exactly one line, which names what is wrong.

Nothing here may start a job: what is wrong is found before that. Where a case hangs, the alarm ends
it as a failure.
"""

import os
import shutil
import signal
import struct
from pathlib import Path

import msgspec
import pytest
import tomli_w

from ddloco.cli.parser import main
from ddloco.stage.files.run_folder import open_folder
from replay import Tape, TapeWriter
from replay.tape import Event
from tests.lab import hostile_world

SECONDS_MAX = 30
"""Far more than any of these takes on a busy machine."""

JOB = {"job": {"task": "tests.tasks:regression", "name": "small", "steps": 4}}


@pytest.fixture(autouse=True)
def no_hang():
    """Interrupt a test that waits for too long."""

    def late(*_):
        raise AssertionError(f"no answer within {SECONDS_MAX} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS_MAX)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def refused(capsys):
    """Call the command line; it must end with exit code 2 and one line that says all of ``parts``."""

    def call(words, *parts, code=2):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        said = capsys.readouterr()
        lines = said.err.splitlines()
        assert ended.value.code == code, said
        assert len(lines) == 1, said.err
        assert lines[0].startswith("ddloco: ")
        assert "this is a bug" not in lines[0]
        for part in parts:
            assert part in lines[0], lines[0]

    return call


@pytest.fixture
def file(tmp_path):
    """A job file that is right."""
    path = tmp_path / "job.toml"
    path.write_text(tomli_w.dumps(JOB))
    return path


# Fields of the job file.

INF = ("inf", "-inf", "nan", "+inf", "1e999")
NUMBERS = [
    "inner.lr", "inner.weight_decay", "inner.clip", "inner.b1", "inner.b2", "outer.lr",
    "outer.momentum", "sync.grace", "sync.grace_steps_max", "sync.band", "elastic.downscale_s",
    "elastic.upscale_s", "elastic.restart_s", "tape.segment_s", "snapshot.every_s",
    "learner.learner-1.factor",
]  # fmt: skip
WHOLES = [
    "job.seed", "job.steps", "job.learners", "job.syncers", "sync.fragments", "sync.interval",
    "sync.overlap", "sync.quorum", "sync.staleness", "inner.warmup", "tape.segment_bytes",
    "snapshot.every_steps", "snapshot.keep", "snapshot.keep_every", "worker.threads",
    "learner.learner-1.shard", "learner.learner-1.threads",
]  # fmt: skip
FIELDS = [(name, value) for name in NUMBERS for value in (*INF, "1e300", "-1.0", '"x"', "true")]
FIELDS += [
    (name, value) for name in WHOLES for value in ("inf", "-1", "0.5", '"x"', "[]", str(2**63))
]
FIELDS += [
    ("job.name", value)
    for value in ('""', '"."', '".."', '"../x"', '"a/b"', '"a\\nb"', '"a\\u0000b"', '" "', '"-/"',
                  '"' + 65 * "x" + '"', "3", '".hidden"')
]  # fmt: skip
FIELDS += [
    ("job.task", value)
    for value in ('""', '"x"', '":"', '"x:"', '":y"', '"a/b.py:y"', '"a..b:y"', '".a:y"', '"a.:y"',
                  '"x y:z"', '"x:y:z"', '"x:y()"', '"tests.nothing:y"', '"a\\u0000b:y"', '"a\\nb:y"',
                  "3", "[]")
]  # fmt: skip
FIELDS += [
    ("outer.average", value)
    for value in ('[""]', '["["]', '["a[b"]', '["a\\nb"]', '["\\u0000"]', "[3]", '"*"', "{a = 1}")
]
FIELDS += [
    (f"{table}.env", value)
    for table in ("worker", "learner.learner-1")
    for value in ('{A = "a\\u0000b"}', '{"A=B" = "x"}', '{"" = "x"}', '{"A B" = "x"}', "{A = true}",
                  '{"A\\u0000" = "x"}', '["A"]', '"A"', '{"1A" = "x"}', '{"A\\n" = "x"}')
]  # fmt: skip
FIELDS += [
    ("snapshot.place", value)
    for value in ('"nowhere-known://x"', '"://"', '"a\\u0000b"', '"a\\nb"', "3", '"file:///dev/null"',
                  '"/dev/null"', '"no such scheme://x"')
]  # fmt: skip
FIELDS += [
    ("tape.keep", value)
    for value in ('"two"', '"0 snapshots"', '"-1 snapshots"', '"2"', '"2 tapes"', '"2 snapshots"')
]
FIELDS += [
    (name, '"other"')
    for name in ("job.method", "sync.pull", "sync.fragmentation", "inner.optimizer", "outer.merge",
                 "transport.kind", "tape.level", "tape.on_error")
]  # fmt: skip
FIELDS += [
    ("job.nothing", "1"), ("nothing.at_all", "1"), ("sync.fragments", "30"), ("job.syncers", "25"),
    ("sync.quorum", "9"), ("sync.overlap", "24"), ("sync.band", "0.5"),
    ("learner.learner-9.factor", "2.0"), ("learner.learner-1.shard", "3"),
    ("transport.keys", '"nowhere"\ntransport.kind = "tcp"'),
    ("chaos.fault", '[{what = "crash", who = "nobody"}]'), ("chaos.fault", '[{what = "x", who = "y"}]'),
    ("chaos.storm", '[{what = ["crash"], every_s = 0.0}]'), ("chaos.seed", "-1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), FIELDS)
def test_fields(refused, tmp_path, name, value):
    """A field of the job file, of which the line says the table and the key."""
    key = name.rpartition(".")[2]
    path = tmp_path / "job.toml"
    lines = [f'job.{k} = "{v}"' if isinstance(v, str) else f"job.{k} = {v}"
             for k, v in JOB["job"].items() if f"job.{k}" != name]  # fmt: skip
    path.write_text("\n".join([*lines, f"{name} = {value}"]))

    where = key if name != "job.task" else "task"
    if name == "learner.learner-9.factor":
        where = "learner.learner-9"
    if name == "transport.keys":
        where = "nowhere"
    if value.startswith("true") or '"x"' in value:
        where = ""
    refused(["run", path, "--dir", tmp_path / "run"], where)
    assert not (tmp_path / "run").exists()


# Files.

DEEP = 5000
TOMLS = {
    "lists within lists": "a = " + "[" * DEEP + "]" * DEEP,
    "tables within tables": "a = " + "{b = " * DEEP + "1" + "}" * DEEP,
    "names within names": "a" + ".b" * DEEP + " = 1",
    "headers": "[a" + ".b" * DEEP + "]",
    "options within options": '[job]\ntask = "tests.tasks:regression"\n[task]\na'
    + ".b" * 90
    + " = 1",
    "many digits": "job.seed = " + "9" * 5000,
    "no such day": "a = 2026-02-31",
    "half": "[job\ntask = 1",
    "twice": "a = 1\na = 2",
    "nothing": "",
    "only a number": "3",
    "control": "a = \x07",
    "nul": 'a = "\x00"',
    "bare return": "a = 1\rb = 2",
}


@pytest.mark.parametrize("text", TOMLS.values(), ids=TOMLS)
@pytest.mark.parametrize("command", ["run", "simulate", "chaos", "keys"])
def test_toml(refused, tmp_path, file, command, text):
    """What is no TOML, or none of ours, by every command that reads some."""
    path = tmp_path / "given.toml"
    path.write_bytes(text.encode())
    run = tmp_path / "run"
    words = {
        "run": ["run", path, "--dir", run],
        "simulate": ["simulate", path],
        "chaos": ["run", file, "--dir", run, "--processes", "--chaos", path],
        "keys": ["keys", tmp_path / "keys", "--job", path],
    }[command]
    if command == "chaos" and not text:
        pytest.skip("no faults are none")
    refused(words, "given.toml")


def not_a_file(path, kind):
    """Put there what is no file."""
    path.unlink(missing_ok=True)
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path)
        case "nothing":
            pass
        case "bytes":
            path.write_bytes(b"\xff\xfe\x00\x81")


KINDS = ["fifo", "folder", "device", "loop", "nothing", "bytes"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "command",
    ["run", "syncer", "learner", "simulate", "chaos", "keys", "public", "secret", "bind-keys"],
)
def test_no_files(refused, tmp_path, file, command, kind):
    """In place of every file that people name."""
    path, run, keys = tmp_path / "given.toml", tmp_path / "run", tmp_path / "keys"
    words = {
        "run": ["run", path, "--dir", run],
        "syncer": ["syncer", path, "--dir", run, "--bind", "tcp://127.0.0.1:*"],
        "learner": ["learner", path, "--dir", run, "--connect", "tcp://127.0.0.1:5",
                    "--name", "learner-0"],
        "simulate": ["simulate", path],
        "chaos": ["run", file, "--dir", run, "--processes", "--chaos", path],
        "keys": ["keys", keys, "--job", path],
        "public": ["run", file, "--dir", run, "--set=transport.kind=tcp",
                   f"--set=transport.keys={keys}"],
        "secret": ["run", file, "--dir", run, "--set=transport.kind=tcp",
                   f"--set=transport.keys={keys}"],
        "bind-keys": ["syncer", file, "--dir", run, "--bind", "tcp://127.0.0.1:*", "--keys", keys],
    }[command]  # fmt: skip
    if command in ("public", "secret", "bind-keys"):
        with pytest.raises(SystemExit):
            main(["keys", str(keys)])
        path = keys / ("public.toml" if command == "public" else "syncer.key")
    not_a_file(path, kind)
    refused(words, path.name)


# Words.

OVERRIDES = [
    "", "=", "x", "x=1", "job=1", "job.=1", ".=1", "job..x=1", "job.steps", "job.steps=", "sync=",
    "job.steps.more=1", "nothing.at=1", "job.name=..", "inner.lr=inf", "inner.lr=nan",
    "learner.learner-0.factor=inf", "a\nb", "a\nb.c=1", "job.steps=" + "[" * DEEP,
    "job.seed=" + "9" * 6000, "sync.interval=2026-02-31",
]  # fmt: skip


@pytest.mark.parametrize("said", OVERRIDES)
def test_overrides(refused, tmp_path, file, said):
    """What is no override, or says what the file may not."""
    refused(["run", file, "--dir", tmp_path / "run", f"--set={said}"])


ADDRESSES = [
    "", " ", "x", "tcp", "tcp:", "tcp://", "tcp://:", "tcp://:5555", "tcp://127.0.0.1",
    "tcp://127.0.0.1:", "tcp://127.0.0.1:99999", "tcp://127.0.0.1:65536", "tcp://127.0.0.1:-1",
    "tcp://127.0.0.1:1x", "tcp://127.0.0.1:x", "tcp://127.0.0.1:1.5", "tcp://127.0.0.1: 5",
    "tcp://127.0.0.1:5 ", "tcp://127.0.0.1:5\n", "tcp://127.0.0.1\n:5", "tcp://256.1.1.1:5",
    "tcp://1.2.3:5", "tcp://1.2.3.4.5:5", "tcp://[::1:5", "tcp://::1]:5", "tcp://[zz]:5",
    "tcp://[127.0.0.1]:5", "tcp://::1:5", "tcp://-a:5", "tcp://a..b:5", "tcp://a b:5", "tcp://ä:5",
    "tcp://a/b:5", "tcp://user@a:5", "tcp://127.0.0.1:5;127.0.0.1:6", "tcp://127.0.0.1:5/x",
    "tcp://127.0.0.1:٣", "tcp://127.0.0.1:+5", "tcp://127.0.0.1:0x5", "tcp://" + "a" * 300 + ":5",
    "tcp://127.0.0.1:" + "5" * 30, "udp://127.0.0.1:5", "http://127.0.0.1:5", "TCP://127.0.0.1:5",
    "inproc://x", "ipc://", "ipc:///nonexistent/x", "ipc:///" + "x" * 200, "ipc:///tmp",
    "pgm://127.0.0.1:5", "ws://127.0.0.1:5", "127.0.0.1:5555", "tcp//127.0.0.1:5", "\0",
    "tcp://127.0.0.1\0:5", "://x", "x" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
def test_where_nothing_listens(refused, tmp_path, file, address):
    """A syncer is not started there."""
    refused(["syncer", file, "--dir", tmp_path / "run", "--bind", address], "--bind")


@pytest.mark.parametrize("address", [*ADDRESSES, "tcp://127.0.0.1:0", "tcp://127.0.0.1:*", "file:",
                                     "tcp://*:5", "ipc://*", "file:/dev/null", "file:/tmp",
                                     "file:\0"])  # fmt: skip
def test_an_address_that_is_never_dialled(refused, tmp_path, file, address):
    """Neither a learner nor an observer dials such an address."""
    if address:
        refused(["status", address])
    words = ["learner", file, "--dir", tmp_path / "run", "--name", "learner-0"]
    refused([*words, "--connect", address], "--connect")


WORDS = [
    ["replay", "nowhere"], ["tape", "show", "nowhere"], ["tape", "verify", "nowhere"],
    ["replay", "/dev/null"], ["replay", "/dev/zero"], ["tape", "verify", "/dev/zero"],
    ["snapshot", "list", "nowhere"], ["snapshot", "verify", "nowhere"],
    ["snapshot", "list", "/dev/null"], ["snapshot", "list", "nowhere-known://x"],
    ["snapshot", "export", "nowhere", "latest", "--to", "x"],
    ["keys", "/dev/null"], ["keys", "k", "--learners", "0"], ["keys", "k", "--learners", "5000"],
    ["keys", "k", "--names", "a b"], ["keys", "k", "--names", ".."], ["keys", "k", "--names", "a/b"],
    ["keys", "k", "--names", "a\0b"], ["keys", "k", "--names", ","],
    ["status", "tcp://127.0.0.1:5", "--timeout", "0"], ["status", "tcp://127.0.0.1:5", "--timeout", "inf"],
    ["status", "tcp://127.0.0.1:5", "--timeout", "nan"], ["status", "tcp://127.0.0.1:5", "--timeout", "-1"],
    ["observe", "tcp://127.0.0.1:5", "--prometheus", "99999"],
    ["observe", "tcp://127.0.0.1:5", "--prometheus", "-1"],
    ["observe", "tcp://127.0.0.1:5", "--keys", "nowhere"],
    ["stop", "tcp://127.0.0.1:5", "--keys", "nowhere"],
    ["simulate", "nowhere"], ["simulate", "/dev/zero"],
    ["perform", "x"], ["perform", "x:y"], ["perform", ":"], ["perform", "tests.tasks:regression"],
    ["perform", "a b:c"], ["perform", "a\0b:c"],
]  # fmt: skip


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_words(refused, tmp_path, monkeypatch, words):
    """What every command may be given."""
    monkeypatch.chdir(tmp_path)
    refused(words)


ACTORS = [
    ("syncer", ["--bind", "tcp://127.0.0.1:*", "--name", "syncer-7"]),
    ("syncer", ["--bind", "tcp://127.0.0.1:*", "--name", "../x"]),
    ("syncer", ["--bind", "tcp://127.0.0.1:*", "--connect", "tcp://127.0.0.1:5"]),
    ("syncer", ["--bind", "tcp://127.0.0.1:*", "--patience", "inf"]),
    ("syncer", ["--bind", "tcp://127.0.0.1:*", "--patience", "nan"]),
    ("syncer", ["--bind", "tcp://127.0.0.1:*", "--patience", "-1"]),
    ("syncer", ["--bind", "tcp://127.0.0.1:*", "--keys", "/nowhere"]),
    ("syncer", ["--bind", "tcp://127.0.0.1:*", "--patience", "1e18"]),
    ("syncer", ["--bind", "tcp://127.0.0.1:*", "--advertise", "x"]),
    ("syncer", ["--bind", "tcp://127.0.0.1:*", "--advertise", "tcp://*:5"]),
    ("syncer", ["--bind", "tcp://127.0.0.1:*", "--advertise", "ipc:///x"]),
    ("syncer", ["--bind", "tcp://127.0.0.1:*", "--from", "/nowhere/latest"]),
    ("syncer", ["--bind", "tcp://*:*"]),
    ("syncer", ["--bind", "tcp://0.0.0.0:5"]),
    ("learner", ["--connect", "tcp://127.0.0.1:5", "--name", "learner-9"]),
    ("learner", ["--connect", "tcp://127.0.0.1:5", "--name", ""]),
    ("learner", ["--connect", "tcp://127.0.0.1:5", "--name", "../learner-0"]),
    ("learner", ["--connect", "tcp://127.0.0.1:5", "tcp://127.0.0.1:6", "--name", "learner-0"]),
    ("learner", ["--connect", "tcp://127.0.0.1:5", "--name", "learner-0", "--alone"]),
    ("learner", ["--connect", "tcp://127.0.0.1:5", "--name", "learner-0", "--patience", "inf"]),
    ("learner", ["--connect", "tcp://127.0.0.1:5", "--name", "learner-0", "--from", "/nowhere/x"]),
]


@pytest.mark.parametrize(("command", "words"), ACTORS, ids=lambda each: " ".join(each))
def test_actors(refused, tmp_path, file, command, words):
    """What an actor that is started by hand may be given."""
    refused([command, file, "--dir", tmp_path / "run", *words])


def test_an_address_file_that_is_a_link_to_itself(refused, tmp_path, file):
    """It will never be a file, so nobody waits for it."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    words = ["learner", file, "--dir", tmp_path / "run", "--name", "learner-0"]
    refused([*words, "--connect", f"file:{loop}"], "loop: cannot be read")


# Tapes.


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A simulated run."""
    folder = tmp_path_factory.mktemp("world")
    drawn = hostile_world.draw(0, folder)
    open_folder(folder, drawn.job)
    hostile_world.happen(drawn)
    return folder


@pytest.fixture
def tape(world, tmp_path):
    """One of its tapes, in a copy of the run."""
    return Path(shutil.copytree(world, tmp_path / "run")) / "tapes" / "learner-0.1.tape"


def bent(path, at, data):
    """Put other bytes there."""
    whole = bytearray(path.read_bytes())
    whole[at : at + len(data)] = data
    path.write_bytes(whole)


def test_a_run_folder_has_no_status_of_its_own(refused, world):
    """It has one at each of its events."""
    refused(["status", world], f"{world}: no address", "a run folder wants --at EVENT")


NESTED = "[" * 100_000
"""Deeper than any reader follows."""


def test_a_log_that_is_nested_without_end(refused, tape):
    """The run is calibrated by it."""
    (tape.parents[1] / "log.jsonl").write_text(f"{NESTED}\n")
    refused(["simulate", tape.parents[1]], "log.jsonl: has a damaged line")


DAMAGE = {
    "magic": lambda path: bent(path, 0, b"x"),
    "version": lambda path: bent(path, 8, struct.pack("<I", 77)),
    "reserved": lambda path: bent(path, 12, b"\1"),
    "length": lambda path: bent(path, 16, b"\xff\xff\xff\xff"),
    "check": lambda path: bent(path, 20, b"\0\0\0\0"),
    "header": lambda path: bent(path, 40, b"\0"),
    "cut in the prefix": lambda path: path.write_bytes(path.read_bytes()[:9]),
    "cut in the header": lambda path: path.write_bytes(path.read_bytes()[:30]),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("hello " * 100),
    "twice": lambda path: path.write_bytes(path.read_bytes() * 2),
    "another name": lambda path: path.rename(path.with_name("learner-0.7.tape")),
    "no name": lambda path: path.rename(path.with_name(".tape")),
    "a part's name": lambda path: path.rename(path.with_name("learner-0.1@9.tape")),
    "a copy": lambda path: shutil.copy(path, path.with_name("copy.tape")),
    **{
        f"byte {at}": lambda path, at=at: bent(path, at, b"\xa5\x5a") for at in range(60, 3000, 140)
    },
    **{kind: lambda path, kind=kind: not_a_file(path, kind) for kind in KINDS if kind != "nothing"},
}


@pytest.mark.parametrize("how", DAMAGE)
def test_tapes(refused, tape, how):
    """A tape that is none, or damaged: the file, and where it can be the byte."""
    DAMAGE[how](tape)

    for words in (["replay", tape.parents[1]], ["tape", "verify", tape.parents[1]]):
        refused(words, ".tape")


RECORDS = {
    "no fields": msgspec.Raw(b"\x07"),
    "a list": msgspec.Raw(b"\x91\x01"),
    "nothing": msgspec.Raw(b"\xc0"),
    "no type": msgspec.Raw(b"\x80"),
    "another type": msgspec.Raw(b"\x81\xa4type\xa1x"),
    "a type that is none": msgspec.Raw(b"\x81\xa4type\x07"),
    "not whole": msgspec.Raw(b"\x81\xa4type"),
    "deep": msgspec.Raw(b"\x91" * 5000 + b"\xc0"),
    "an arrival of nothing": msgspec.Raw(b"\x81\xa4type\xaeMessageArrived"),
}


@pytest.mark.parametrize("how", RECORDS)
def test_events(refused, tape, how):
    """An event that no version wrote: the tape and the event."""
    read, other = Tape(tape), tape.with_suffix(".other")
    writer = TapeWriter(other, read.header)
    for each in read.records():
        if isinstance(each, Event) and each.n == 3:
            writer.append(msgspec.structs.replace(each, event=RECORDS[how]))
        else:
            writer.append(each)
    writer.close()
    other.replace(tape)

    refused(["replay", tape.parents[1]], "learner-0.1.tape")
    refused(["tape", "verify", tape.parents[1]], "learner-0.1.tape")


@pytest.mark.parametrize("task", ["", "x", "x:", "a b:c", "tests.nothing:x"])
def test_a_task_in_place_of_the_tapes(refused, tape, task):
    """``--task`` is checked before anything is executed."""
    if task:
        words = ["replay", "--task", task, tape.parents[1]]
        if task != "tests.nothing:x":
            refused(words, "--task")


def test_the_table_is_long():
    """As long as it was promised to be."""
    count = len(FIELDS) + 4 * len(TOMLS) + 9 * len(KINDS) + len(OVERRIDES) + 3 * len(ADDRESSES)
    count += len(WORDS) + len(ACTORS) + 2 * len(DAMAGE) + 2 * len(RECORDS)
    assert count >= 400
