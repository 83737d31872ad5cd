"""Jobs from Python: run, watched, stopped, interrupted; what they leave, and their errors."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest

import ddloco
from tests import tasks

SETTINGS = {"sync.fragments": 4, "sync.interval": 8, "task.step_s": 0.005}

CRASH = {"what": "crash", "who": "learner-1", "at_s": 1.0}


def make(**more):
    """A small job."""
    said = {"task": tasks.regression, "learners": 2, "steps": 16, **more}
    return ddloco.Job(settings={**SETTINGS, **said.pop("settings", {})}, **said)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A job that ran to its end."""
    folder = tmp_path_factory.mktemp("api")
    curves = [f"tensorboard:{folder}/curves"]
    return make(settings={"sync.quorum": 2}).run(folder / "run", quiet=True, track=curves)


def test_a_run_tells_of_itself(finished):
    """Its result, its steps and merges, and all that `ddloco.open` tells."""
    assert finished.result.status == "done"
    assert finished.result.steps == 16
    assert finished.result.merges == len(finished.merges) == 8
    assert finished.result.held_out_loss < finished.steps()[0].loss
    assert finished.result.model.is_file()
    assert "held out" in (finished.path / "loss.svg").read_text()
    curves = b"".join(path.read_bytes() for path in finished.path.parent.glob("curves/*"))
    assert b"learner_loss/learner-1" in curves
    assert b"held_out_loss" in curves
    assert finished.state is None
    assert [each.t for each in finished.merges] == [
        each.t for each in ddloco.open(finished.path).merges
    ]
    assert "done at step 16" in repr(finished)


def test_parameters_come_as_the_tasks_pytree(finished):
    """Those of the run, of the folder, and of the file; by name without a task."""
    task, key = tasks.regression(), jax.random.key(0)
    like = jax.tree.structure(task.init(key))

    assert like == jax.tree.structure(finished.params)
    assert abs(task.evaluate(finished.params) - finished.result.held_out_loss) < 1e-6
    for path in (finished.path, finished.result.model):
        again = ddloco.load(path, "tests.tasks:regression")
        assert all(map(np.array_equal, jax.tree.leaves(again), jax.tree.leaves(finished.params)))
    assert sorted(ddloco.load(finished.path)) == ["blocks/0/w", "blocks/1/w", "embed", "scale"]


def test_a_tasks_state_comes_with_its_parameters(tmp_path):
    """Merged averages are those of the model; what a learner has for itself is as at first."""
    job = make(task=tasks.stateful, learners=1, steps=8, settings={"task": {}})
    run = job.run(tmp_path / "r", quiet=True)
    params, state = ddloco.load(run.path, tasks.stateful, with_state=True)

    assert set(params) == {"embed", "blocks", "scale"}
    assert state.keys() == {"mean", "steps", "key"} == run.state.keys()
    assert float(abs(state["mean"]).sum()) > 0.0
    assert int(state["steps"]) == 0
    assert "state:/mean" in ddloco.load(run.path)


def test_parameters_of_another_task_are_refused(finished, tmp_path):
    """The tensor that differs is named, and a path without parameters."""
    with pytest.raises(ddloco.ConfigError, match="lacks count"):
        ddloco.load(finished.path, tasks.counting, options={})
    with pytest.raises(ddloco.TaskError, match="no function none"):
        ddloco.load(finished.path, "tests.tasks:none")
    with pytest.raises(ddloco.ConfigError, match="no run folder, no model file and no snapshot"):
        ddloco.load(tmp_path / "nothing")


def test_a_job_file_of_somebody_else_decides_nothing(finished, tmp_path):
    """A model file away from its run has neither options nor a seed, whatever lies above it."""
    (tmp_path / "job.toml").write_text('[job]\ntask = "x:y"\n[task]\nno_such_option = 1\n')
    (tmp_path / "mine").mkdir()
    for place in ("model.safetensors", "mine/model.safetensors"):
        shutil.copy(finished.result.model, tmp_path / place)
        again = ddloco.load(tmp_path / place, "tests.tasks:regression")
        assert all(map(np.array_equal, jax.tree.leaves(again), jax.tree.leaves(finished.params)))


