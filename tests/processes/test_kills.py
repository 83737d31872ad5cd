"""Kills at random moments: whatever is killed, what it said is explained by its tape."""

import random
import time

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_a_run_with_a_kill_at_any_moment_replays(job, tools, seed):
    """A learner or its worker killed at a random moment: the rest continues, the tapes replay."""
    rng = random.Random(seed)
    running = job.start("--processes", "--set=job.steps=100000", "--set=task.step_s=0.02")
    job.wait_for("merge", rng.randint(1, 12))
    time.sleep(rng.uniform(0.0, 0.05))  # Somewhere inside a step, an encode or a send.
    learner = tools.call(["pgrep", "-f", f"{job.run_folder}.*--name learner-1"]).stdout.split()[0]
    worker = tools.call(["pgrep", "-P", learner]).stdout.split()
    tools.kill(int(rng.choice([learner, *worker])))
    before = len(job.merges())
    job.wait_until(lambda: len(job.merges()) > before + 8)
    said = job.stop(running)
    replayed = tools.replay(job.run_folder)

    assert running.returncode == 0, said
    assert "learner-1 failed" in said
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
