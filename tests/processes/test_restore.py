"""Jobs that continue from a snapshot, whatever became of the run that it was taken of."""

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from clocks import actor_of
from snapshot import Store
from tests.processes.conftest import DDLOCO, JOB, SNAPSHOTS, Job, call, call_here, replay

LONG = ("--set=job.steps=100000", "--set=task.step_s=0.03")
"""However busy the machine, it is not over when the test acts; few steps to replay."""


def go_on(job, folder, snapshot, *more):
    """Go on from a snapshot of a job in another folder; the job as it is there."""
    folder.mkdir(exist_ok=True)
    next_job = Job(folder, job.file.read_text())
    place = job.run_folder / "snapshots" / snapshot
    done = next_job.run(f"--from={place}", "--set=job.steps=60", *more)
    assert done.returncode == 0, done.stdout + done.stderr
    return next_job


def steps(job):
    """The lines of a job's log on steps."""
    return [line for line in job.log() if line["event"] == "step"]


def learners_of(job, at_least):
    """The learners in the merges of a job from some global step on."""
    merges = [line for line in job.log() if line["event"] == "merge" and line["t"] >= at_least]
    return {actor_of(name) for merge in merges for name in merge["learners"]}


@pytest.mark.parametrize(
    "form",
    [(), pytest.param(("--processes",), marks=pytest.mark.slow)],
    ids=["one process", "processes"],
)
def test_a_job_goes_on_where_the_snapshot_was(pictured, tmp_path, form):
    """No link is lost, no step is taken twice, nothing is merged twice; the tapes begin after the
    cut, and a replay continues from the snapshot, too."""
    first = pictured.snapshots()[0]
    job = go_on(pictured, tmp_path, first, *form)
    log = job.log()
    merged = [(line["t"], line["fragment"]) for line in log if line["event"] == "merge"]
    before = {
        (line["t"], line["fragment"])
        for line in pictured.log()
        if line["event"] == "merge" and int(line["ref"].rpartition(":")[2]) <= cut_of(first)
    }
    steps = [
        line["step"] for line in log if line["event"] == "step" and line["actor"] == "learner-0"
    ]

    assert [] == [line for line in log if line["event"] in {"joined", "waiting"}]
    assert not before & set(merged)
    assert 60 == max(t for t, _ in merged)
    assert steps == list(range(steps[0], steps[0] + len(steps)))
    assert steps[0] > 1
    replayed = replay(job.run_folder)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "identical" in replayed.stdout
    verified = call_here("tape", "verify", str(job.run_folder))
    assert verified.returncode == 0, verified.stdout


def cut_of(snapshot):
    """The syncer's last event before the cut."""
    return int(snapshot.rpartition("-")[2])


@pytest.mark.slow
def test_snapshots_of_a_job_that_went_on_are_good_as_well(pictured, tmp_path):
    """It takes more of them; a replay begins with any, and another run continues from the last."""
    job = go_on(pictured, tmp_path, "latest")
    assert len(job.snapshots()) >= 2
    replayed = replay(job.run_folder, f"--from={job.snapshots()[0]}")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    (tmp_path / "again").mkdir()
    again = Job(tmp_path / "again", job.file.read_text())
    done = again.run(f"--from={job.run_folder}", "--set=job.steps=80")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "identical" in replay(again.run_folder).stdout


@pytest.mark.slow
@pytest.mark.parametrize("learners", [1, 3])
def test_with_fewer_or_more_learners(pictured, tmp_path, learners):
    """Who does not come along is lost by name; who is new takes part."""
    job = go_on(pictured, tmp_path, pictured.snapshots()[1], f"--set=job.learners={learners}")
    wanted = {f"learner-{n}" for n in range(learners)}
    lost = {line["learner"] for line in job.log() if "did not come along" in line.get("reason", "")}
    assert {f"learner-{n}.1" for n in range(learners, 2)} == lost
    assert learners_of(job, 40) <= wanted
    replayed = replay(job.run_folder)
    assert "identical" in replayed.stdout, replayed.stdout


@pytest.mark.parametrize(
    "form", [(), ("--processes", "--set=job.syncers=2")], ids=["one process", "shards in processes"]
)
@pytest.mark.slow
def test_a_job_killed_as_a_whole_goes_on(tmp_path, tools, form):
    """SIGKILL to every process; what comes after the newest snapshot is trained once more, and the
    loss continues from where it was."""
    (tmp_path / "killed").mkdir()
    job = Job(tmp_path / "killed", JOB + SNAPSHOTS)
    running = job.start(*form, *LONG)
    job.wait_for("snapshot taken", 3)
    found = subprocess.run(
        ["pgrep", "-f", str(job.run_folder)], text=True, capture_output=True, check=False
    )
    for pid in found.stdout.split():
        tools.kill(int(pid))
    running.communicate(timeout=180)
    assert -signal.SIGKILL == running.returncode

    newest = max(line["t"] for line in job.log() if line["event"] == "merge")
    before = {(line["actor"], line["step"]): line["loss"] for line in steps(job)}
    after = Job(tmp_path, job.file.read_text())
    done = after.run(f"--from={job.run_folder}", f"--set=job.steps={newest + 30}", *form)
    assert done.returncode == 0, done.stdout + done.stderr
    first = {line["actor"]: line for line in reversed(steps(after))}
    assert {"learner-0", "learner-1"} == set(first)
    assert all(line["loss"] == before[who, line["step"]] for who, line in first.items())
    assert min(line["step"] for line in first.values()) > 1
    assert "identical" in replay(after.run_folder).stdout


