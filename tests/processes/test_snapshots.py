"""Snapshots of real jobs: taken while they train, whole, exported, and gone on from in a replay."""

import json
import os
import shutil
import signal
import subprocess
import time

import pytest
from safetensors.numpy import load_file

from replay import open_tapes
from snapshot import Store

PICTURED = (
    "--set=sync.quorum=2",
    "--set=task.step_s=0.02",
    "--set=snapshot.every_steps=15",
    "--set=snapshot.keep=50",
)
DISCARDED = "snapshot discarded"
FORMS = {
    "one-process": (),
    "processes": ("--processes",),
    "shards": ("--processes", "--set=job.syncers=2"),
}


class Run:
    """A job that took snapshots, to its end."""

    def __init__(self, job, tools):
        self.job, self.tools, self.folder = job, tools, job.run_folder

    def snapshot(self, action, *more):
        """``ddloco snapshot ACTION RUN ...``."""
        return self.tools.call_here("snapshot", action, str(self.folder), *more)

    def listed(self):
        """What ``list`` tells, the oldest first."""
        told = self.snapshot("list", "--json")
        assert 0 == told.returncode, told.stdout + told.stderr
        return json.loads(told.stdout)[::-1]

    def seen(self, event):
        """The lines of the log on one kind of event."""
        return [line for line in self.job.log() if line["event"] == event]

    def replay(self, *more):
        """Code and findings of a replay."""
        done = self.tools.replay(self.folder, "--json", *more)
        return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr

    def events(self):
        """How many there are on its tapes."""
        return sum(tape.events for tape in open_tapes(self.folder))


@pytest.fixture(
    scope="module",
    params=[
        "one-process",
        *(pytest.param(form, marks=pytest.mark.slow) for form in ("processes", "shards")),
    ],
)
def run(request, tools, tmp_path_factory):
    """One run of each form; look at it, do not change it."""
    done = Run(tools.Job(tmp_path_factory.mktemp(request.param)), tools)
    ended = done.job.run(*PICTURED, *FORMS[request.param])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return done


@pytest.fixture
def pictures(job, tools):
    """A run that is still to be made."""
    return Run(job, tools)


def test_a_job_takes_snapshots_of_all_actors(run):
    """Every so many steps, unless one is still being written, and at the end: all are in, every
    byte is as it was written."""
    taken = run.seen("snapshot taken")
    actors = {line["actor"] for event in ("step", "merge") for line in run.seen(event)}
    listed = run.listed()

    assert len(taken) >= 2
    assert [line["snapshot"].replace(":", "-") for line in taken] == [each["id"] for each in listed]
    for each in listed:
        assert {} == each["absent"]
        assert actors == {who.rpartition(".")[0] for who in each["participants"]}
        assert each["facts"]["name"] == "small"
    verified = run.snapshot("verify")
    assert 0 == verified.returncode, verified.stdout
    assert f"{len(taken)} of {len(taken)} snapshots intact" in verified.stdout


def test_a_snapshot_is_a_model(run, tmp_path):
    """What is exported has the tensors of the final model; the last one, at the end, is it. With
    shards that of the lead's end, where another may still have had something to merge."""
    model = load_file(run.folder / "model" / "model.safetensors")
    first, *_, last = run.listed()
    found = {}
    for each in (first, last):
        to = tmp_path / f"{each['id']}.safetensors"
        exported = run.snapshot("export", each["id"], "--to", str(to))
        assert 0 == exported.returncode, exported.stderr
        found[each["id"]] = load_file(to)
        assert {n: t.shape for n, t in model.items()} == {
            n: t.shape for n, t in found[each["id"]].items()
        }

    assert any((model[name] != found[first["id"]][name]).any() for name in model)
    shards = sum(who.startswith("syncer") for who in last["participants"])
    assert shards > 1 or all((model[name] == found[last["id"]][name]).all() for name in model)


@pytest.mark.slow
def test_a_run_with_snapshots_replays(run):
    """What was written of them is checked like everything else: by its digests."""
    code, found = run.replay()

    assert (0, True, []) == (code, found["identical"], found["gaps"]), found
    assert run.events() == found["events"]


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1, "latest"])
def test_a_replay_begins_with_a_snapshot(run, which):
    """What comes after it is identical; what comes before is not played."""
    id_ = which if which == "latest" else run.listed()[which]["id"]
    code, found = run.replay("--from", id_)

    assert (0, True) == (code, found["identical"]), found
    assert (0, []) == (found["unverified"], found["gaps"])
    assert 0 < found["events"] < run.events()


