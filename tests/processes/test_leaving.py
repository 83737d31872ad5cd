"""Signals to single processes of a job, as engines that place and restart processes send them."""

import os
import signal
import subprocess
import time
from contextlib import suppress

import pytest

from ddloco.machines.learner.machine import LEAVE_S_MAX
from ddloco.stage.nodes.node import LEAVE_FINISH_S
from ddloco.stage.nodes.serve import LEAVE_LINGER_S
from tests.hosts.cluster import free_port
from tests.installed import DDLOCO, WORK
from tests.processes.conftest import call, call_here, replay

AGAIN = 75
WAIT_S = 180.0


class Started:
    """Actors of one job, each with a process group of its own, as an engine starts them."""

    def __init__(self, job):
        self.job = job
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.running = {}
        self.all = []

    def start(self, role, *words, folder=None):
        """Start an actor."""
        name = words[words.index("--name") + 1] if "--name" in words else role
        folder = folder or self.job.run_folder
        command = [*DDLOCO, role, str(self.job.file), "--dir", str(folder), "--join", *words]
        said = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        found = subprocess.Popen(command, cwd=WORK, start_new_session=True, **said)
        self.running[name] = found
        self.all.append(found)
        return found

    def syncer(self, *words):
        """Start the syncer."""
        return self.start("syncer", "--bind", self.address, *words)

    def learner(self, name, *words, **more):
        """Start a learner."""
        return self.start("learner", "--connect", self.address, "--name", name, *words, **more)

    def stop(self):
        """End the whole job, by the command."""
        return call_here("stop", self.address, "--timeout", "60")

    def signal(self, name, number=signal.SIGTERM):
        """Signal all processes of an actor, its worker among them."""
        os.killpg(self.running[name].pid, number)

    def kill(self):
        """End all that were started, those that were started again under a name as well."""
        for each in self.all:
            with suppress(
                ProcessLookupError
            ):  # Its worker, too, which may be in a step of an hour.
                os.killpg(each.pid, signal.SIGKILL)
            each.communicate()


@pytest.fixture
def started(job):
    """All processes are ended."""
    made = Started(job)
    yield made
    made.kill()


def ended(process, code):
    """What a process printed, once it has ended so."""
    said, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == code, said
    assert "Traceback" not in said
    assert "killed by signal" not in said
    return said


LONG = ("--set=job.steps=100000", "--set=job.learners=2", "--set=task.step_s=0.05")
ALONE = ("--set=job.steps=100000", "--set=job.learners=1", "--set=task.step_s=0.05")


def test_sigterm_means_leave_and_come_back_and_stop_ends_the_job(started):
    """A learner, then the syncer, get SIGTERM as a group and twice: both leave with 75, the job
    continues when they are started again, and ``ddloco stop`` ends it with exit status 0."""
    started.syncer(*ALONE)
    first = started.learner("learner-0", *ALONE)
    started.job.wait_for("merge", 4)

    for _ in range(2):
        started.signal("learner-0")
    assert "left: asked to stop by SIGTERM" in ended(first, AGAIN)
    started.learner("learner-0", *ALONE)
    started.job.wait_for("joined", 2)

    for _ in range(2):
        started.signal("syncer")
    assert "left: asked to stop by SIGTERM" in ended(started.running["syncer"], AGAIN)
    merges = sum(line["event"] == "merge" for line in started.job.log())
    started.syncer(*ALONE)
    started.job.wait_for("merge", merges + 4)

    stopped = started.stop()
    assert stopped.returncode == 0, stopped.stderr
    assert "stopped: asked to stop with ddloco stop" in stopped.stdout
    for each in started.running.values():
        ended(each, 0)
    assert (started.job.run_folder / "model" / "model.safetensors").exists()
    replayed = replay(started.job.run_folder)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "not closed" not in replayed.stdout


@pytest.mark.slow
def test_sigterm_when_the_syncer_is_gone(started, tmp_path):
    """A learner in a folder of its own, whose syncer was killed, leaves without its answers, in the
    middle of a step that takes far longer than it has."""
    assert LEAVE_S_MAX + LEAVE_FINISH_S + LEAVE_LINGER_S < 5.0
    more = (*ALONE, "--set=task.step_s=3600")
    started.syncer(*more)
    one = started.learner("learner-0", *more, folder=tmp_path / "own")
    started.job.wait_for("joined", 1)
    started.signal("syncer", signal.SIGKILL)
    started.running["syncer"].wait()
    time.sleep(1.0)  # It sends messages that nobody receives.

    started.signal("learner-0")
    ended(one, AGAIN)  # It would take an hour if it waited for the step.


