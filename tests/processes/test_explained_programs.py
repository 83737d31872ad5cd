"""Runs of programs of one's own, explained: causes, status, stopped replays, from tapes alone."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ddloco
from ddloco.cli.parser import command_named, parser
from ddloco.debugger.recorded_job import open_run
from ddloco.debugger.report_data import report_data
from ddloco.stage.files.toml import ConfigError
from replay import open_tapes
from tests.commands import here
from tests.installed import DDLOCO

ROOT = Path(__file__).parents[2]
SERVER = "examples.parameter_server:program"
BACK_BYTES = 15_000
"""The tape of a trainer that has come back, once it has worked for a while."""

FAULTS = 'fault = [{what = "crash", who = "trainer-1", at_s = 0.3, for_s = 0.1}]'


def perform(folder, program, *more):
    """Run a program as processes."""
    done = here("perform", program, "--processes", "--dir", folder, *more, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A parameter server, one of whose trainers is killed and comes back; stopped after that."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "faults.toml").write_text(FAULTS)
    options = ("--set", "versions=1000000", "--set", "snapshot_every=300")
    words = ["--processes", "--dir", str(folder / "run"), "--chaos", str(folder / "faults.toml")]
    command = [*DDLOCO, "perform", SERVER, *words, *options]
    again = folder / "run" / "tapes" / "trainer-1.2.tape"
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE) as running:
        while not (again.exists() and again.stat().st_size > BACK_BYTES):
            assert running.poll() is None, running.stdout.read()
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=60)
    assert running.returncode == 0, said
    return folder / "run"


@pytest.fixture(scope="module")
def gossip(tmp_path_factory):
    """Peers without a server."""
    folder = tmp_path_factory.mktemp("gossip")
    return perform(folder / "run", "examples.gossip:program", "--set", "steps=60")


@pytest.fixture
def call(capsys):
    """Calls a command; its exit code, and what it printed and complained."""

    def called(*words):
        given = parser().parse_args(list(map(str, words)))
        code = command_named(given.run)(given)
        told = capsys.readouterr()
        return code, told.out, told.err

    return called


def newest(folder, actor):
    """An actor's newest incarnation, and its last event."""
    tapes = {each.incarnation: each for each in open_tapes(folder / "tapes")}
    last = max(name for name in tapes if name.startswith(actor))
    return f"{last}:{tapes[last].events}"


@pytest.mark.slow
def test_a_chain_of_causes_goes_through_messages_and_work(killed, gossip, call):
    """From the last gradient back to the start, each time no later than its effect."""
    who, _, last = newest(killed, "trainer-1").partition(":")
    for number in range(int(last), 0, -1):  # Its last events are those of its end.
        code, out, _ = call("why", killed, "event", f"{who}:{number}", "--depth", 500)
        assert code == 0
        if "returned" in out.splitlines()[0]:
            break
    for said in (
        "made",
        "and returned",
        "Parameters arrived from server.1",
        "asked for this work",
        "sent it",
    ):
        assert said in out
    assert out.splitlines()[-1].strip() in {
        "because it came from outside",
        "(500 causes are shown; ask for more with --depth)",
    }
    code, out, _ = call("why", gossip, "event", "peer-2.1:60", "--json")
    causes = json.loads(out)["causes"]
    assert code == 0
    assert len(causes) > 1
    times = [each["at"] for each in causes]
    assert times == sorted(times, reverse=True)


def test_the_status_at_an_event_shows_every_actors_state(killed, gossip, call):
    """Field by field, with its links and its work, at what the event knew."""
    code, out, _ = call("status", killed, "--at", newest(killed, "server.1"), "--json")
    actors = {each["incarnation"]: each for each in json.loads(out)["actors"]}
    assert code == 0
    assert set(actors) == {"server.1", "trainer-0.1", "trainer-1.2", "trainer-2.1"}
    assert int(actors["server.1"]["state"]["version"]) > 150
    assert "_pending" not in actors["server.1"]["state"]
    code, out, _ = call("status", killed, "--at", newest(killed, "trainer-1.1"))
    assert code == 0
    for said in ("gradients", "linked with", "trainer-1.1"):
        assert said in out
    assert re.search(r"(differentiate|apply) \(work", out)
    code, out, _ = call("status", gossip, "--at", "peer-3.1:50")
    assert (code, "copies" in out) == (0, True)


def test_a_replay_stops_before_an_event(killed, gossip, call):
    """And shows the actor's state and arrays there."""
    code, out, err = call("replay", killed, "--until", "server.1:400")
    assert (code, err) == (0, "")
    assert "stopped before server.1:400" in out
    assert "call/" in out
    code, out, _ = call("replay", gossip, "--until", "peer-1.1:40", "--json")
    assert json.loads(out)["status"]["state"]["number"] == "1"