def test_a_flipped_byte_is_refused(run, tools, tmp_path):
    """A replay from a damaged snapshot names the file and the newest intact one; so does verify."""
    copy = Run(tools.Job(tmp_path), tools)
    shutil.copytree(run.folder, copy.folder)
    *_, older, newest = copy.listed()
    store = Store(copy.folder / "snapshots")
    learner = store.manifest(newest["id"]).parts[0]
    entries = [each for digest in learner.contents for each in store.read_piece(digest)]
    (state,) = [each.digest for each in entries if (each.kind, each.name) == ("worker", "state")]
    blob = copy.folder / "snapshots" / "blobs" / state[:2] / state
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    code, said = copy.replay("--from", newest["id"])
    verified = copy.snapshot("verify")

    assert (2, 1) == (code, said.strip().count("\n") + 1), said
    assert said.strip().startswith(f"ddloco: {blob}: is not what was written")
    assert f"the newest intact snapshot is {older['id']}" in said
    assert 1 == verified.returncode
    assert str(blob) in verified.stdout


# Asked for.


def take(tools, job, *more):
    """``ddloco snapshot take`` of a job with processes."""
    address = (job.run_folder / "syncer.address").read_text()
    return tools.call_here("snapshot", "take", address, *more)


def test_one_is_taken_on_request(pictures, tools):
    """Its id is printed when it is there; when the job is over there is no answer."""
    job = pictures.job
    few = ("--set=job.steps=100000", "--set=job.learners=1")
    running = job.start("--processes", *few, "--set=task.step_s=0.02")
    job.wait_for("merge", 3)
    asked = [take(tools, job)]
    time.sleep(1.1)  # A syncer begins one snapshot a second at most for who asks.
    asked.append(take(tools, job, "--json"))
    running.send_signal(signal.SIGINT)
    said, _ = running.communicate(timeout=60)
    unanswered = take(tools, job, "--timeout=0.3")

    assert 0 == running.returncode, said
    assert [0, 0] == [each.returncode for each in asked], asked
    told = json.loads(asked[1].stdout)
    assert [asked[0].stdout.strip(), told["id"]] == [each["id"] for each in pictures.listed()]
    assert ["learner-0.1", "syncer.1"] == told["participants"]
    assert 1 == unanswered.returncode
    assert unanswered.stderr.startswith("ddloco: no answer from tcp://127.0.0.1:")


# What goes wrong.

FAULTS = """
fault = [
    {what = "crash", who = "learner-1", at_s = 1.5, for_s = 0.3},
    {what = "crash", who = "syncer", at_s = 4.0, for_s = 0.3},
]
"""


@pytest.mark.slow
def test_crashes_over_snapshots(pictures, tools):
    """A process that is killed during a snapshot costs at most that one: all committed ones are
    whole, the run replays, and it continues from the newest."""
    job = pictures.job
    chaos = job.file.with_name("chaos.toml")
    chaos.write_text(FAULTS)

    def healed():
        """Both are back and take part, and snapshots are taken."""
        back = any("learner-1.2" in line["learners"] for line in pictures.seen("merge"))
        again = sum("syncer.2:" in line["ref"] for line in pictures.seen("snapshot taken"))
        return back and again > 3

    running = job.start(
        "--processes",
        f"--chaos={chaos}",
        "--set=job.steps=100000",
        "--set=task.step_s=0.05",
        "--set=snapshot.every_s=0.3",
        "--set=snapshot.keep=1000",
    )
    deadline = time.monotonic() + 90
    while not healed():
        assert time.monotonic() < deadline, job.log()[-5:]
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    said, _ = running.communicate(timeout=90)

    assert 0 == running.returncode, said
    assert "held-out loss" in said
    assert "failed" not in said
    verified = pictures.snapshot("verify")
    assert 0 == verified.returncode, verified.stdout
    assert len(pictures.listed()) >= len(pictures.seen("snapshot taken")) > 6
    code, found = pictures.replay()
    assert (0, True) == (code, found["identical"]), found
    code, found = pictures.replay("--from", "latest")
    assert found["divergence"] is None, found
    assert (0 if found["identical"] else 1) == code
    assert found["identical"] or found["gaps"], found
    assert found["events"] < pictures.events()


