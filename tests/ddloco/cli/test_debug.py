"""Tapes, logs and bundles whose texts have control characters: no command hands them on."""

import gzip
import hashlib
import json
import shutil
import sys
import tarfile

import msgspec
import pytest
import trio

from ddloco.cli.parser import main
from ddloco.debugger.bundle import ABOUT, FORMAT
from ddloco.monitoring.live_display import follow_log
from ddloco.stage.process.console import SafeConsole
from ddloco.stage.process.terminal import CONTROL, escaping
from replay import Tape, TapeWriter, tape

HOSTILE = "x\x1b[2J\rddloco: forged\x9b2J\u202etxt"


@pytest.fixture
def said(capsys):
    """Runs a command; returns all that it prints, in which there is no control character."""

    def called(*words):
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert not CONTROL.search(out), out
        assert not CONTROL.search(err), err
        assert end.value.code in {0, 1, 2}
        return out + err

    return called


def planted(value, name=""):
    """A value of an event, with hostile text wherever it has text that is no name of its own."""
    if isinstance(value, dict):
        return {key: planted(each, key) for key, each in value.items()}
    if isinstance(value, str) and name in {"reason", "timer", "snapshot", "payload"}:
        return HOSTILE
    return value


@pytest.fixture
def hostile(folder, tmp_path):
    """A run of a stranger, whose tapes are hostile wherever a reader takes any text."""
    run = shutil.copytree(folder, tmp_path / "run")
    for path in (run / "tapes").iterdir():
        source = Tape(path)
        records = list(source.records())
        path.unlink()
        facts = {**source.header.facts, "hostile": HOSTILE, HOSTILE: "x"}
        header = msgspec.structs.replace(source.header, facts=facts, code=HOSTILE)
        writer = TapeWriter(path, header)
        for record in records:
            if isinstance(record, tape.Event):
                event = planted(msgspec.msgpack.decode(record.event))
                raw = msgspec.Raw(msgspec.msgpack.encode(event, order="deterministic"))
                record = tape.Event(record.n, record.at, raw, record.clock)  # noqa: PLW2901
            if isinstance(record, tape.Raised):
                record = msgspec.structs.replace(record, error=HOSTILE)  # noqa: PLW2901
            writer.append(record)
        writer.close()
    return run


def test_tapes_are_shown_without_control_characters(said, hostile):
    """Events, headers, divergences, errors and what is explained, as lines and as JSON."""
    last = "syncer.1:40"
    shown = said("tape", "show", hostile, "--full")
    assert r"x\u001b[2J\u000dddloco: forged\u009b2J\u202etxt" in shown
    for words in (
        ("tape", "show", hostile, "--json"),
        ("tape", "show", hostile, "--actor", HOSTILE),
        ("tape", "verify", hostile),
        ("replay", hostile),
        ("replay", hostile, "--until", last),
        ("replay", hostile, "--until", HOSTILE),
        ("why", hostile, "event", last),
        ("why", hostile, "event", HOSTILE),
        ("why", hostile, "merge", "40"),
        ("why", hostile, "loss"),
        ("diff", hostile, hostile),
        ("status", hostile, "--at", last),
        ("report", hostile, "--out", hostile / "x.html"),
        ("bundle", hostile, "--to", hostile / HOSTILE.replace("/", "")),
    ):
        said(*words)
    for line in said("tape", "show", hostile, "--json").splitlines():
        json.loads(line)


def test_files_with_hostile_names_and_settings_are_named_without_them(said, tmp_path):
    """Job files, folders and addresses."""
    job = tmp_path / f"{HOSTILE}.toml"
    job.write_text('[job]\ntask = "a\\u001b[2J:b"\nname = "\\u009b\\u202e"\n')
    said("run", job, "--dir", tmp_path / HOSTILE)
    said("doctor", job)
    said("why", tmp_path / HOSTILE, "loss")
    said("status", f"tcp://{HOSTILE}")
    said("snapshot", "list", tmp_path / HOSTILE)


def test_what_a_bundle_says_of_itself_is_shown_without_them(said, tmp_path):
    """Its job, its versions, its task."""
    job = b"x"
    files = [{"name": "job.toml", "size": 1, "sha256": hashlib.sha256(job).hexdigest()}]
    about = {"job": f"{HOSTILE}\nforged", "code": HOSTILE, "fingerprint": {"python": HOSTILE}}
    path = tmp_path / "x.tar.gz"
    data = b""
    for name, content in (
        (ABOUT, msgspec.json.encode({**about, "task": "", "files": files, "format": FORMAT})),
        ("job.toml", job),
    ):
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(content), 0o644
        data += entry.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)
    path.write_bytes(gzip.compress(data + bytes(1024)))
    shown = said("bundle", path, "--to", tmp_path / "there")
    assert r"\u001b[2J" in shown
    assert not [line for line in shown.splitlines() if line.startswith("forged")]


def test_lines_of_a_log_are_shown_without_them(tmp_path, capsys):
    """As they come, of an actor whose reasons are hostile."""
    line = {"at": 1.0, "actor": "a", "event": HOSTILE, "reason": HOSTILE, HOSTILE: [HOSTILE]}

    async def watch():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow_log, tmp_path, "a", SafeConsole(force_terminal=False))
            await trio.sleep(0.01)
            with (tmp_path / "log.jsonl").open("a") as log:
                log.write(json.dumps(line) + "\n")
            await trio.sleep(1.5)
            nursery.cancel_scope.cancel()

    (tmp_path / "log.jsonl").touch()
    with escaping():
        trio.run(watch)
        sys.stdout.flush()
    shown = capsys.readouterr().out
    assert shown.count(r"\u202e") >= 3
    assert not CONTROL.search(shown)
