"""Actors of one's own, run as the README says: recorded, snapshotted, replayed, gone on from."""

import io
import json
import re
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from ddloco import commands
from ddloco.cli import parser
from ddloco.stage.again import ProgramRerun
from examples import parameter_server
from snapshot import Store
from tests.reruns import look_at

ROOT = Path(__file__).parents[2]
PROGRAM = "examples.parameter_server:program"


def ddloco(*words):
    """Run a command in this process; its exit code."""
    given = parser().parse_args([str(word) for word in words])
    with redirect_stdout(io.StringIO()) as said:
        code = getattr(commands, given.run)(given)
    print(look_at(said.getvalue()), end="")
    return code


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """The run folder of a whole performance."""
    folder = tmp_path_factory.mktemp("ps") / "run"
    assert ddloco("perform", PROGRAM, "--dir", folder, "--set", "versions=120") == 0
    return folder


def log_of(folder):
    """The lines of a run's log."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_it_trains(played):
    """Losses fall: work, messages and their arrays are what they should be."""
    losses = [line["loss"] for line in log_of(played) if "loss" in line]
    assert losses[-1] < 0.6 * losses[0]


def test_it_replays(played, capsys):
    """Every decision, message and result once more, equal to the bit; tapes hold by themselves."""
    assert ddloco("replay", played) == 0
    assert re.match(r"identical: \d{3,} events, \d+ results of work and \d+ payloads",
                    capsys.readouterr().out)  # fmt: skip
    assert ddloco("tape", "verify", played) == 0
    assert "every record and clock" in capsys.readouterr().out


def test_what_follows_a_snapshot_replays_alone(played, capsys):
    """Snapshots are whole, everybody is in them, and a replay begins with one."""
    assert ddloco("snapshot", "verify", played) == 0
    listed = Store(played / "snapshots").snapshots()
    assert len(listed) == 2
    assert all(len(each.manifest.parts) == 4 and not each.manifest.absent for each in listed)
    assert ddloco("replay", played, "--json") == 0
    assert ddloco("replay", played, "--from", "latest", "--json") == 0
    out = capsys.readouterr().out
    whole, part = (
        json.loads(each) for each in re.findall(r"^\{.*?^\}", out, re.MULTILINE | re.DOTALL)
    )
    assert 0 < part["events"] < whole["events"]


def test_a_run_goes_on_from_one(played, tmp_path):
    """With the versions that followed, and what it does replays as well."""
    assert ddloco("perform", PROGRAM, "--from", played, "--dir", tmp_path / "more",
                  "--set", "versions=120") == 0  # fmt: skip
    versions = [line["version"] for line in log_of(tmp_path / "more") if "version" in line]
    assert versions == list(range(versions[0], 121))
    assert 100 < versions[0] < 120
    assert ddloco("replay", tmp_path / "more") == 0


def test_other_arithmetic_is_named(played, monkeypatch, capsys):
    """The first result that comes out in another way, by actor and event."""
    monkeypatch.setattr(parameter_server, "RATE", 0.2)
    assert ddloco("replay", played) == 1
    assert "DIVERGENCE at server.1:" in capsys.readouterr().out


def test_another_decision_is_named(played, monkeypatch, capsys):
    """A machine that reads what is not its own: the effects differ."""
    monkeypatch.setattr(parameter_server.Server, "tell", lambda self, peer: [])
    assert ddloco("replay", played) == 1
    assert "(effects)" in capsys.readouterr().out


def test_it_knows_nothing_of_learners():
    """The example needs the stage and the bus, and nothing of what trains models here."""
    source = (ROOT / "examples" / "parameter_server.py").read_text()
    named = set(re.findall(r"^(?:from|import) ([\w.]+)", source, flags=re.MULTILINE))
    ours = {name for name in named if name.split(".")[0] in ("ddloco", "transport", "replay")}
    assert ours == {"ddloco.stage.effects", "ddloco.stage.events", "ddloco.stage.program",
                    "transport"}  # fmt: skip


def test_processes_of_their_own_with_one_killed(tmp_path):
    """A trainer that is killed comes back as the next incarnation; both its tapes replay."""
    run = tmp_path / "run"
    options = ("--set", "trainers=2", "--set", "versions=1500", "--set", "snapshot_every=9999")

    def start(name, at):
        words = ("perform", PROGRAM, "--dir", run, *options, "--only", name, "--at", f"server={at}")
        return subprocess.Popen(
            [sys.executable, "-m", "ddloco", *map(str, words)], cwd=ROOT, stdout=subprocess.DEVNULL
        )

    def wait_for(what):
        until = time.monotonic() + 60
        while not what():
            assert time.monotonic() < until
            time.sleep(0.05)

    server = start("server", "tcp://127.0.0.1:*")
    others = []
    try:
        address = run / "server.address"
        wait_for(lambda: address.exists() and address.read_text())
        others = [start(f"trainer-{shard}", address.read_text()) for shard in range(2)]
        wait_for(lambda: any(line["actor"] == "trainer-0" for line in log_of(run)))
        others[0].send_signal(signal.SIGKILL)
        others[0].wait()
        others.append(start("trainer-0", address.read_text()))
        wait_for(lambda: any(line["ref"].startswith("trainer-0.2:") for line in log_of(run)))
        server.send_signal(signal.SIGINT)
        assert [each.wait(60) for each in (server, *others[1:])] == [0, 0, 0]
    finally:
        for each in (server, *others):
            each.kill()
            each.wait()
    assert (run / "tapes" / "trainer-0.2.tape").exists()
    report = trio_run(run)
    assert report.identical, report.as_dict()
    assert report.events > 100


def trio_run(folder):
    """Replay a run folder; the report."""
    import trio

    report = trio.run(ProgramRerun(folder, lambda _: None, lambda _: None).run)
    look_at(str(report.as_dict()))
    return report
