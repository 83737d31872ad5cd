"""Several snapshots within one step of a slow learner: each is whole, and replays begin there.

A worker that continued from a snapshot did not know that it had a state, nor what its last step had
brought, until its next step: every replay that began within a slow learner's step diverged at the
next snapshot.
"""

import json
import random

import pytest

UNTIL_STOPPED = ("job.steps=100000",)
SETTINGS = ("job.learners=2", "job.steps=40", "task.step_s=0.05", "snapshot.keep=50")

CHAOS = """
seed = {seed}

[[storm]]
what = ["crash", "stall"]
who = ["learners"]
every_s = 4.0
for_s = 1.5
"""


def snapshots_of(job, tools):
    """The ids of a run's snapshots, the oldest first."""
    listed = tools.call_here("snapshot", "list", str(job.run_folder), "--json")
    assert listed.returncode == 0, listed.stdout + listed.stderr
    return [each["id"] for each in json.loads(listed.stdout)[::-1]]


def taken(job):
    """The lines of the log on snapshots that stand."""
    return [line for line in job.log() if line["event"] == "snapshot taken"]


def within_one_step(job, who):
    """How many snapshots were begun between two finished steps of a learner, at most."""
    counts, most = 0, 0
    for line in job.log():
        if line["event"] == "step" and line["actor"] == who:
            counts = 0
        elif line["event"] == "snapshot begun":
            counts += 1
            most = max(most, counts)
    return most


@pytest.mark.slow
def test_replays_begin_within_the_step_of_a_slow_learner(job, tools):
    """At any of the snapshots that fall within it; and so does a run that continues from one."""
    settings = (*SETTINGS, *UNTIL_STOPPED, "snapshot.every_s=0.3", "learner.learner-1.factor=16")
    running = job.start(*(f"--set={each}" for each in settings))
    job.wait_until(lambda: within_one_step(job, "learner-1") >= 2 and len(taken(job)) >= 4)
    said = job.stop(running)
    assert running.returncode == 0, said
    ids = snapshots_of(job, tools)
    middle = ids[len(ids) // 2]
    replayed = tools.replay(job.run_folder, "--from", middle)
    assert replayed.returncode == 0, f"{middle}: {replayed.stdout}{replayed.stderr}"

    onward = job.run_folder.parent / "onward"
    start = job.run_folder / "snapshots" / middle
    log = job.log()
    (stood,) = [at for at, line in enumerate(log) if line["event"] == "snapshot taken"
                and line["snapshot"].replace(":", "-") == middle]  # fmt: skip
    before = max(line["t"] for line in log[:stood] if line["event"] == "merge")
    more = [*tools.DDLOCO, "run", str(job.run_folder / "job.toml"), "--dir", str(onward)]
    went_on = tools.call([*more, "--from", str(start), f"--set=job.steps={before + 20}"])
    assert went_on.returncode == 0, went_on.stdout + went_on.stderr
    replayed = tools.replay(onward)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_random_faults_diverge_nowhere(job, tools, tmp_path, seed):
    """Speeds, paces of snapshots, bounded tapes, crashes and stalls from a seed: a replay from any
    snapshot is identical, or has a gap that it names."""
    rng = random.Random(seed)
    chaos = tmp_path / "chaos.toml"
    chaos.write_text(CHAOS.format(seed=seed))
    settings = [
        *SETTINGS,
        f"snapshot.every_s={rng.choice([0.3, 0.5, 1.0])}",
        f"learner.learner-1.factor={rng.choice([2, 4, 8, 16])}",
    ]
    if rng.random() < 0.5:
        settings += ['tape.keep="2 snapshots"', "tape.ship=false"]
    ended = job.run("--processes", "--chaos", str(chaos), *(f"--set={each}" for each in settings))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    ids = snapshots_of(job, tools)
    for start in ([], *(["--from", each] for each in rng.sample(ids, min(3, len(ids))))):
        replayed = tools.replay(job.run_folder, *start)
        said = replayed.stdout + replayed.stderr
        assert "DIFFERENT " not in said, f"{start}: {said}"
        if replayed.returncode == 1:
            assert "gap" in said, f"{start}: {said}"
        elif replayed.returncode == 2:
            assert "the first usable one is" in said, f"{start}: {said}"
        else:
            assert replayed.returncode == 0, f"{start}: {said}"