def test_sigterm_while_a_learner_starts(started):
    """Nothing has begun: it leaves, and its next incarnation begins in the same folder."""
    one = started.learner("learner-0", *LONG)
    time.sleep(1.0)
    started.signal("learner-0")
    said, _ = one.communicate(timeout=WAIT_S)
    assert one.returncode in (AGAIN, -signal.SIGTERM), (
        said
    )  # Before Python runs, no handler is set.
    assert "Traceback" not in said


def test_no_process_answers_a_stop(started):
    """One line, and exit code 1."""
    found = call_here("stop", started.address, "--timeout", "0.5")

    assert found.returncode == 1
    assert found.stderr.startswith("ddloco: no answer from tcp://127.0.0.1:")


def test_sigterm_to_a_whole_run_ends_it_and_says_that_it_is_not_done(job):
    """``ddloco run`` is the job: SIGTERM ends it in good order, and the code says: not done."""
    running = job.start(*LONG)
    job.wait_for("merge", 4)
    running.send_signal(signal.SIGTERM)
    running.send_signal(signal.SIGTERM)

    assert "held-out loss" in ended(running, AGAIN)


@pytest.mark.slow
def test_a_learner_that_comes_back_in_an_empty_folder(started, tmp_path):
    """On another host it is the next incarnation, of which the syncer's folder has both tapes, and
    which replays; the syncer was started again meanwhile."""
    more = (*ALONE, "--set=tape.segment_s=0.2")
    started.syncer(*more)
    first = started.learner("learner-0", *more, folder=tmp_path / "a")
    started.job.wait_for("merge", 4)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    started.signal("syncer")
    ended(started.running["syncer"], AGAIN)

    started.syncer(*more)
    started.learner("learner-0", *more, folder=tmp_path / "b")
    merges = sum(line["event"] == "merge" for line in started.job.log())
    started.job.wait_for("merge", merges + 4)
    assert started.stop().returncode == 0
    for each in (started.running["syncer"], started.running["learner-0"]):
        ended(each, 0)

    tapes = {path.name for path in (started.job.run_folder / "tapes").glob("*.tape")}
    assert {"learner-0.1.tape", "learner-0.2.tape", "syncer.1.tape", "syncer.2.tape"} == tapes
    replayed = replay(started.job.run_folder)
    assert "DIFFERENT " not in replayed.stdout, replayed.stdout


@pytest.mark.slow
def test_the_same_command_goes_on_and_ships_what_was_left(started, tmp_path):
    """In its own folder a learner that was killed is started by the same words, without a flag; the
    rest of its former tape arrives, so that all is identical."""
    more = (*ALONE, "--set=tape.segment_s=10")
    started.syncer(*more)
    words = ["--connect", started.address, "--name", "learner-0", "--dir", str(tmp_path / "a")]
    command = [*DDLOCO, "learner", str(started.job.file), *words, *more]
    first = started.running["first"] = subprocess.Popen(command, cwd=WORK, start_new_session=True)
    started.job.wait_for("merge", 8)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    second = started.running["second"] = subprocess.Popen(command, cwd=WORK, start_new_session=True)
    merges = sum(line["event"] == "merge" for line in started.job.log())
    started.job.wait_for("merge", merges + 4)
    stopped = started.stop()

    assert stopped.returncode == 0, stopped.stderr
    assert second.wait(WAIT_S) == 0
    ended(started.running["syncer"], 0)
    for name in ("learner-0.1.tape", "learner-0.2.tape"):
        ours = (tmp_path / "a" / "tapes" / name).read_bytes()
        assert ours == (started.job.run_folder / "tapes" / name).read_bytes()
    replayed = replay(started.job.run_folder)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


@pytest.mark.slow
def test_of_two_twins_the_newer_wins(started, tmp_path):
    """Two of one name in two folders: the older ends with a line that says so."""
    started.syncer(*LONG)
    older = started.learner("learner-0", *LONG, folder=tmp_path / "a")
    started.learner("learner-1", *LONG)
    started.job.wait_for("merge", 2)
    newer = started.learner("learner-0", *LONG, folder=tmp_path / "b")

    said = ended(older, 2)
    assert "a newer incarnation, learner-0.2, has joined" in said
    assert newer.poll() is None


@pytest.mark.slow
def test_learners_follow_a_syncer_whose_address_is_in_a_file(started, tmp_path):
    """The syncer moves to another port; the learner reads its address again, and continues."""
    more = ALONE
    at = f"file:{started.job.run_folder / 'syncer.address'}"
    words = ["--name", "learner-0", *more]
    started.start("learner", "--connect", at, *words, folder=tmp_path / "a")
    started.start("syncer", "--bind", "tcp://127.0.0.1:*", *more)
    started.job.wait_for("merge", 2)
    address = started.job.run_folder / "syncer.address"
    before = address.read_text()
    started.signal("syncer")
    ended(started.running["syncer"], AGAIN)
    merges = sum(line["event"] == "merge" for line in started.job.log())
    started.start("syncer", "--bind", f"tcp://127.0.0.1:{free_port()}", *more)
    started.job.wait_for("merge", merges + 4)
    assert before != address.read_text()


