"""A machine that computes wrongly is found while it trains, and named on the tape."""

import json
from pathlib import Path

import pytest

from tests.commands import here

ROOT = Path(__file__).parents[2]
JOB = """
[job]
name = "corruption"
task = "tests.tasks:flipping"
learners = 2
steps = 40

[sync]
fragments = 4
interval = 8

[worker]
check_every = 10
"""
FLIPS = 22
"""Which execution of the step: the first and the tenth run twice, and this is in the twentieth."""


def ddloco(*args):
    """A command's exit status and all that it said."""
    done = here(*args, cwd=ROOT)
    return done.returncode, done.stdout + done.stderr


def run(tmp_path, *settings):
    """Run the job; the learner's steps, its end, and the run folder."""
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    folder = tmp_path / "run"
    code, said = ddloco("run", job, "--dir", folder, *(f"--set={each}" for each in settings))
    lines = [*map(json.loads, (folder / "log.jsonl").read_text().splitlines())]
    return code, said, lines, folder


@pytest.mark.slow
def test_a_learner_leaves_and_says_why(tmp_path):
    """Both run the same task, so both find it and come back; the tape says why, and replays."""
    code, said, _, folder = run(tmp_path, f"task.call={FLIPS}")
    assert code == 0, said
    assert "silent corruption: step 20 had two results, in " in said
    _, shown = ddloco("tape", "show", folder)
    assert "reason=silent corruption: step 20 had two results" in shown
    code, said = ddloco("replay", folder)
    assert code == 0
    assert "learner-0.1:" in said
    assert "silent corruption: step 20 had two results" in said


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "found"), [((f"task.call={FLIPS}",), 1), ((), 0)])
def test_who_goes_on_counts_it(tmp_path, settings, found):
    """And a run on sound machines finds nothing; both replay to the bit."""
    code, said, lines, folder = run(tmp_path, 'worker.on_corruption="continue"', *settings)
    assert code == 0, said
    told = [line for line in lines if line["event"] == "silent corruption"]
    assert {line["actor"] for line in told} == ({"learner-0", "learner-1"} if found else set())
    assert all(line["step"] == 20 for line in told)
    code, said = ddloco("replay", folder)
    assert code == 0
    assert "identical" in said
    if told:
        at = next(line for line in lines if line["event"] == "silent corruption")
        _, why = ddloco("why", folder, "event", at["ref"])
        assert "inner step 20 finished" in why
        assert "it had two results: loss (loss) on cpu 0 of " in why