def test_a_run_is_opened_from_python(killed, call):
    """Events, machines, causes and arrays; what only jobs have is refused in one line."""
    told = call("status", killed, "--at", newest(killed, "server.1"), "--json")[1]
    [server] = [each for each in json.loads(told)["actors"] if each["incarnation"] == "server.1"]
    late = int(server["state"]["version"]) * 9 // 10  # By then it has heard of all trainers.
    run = ddloco.open(killed)
    there = run.until(lambda each: each.machine.version == late)
    assert there.actor == "server.1"
    assert there.causes()[0].event == there.ref
    assert there.state("trainer-0")["state"]["shard"] == "0"
    assert there.array(there.machine.theta.handle)["array"].shape == (1000,)
    for ask in (lambda: run.merges, lambda: run.steps("trainer-0"), lambda: run.what_if(1, "x")):
        with pytest.raises(ConfigError, match="of a program of your own, which has no merges"):
            ask()


def test_what_only_jobs_have_is_refused_in_one_line(killed, call):
    """With exit code 2."""
    for words in (("loss",), ("merge", "3"), ("absent", "trainer-0", "3")):
        code, out, err = call("why", killed, *words)
        assert (code, out) == (2, "")
        assert "has no merges and losses" in err
        assert len(err.splitlines()) == 1


def test_damaged_and_missing_tapes_are_named_before_the_answer(killed, tmp_path, call):
    """What is there is explained; what is not is named."""
    folder = tmp_path / "run"
    shutil.copytree(killed, folder)
    (folder / "tapes" / "trainer-0.1.tape").unlink()
    cut = folder / "tapes" / "trainer-2.1.tape"
    cut.write_bytes(cut.read_bytes()[:-3000])
    at = newest(killed, "server.1")
    for words in (("why", folder, "event", at), ("status", folder, "--at", at)):
        code, out, err = call(*words)
        assert "Traceback" not in err
        assert (code, "trainer-0.1: no tape" in out) == (0, True), out + err
        assert "trainer-2.1: " in out
    code, out, err = call("replay", folder, "--until", "server.1:300")
    assert (code, err.count("\n")) in {(0, 0), (1, 0)}, out + err


def test_another_users_program_is_not_imported(killed, tmp_path, call):
    """Its tapes name code, so all that would import it asks first."""
    bundle, folder = tmp_path / "a.ddloco.tar.gz", tmp_path / "run"
    assert call("bundle", killed, "--to", bundle)[0] == 0
    code, out, _ = call("bundle", bundle, "--to", folder)
    assert code == 0
    assert out.splitlines()[-1] == f"replay it with: ddloco replay {folder} --task {SERVER}"
    assert call("replay", folder, "--task", SERVER)[1].splitlines()[-1].startswith("identical")
    for words in (
        ("why", folder, "event", "server.1:40"),
        ("status", folder, "--at", "server.1:40"),
        ("replay", folder, "--until", "server.1:40"),
    ):
        code, _, err = call(*words)
        assert (code, "use --trust" in err) == (2, True)
        assert call(*words, "--trust")[0] == 0


def test_a_running_program_tells_its_status(tmp_path, call):
    """Its links, its queue and its state, from the actor that listens."""
    options = (
        "--set",
        "trainers=1",
        "--set",
        "versions=1000000000",
        "--set",
        f"snapshot_every={10**9}",
    )
    words = [*DDLOCO, "perform", SERVER, "--dir", str(tmp_path / "run"), *options]

    def start(*more):
        return subprocess.Popen([*words, *more], cwd=ROOT, stdout=subprocess.PIPE, text=True)

    server = start("--only", "server", "--at", "server=tcp://127.0.0.1:*")
    address = next(line.split()[-1] for line in server.stdout if "listens at" in line)
    trainer = start("--only", "trainer-0", "--at", f"server={address}")
    try:
        for _ in range(100):
            code, out, err = call("status", address, "--json")
            assert code == 0, err
            told = json.loads(out)
            if told["linked"] and told["state"]["version"] != "0":
                break
        assert [each["peer"] for each in told["linked"]] == ["trainer-0.1"]
        assert told["queue"] >= 0
        assert told["incarnation"] == "server.1"
        code, out, _ = call("status", address)
        assert (code, "trainer-0.1" in out, "version" in out) == (0, True, True)
        trainer.kill()
        trainer.wait()
    finally:
        for process in (server, trainer):
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)