def test_a_handle_watches_snapshots_and_stops(tmp_path):
    """The caller continues; the snapshot has the parameters, a stop ends in good order, and the job
    continues from the snapshot in another run."""
    job = make(steps=100_000)
    with job.start(tmp_path / "run") as handle:
        with pytest.raises(TimeoutError):
            handle.wait(timeout=0.01)
        taken = handle.snapshot()
        metrics = handle.metrics
        handle.stop()
        run = handle.wait()

    assert not metrics.waits_for
    assert any(each.loss is not None for each in metrics.learners.values())
    assert run.result.status == "stopped"
    assert run.result.steps < 100_000
    assert handle.done
    assert sorted(ddloco.load(taken)) == sorted(ddloco.load(run.path))
    with pytest.raises(ddloco.JobError, match="the job has ended"):
        handle.snapshot()
    steps = run.result.steps + 8
    more = ddloco.Job(tasks.regression, learners=2, steps=steps, settings=SETTINGS)
    assert more.run(tmp_path / "more", snapshot=taken, quiet=True).result.steps == steps


def test_an_exception_ends_a_job_in_the_background(tmp_path):
    """A program that fails does not leave a job running; what it left is complete."""
    job = make(learners=1, steps=100_000)
    with pytest.raises(ZeroDivisionError), job.start(tmp_path / "run"):
        raise ZeroDivisionError
    assert ddloco.open(tmp_path / "run").actors


def test_under_asyncio(tmp_path):
    """A handle can be awaited, and the event loop continues meanwhile."""

    async def both():
        handle, ticks = make(learners=1).start(tmp_path / "run"), 0
        waiting = asyncio.ensure_future(_awaited(handle))
        while not waiting.done():
            await asyncio.sleep(0.005)
            ticks += 1
        return await waiting, ticks

    run, ticks = asyncio.run(both())
    assert run.result.status == "done"
    assert ticks > 10


async def _awaited(handle):
    return await handle


@pytest.mark.slow
def test_with_a_process_per_actor(tmp_path):
    """The same over tcp, with a snapshot."""
    with make(steps=100_000).start(tmp_path / "run", processes=True) as handle:
        taken = handle.snapshot()
        handle.stop()

    assert handle.wait().result.status == "stopped"
    assert sorted(ddloco.load(taken)) == ["blocks/0/w", "blocks/1/w", "embed", "scale"]


def test_job_files(tmp_path, finished):
    """A job file is read with overrides; that of a run folder is the same job."""
    job = ddloco.Job.read(finished.path / "job.toml", "sync.quorum=1")

    assert job.config.sync.quorum == 1
    assert ddloco.Job.read(finished.path / "job.toml").config.sync.quorum == 2
    assert "tests.tasks:regression, 2 learners" in repr(job)


@pytest.mark.parametrize(
    ("more", "kind", "said"),
    [
        ({"settings": {"sync.qourum": 2}}, ddloco.ConfigError, "qourum"),
        ({"settings": {"quorum": 2}}, ddloco.ConfigError, "quorum"),
        ({"settings": {"sync.quorum": 9}}, ddloco.ConfigError, "can never be met"),
        ({"learners": 0}, ddloco.ConfigError, "learners"),
    ],
)
def test_wrong_settings_are_named(more, kind, said):
    """A wrong setting is an exception of one line when the job is described."""
    with pytest.raises(kind, match=said):
        make(**more)


@pytest.mark.parametrize(
    ("more", "kind", "said"),
    [
        ({"task": "none:task"}, ddloco.TaskError, "there is no module none"),
        ({"settings": {"chaos.fault": [CRASH]}}, ddloco.ConfigError, "applies to processes"),
    ],
)
def test_jobs_that_cannot_start_leave_no_folder(tmp_path, more, kind, said):
    """What is known before anything starts is said before there is a run folder."""
    with pytest.raises(kind, match=said):
        make(**more).run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_actors_find_is_raised(tmp_path, finished):
    """A task that is wrong is a TaskError, a folder that is taken a ConfigError."""
    with pytest.raises(ddloco.TaskError, match="count"):
        make(task=tasks.counting, learners=1, settings={"task": {}}).run(
            tmp_path / "run", quiet=True
        )
    with pytest.raises(ddloco.ConfigError, match="holds a run already"):
        make().run(finished.path)


