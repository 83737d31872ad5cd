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

from ddloco.cli.parser import command_named, parser
from ddloco.replayer.replay_of import replay_of
from examples import parameter_server
from snapshot import Store
from tests.reruns import look_at

ROOT = Path(__file__).parents[2]
PROGRAM = "examples.parameter_server:program"
ENDLESS = "--set=versions=1000000"
"""However fast or busy the machine, it is not over before it is stopped."""

WAIT_S = 180.0
"""For what is sure to come, on however busy a machine."""


def ddloco(*words):
    """Run a command in this process; its exit code."""
    given = parser().parse_args([str(word) for word in words])
    with redirect_stdout(io.StringIO()) as said:
        code = command_named(given.run)(given)
    print(look_at(said.getvalue()), end="")
    return code


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """The run folder of a performance that was stopped when two snapshots stood."""
    folder = tmp_path_factory.mktemp("ps") / "run"
    perform_until(lambda: len(told(folder, "snapshot taken")) > 1, "--dir", folder, ENDLESS)
    return folder


def perform_until(done, *words):
    """Run the program in a process of its own until something is so; then end it as Ctrl-C does."""
    command = [sys.executable, "-m", "ddloco", "perform", PROGRAM, *map(str, words)]
    running = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE)
    try:
        wait_for(lambda: done() or running.poll() is not None)
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=WAIT_S)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 0, said


def wait_for(what):
    """Wait until something is so."""
    until = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < until, f"not so within {WAIT_S} s"
        time.sleep(0.05)


def told(folder, event):
    """The lines of a run's log on one kind of event, as far as it has come."""
    path = folder / "log.jsonl"
    text = path.read_text() if path.exists() else ""
    lines = (json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines())
    return [line for line in lines if line["event"] == event]


def log_of(folder):
    """The lines of a run's log."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_it_trains(played):
    """Losses fall: work, messages and their arrays are what they should be."""
    losses = [line["loss"] for line in log_of(played) if "loss" in line]
    assert sum(losses[-20:]) < 0.9 * sum(losses[:20])


def test_it_replays(played, capsys):
    """Every decision, message and result once more, equal to the bit; tapes hold by themselves."""
    assert ddloco("replay", played) == 0
    assert re.match(r"identical: [\d,]{3,} events, [\d,]+ results of work and [\d,]+ payloads",
                    capsys.readouterr().out)  # fmt: skip
    assert ddloco("tape", "verify", played) == 0
    assert "every record and clock" in capsys.readouterr().out


def test_what_follows_a_snapshot_replays_alone(played, capsys):
    """Snapshots contain all actors, and a replay begins with one."""
    assert ddloco("snapshot", "verify", played) == 0
    listed = Store(played / "snapshots").snapshots()
    # A snapshot taken while the workers are ended may lack some of them.
    whole = [each.id for each in listed if not each.manifest.absent]
    assert len(whole) >= 2
    assert all(len(each.manifest.parts) == 4 for each in listed if each.id in whole)
    assert ddloco("replay", played, "--json") == 0
    assert ddloco("replay", played, "--from", whole[0], "--json") == 0
    out = capsys.readouterr().out
    whole, part = (
        json.loads(each) for each in re.findall(r"^\{.*?^\}", out, re.MULTILINE | re.DOTALL)
    )
    assert 0 < part["events"] < whole["events"]


def test_a_run_goes_on_from_one(played, tmp_path):
    """With the versions that followed, and what it does replays as well."""
    whole = [each for each in Store(played / "snapshots").snapshots() if not each.manifest.absent]
    place, more = played / "snapshots" / whole[0].id, tmp_path / "more"
    perform_until(lambda: len(told(more, "step")) > 20, "--from", place, "--dir", more, ENDLESS)
    versions = [line["version"] for line in log_of(more) if "version" in line]
    assert versions == list(range(versions[0], versions[0] + len(versions)))
    assert versions[0] > 50
    assert ddloco("replay", more) == 0


def test_actors_that_a_program_lacks_are_named(played, tmp_path, capsys):
    """Those of the snapshot, and the options with which the run was recorded."""
    fewer = ("--set", "trainers=2", "--dir", tmp_path / "fewer", "--from", played)
    assert ddloco("perform", PROGRAM, *fewer) == 2
    said = "the snapshot has trainer-2, this program does not; it was recorded with --set versions"
    assert capsys.readouterr().err == f"ddloco: {played}/snapshots: {said}=1000000\n"
    more = ("--set", "trainers=4", "--dir", tmp_path / "more", "--from", played)
    assert ddloco("perform", PROGRAM, *more) == 2
    said = "this program has trainer-3, the snapshot not; it was recorded with --set versions"
    assert capsys.readouterr().err == f"ddloco: {played}/snapshots: {said}=1000000\n"


def test_other_arithmetic_is_named(played, monkeypatch, capsys):
    """The first result that comes out in another way, by actor and event."""
    monkeypatch.setattr(parameter_server, "RATE", 0.2)
    assert ddloco("replay", played) == 1
    assert "DIFFERENT ARITHMETIC: work " in (said := capsys.readouterr().out), said
    assert "of server.1 " in said


def test_another_decision_is_named(played, monkeypatch, capsys):
    """A machine that reads what is not its own: the effects differ."""
    monkeypatch.setattr(parameter_server.Server, "joined", lambda self, peer: [])
    assert ddloco("replay", played) == 1
    assert capsys.readouterr().out.startswith("DIFFERENT DECISION: what server.1 does on ")


def test_it_knows_nothing_of_learners():
    """The example needs what programs are written with, and nothing of what trains models here."""
    source = (ROOT / "examples" / "parameter_server.py").read_text()
    named = set(re.findall(r"^(?:from|import) ([\w.]+)", source, flags=re.MULTILINE))
    ours = {name for name in named if name.split(".")[0] in ("ddloco", "transport", "replay")}
    assert ours == {"ddloco.stage"}


@pytest.mark.slow
def test_processes_of_their_own_with_one_killed(tmp_path):
    """A trainer that is killed comes back as the next incarnation; both its tapes replay."""
    run = tmp_path / "run"
    options = ("--set", "trainers=2", ENDLESS, "--set", "snapshot_every=1000000")

    def start(name, at):
        words = ("perform", PROGRAM, "--dir", run, *options, "--only", name, "--at", f"server={at}")
        return subprocess.Popen(
            [sys.executable, "-m", "ddloco", *map(str, words)], cwd=ROOT, stdout=subprocess.DEVNULL
        )

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
        assert [each.wait(WAIT_S) for each in (server, *others[1:])] == [0, 0, 0]
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

    report = trio.run(replay_of(folder).run)
    look_at(str(report.as_dict()))
    return report
