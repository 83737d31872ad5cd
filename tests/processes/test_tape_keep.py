"""Tapes bounded by snapshots, of real jobs: short, and what is left of them replays."""

import json
import re
import shutil
import signal
import time

import msgspec
import pytest

from ddloco.replayer.replay_of import replay_of
from replay import files_of, open_tapes
from snapshot import Store
from snapshot.participant import UNDER_WAY_MAX
from tests.processes.conftest import JOB, Job, call_here, replay
from tests.processes.test_divergence import first_event, rewrite

pytestmark = pytest.mark.slow

BOUNDED = """
[tape]
keep = "2 snapshots"
ship = false

[snapshot]
every_s = 1.0
keep = 4
"""
CRASH = """
[[fault]]
what = "crash"
who = "learner-1"
at_s = 1.0
for_s = 0.3
"""


class Bounded:
    """A run, and what is left of its tapes."""

    def __init__(self, job):
        self.job, self.folder = job, job.run_folder
        self.tapes = self.folder / "tapes"

    def run_until(self, done, *more):
        """Run the job until something is so, then stop it."""
        running = self.job.start(
            "--processes", "--set=job.steps=100000", "--set=task.step_s=0.03", *more
        )
        deadline = time.monotonic() + 120
        try:
            while not done():
                assert time.monotonic() < deadline, self.job.log()[-5:]
                assert running.poll() is None, self.job.log()[-5:]
                time.sleep(0.1)
        finally:
            running.send_signal(signal.SIGINT)
            said, _ = running.communicate(timeout=180)
        assert 0 == running.returncode, said
        assert "failed" not in said

    def came_back(self):
        """Whether a learner's second incarnation is there, and nothing of its first any more."""
        first, second = (files_of(self.tapes, f"learner-1.{number}") for number in (1, 2))
        return bool(second) and not first


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    """A job with a learner that was killed and came back, and that went on long enough for all of
    that to be dropped; look at it only."""
    job = Job(tmp_path_factory.mktemp("bounded"), JOB + BOUNDED)
    chaos = job.file.with_name("chaos.toml")
    chaos.write_text(CRASH)
    made = Bounded(job)
    made.run_until(made.came_back, f"--chaos={chaos}")
    return made


def test_what_is_left_replays(bounded):
    """The first files are gone, and all of a former incarnation; a tape has two intervals and what
    no reader has opened yet; the replay begins with a snapshot, says so, and is identical."""
    tapes = open_tapes(bounded.tapes)
    assert ["learner-0.1", "learner-1.2", "syncer.1"] == [each.incarnation for each in tapes]
    assert all(each.dropped for each in tapes)
    for each in tapes:
        files = files_of(bounded.tapes, each.incarnation)
        # Snapshots under way when an actor looked for the last time may not have stood by then.
        assert 2 <= len(files) <= 2 + UNDER_WAY_MAX, files
    found = replay(bounded.folder)
    assert 0 == found.returncode, found.stdout + found.stderr
    began, *_, identical = found.stdout.splitlines()
    assert re.fullmatch(r"begins with snapshot syncer\.1-\d+: events before it were dropped", began)
    assert identical.startswith("identical: ")


def test_a_later_snapshot_does_as_well(bounded):
    """``--from`` a snapshot behind the beginning: less is played, and it is identical."""
    newest = replay(bounded.folder, "--from", "latest", "--json")
    found = json.loads(newest.stdout)

    assert (0, True) == (newest.returncode, found["identical"]), found
    assert 0 < found["events"] < sum(each.events for each in open_tapes(bounded.tapes))


def test_what_is_left_can_be_looked_at(bounded):
    """Records and clocks hold, invariants are said not to be looked at; each event is shown."""
    verified = call_here("tape", "verify", str(bounded.folder))
    shown = call_here("tape", "show", str(bounded.folder))
    tapes = open_tapes(bounded.tapes)

    assert 0 == verified.returncode, verified.stdout
    assert (
        "invariants were not checked: these tapes do not have the first events"
        in (verified.stdout.splitlines()[-1])
    )
    for each in tapes:
        said = f"begins after event {each.header.after}: earlier events were deleted"
        assert f"{each.incarnation:<14} {said}" in verified.stdout.splitlines()
    assert 0 == shown.returncode, shown.stderr
    assert sum(each.events - each.header.after for each in tapes) == shown.stdout.count("\n")


def test_a_snapshot_before_what_is_left_is_refused(bounded):
    """In one line that names the tape, and the first snapshot that will do."""
    held = call_here("snapshot", "list", "--json", str(bounded.folder))
    oldest = json.loads(held.stdout)[-1]["id"]
    found = call_here("replay", str(bounded.folder), "--from", oldest)
    said = found.stderr.strip()

    assert 2 == found.returncode, found.stdout
    assert "\n" not in said
    assert said.startswith(f"ddloco: --from {oldest}: learner-0.1@")
    first = replay_of(bounded.folder).start_point.snapshot
    assert said.endswith(f"after that snapshot; the first usable one is {first}")


def test_a_changed_loss_is_found(bounded, tmp_path):
    """One bit of one loss in what is left: the replay names that event."""
    copy = shutil.copytree(bounded.folder, tmp_path / "copy")
    *_, (_, path) = files_of(copy / "tapes", "learner-0.1")
    target = first_event(path, "StepFinished", after=first_event(path, "StepFinished"))

    def change(n, event):
        if n == target:
            bits = msgspec.msgpack.encode(event["loss"])
            event["loss"] = msgspec.msgpack.decode(bits[:-1] + bytes([bits[-1] ^ 1]))
        return event

    rewrite(path, change)
    found = replay(copy, "--json")
    divergence = json.loads(found.stdout)["divergence"]

    assert 1 == found.returncode
    assert ("learner-0.1", target) == (divergence["actor"], divergence["event"])


def test_without_a_snapshot_nothing_can_begin(bounded, tmp_path):
    """In one line that names the tape and the place."""
    copy = shutil.copytree(bounded.folder, tmp_path / "copy")
    shutil.rmtree(copy / "snapshots")
    found = call_here("replay", str(copy))
    said = found.stderr.strip()

    assert 2 == found.returncode, found.stdout
    assert "\n" not in said
    (_, first), *_ = files_of(copy / "tapes", "learner-0.1")
    assert said.startswith(
        f"ddloco: {first} has lost its beginning, and {copy / 'snapshots'}: holds"
    )


def test_a_run_that_goes_on_is_bounded_as_well(bounded, tmp_path):
    """Its tapes begin where the other run's snapshot was, and then behind its own ones."""
    # The newest one was taken when the run had been told to end; who continues from it ends, too.
    _, one, *_ = Store(bounded.folder / "snapshots").snapshots()
    went_on = Bounded(Job(tmp_path, JOB + BOUNDED))
    first = [went_on.tapes / f"{who}.tape" for who in ("syncer.1", "learner-0.1", "learner-1.2")]

    def dropped():
        return any(went_on.tapes.glob("*@*")) and not any(path.exists() for path in first)

    went_on.run_until(dropped, f"--from={bounded.folder / 'snapshots' / one.id}")
    found = replay(went_on.folder)

    assert 0 == found.returncode, found.stdout + found.stderr
    assert found.stdout.startswith("begins with snapshot syncer.1-")
    assert "identical: " in found.stdout


def test_a_syncer_that_was_killed_behind_the_cut(tmp_path):
    """What it finds of merges from before the cut is what the snapshot has of them: no gap."""
    job = Job(tmp_path, JOB + BOUNDED)
    made = Bounded(job)
    chaos = job.file.with_name("chaos.toml")
    chaos.write_text(CRASH.replace("learner-1", "syncer").replace("1.0", "6.5"))
    # An interval of eighty steps: not all fragments are merged between a cut and the crash.
    slow = ("--set=sync.interval=80", "--set=sync.fragments=8", "--set=snapshot.every_s=2.5")

    def recovered():
        return sum(line["event"] == "merge" and ".2:" in line["ref"] for line in job.log()) > 2

    made.run_until(recovered, f"--chaos={chaos}", *slow)
    found = replay(made.folder)

    assert 0 == found.returncode, found.stdout + found.stderr
    assert "identical: " in found.stdout
    assert all("gap" not in line for line in found.stdout.splitlines())