def test_importing_ddloco_is_cheap():
    """No numpy, no jax, no trio; every name that it exports is there; others are not."""
    code = """
    import sys, ddloco
    assert not {"numpy", "jax", "trio", "msgspec"} & set(sys.modules)
    assert all(getattr(ddloco, name) for name in ddloco.__all__)
    assert set(ddloco.__all__) <= set(dir(ddloco))
    assert "jax" not in sys.modules
    try:
        ddloco.nothing
    except AttributeError as error:
        print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert "has no attribute 'nothing'" in done.stdout


def test_ctrl_c_may_arrive_in_another_thread():
    """The system chooses a thread for a signal; the one that waits is interrupted all the same."""
    code = """
    import signal, threading, time
    from concurrent.futures import Future
    from ddloco.api.job import Handle

    def interrupt():
        time.sleep(0.3)  # Until the main thread waits.
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    handle = Handle.__new__(Handle)
    handle._future = Future()
    threading.Thread(target=interrupt).start()
    try:
        handle.wait()
    except KeyboardInterrupt:
        print("interrupted")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "interrupted\n"


def test_ctrl_c_in_a_script(tmp_path):
    """The job ends in good order, the script sees KeyboardInterrupt, and its task replays."""
    script = """
    import ddloco
    from tests.tasks import Regression

    def task():
        return Regression(0.01)

    job = ddloco.Job(task, learners=1, steps=100_000, settings={"sync.fragments": 2})
    try:
        job.run("RUN")
    except KeyboardInterrupt:
        print(ddloco.load("RUN", task)["embed"].shape)
    """
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(script).replace("RUN", str(tmp_path / "run")))
    kept = {name: os.environ[name] for name in os.environ if name.startswith(("JAX_", "XLA_"))}
    env = {"PYTHONPATH": ".", "XDG_STATE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", **kept}
    running = subprocess.Popen(
        [sys.executable, file], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    )
    said = ""
    while running.stdout and "1 live" not in said:
        said += running.stdout.readline()
    running.send_signal(signal.SIGINT)
    said += running.communicate(timeout=120)[0]

    assert running.returncode == 0, said
    assert "(16, 32)" in said
    replay = [sys.executable, "-m", "ddloco", "replay", tmp_path / "run"]
    done = subprocess.run(replay, capture_output=True, text=True, env=env, check=False)
    assert "identical" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("settings", [{5: 1}, {None: 1}, {("sync", "quorum"): 2}])
def test_a_setting_is_named_by_text(settings):
    """Other keys are refused in one line."""
    with pytest.raises(ddloco.ConfigError, match="want a key as text"):
        ddloco.Job(task=tasks.regression, settings=settings)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"processes": "maybe"}, "processes='maybe': want True or False"),
        ({"trust": 1}, "trust=1: want True or False"),
        ({"overwrite": "no"}, "overwrite='no': want True or False"),
        ({"quiet": None}, "quiet=None: want True or False"),
        ({"track": "tensorboard:x"}, "track='tensorboard:x': want a list"),
    ],
)
def test_what_is_no_answer_is_refused(tmp_path, given, said):
    """Before anything is made: not every text is a yes."""
    with pytest.raises(ddloco.ConfigError, match=re.escape(said)):
        make().start(tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("timeout", [float("nan"), -1, "5", True])
def test_a_timeout_is_a_number_of_seconds(finished, timeout):
    """Not a number would be no wait at all."""
    handle = object.__new__(ddloco.Handle)
    for wait in (handle.wait, handle.snapshot):
        with pytest.raises(ddloco.ConfigError, match="want seconds, 0 or more"):
            wait(timeout)