PLANTED = """
import sys
from ddloco.cli.parser import main
from examples import parameter_server
parameter_server.RATE = 0.2
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Records a server with one trainer, which leave nothing to chance but lanes; with ``planted``
    at another rate."""

    def recorded(*more, planted=False):
        folder = tmp_path_factory.mktemp("alone") / "run"
        words = ["perform", SERVER, "--dir", str(folder), "--set", "trainers=1", *more]
        if planted:
            command = [sys.executable, "-c", PLANTED, *words]
            subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        else:
            assert here(*words, cwd=ROOT).returncode == 0
        return folder

    return recorded


def test_a_run_does_not_differ_from_itself(killed, gossip, call):
    """A detector that speaks up is believed only if it is quiet otherwise."""
    for folder in (killed, gossip):
        code, out, _ = call("diff", folder, folder)
        assert (code, out.startswith("equal: ")) == (0, True)
        assert "events and computations, to the bit" in out


def test_a_planted_change_is_named_by_its_first_computation(alone, call):
    """The first whose result differs while its arguments and arrays are equal, and no other."""
    clean, planted = alone(), alone(planted=True)
    code, out, _ = call("diff", clean, planted, "--json")
    found = json.loads(out)
    assert code == 1
    first = found["first"][0]
    assert first["what"].startswith("the result of examples.parameter_server.apply (inputs")
    assert (first["kind"], first["one"].partition(":")[0]) == ("arithmetic", "server.1")
    computations = [each for each in found["first"] if each["what"].startswith("the result")]
    assert len(computations) == 1
    again, _ = call("diff", clean, planted)[1:]
    assert again.startswith("DIFFERENT ARITHMETIC: the result of examples.parameter_server.apply")
    assert "its arguments and arrays are equal" in again


@pytest.mark.slow
def test_runs_that_differ_in_timing_alone_are_said_to(alone, killed, call):
    """Their computations are equal wherever their inputs are."""
    for one, other in ((alone(), alone()), (alone(), alone("--set", "versions=230"))):
        found = json.loads(call("diff", one, other, "--json")[1])
        assert all(each["kind"] in {"timing", "configuration"} for each in found["first"])
        both, equal = numbers_in(found["computations"][0])
        assert both == equal
        assert both > 10
    code, out, _ = call("diff", one, other)
    assert code == 1
    assert "recorded differently: setting: options.versions = 'not set' and 230" in out
    code, out, err = call("diff", killed, one)
    assert (code, err) == (1, "")


def numbers_in(said):
    """The numbers in a line."""
    return [int(each.replace(",", "")) for each in re.findall(r"[0-9][0-9,]*", said)]


def test_a_program_and_a_job_are_not_compared(killed, tmp_path, call):
    """In one line."""
    job = tmp_path / "job.toml"
    words = ["--dir", tmp_path / "job"]
    (job).write_text('[scenario]\nname = "a"\n[job]\nlearners = 2\nsteps = 24\n')
    assert call("simulate", job, *words)[0] == 0
    [run] = [each.parent for each in tmp_path.rglob("tapes")]
    code, _, err = call("diff", killed, run)
    assert (code, "only one of them is of a job" in err) == (2, True)


def test_a_report_shows_what_each_actor_did(killed, gossip, tmp_path, call):
    """Lanes with messages and work, kills and returns; two runs with their first differences."""
    for folder, actors in ((killed, 4), (gossip, 4)):
        page = tmp_path / f"{folder.parent.name}.html"
        code, out, err = call("report", folder, "--out", page)
        assert (code, out.strip(), err) == (0, str(page), "")
        [shown] = report_data(open_run(folder)).runs
        assert len(shown.lanes) == actors
        marks = [part.marks for lane in shown.lanes for part in lane.segments]
        assert all(each["worked"].of and each["arrived"].of for each in marks)
    [shown] = report_data(open_run(killed)).runs
    assert {fact.label: fact.note for fact in shown.facts}["Actors"] == "1 killed, 1 returned"
    [trainer] = [lane for lane in shown.lanes if lane.actor == "trainer-1"]
    assert [part.killed for part in trainer.segments] == [True, False]
    code, _, _ = call("report", killed, "--compare", killed, "--out", tmp_path / "two.html")
    assert code == 0


@pytest.mark.parametrize("form", ["perfetto", "shiviz", "otlp", "jsonl"])
def test_tapes_are_exported(killed, tmp_path, call, form):
    """As those of a job, without its code."""
    out = tmp_path / "out"
    assert call("tape", "export", killed, f"--{form}", "--to", out)[0] == 0
    text = out.read_text()
    assert "Parameters" in text or form == "otlp"