def test_no_wait_is_for_ever(started, tmp_path):
    """Without a syncer a learner leaves with one line."""
    one = started.learner("learner-0", *LONG, "--patience", "1", folder=tmp_path / "a")
    assert f"left: syncer does not answer at {started.address} for 1 s" in ended(one, AGAIN)


@pytest.mark.slow
def test_no_wait_for_former_actors_is_for_ever(started, tmp_path):
    """A learner whose syncer is gone, and a syncer whose learners are, leave with one line."""
    started.syncer(*LONG)
    two = started.learner("learner-1", *LONG, "--patience", "2", folder=tmp_path / "b")
    started.job.wait_for("joined", 1)
    started.signal("syncer", signal.SIGKILL)
    started.running["syncer"].communicate()
    assert "no syncer was there for 2 s (--patience)" in ended(two, AGAIN)

    alone = started.syncer(*LONG, "--patience", "2")
    assert "no learner was there for 2 s (--patience)" in ended(alone, AGAIN)


def test_what_differs_is_said_before_anything_starts(started, tmp_path):
    """Another interval: which settings, with both values. Another task: a warning on both sides."""
    more = ALONE
    started.syncer(*more)
    other = started.learner("learner-0", *more, "--set=sync.interval=12", folder=tmp_path / "a")
    assert "its job file differs: sync.interval is 8 here, 12 there" in ended(other, 2)

    home = tmp_path / "edited"
    (home / "tests").mkdir(parents=True)
    source = (WORK / "tests" / "tasks.py").read_text()
    (home / "tests" / "tasks.py").write_text(source + "# edited\n")
    words = ["--connect", started.address, "--name", "learner-0", "--dir", str(tmp_path / "b")]
    edited = subprocess.Popen(
        [*DDLOCO, "learner", str(started.job.file), *words, *more],
        cwd=home,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    started.job.wait_for("task differs", 1)
    started.job.wait_for("joined", 1)
    edited.terminate()
    _, said = edited.communicate(timeout=WAIT_S)
    assert (
        "warning: task tests.tasks:regression differs: the source file tests/tasks.py is " in said
    )


@pytest.mark.slow
def test_a_learner_that_leaves_for_good_ends_with_0_and_others_get_its_data(started):
    """By the command, which an engine takes for final; the replay of all of it is identical."""
    words = "--set=job.steps=100000", "--set=task.step_s=0.05", "--set=job.shards=5"
    started.syncer(*words)
    going = started.learner("learner-1", *words)
    started.learner("learner-0", *words)
    started.job.wait_for("merge", 8)
    leave = [*DDLOCO, "leave", started.address, "learner-1", "--timeout", "60"]
    assert "learner-1 leaves for good" in call(leave).stdout
    assert "done: learner-1 was asked to leave for good" in ended(going, 0)
    started.job.wait_for("data shards moved", 1)
    again = call(leave)
    assert (again.returncode, "is not there, and counts as gone" in again.stdout) == (0, True)
    unknown = call_here("leave", started.address, "learner-7", "--timeout", "60")
    assert (unknown.returncode, "no learner of this job" in unknown.stderr) == (1, True)
    assert started.stop().returncode == 0
    (moved,) = [each for each in started.job.log() if each["event"] == "data shards moved"]
    assert moved["data_shards"] == [1, 3]
    replayed = replay(started.job.run_folder)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


@pytest.mark.slow
def test_a_whole_job_that_is_told_to_leave_is_started_again(job):
    """An engine sends SIGTERM to every process of `run --processes`: it leaves with 75 at once, and
    says with which command its newest snapshot is continued."""
    command = job.command("--processes", "--set=job.steps=100000", "--set=snapshot.every_steps=10")
    said = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    running = subprocess.Popen([*command, "--set=task.step_s=0.02"], cwd=WORK, **said)
    job.wait_for("snapshot taken", 1)
    listed = call(["ps", "-eww", "-o", "pid=,ppid=,args="]).stdout.splitlines()
    ours = [int(line.split()[0]) for line in listed if str(job.run_folder) in line]
    begun = time.monotonic()
    for pid in ours:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    out, _ = running.communicate(timeout=WAIT_S)
    assert (running.returncode, "left in good order" in out) == (AGAIN, True), out
    assert f"--from {job.run_folder}" in out
    assert time.monotonic() - begun < 60.0
    assert replay(job.run_folder).returncode == 0
