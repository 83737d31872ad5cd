"""A learner whose parameters go wrong in a real job: refused by name, and replayed."""

import pytest

from tests.processes.conftest import Job, call_here

JOB = """
[job]
name = "wrong"
task = "tests.tasks:straying"
steps = {steps}
learners = 3

[task]
shard = 1
first = {first}
last = {last}
factor = {factor}
every = {every}

[inner]
optimizer = "sgd"
lr = 0.02
clip = 0.0

[sync]
fragments = 2
interval = 8
quorum = 3

[outer]
lr = 0.7
momentum = 0.6
"""


# How much higher the held-out loss may be than that of the sound job, which ends at 0.08 to 0.09;
# after three steps it is 0.81.
JUMPS_TIMES = 2.0
"""With jumps it ended at 0.089 to 0.108; without a band the job was not over in three minutes."""

SIGNS_TIMES = 6.0
"""With signs it ended at 0.08 to 0.40 in eighteen runs, and at 0.14 and 0.16 in two without a band.
So of signs this only says that refusals do no great harm: three learners average a turn out, and
near the noise it is noticed in part only."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The held-out loss of the same job when nothing goes wrong."""
    return result(
        Job(
            tmp_path_factory.mktemp("sound"),
            JOB.format(steps=120, first=0, last=0, every=40, factor=1.0),
        )
    )


def result(job, *more):
    """Run a job to its end; its held-out loss."""
    done = job.run(*more)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in job.log() if line["event"] == "result"]
    return line["held_out_loss"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "steps", "first", "last", "every", "said", "times"),
    # A jump that comes before the first merge is in a contribution of many steps, which nothing is
    # there to compare with; so it comes late enough for the slowest to have begun.
    [
        (1000.0, 280, 130, 131, 160, "norm ", JUMPS_TIMES),
        (-1.0, 120, 8, 24, 40, "cosine -", SIGNS_TIMES),
    ],
    ids=["norm", "sign"],
)
def test_what_is_wrong_is_refused_by_name(
    tmp_path, tools, sound, factor, steps, first, last, every, said, times
):
    """Only the learner's that went wrong; the job still learns, the learner takes part again, and a
    replay finds the same."""
    job = Job(tmp_path, JOB.format(steps=steps, first=first, last=last, every=every, factor=factor))
    loss = result(job)
    log = job.log()
    # On a busy machine any learner may also be late, and near the noise of another direction.
    refused = [
        line for line in log if line["event"] == "refused" and line["reason"].startswith(said)
    ]
    merges = [line for line in log if line["event"] == "merge"]

    assert {"learner-1.1"} == {line["learner"] for line in refused}
    after = [merge for merge in merges if merge["t"] > refused[0]["t"]]
    assert any("learner-1.1" in merge["learners"] for merge in after)
    assert loss < times * sound
    replayed = tools.replay(job.run_folder)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "identical" in replayed.stdout


@pytest.mark.slow
def test_a_run_in_which_a_loss_is_nan_is_replayed(tmp_path, tools):
    """A learner reports the loss NaN to the syncer until it has other parameters; these messages
    are the same in the replay. So are the snapshots' states of machines, though the job file does
    not have the task's options in alphabetical order, as tapes do."""
    text = JOB.format(steps=60, first=20, last=21, every=100, factor="nan")
    job = Job(tmp_path, text.replace("quorum = 3", "quorum = 1"))
    result(job, "--set=snapshot.every_steps=15")
    shown = call_here("tape", "show", str(job.run_folder), "--actor=syncer", "--json", "--full")
    assert '"last":{"loss":null' in shown.stdout
    assert any(line["event"] == "snapshot taken" for line in job.log())
    replayed = tools.replay(job.run_folder)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "identical" in replayed.stdout


@pytest.mark.parametrize(
    "form", [(), pytest.param(("--processes",), marks=pytest.mark.slow), ("--set=job.method=lone",)]
)
def test_a_model_without_a_finite_loss_is_no_success(tools, tmp_path, form):
    """The command ends with 1 and says why, in one process, in several, and without a syncer; the
    run replays."""
    job = Job(tmp_path, tools.JOB.replace("regression", "astray"))
    done = job.run("--set=job.steps=8", *form)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "held-out loss of the final model is nan" in done.stderr
    (result,) = (line for line in job.log() if line["event"] == "result")
    assert result["status"] == "diverged"
    assert tools.replay(job.run_folder).returncode == 0