@pytest.fixture
def tiny(tmp_path):
    """A file system of half a MiB, unmounted afterwards."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("form", [(), pytest.param(("--processes",), marks=pytest.mark.slow)])
def test_a_place_that_cannot_be_written(pictures, tmp_path, form):
    """The job ends well and replays; the log says once for each what happened, and why."""
    place = tmp_path / "file"
    place.write_text("mine")
    below = place / "snapshots"  # A place that is a file itself is refused at the start.
    ended = pictures.job.run(*PICTURED, f"--set=snapshot.place={below}", *form)

    assert 0 == ended.returncode, ended.stdout + ended.stderr
    assert "held-out loss" in ended.stdout
    begun, discarded = pictures.seen("snapshot begun"), pictures.seen("snapshot discarded")
    assert len(begun) == len(discarded) >= 2
    assert "snapshots that failed: 2; syncer.1, who began it: " in ended.stdout
    assert f"{len(begun)} of {len(begun)} snapshots failed; the last: syncer.1" in ended.stdout
    for line in discarded:
        assert "syncer.1, who began it: " in line["reason"]
        assert line["reason"].endswith("cannot be written: Not a directory")
    parts = [(line["actor"], line["snapshot"]) for line in pictures.seen("snapshot part failed")]
    assert len(parts) == len(set(parts))
    assert [] == pictures.seen("snapshot taken")
    assert "mine" == place.read_text()
    code, found = pictures.replay()
    assert (0, True) == (code, found["identical"]), found
    assert any("cannot be written" in note for note in found["notes"])


@pytest.mark.slow
def test_a_place_that_fills_up(pictures, tools, tiny):
    """What was committed before stands; later ones are discarded, and the job ends well."""
    more = ("--set=snapshot.every_steps=2", f"--set=snapshot.place={tiny / 'place'}")
    ended = pictures.job.run(*PICTURED, *more)

    assert 0 == ended.returncode, ended.stdout + ended.stderr
    taken, discarded = pictures.seen("snapshot taken"), pictures.seen("snapshot discarded")
    assert taken
    assert discarded
    assert any("No space left" in line["reason"] for line in discarded)
    verified = tools.call_here("snapshot", "verify", str(tiny / "place"))
    assert 0 == verified.returncode, verified.stdout
    whole = [line for line in taken if "absent" not in line]
    # In a place that runs may share, names begin with the run.
    ends = whole[-1]["snapshot"].replace(":", "-")
    names = (tiny / "place" / "snapshots").glob(f"*_{ends}.json")
    code, found = pictures.replay("--from", next(names).stem)
    assert (0, True) == (code, found["identical"]), found


@pytest.mark.slow
def test_a_place_that_is_forbidden_for_a_while(pictures, tmp_path):
    """Permission is taken away from a live job, and given back: those in between are discarded, all
    others stand, before and after."""
    place = tmp_path / "place"
    command = pictures.job.command(
        *PICTURED, "--set=job.steps=100000", "--set=snapshot.every_s=0.2",
        f"--set=snapshot.place={place}",
    )  # fmt: skip
    if os.geteuid() == 0:
        command = ["setpriv", "--bounding-set=-dac_override", *command]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE) as running:
        pictures.job.wait_for("snapshot taken", 2)
        for folder in (place / "blobs", place / "snapshots"):
            folder.chmod(0o555)
        pictures.job.wait_for("snapshot discarded", 2)
        there = len(pictures.seen("snapshot taken"))
        for folder in (place / "blobs", place / "snapshots"):
            folder.chmod(0o755)
        pictures.job.wait_for("snapshot taken", there + 2)
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=60)

    assert 0 == running.returncode, said
    reasons = {line["reason"].partition("cannot be ")[2] for line in pictures.seen(DISCARDED)}
    assert {"written: Permission denied"} == reasons
    verified = pictures.tools.call([*pictures.tools.DDLOCO, "snapshot", "verify", str(place)])
    taken = len(pictures.seen("snapshot taken"))
    assert f"{taken} of {taken} snapshots intact" in verified.stdout, verified.stdout
    code, found = pictures.replay()
    assert (0, True) == (code, found["identical"]), found
