"""An engine believes that a syncer is dead, which is only stopped, and starts another one."""

import os
import signal
import time
from copy import copy

import pytest

from ddloco.stage.nodes.lease import HOLD_S, SILENT_S
from tests.processes.conftest import call_here, replay
from tests.processes.test_leaving import AGAIN, Started, ended

SETTINGS = ("--set=job.steps=100000", "--set=task.step_s=0.02", "--set=sync.quorum=1")


@pytest.fixture
def started(job):
    """Actors whose syncer may be started elsewhere, and is found by its address file."""
    made = Started(job)
    yield made
    made.kill()


def start_all(started, job):
    """A syncer and two learners, which merge."""
    own = [job.file.with_name(name) for name in ("learner-0", "learner-1")]
    address = started.address = f"file:{job.run_folder}/syncer.address"
    first = started.start("syncer", "--bind", "tcp://127.0.0.1:*", *SETTINGS)
    for folder in own:
        words = ("--connect", address, "--name", folder.name, *SETTINGS)
        started.start("learner", *words, folder=folder)
    job.wait_for("merge", 8)
    return first


def test_a_stopped_syncer_is_succeeded_and_writes_nothing_more(started, job):
    """The second one goes on after SILENT_S; the first one ends with 75 when it wakes; all tapes
    replay. A third one is told that the second lives."""
    first = start_all(started, job)
    started.signal("syncer", signal.SIGSTOP)
    begun = time.monotonic()
    second = started.start("syncer", "--bind", "tcp://127.0.0.1:*", *SETTINGS)
    before = len(job.merges())
    job.wait_until(lambda: len(job.merges()) > before)
    assert time.monotonic() - begun > SILENT_S
    job.wait_until(lambda: len(job.merges()) > before + 8)

    third = started.start("syncer", "--bind", "tcp://127.0.0.1:*", *SETTINGS)
    said, _ = third.communicate(timeout=60)
    assert AGAIN == third.returncode  # The second one may end, and then somebody is wanted.
    assert "syncer.2 on" in said
    assert f"process {second.pid} acts in" in said

    first.send_signal(signal.SIGCONT)
    said, _ = first.communicate(timeout=60)
    assert AGAIN == first.returncode, said
    assert "acts as syncer now" in said
    before = len(job.merges())
    job.wait_until(lambda: len(job.merges()) > before + 8)
    started.running["syncer"] = second
    assert_stops_and_replays(started, job)


@pytest.mark.slow
def test_a_syncer_that_was_stopped_goes_on_where_nobody_took_its_place(started, job):
    """As after Ctrl-Z and fg."""
    start_all(started, job)
    started.signal("syncer", signal.SIGSTOP)
    time.sleep(HOLD_S + 1)
    started.signal("syncer", signal.SIGCONT)
    before = len(job.merges())
    job.wait_until(lambda: len(job.merges()) > before + 8)
    assert_stops_and_replays(started, job)


@pytest.mark.slow
def test_a_standby_takes_over_and_another_one_ends_with_the_job(started, job):
    """It acts as the next incarnation; no merge is lost or made twice."""
    first = start_all(started, job)
    standby = started.start("syncer", "--bind", "tcp://127.0.0.1:*", "--standby", *SETTINGS)
    time.sleep(SILENT_S + 1)
    assert standby.poll() is None
    os.killpg(first.pid, signal.SIGKILL)
    before = job.merges()
    job.wait_until(lambda: len(job.merges()) > len(before) + 8)
    steps = [each["t"] for each in job.merges()]
    assert len(steps) == len(set(steps))
    started.running["standby"] = standby
    started.start("syncer", "--bind", "tcp://127.0.0.1:*", "--standby", *SETTINGS)
    said = assert_stops_and_replays(started, job)
    assert f"process {first.pid} acts: wait for its end" in said["standby"]
    assert "stopped: asked to stop with ddloco stop" in said["syncer"]

    late = started.start(
        "learner", "--connect", started.address, "--name", "learner-0", *SETTINGS,
        folder=job.file.with_name("late"),
    )  # fmt: skip
    assert "done: stopped: asked to stop with ddloco stop" in ended(late, 0)


@pytest.mark.slow
def test_a_syncer_in_an_empty_folder_is_the_one_after_those_that_were_followed(started, job):
    """Nobody there knows its number but the learners; merges go on from what they have."""
    started.learner("learner-0", *SETTINGS, folder=job.file.with_name("learner-0"))
    for number in (1, 2):
        started.syncer(*SETTINGS)
        job.wait_until(lambda n=number: syncers(job.log(), n, 4))
        started.signal("syncer", signal.SIGKILL)
    empty = job.file.with_name("empty")
    lost = started.start("syncer", "--bind", started.address, *SETTINGS, folder=empty)
    said = ended(lost, AGAIN)
    assert "left: learner-0.1 has followed syncer.2; started again, this is the one after" in said
    started.start("syncer", "--bind", started.address, *SETTINGS, folder=empty)
    at = copy(job)
    at.run_folder = empty
    at.wait_until(lambda: syncers(at.log(), 3, 4))
    stopped = started.stop()
    assert 0 == stopped.returncode, stopped.stderr
    for each in started.running.values():
        ended(each, 0)
    tapes = {path.name for path in (empty / "tapes").glob("[ls]*")}
    assert {"learner-0.1.tape", "syncer.1.superseded", "syncer.3.tape"} == tapes
    replayed = replay(empty, "--trust")
    assert "identical as far as it was compared" in replayed.stdout, (
        replayed.stdout + replayed.stderr
    )
    assert "gap: syncer.2: no tape" in replayed.stdout
    verified = call_here("tape", "verify", str(empty))  # The loss of a folder breaks no promise.
    assert "ack-after-durable            nothing to look at" in verified.stdout, verified.stdout


