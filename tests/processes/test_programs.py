"""Programs of one's own as processes: numbers, faults, shipped and bounded tapes, snapshots."""

import json
import shutil
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ddloco.cli.parser import command_named, parser
from ddloco.stage import Program, Role, SnapshotTable, TapeTable, UserActor
from ddloco.stage.nodes.exit_codes import AGAIN
from examples import parameter_server
from replay import open_tapes
from snapshot import Store
from tests.commands import here
from tests.installed import DDLOCO

ROOT = Path(__file__).parents[2]
HERE = "tests.processes.test_programs"

FAULTS = """
seed = 5
fault = [
    {what = "crash", who = "trainer-1", at_s = 0.3, for_s = 0.1},
    {what = "stall", who = "trainer-0", at_s = 0.5, for_s = 0.4},
    {what = "cut", who = "trainer-2", at_s = 0.4, for_s = 0.5},
    {what = "leave", who = "trainer-2", at_s = 1.5, for_s = 0.1},
]
"""


def bounded(versions: int = 400) -> Program:
    """A parameter server whose tapes are bounded by snapshots that are taken on a schedule."""
    made = parameter_server.program(2, versions, snapshot_every=10**9)
    return replace(
        made,
        tape=TapeTable(keep="2 snapshots", ship=False),
        snapshot=SnapshotTable(every_s=0.3, keep=3),
    )


def perform(folder, program, *more):
    """Run a program as processes; what the command said."""
    done = here("perform", program, "--dir", folder, *more, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def replayed(folder, capsys, *more):
    """The last line of a replay."""
    given = parser().parse_args(["replay", str(folder), *more])
    assert command_named(given.run)(given) == 0
    return capsys.readouterr().out.strip().splitlines()[-1]


@pytest.mark.slow
def test_actors_that_are_killed_and_cut_off_come_back_and_replay(tmp_path, capsys):
    """Each return is a new incarnation, whose number the lead has granted."""
    (tmp_path / "faults.toml").write_text(FAULTS)
    run = tmp_path / "run"
    options = ("--set", "versions=2500", "--set", "snapshot_every=1000", "--processes")
    program = "examples.parameter_server:program"
    said = perform(run, program, *options, "--chaos", str(tmp_path / "faults.toml"))

    assert "chaos: 1 crash, 1 cut, 1 leave, 1 stall" in said
    tapes = {each.incarnation for each in open_tapes(run / "tapes")}
    assert {"server.1", "trainer-0.1", "trainer-1.1", "trainer-1.2", "trainer-2.2"} <= tapes
    granted = json.loads((run / "kept" / "incarnations.json").read_text())
    assert granted["trainer-1"] == 2
    assert replayed(run, capsys).startswith("identical")
    assert replayed(run, capsys, "--from", "latest").startswith("identical")


@pytest.mark.slow
def test_tapes_are_bounded_by_snapshots_on_a_schedule(tmp_path, capsys):
    """As those of a job are; what is left replays from a snapshot that is still there."""
    run = tmp_path / "run"
    perform(run, f"{HERE}:bounded", "--processes", "--set", "versions=600")
    assert 2 <= len(Store(run / "snapshots").snapshots()) <= 3
    assert any(each.header.after for each in open_tapes(run / "tapes"))
    assert replayed(run, capsys).startswith("identical")


@pytest.mark.slow
def test_tapes_of_other_hosts_are_shipped_to_the_lead(tmp_path, capsys):
    """Each host has a folder of its own; that of the lead has all tapes in the end."""
    program = "examples.parameter_server:program"
    options = ("--set", "trainers=2", "--set", "versions=300", "--set", "snapshot_every=1000000")
    lead, other = tmp_path / "lead", tmp_path / "other"

    def start(folder, *more):
        words = [*DDLOCO, "perform", program, "--dir", str(folder), *options, *more]
        return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    server = start(lead, "--only", "server", "--at", "server=tcp://127.0.0.1:*")
    for line in server.stdout:
        if "listens at" in line:
            address = line.split()[-1]
            break
    both = start(other, "--only", "trainer-0", "trainer-1", "--at", f"server={address}")
    for process in (both, server):
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said

    names = {"server.1.tape", "trainer-0.1.tape", "trainer-1.1.tape"}
    assert names == {path.name for path in (lead / "tapes").glob("*.tape")}
    shutil.rmtree(other)
    assert replayed(lead, capsys).startswith("identical")


class Lonely(UserActor):
    """Speaks with nobody."""

    def begin(self):
        self.finish("nothing to do")


def lonely() -> Program:
    """Two actors without links: nobody leads."""
    return Program({"one": Role(Lonely), "two": Role(Lonely)})


def test_actors_without_links_run_as_well(tmp_path, capsys):
    """Each decides its own number, and there is nobody to ship a tape to."""
    run = tmp_path / "run"
    perform(run, f"{HERE}:lonely", "--processes")
    assert {"one.1", "two.1"} == {each.incarnation for each in open_tapes(run / "tapes")}
    assert replayed(run, capsys).startswith("identical")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--chaos", "FAULTS"], "applies to processes; add --processes"),
        (["--processes", "--chaos", "FAULTS"], "crash of nobody: no such actor; this job has serv"),
        (["--processes", "--only", "server"], "--processes: all actors are processes here"),
    ],
)
def test_what_does_not_go_together_is_said(tmp_path, more, said, capsys):
    """In one line."""
    faults = tmp_path / "faults.toml"
    faults.write_text('fault = [{what = "crash", who = "nobody"}]')
    words = ["perform", "examples.parameter_server:program", "--dir", str(tmp_path / "run")]
    given = parser().parse_args([*words, *(str(faults) if w == "FAULTS" else w for w in more)])
    assert command_named(given.run)(given) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--only", "server"]], ids=["all", "one"])
def test_an_address_in_use_is_named_by_its_option(tmp_path, more, capsys):
    """As the user gave it, however many actors run here; it may be free again later."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"server=tcp://127.0.0.1:{taken.getsockname()[1]}"
        words = ["perform", "examples.parameter_server:program", "--dir", str(tmp_path / "run")]
        given = parser().parse_args([*words, *more, "--at", at])
        assert command_named(given.run)(given) == AGAIN
    said = capsys.readouterr().err
    assert said.startswith(f"ddloco: --at {at}: cannot listen")
    assert "Address already in use" in said


def test_a_tape_names_the_place_of_its_snapshots_wherever_it_is_read(tmp_path, monkeypatch):
    """By an absolute path, also where the run folder was given by a relative one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    given = parser().parse_args(["perform", f"{HERE}:lonely", "--dir", "run"])
    assert command_named(given.run)(given) == 0
    [one, _] = open_tapes(tmp_path / "run" / "tapes")
    assert one.header.facts["place of snapshots"] == str(tmp_path / "run" / "snapshots")
