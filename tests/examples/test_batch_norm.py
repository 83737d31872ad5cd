"""The classifier with batch normalisation: what it learns depends on its state."""

import json
from pathlib import Path

import pytest

from tests.commands import here

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_it_classifies_with_the_averaged_statistics(tmp_path):
    """Held-out accuracy with moving averages; measured 0.99, and 0.1 with an outer optimizer.

    A moving average forgets its first value with the steps of its learner, not with global steps,
    and slow learners do few steps in a job: after 65 steps, 0.85 was measured, after 75, 0.98. So
    the whole job is run, in which each has done more than 100 at least.
    """
    folder = tmp_path / "run"
    ran = here("run", "examples/batch_norm.toml", "--dir", folder, "--set=job.steps=180", cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    result = next(line for line in lines if line["event"] == "result")

    assert result["metrics"]["accuracy"] > 0.98


@pytest.mark.slow
def test_a_run_with_a_state_replays(tmp_path):
    """A learner is killed and comes back with its counter and its key; every bit is the same."""
    chaos = tmp_path / "chaos.toml"
    chaos.write_text('[[fault]]\nwhat = "crash"\nwho = "learner-1"\nat_s = 9.0\nfor_s = 1.0\n')
    folder = tmp_path / "run"
    settings = {"job.task": "tests.tasks:stateful", "job.steps": 80, "task.step_s": 0.1}
    overrides = [f"--set={key}={value}" for key, value in settings.items()]
    more = ["--processes", "--dir", folder, "--chaos", chaos, *overrides]
    ran = here("run", "examples/batch_norm.toml", *more, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    assert "identical" in here("replay", folder, cwd=ROOT).stdout
