"""A slow learner's work counts: it is in every merge of a real job, and no other learner waits for
it."""

import pytest

SETTINGS = ("sync.interval=24", "task.step_s=0.03")


MERGES = 24


def after_the_first(log, event):
    """What the log tells of an event, some merges after the first one with the slow learner."""
    merges = [at for at, line in enumerate(log) if line["event"] == "merge"]
    with_it = [n for n, at in enumerate(merges) if "learner-1.1" in log[at]["learners"]]
    if not with_it or len(merges) <= with_it[0] + 4:
        return []
    return [line for line in log[merges[with_it[0] + 4] :] if line["event"] == event]


@pytest.mark.slow
@pytest.mark.parametrize(
    "factor", [4.0, *(pytest.param(f, marks=pytest.mark.slow) for f in (1.5, 2.0, 10.0))]
)
def test_a_slow_learner_is_in_all_merges(job, tools, factor):
    """Once it has finished a first step; and the tapes say what share of the tokens was merged."""
    settings = *SETTINGS, "job.steps=100000", f"learner.learner-1.factor={factor}"
    running = job.start(*(f"--set={each}" for each in settings))
    job.wait_until(lambda: len(after_the_first(job.log(), "merge")) >= MERGES)
    said = job.stop(running)
    assert running.returncode == 0, said

    log = job.log()
    after = after_the_first(log, "merge")[:MERGES]
    assert set(range(4)) == {merge["fragment"] for merge in after}
    left_out = [merge["t"] for merge in after if "learner-1.1" not in merge["learners"]]
    assert len(left_out) <= len(after) // 20, f"learner-1 is not in the merges {left_out}"
    names = [line["actor"] for line in after_the_first(log, "step")]
    assert names.count("learner-1") < names.count("learner-0") / (0.6 * factor)

    verified = tools.call_here("tape", "verify", str(job.run_folder))
    assert verified.returncode == 0, verified.stdout + verified.stderr
    (line,) = [each for each in verified.stdout.splitlines() if "trained tokens" in each]
    assert float(line.split(" %")[0]) >= 99.5, line
