"""The methods that are compared: each trains, keeps step, replays, and is explained."""

import pytest
from safetensors.numpy import load_file

pytestmark = pytest.mark.slow

TAKEN = "snapshot taken"
METHODS = ["diloco", "fedavg", "streaming-diloco"]


def flags(method, *more):
    """A job of a method, in short rounds."""
    own = (f"job.method={method}", "job.steps=40", "sync.interval=10", *more)
    return [f"--set={each}" for each in own]


def result(job):
    """The line of the log with the result."""
    return next(line for line in job.log() if line["event"] == "result")


@pytest.mark.parametrize("method", METHODS)
def test_it_trains_and_replays(job, tools, method):
    """The order of arrivals decides nothing, so a run as processes, one of which is slower, has
    the same model; a snapshot replays, too."""
    losses = []
    special = {
        "streaming-diloco": ["sync.overlap=3"],
        "fedavg": ["learner.learner-0.local_steps=4"],
    }
    for more in (["task.step_s=0.01"], ["learner.learner-1.factor=3.0"]):
        own = flags(method, "snapshot.every_steps=20", *special.get(method, []), *more)
        form = ["--processes"] if losses else []
        ran = job.run(*own, *form, "--overwrite")
        assert ran.returncode == 0, ran.stderr
        losses.append(result(job)["held_out_loss"])
    assert losses[0] == losses[1] < 1.0
    for more in ((), ("--from", "latest")):
        replayed = tools.replay(job.run_folder, *more)
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr


@pytest.mark.parametrize("form", [(), ("--processes",)])
@pytest.mark.parametrize("method", ["data-parallel", "elastic-data-parallel"])
def test_a_data_parallel_job_goes_on_from_its_snapshots(job, tools, tmp_path, method, form):
    """From each to the same model as without the stop; the runs replay, from snapshots too.

    They are due at any moment, also while a gradient or an update is computed."""
    own = (*flags(method, "snapshot.every_s=0.1", "snapshot.keep=50"), *form)
    ran = job.run(*own)
    assert ran.returncode == 0, ran.stderr
    taken = [line["snapshot"].replace(":", "-") for line in job.log() if line["event"] == TAKEN]
    assert len(taken) > 3, "one is due every tenth of a second"
    model = load_file(job.run_folder / "model" / "model.safetensors")
    for id_ in taken[:: max(len(taken) // 3, 1)][:3]:
        (tmp_path / id_).mkdir()
        more = tools.Job(tmp_path / id_)
        ran = more.run(*own, "--from", str(job.run_folder / "snapshots" / id_))
        assert ran.returncode == 0, ran.stderr
        there = load_file(more.run_folder / "model" / "model.safetensors")
        assert {name: array.tobytes() for name, array in there.items()} == {
            name: array.tobytes() for name, array in model.items()
        }
        replayed = tools.replay(more.run_folder)
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr
        replayed = tools.replay(job.run_folder, "--from", id_)
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr


def test_a_killed_learner_is_waited_for(job, tools):
    """All others wait, and the run replays: what decoupled training is there to avoid."""
    ran = job.run(
        "--processes",
        *flags(
            "diloco",
            "task.step_s=0.03",
            'chaos.fault=[{what="crash", who="learner-1", at_s=0.6, for_s=2.0}]',
        ),
    )
    assert ran.returncode == 0, ran.stderr
    merges = [line for line in job.log() if line["event"] == "merge"]
    assert {2} == {each["averaged"] for each in merges}, "all learners of the job"
    assert result(job)["versions_s"] > 2.0
    replayed = tools.replay(job.run_folder)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


@pytest.mark.parametrize("late", ["blend", "carry"])
def test_late_steps_are_kept(job, tools, late):
    """With whole and with compressed fragments, and a merge of all fragments in the end."""
    for up in ("float32", "int8"):
        ran = job.run(
            f"--set=sync.late={late}",
            f"--set=compress.up={up}",
            "--set=sync.final_merges=true",
            "--set=job.steps=40",
            "--overwrite",
        )
        assert ran.returncode == 0, ran.stderr
        assert result(job)["held_out_loss"] < 1.0
        replayed = tools.replay(job.run_folder)
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr
