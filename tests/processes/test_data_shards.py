"""Data shards move between processes that die and come back, and every step replays."""

import pytest

from tests.processes.conftest import Job, replay

JOB = """
[job]
task = "tests.tasks:regression"
steps = 1200
learners = 3
shards = 5

[task]
step_s = 0.01

[sync]
fragments = 2
interval = 8

[elastic]
gone_s = 2.0

[snapshot]
every_steps = 150
"""

CHAOS = """
fault = [
    {what = "crash", who = "learner-1", at_s = 2.0, for_s = 4.0},
    {what = "crash", who = "syncer", at_s = 9.0, for_s = 0.2},
]
"""


@pytest.mark.slow
def test_shards_are_taken_over_and_given_back(tmp_path):
    """Of one that is gone for a while; a restarted syncer knows who has what. The replay of all of
    it is identical, also from the last snapshot."""
    job = Job(tmp_path, JOB)
    (tmp_path / "chaos.toml").write_text(CHAOS)
    done = job.run("--processes", f"--chaos={tmp_path / 'chaos.toml'}")
    assert done.returncode == 0, done.stdout + done.stderr
    log = job.log()
    gone = [each for each in log if each["event"] == "gone for good"]
    assert "learner-1" in {each["learner"] for each in gone}
    moved = [each["now"] for each in log if each["event"] == "data shards moved"]
    assert any("learner-1" not in each for each in moved), "taken over"
    assert "learner-1" in moved[-1], "and given back"
    for more in ((), ("--from=latest",)):
        replayed = replay(job.run_folder, *more)
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr
        assert "identical" in replayed.stdout


@pytest.mark.slow
@pytest.mark.parametrize("learners", [1, 5])
def test_a_job_goes_on_with_other_learners(tmp_path, learners):
    """From a snapshot: those that are there share all of the data, and the tapes replay."""
    first = Job(tmp_path, JOB)
    assert first.run("--set=job.steps=200").returncode == 0
    (tmp_path / "more").mkdir()
    job = Job(tmp_path / "more", JOB)
    place = first.run_folder / "snapshots" / "latest"
    done = job.run(f"--from={place}", f"--set=job.learners={learners}")
    assert done.returncode == 0, done.stdout + done.stderr
    moved = [each["now"] for each in job.log() if each["event"] == "data shards moved"]
    assert moved[-1] == {f"learner-{n}": 5 // learners for n in range(learners)}
    replayed = replay(job.run_folder)
    assert "identical" in replayed.stdout, replayed.stdout + replayed.stderr
