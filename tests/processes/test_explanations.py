"""Explanations of real runs that continue from snapshots, and of runs whose tapes are not whole."""

import random
import shutil

import pytest

from tests.ddloco.debugger.test_recorded_run import call, check
from tests.processes.conftest import JOB, Job, replay
from tests.processes.test_restore import go_on
from tests.processes.test_tape_keep import BOUNDED


def agree(folder):
    """``tape verify`` and ``replay`` say the same of a run; returns the exit code."""
    verified, replayed = call("tape", "verify", folder), replay(folder)
    assert "DIFFERENT " not in replayed.stdout, replayed.stdout
    assert verified[0] == replayed.returncode, (verified[1], replayed.stdout, replayed.stderr)
    return verified[0]


@pytest.mark.slow
@pytest.mark.parametrize("learners", [1, 3])
def test_a_run_that_goes_on_with_fewer_or_more_learners_is_whole(pictured, tmp_path, learners):
    """Who does not come along has no tape in it, and is no gap; every command answers."""
    snapshot = pictured.snapshots()[1]
    job = go_on(pictured, tmp_path / "on", snapshot, f"--set=job.learners={learners}")
    assert agree(job.run_folder) == 0
    rng = random.Random(learners)
    check(job.run_folder, pictured.run_folder, tmp_path, rng, asked=12)


@pytest.mark.slow
def test_a_run_that_goes_on_from_any_snapshot_is_explained(pictured, tmp_path):
    """From each one: verified, replayed, stopped before a merge, and through every command."""
    for number, snapshot in enumerate(pictured.snapshots()):
        folder = go_on(pictured, tmp_path / str(number), snapshot).run_folder
        assert agree(folder) == 0
        check(folder, pictured.run_folder, tmp_path, random.Random(number))
        stopped = replay(folder, "--until=merge:50")
        assert stopped.returncode == 0, stopped.stdout + stopped.stderr
        assert f"continue from snapshot {snapshot}" in stopped.stdout.splitlines()[0]


def test_without_the_syncers_tape_a_replay_has_a_gap_and_no_divergence(pictured, tmp_path):
    """What a snapshot had of a worker whose state is not known cannot be compared."""
    shutil.copytree(pictured.run_folder, tmp_path / "run")
    (tmp_path / "run" / "tapes" / "syncer.1.tape").unlink()
    assert agree(tmp_path / "run") == 1
    assert "gap: syncer: no tape" in replay(tmp_path / "run").stdout


@pytest.mark.slow
def test_a_run_whose_tapes_are_bounded_is_explained_from_where_they_begin(tmp_path):
    """What was deleted is said before each answer."""
    job = Job(tmp_path, JOB.replace("step_s = 0.01", "step_s = 0.03") + BOUNDED)
    done = job.run("--processes", "--set=job.steps=250")
    assert done.returncode == 0, done.stdout + done.stderr
    assert any("@" in each.name for each in (job.run_folder / "tapes").iterdir())
    assert agree(job.run_folder) == 0
    check(job.run_folder, job.run_folder, tmp_path, random.Random(1))
    assert "earlier events were deleted" in call("why", job.run_folder, "loss")[1].splitlines()[0]
