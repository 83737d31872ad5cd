"""A simulated schedule drives real training: crashes and returns included, replayed to the bit."""

import json
from pathlib import Path

import pytest

from tests.commands import here

ROOT = Path(__file__).parents[2]

SCENARIO = """
[scenario]
name = "small"

[job]
steps = 18
learners = 2

[sync]
fragments = 3
interval = 6

[work]
variance = 0.1
tensors = 3

[elastic]
downscale_s = 2.0
upscale_s = 1.0

[chaos]
fault = [FAULTS]
"""

LEARNER = '{ what = "crash", who = "learner-1", at_s = 5.5, for_s = 4.0 }'
SYNCER = '{ what = "crash", who = "syncer", at_s = 12.2, for_s = 1.0 }'

JOB = """
[job]
task = "tests.tasks:regression"
"""


SYNC = """
[sync]
fragments = 3
interval = 6
quorum = 2
"""


def call(*command):
    """Run a command of ddloco to its end, in this process."""
    return here(*command, cwd=ROOT)


def log(folder):
    """What a run's log says."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def schedule_of(lines):
    """Who contributed to which merge, and how many steps each learner did."""
    merged = [(each["t"], each["learners"]) for each in lines if each["event"] == "merge"]
    steps = [each["ref"].partition(":")[0] for each in lines if each["event"] == "step"]
    return merged, {name: steps.count(name) for name in sorted(set(steps))}


@pytest.mark.parametrize(
    ("method", "faults"),
    [
        ("decoupled-diloco", f"{LEARNER}, {SYNCER}"),
        pytest.param("elastic-data-parallel", LEARNER, marks=pytest.mark.slow),
    ],
)
def test_real_learners_follow_a_simulated_schedule(tmp_path, method, faults):
    """Same merges, members, steps and incarnations; a real loss; and its own tapes replay."""
    (tmp_path / "scenario.toml").write_text(SCENARIO.replace("FAULTS", faults))
    (tmp_path / "job.toml").write_text(JOB)
    simulated, real = tmp_path / "simulated", tmp_path / "real"
    method = f"--set=job.method={method}"
    ran = call("simulate", tmp_path / "scenario.toml", "--dir", simulated, method)
    assert ran.returncode == 0, ran.stderr

    driven = call("run", tmp_path / "job.toml", "--schedule", simulated, "--dir", real)

    assert driven.returncode == 0, driven.stderr
    assert schedule_of(log(simulated)) == schedule_of(log(real))
    assert "learner-1.2" in schedule_of(log(real))[1]
    assert 0 < next(each["held_out_loss"] for each in log(real) if each["event"] == "result") < 2
    replayed = call("replay", real)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


def test_only_a_simulation_is_a_schedule(tmp_path):
    """Tapes that are missing, and a scenario that is none, are one line and exit code 2."""
    (tmp_path / "job.toml").write_text(JOB)
    driven = call("run", tmp_path / "job.toml", "--schedule", tmp_path, "--dir", tmp_path / "run")

    assert driven.returncode == 2
    assert 1 == len(driven.stderr.splitlines())
    assert str(tmp_path) in driven.stderr


@pytest.mark.slow
def test_a_real_run_is_followed_with_merges_changed_on_the_way(tmp_path):
    """The same until the change, another model after it; the new run replays, and the difference
    is named as one of configuration at the first merge that was changed."""
    (tmp_path / "job.toml").write_text(JOB + "steps = 12\nlearners = 2\n" + SYNC)
    first, other = tmp_path / "first", tmp_path / "other"
    ran = call("run", tmp_path / "job.toml", "--dir", first)
    assert ran.returncode == 0, ran.stderr
    changed = ("--schedule", first, "--since", "6", "--set", "outer.lr=0.2")
    ran = call("run", tmp_path / "job.toml", *changed, "--dir", other)
    assert ran.returncode == 0, ran.stderr
    assert schedule_of(log(first)) == schedule_of(log(other))
    replayed = call("replay", other)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    compared = call("diff", first, other)
    ignored = ("--set", "compress.up=int4", "--set", "sync.quorum=1", "--dir", tmp_path / "y")
    refused = call("run", tmp_path / "job.toml", "--schedule", first, *ignored)
    assert refused.returncode == 2
    assert "schedule: compress.up = 'float32', not 'int4'; sync.quorum = 2, not 1" in refused.stderr
    merges = [t for t, _ in schedule_of(log(first))[0] if t >= 6]
    first = compared.stdout.splitlines()[0]
    assert first.startswith(f"DIFFERENT CONFIGURATION: merge {merges[0]} "), compared.stdout
    refused = call("run", tmp_path / "job.toml", "--without", "learner-0", "--dir", tmp_path / "x")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "add --schedule RUN" in refused.stderr