def syncers(log, number, merges):
    """Whether so many merges of an incarnation are in the log."""
    made = [line for line in log if line["event"] == "merge"]
    return merges <= sum(line["ref"].startswith(f"syncer.{number}:") for line in made)


@pytest.mark.slow
def test_a_standby_on_another_host_takes_over_from_the_place(started, job):
    """The first syncer's folder is gone with its host: merges, momentum and tape are in the place,
    and learners find the address there."""
    place = job.file.with_name("place")
    lease = ("--lease", str(place), *SETTINGS)
    first = started.start("syncer", "--bind", "tcp://127.0.0.1:*", *lease)
    for name in ("learner-0", "learner-1"):
        words = ("--connect", f"lease:{place}", "--name", name, *SETTINGS)
        started.start("learner", *words, folder=job.file.with_name(name))
    job.wait_for("merge", 8)
    other = job.file.with_name("other")
    standby = started.start(
        "syncer", "--bind", "tcp://127.0.0.1:*", "--standby", *lease, folder=other
    )
    job.wait_until(lambda: (place / "syncer" / "tapes" / "syncer.1.tape").exists())
    time.sleep(3)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    job.run_folder.rename(job.file.with_name("lost"))
    at = copy(job)
    at.run_folder = other
    at.wait_until(lambda: syncers(at.log(), 2, 8))
    started.running = {name: each for name, each in started.running.items() if each is not first}
    started.address = f"lease:{place}"
    stopped = started.stop()
    assert 0 == stopped.returncode, stopped.stderr
    said = {name: ended(each, 0) for name, each in started.running.items()}
    assert standby in started.running.values()
    assert "files of the last holder were brought from" in said["syncer"]
    assert {"syncer.1.tape", "syncer.2.tape"} <= {each.name for each in (other / "tapes").iterdir()}
    newest = max(each["t"] for each in at.log() if each["event"] == "merge")
    recovered = next(each for each in at.log() if each["event"] == "recovered")
    assert newest > recovered["t"] > 0
    replayed = replay(other, "--trust")
    assert "identical as far as it was compared" in replayed.stdout, (
        replayed.stdout + replayed.stderr
    )
    gaps = [each.strip() for each in replayed.stdout.splitlines() if "gap: " in each]
    # The copy in the place ends before the host did: what was merged after it, learners brought.
    known = ("gap: syncer.1: the tape ends after", "was found, and not merged again")
    assert [each for each in gaps if not any(said in each for said in known)] == []


@pytest.mark.slow
def test_a_learner_that_missed_the_end_hears_of_it(started, job):
    """It was stopped while the syncer moved and ended; nobody answers it any more."""
    first = start_all(started, job)
    started.signal("learner-0", signal.SIGSTOP)
    os.killpg(first.pid, signal.SIGKILL)
    started.start("syncer", "--bind", "tcp://127.0.0.1:*", *SETTINGS)
    job.wait_until(lambda: syncers(job.log(), 2, 4))
    stopped = started.stop()
    assert 0 == stopped.returncode, stopped.stderr
    ended(started.running["syncer"], 0)
    started.signal("learner-0", signal.SIGCONT)
    assert "stopped: asked to stop with ddloco stop" in ended(started.running["learner-0"], 0)


@pytest.mark.slow
def test_a_shard_of_two_is_succeeded_from_the_place(started, job):
    """The lead goes on; the shard's fragments are merged again where their versions were."""
    place = job.file.with_name("place")
    more = ("--lease", str(place), "--set=job.syncers=2", *SETTINGS)
    bind = ("--bind", "tcp://127.0.0.1:*")
    started.start("syncer", *bind, *more)
    shard = ("--name", "syncer-1", "--connect", f"file:{place}/syncer-0.address", *bind, *more)
    first = started.start("syncer", *shard, folder=job.file.with_name("one"))
    settings = ("--set=job.syncers=2", *SETTINGS)
    for name in ("learner-0", "learner-1"):
        words = ("--connect", f"lease:{place}", "--name", name, *settings)
        started.start("learner", *words, folder=job.file.with_name(name))
    one, two = copy(job), copy(job)
    one.run_folder, two.run_folder = job.file.with_name("one"), job.file.with_name("two")
    one.wait_for("merge", 8)
    time.sleep(3)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    one.run_folder.rename(job.file.with_name("lost"))
    started.start("syncer", *shard, folder=two.run_folder)
    two.wait_for("merge", 8)
    recovered = next(each for each in two.log() if each["event"] == "recovered")
    assert recovered["t"] > 0
    assert "syncer-1.2:" in recovered["ref"]
    started.address = f"lease:{place}"
    stopped = started.stop()
    assert 0 == stopped.returncode, stopped.stderr
    for each in started.running.values():
        ended(each, 0)


def assert_stops_and_replays(started, job):
    """The job ends as it should, and its tapes contain all of it; returns what was printed."""
    stopped = started.stop()
    assert 0 == stopped.returncode, stopped.stderr
    said = {name: ended(each, 0) for name, each in started.running.items()}
    replayed = replay(job.run_folder)
    assert 0 == replayed.returncode, replayed.stdout + replayed.stderr
    return said