@pytest.mark.slow
def test_a_job_that_was_stopped_goes_on(tmp_path):
    """Ctrl-C ended that run, and its last snapshot is of then; it does not end the next one."""
    job = Job(tmp_path, JOB + SNAPSHOTS)
    running = job.start(*LONG)
    job.wait_for("merge", 6)
    said = job.stop(running)
    assert running.returncode == 0, said
    last = max(line["t"] for line in job.log() if line["event"] == "merge")
    (tmp_path / "after").mkdir()
    after = Job(tmp_path / "after", job.file.read_text())
    done = after.run(f"--from={job.run_folder}", f"--set=job.steps={last + 30}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"global step {last + 30}" in done.stdout, done.stdout
    assert last + 20 < max(line["t"] for line in after.log() if line["event"] == "merge")
    assert "identical" in replay(after.run_folder).stdout


@pytest.mark.slow
def test_shards_that_were_through_go_on(tmp_path):
    """Each had said so to the lead, and sent what it owns; with more steps none of them is done,
    and the model is made of what they send at the new end."""
    job = Job(tmp_path, JOB + SNAPSHOTS)
    shards = ("--processes", "--set=job.syncers=2")
    done = job.run(*shards)
    assert done.returncode == 0, done.stdout + done.stderr
    after = go_on(job, tmp_path / "after", job.snapshots()[-1], *shards)
    merged = [line for line in after.log() if line["event"] == "merge"]
    assert {0, 1, 2, 3} == {line["fragment"] for line in merged}
    assert {"syncer-0", "syncer-1"} == {line["actor"] for line in merged}
    assert 60 == max(line["t"] for line in merged)
    assert "identical" in replay(after.run_folder).stdout


@pytest.mark.slow
def test_one_learner_takes_its_own_state_in_a_job_that_went_on(tmp_path):
    """Alone in its job it has no peer to ask: without the snapshot its moments would begin again.
    The syncer has gone on meanwhile, and all of it replays."""
    job = Job(tmp_path, JOB + SNAPSHOTS)
    few = ("--set=job.learners=1", *LONG, "--set=snapshot.keep=1000", "--join")

    def start(command, *words):
        words = [command, str(job.file), f"--dir={job.run_folder}", *few, *words]
        return subprocess.Popen([*DDLOCO, *words], stdout=subprocess.DEVNULL)

    running = [start("syncer", "--bind=tcp://127.0.0.1:*")]
    try:
        address = job.run_folder / "syncer.address"
        job.wait_until(address.exists)
        learner = ("learner", "--name=learner-0", f"--connect={address.read_text()}")
        running.append(start(*learner))
        job.wait_for("snapshot taken", 1)
        running[1].kill()
        running[1].wait()
        first = job.run_folder / "snapshots" / job.snapshots()[0]
        running.append(start(*learner, f"--from={first}", "--alone"))
        job.wait_for("state taken over", 1)
        merges = sum(line["event"] == "merge" for line in job.log())
        job.wait_for("merge", merges + 3)
        stop = [*DDLOCO, "stop", address.read_text(), "--timeout", "60"]
        assert call(stop).returncode == 0
        assert running[0].wait(180) == 0
        assert running[2].wait(180) == 0
    finally:
        for each in running:
            each.kill()
            each.wait()
    [taken] = [line for line in job.log() if line["event"] == "state taken over"]
    assert taken["ref"].startswith("learner-0.2:")
    assert taken["from"] == job.snapshots()[0]
    assert taken["batches"] >= taken["copy"] > 0
    merged = [line["learners"] for line in job.log() if line["event"] == "merge"]
    assert {"learner-0.2"} == {name for learners in merged[-3:] for name in learners}
    assert "identical" in replay(job.run_folder).stdout


def test_what_cannot_be_gone_on_from_is_said_in_one_line(pictured, tmp_path):
    """No such snapshot, no such place, the folder itself, a task with other parameters."""
    place = pictured.run_folder / "snapshots"
    for said, folder, word in (
        (place / "syncer.1-1", tmp_path / "a", "syncer.1-1"),
        (tmp_path / "nowhere" / "latest", tmp_path / "b", "nowhere: no such folder"),
        (place / "latest", pictured.run_folder, "choose another folder"),
    ):
        command = ["run", str(pictured.file), f"--dir={folder}", f"--from={said}"]
        done = call_here(*command, "--overwrite")
        assert 2 == done.returncode, done.stdout
        (line,) = done.stderr.splitlines()
        assert word in line
        assert (place / "snapshots").exists()
    other = Job(tmp_path, pictured.file.read_text().replace("fragments = 4", "fragments = 2"))
    done = other.run(f"--from={place}/latest")
    assert 2 == done.returncode, done.stdout
    assert "sync.fragments: 2, the snapshot has 4" in done.stderr


@pytest.mark.parametrize("kind", ["blob", "manifest"])
def test_nothing_goes_on_from_a_damaged_snapshot(pictured, tmp_path, kind):
    """A byte is flipped: one line names the file and the newest snapshot that is intact, and
    nothing is written."""
    place = Path(shutil.copytree(pictured.run_folder / "snapshots", tmp_path / "place"))
    *_, older, newest = pictured.snapshots()
    file = place / "snapshots" / f"{newest}.json"
    if kind == "blob":
        store = Store(place)
        mine, others = (set(store.sizes(store.manifest(each))) for each in (newest, older))
        file = next(path for path in place.glob("blobs/*/*") if path.name in mine - others)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    folder = tmp_path / "run"
    command = ["run", str(pictured.file), f"--dir={folder}"]
    done = call_here(*command, f"--from={place}/{newest}", "--trust")

    assert 2 == done.returncode, done.stdout
    (line,) = done.stderr.splitlines()
    assert str(file) in line
    assert f"the newest intact snapshot is {older}" in line
    assert not folder.exists()
