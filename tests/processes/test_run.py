"""Whole jobs, as a user runs them: what is in the run folder, and that it replays."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from ddloco.job.config import load_job
from ddloco.workers.inner_optimizer import inner_optimizer
from snapshot import load_tensors
from tests.hosts.cluster import free_port
from tests.independent import flat
from tests.lab.audit import violated_in
from tests.tasks import Regression

UNTIL_STOPPED = ("--set=job.steps=100000", "--set=task.step_s=0.05")
"""However busy the machine, it is not over when the test acts; few steps to replay."""


def test_run_folder_holds_what_was_promised(finished):
    """Job file as resolved, a tape per actor, the log, and the model."""
    folder = finished.run_folder
    tapes = sorted(path.name for path in (folder / "tapes").iterdir())

    assert ["learner-0.1.tape", "learner-1.1.tape", "syncer.1.tape"] == tapes
    assert load_job(folder / "job.toml") == load_job(finished.file, ["sync.quorum=2"])
    assert tomllib.loads((folder / "job.toml").read_text())["sync"]["grace"] == 0.5
    tensors = load_tensors(folder / "model" / "model.safetensors")
    assert sorted(tensors) == ["blocks/0/w", "blocks/1/w", "embed", "scale"]


def test_log_tells_of_steps_merges_and_the_result(finished):
    """One object a line with event, actor, at; steps, merges and the result with their fields."""
    log = finished.log()
    steps = [line for line in log if line["event"] == "step"]
    merges = [line for line in log if line["event"] == "merge"]
    results = [line for line in log if line["event"] == "result"]

    assert all({"event", "actor", "at", "ref"} <= set(line) for line in log)
    assert all({"step", "loss", "tokens"} <= set(line) for line in steps)
    assert all({"t", "fragment", "learners", "weights", "grace_s"} <= set(m) for m in merges)
    assert [2 * i for i in range(1, 21)] == sorted(merge["t"] for merge in merges)
    assert all(abs(sum(merge["weights"]) - 1) < 1e-5 for merge in merges)
    assert len(results) == 1
    assert results[0]["held_out_loss"] < steps[0]["loss"]
    assert {"learner-0", "learner-1"} == {line["actor"] for line in steps}


def test_every_learner_contributes(finished):
    """With equal learners, merges average both of them."""
    merges = finished.merges()

    assert any(merge["averaged"] == 2 for merge in merges)


def test_plain_lines_where_there_is_no_terminal(finished):
    """Without a terminal the picture is a line, and the end says what to do next."""
    assert "global step 40/40" in finished.said
    assert "replay it with: ddloco replay" in finished.said
    assert "look at it with: ddloco report" in finished.said
    assert f"losses {finished.run_folder / 'loss.svg'}" in finished.said


def test_replay_is_identical(finished, tools, monkeypatch):
    """A replay executes everything again and says so with the numbers; one that is long says before
    it begins how long it takes."""
    monkeypatch.setattr("ddloco.cli.replay.LONG_S", 0.0)
    replayed = tools.replay(finished.run_folder)

    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert re.search(r"^replaying \d+ steps, which took [\d.]+ m?s: about ", replayed.stderr)
    assert "identical" in replayed.stdout
    steps = sum(line["event"] == "step" for line in finished.log())
    assert f"{steps} steps, 20 merges" in replayed.stdout


def test_tape_verify_and_show(finished, tools):
    """Records, clocks and invariants hold; every event is shown on a line."""
    verified = tools.call_here("tape", "verify", str(finished.run_folder))
    shown = tools.call_here("tape", "show", str(finished.run_folder))

    assert verified.returncode == 0, verified.stdout
    events = int(verified.stdout.split("held: ")[1].split()[0].replace(",", ""))
    assert events == len(shown.stdout.splitlines())
    merges = next(line for line in verified.stdout.splitlines() if line.startswith("merge-order"))
    assert merges.endswith("held, looked at 20 times")
    assert [] == violated_in(finished.run_folder)
    assert "syncer.1:1 " in shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_other_transports(job, tools, kind):
    """The same job over ipc and over tcp, replayed; bfloat16 tensors travel too."""
    dtype = '--set=task.dtype="bfloat16"'
    ran = job.run(f"--set=transport.kind={kind}", "--set=job.steps=12", dtype)
    replayed = tools.replay(job.run_folder)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


@pytest.mark.slow
def test_processes_with_a_kill_and_a_slow_learner(job, tools):
    """A learner killed in the middle, another finished times slower: the job ends, and replays."""
    more = ("--set=job.learners=3", "--set=learner.learner-2.factor=3")
    running = job.start("--processes", *more, *UNTIL_STOPPED)
    job.wait_until(lambda: len({who for m in job.merges() for who in m["learners"]}) == 3)
    listed = tools.call(["pgrep", "-f", f"{job.run_folder}.*--name learner-1"]).stdout.split()
    tools.kill(int(listed[0]))
    # What was under way may still be merged; then the others continue without it.
    job.wait_until(lambda: without("learner-1.1", job.merges()[-8:]))
    said = job.stop(running)
    replayed = tools.replay(job.run_folder)

    assert running.returncode == 0, said
    assert "learner-1 failed: killed by SIGKILL" in said
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "learner-1.1: the tape ends after event" in replayed.stdout
    assert "identical" in replayed.stdout


def without(who, merges):
    """Whether these are some merges, and a learner is in none of them."""
    return len(merges) >= 8 and not any(who in merge["learners"] for merge in merges)


def has(who, merges):
    """Whether a learner is in one of these merges."""
    return any(who in merge["learners"] for merge in merges)


def test_a_worker_that_dies_is_an_event(job, tools):
    """A learner whose JAX process is killed is named, and comes back; tapes replay."""
    running = job.start(*UNTIL_STOPPED)
    job.wait_for("merge", 5)
    tools.kill(*worker_pids(tools, "learner-1.1", running))
    job.wait_until(lambda: has("learner-1.2", job.merges()))
    said = job.stop(running)
    replayed = tools.replay(job.run_folder)

    assert running.returncode == 0, said
    assert "learner-1: ended, and comes back: worker process ended, killed by signal 9" in said
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "not closed" not in replayed.stdout


@pytest.mark.slow
@pytest.mark.parametrize("form", [(), ("--processes",)])
def test_a_job_whose_workers_all_died_goes_on(job, tools, form):
    """Its learners come back, and continue from the global fragments."""
    running = job.start(*form, *UNTIL_STOPPED)
    job.wait_for("merge", 5)
    for name in ("learner-0.1", "learner-1.1"):
        tools.kill(*worker_pids(tools, name, running))
    job.wait_until(lambda: has("learner-0.2", job.merges()) and has("learner-1.2", job.merges()))
    said = job.stop(running)

    assert running.returncode == 0, said
    assert (job.run_folder / "model" / "model.safetensors").exists()
    assert tools.replay(job.run_folder).returncode == 0


def worker_pids(tools, name, running) -> list[int]:
    """The worker of an actor of a running job."""
    listed = tools.call(["pgrep", "-f", f"ddloco worker of {name}"]).stdout.split()
    return [int(pid) for pid in listed if descends(int(pid), running.pid)]


def descends(pid: int, ancestor: int) -> bool:
    """Whether a process is a child of another, or a child of one."""
    while pid > 1:
        if pid == ancestor:
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


@pytest.mark.slow
@pytest.mark.parametrize("form", [(), ("--processes",)])
def test_ctrl_c_ends_in_good_order(job, tools, form):
    """SIGINT saves the model and closes the tapes, which replay."""
    running = job.start(*form, *UNTIL_STOPPED)
    job.wait_for("merge", 5)
    said = job.stop(running)
    replayed = tools.replay(job.run_folder)

    assert running.returncode == 0, said
    assert "held-out loss" in said
    assert (job.run_folder / "model" / "model.safetensors").exists()
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "not closed" not in replayed.stdout


@pytest.mark.slow
def test_two_fingerprints_replay_in_one_command(job, tools):
    """Learners with different XLA thread counts are each replayed with their own."""
    ran = job.run("--set=learner.learner-1.threads=2", "--set=job.steps=12")
    replayed = tools.replay(job.run_folder)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "differs" not in replayed.stderr


def test_learner_first_then_syncer(job, tools):
    """Started by hand in the wrong order, a learner waits for the syncer, and the job runs; the
    syncer says where it listens, and what the job came to, as ``run`` does."""
    address = f"tcp://127.0.0.1:{free_port()}"
    common = [str(job.file), "--dir", str(job.run_folder), "--join", "--set=job.learners=1"]
    steps = "--set=job.steps=12"
    learner = subprocess.Popen(
        [*tools.DDLOCO, "learner", *common, steps, "--connect", address, "--name", "learner-0"],
        cwd=tools.WORK,
        stdout=subprocess.DEVNULL,
    )
    job.wait_for("waiting", 1)
    syncer = tools.call_here("syncer", *common, steps, "--bind", address)

    assert syncer.returncode == 0, syncer.stderr
    first, *lines = syncer.stdout.splitlines()
    assert first == f"listens on {address}; look with: ddloco status {address}"
    for said in ("held-out loss ", "model ", "replay it with: ddloco replay "):
        assert [line for line in lines if line.startswith(said)], lines
    assert learner.wait(60) == 0
    assert tools.replay(job.run_folder).returncode == 0


def test_a_different_job_is_refused_at_the_handshake(job, tools):
    """A learner with another job file leaves with one line that names what differs."""
    address = f"tcp://127.0.0.1:{free_port()}"
    common = [str(job.file), "--dir", str(job.run_folder), "--join", "--set=job.learners=1"]
    syncer = subprocess.Popen(
        [*tools.DDLOCO, "syncer", *common, "--bind", address],
        cwd=tools.WORK,
        stdout=subprocess.DEVNULL,
    )
    job.wait_for("listening", 1)
    learner = ["learner", *common, "--connect", address, "--name", "learner-0"]
    refused = tools.call_here(*learner, "--set=outer.lr=0.1")
    syncer.terminate()

    assert refused.returncode == 2
    assert "its job file differs: outer.lr is 0.7 here, 0.1 there" in refused.stderr
    assert syncer.wait(60) == 75


def plain_loop(job, steps):
    """The parameters after so many steps of optax on all of the data."""
    task, seed = Regression(), job.job.seed
    params, stream = task.init(jax.random.key(seed)), task.batches(shard=0, shards=1, seed=seed)
    optimizer = inner_optimizer(job.inner)
    state = optimizer.init(params)
    for _ in range(steps):
        gradient = jax.grad(task.loss)(params, stream.next())
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params


@pytest.mark.slow
def test_a_lone_learner_is_a_job_like_any_other(job, tools):
    """It trains as a plain loop does, on all of the data; what is between several is left out."""
    alone = ("--set=job.method=lone", "--set=job.steps=30", "--set=sync.quorum=2")
    between = ("--set=compress.up=int4", "--set=learner.learner-1.factor=2.0", "--set=job.shards=2")
    ran = job.run(*alone, *between, "--set=snapshot.every_steps=12")

    assert ran.returncode == 0, ran.stderr
    told = {line["event"]: line for line in job.log()}
    assert told["result"]["inner_steps"] == 30
    merged = load_tensors(job.run_folder / "model" / "model.safetensors")
    theta = flat(plain_loop(load_job(job.run_folder / "job.toml"), 30))
    for name, leaf in merged.items():
        np.testing.assert_allclose(theta[name], leaf, rtol=1e-4, atol=1e-5, err_msg=name)
    assert told["snapshot taken"]["parts"] == ["learner-0.1", "syncer.1"]
    assert tools.replay(job.run_folder).returncode == 0


@pytest.mark.slow
def test_a_job_that_merges_by_the_median_learns_and_replays(job, tools):
    """Three learners, every tensor; and a merge of it can be computed without one of them."""
    words = "job.learners=3", "job.steps=32", 'outer.merge="median"', "outer.average=[]"
    ran = job.run(*(f"--set={each}" for each in words))
    assert ran.returncode == 0, ran.stderr
    assert next(line for line in job.log() if line["event"] == "result")["held_out_loss"] < 1.0
    assert tools.replay(job.run_folder).returncode == 0
    merge = next(line for line in job.log() if line["event"] == "merge" and line["averaged"] == 3)
    without = "--until", f"merge:{merge['t']}", "--without", "learner-2"
    told = tools.replay(job.run_folder, *without)
    assert told.returncode == 0, told.stderr
    assert "the whole: the merge moved it by" in told.stdout


@pytest.mark.slow
def test_data_parallel_training_is_a_job_like_any_other(job, tools):
    """Its replicas take part in every step, it learns, and its tapes replay."""
    ran = job.run("--set=job.method=data-parallel", "--set=job.steps=12")

    assert ran.returncode == 0, ran.stderr
    merges = [line for line in job.log() if line["event"] == "merge"]
    assert [2] * 12 == [line["averaged"] for line in merges]
    assert next(line for line in job.log() if line["event"] == "result")["held_out_loss"] < 1.0
    assert tools.replay(job.run_folder).returncode == 0


def test_a_run_ends_with_the_process_that_started_it(job, tools):
    """As the runs of an experiment do that was killed: the end of standard input says so."""
    read, write = os.pipe()
    words = job.command("--with-parent", "--set=job.steps=1000000", "--set=task.step_s=0.01")
    with (job.file.parent / "said").open("wb") as said:
        running = subprocess.Popen(words, cwd=tools.WORK, stdin=read, stdout=said, stderr=said)
    job.started.append(running)
    os.close(read)
    try:
        job.wait_for("merge", 3)
    finally:
        os.close(write)
    assert running.wait(60) == 75
    assert 0 < len(job.merges()) < 1000
