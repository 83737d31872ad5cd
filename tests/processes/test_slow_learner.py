"""A slow learner's work counts: it is in every merge of a real job, and nobody waits for it."""

import pytest

SETTINGS = ("sync.interval=24", "task.step_s=0.03")


@pytest.mark.parametrize(
    "factor", [4.0, *(pytest.param(f, marks=pytest.mark.slow) for f in (1.5, 2.0, 10.0))]
)
def test_a_slow_learner_is_in_all_merges(job, tools, factor):
    """Once it has finished a first step; and the tapes say what share of the tokens was merged."""
    steps = 480 if factor == 10 else 288
    settings = *SETTINGS, f"job.steps={steps}", f"learner.learner-2.factor={factor}"
    ended = job.run(*(f"--set={each}" for each in settings))
    assert ended.returncode == 0, ended.stdout + ended.stderr

    log = job.log()
    merges = [line for line in log if line["event"] == "merge"]
    first = next(at for at, merge in enumerate(merges) if "learner-2.1" in merge["learners"])
    after = merges[first + 4 :]
    assert len(after) >= 12
    assert set(range(4)) == {merge["fragment"] for merge in after}
    left_out = [merge["t"] for merge in after if "learner-2.1" not in merge["learners"]]
    assert len(left_out) <= len(after) // 20, f"learner-2 is not in the merges {left_out}"
    steps = {name: sum(e["event"] == "step" and e["actor"] == name for e in log) for name in
             ("learner-0", "learner-2")}  # fmt: skip
    assert steps["learner-2"] < steps["learner-0"] / (0.6 * factor)

    verified = tools.call([*tools.DDLOCO, "tape", "verify", str(job.run_folder)])
    assert verified.returncode == 0, verified.stdout + verified.stderr
    (line,) = [each for each in verified.stdout.splitlines() if "trained tokens" in each]
    assert float(line.split(" %")[0]) >= 99.5, line
