"""What is only for people, or for later, fails: the job is the same to the bit, and ends with 0."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.installed import DDLOCO
from tests.ordinary.conftest import Situation

CALLS = {
    "a line of the log": "ddloco.stage.process.log:_Lines.add",
    "an observation": "ddloco.stage.process.log:ActorLog.observe",
    "reading the log": "ddloco.stage.process.log_tail:LogTail.new_lines",
    "a line on the screen": "ddloco.monitoring.live_display:Board.line",
    "what the screen knows": "ddloco.monitoring.live_display:Board.take",
    "the figure of losses": "ddloco.monitoring.live_display:Board.losses",
    "the file of a tracker": "ddloco.monitoring.metrics:TensorBoard.gauge",
    "news for observers": "ddloco.stage.observers.observer_server:ObserverServer.news",
    "old snapshots that go": "snapshot.store:Store.retain",
    "the mark of a file in use": "ddloco.stage.process.log:mark_in_use",
}
"""Every call that a job can do without: what it is, and where."""

ERRORS = [
    *(OSError(code, os.strerror(code)) for code in (errno.EIO, errno.ENOSPC, errno.EMFILE)),
    BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)),
    RuntimeError("this thread wasn't created by Trio"),
]

MORE = (
    *("--set=job.method=lone", "--set=job.learners=1", "--set=snapshot.every_steps=8"),
    *("--set=snapshot.keep=1", "--track=tensorboard:curves"),
)


def run(situation):
    """Run it as one learner, whose model is the same each time; returns that."""
    assert situation.run(*MORE, steps=24, method="lone") == 0, situation.said
    return (situation.run_folder / "model" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The model of a job of which nothing fails."""
    return run(Situation(tmp_path_factory.mktemp("sound"), "plain"))


def broken(monkeypatch, where, error, times):
    """Have a call raise, or take so many seconds, the first few times, of which it keeps count."""
    module, _, name = where.partition(":")
    owner = sys.modules[module]
    *path, last = name.split(".")
    for each in path:
        owner = getattr(owner, each)
    sound, raised = getattr(owner, last), []

    def call(*args, **more):
        if len(raised) < times:
            raised.append(error)
            if isinstance(error, Exception):
                raise error
            time.sleep(error)
        return sound(*args, **more)

    monkeypatch.setattr(owner, last, call)
    return raised


CASES = [(what, ERRORS[n % len(ERRORS)], 10**9) for n, what in enumerate(CALLS)]
SLOW = [(what, error, times) for what in CALLS for error in ERRORS for times in (1, 10**9)]
SLOW += [(what, 5.0, 1) for what in CALLS]
ALL = [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]


@pytest.mark.parametrize(("what", "error", "times"), ALL)
def test_the_job_is_the_same(situation, sound, monkeypatch, what, error, times):
    """Whatever it raises, the first time or always, and however long it takes."""
    raised = broken(monkeypatch, CALLS[what], error, times)
    assert run(situation("plain")) == sound
    assert raised, f"{what} is not asked for"


def started(situation, *command, **more):
    """Start a command of a job in its folder, as users do: these tests may run under ``nohup``."""
    words = ["env", "--default-signal=HUP", *DDLOCO, *command]
    return subprocess.Popen(words, cwd=situation.folder, text=True, **more)


@pytest.fixture
def job(situation, installed):
    """A job that has its files."""
    made = situation("plain")
    made.write(steps=60)
    return made


@pytest.mark.parametrize("form", [(), ("--processes",)], ids=["one process", "processes"])
def test_nobody_reads_what_it_says(job, form):
    """The reader ends after the first bytes, as ``| head`` does; the job does not."""
    out, into = os.pipe()
    running = started(job, "run", "job.toml", "--dir", "run", *form, stdout=into, stderr=into)
    os.close(into)
    os.read(out, 1)
    os.close(out)
    assert running.wait(120) == 0
    assert job.model


def test_a_full_disk_behind_its_output(job):
    """What is written to it is lost, and nothing else."""
    with Path("/dev/full").open("w") as full:
        running = started(job, "run", "job.toml", "--dir", "run", stdout=full, stderr=full)
        assert running.wait(120) == 0
    assert job.model


def test_a_terminal_that_is_closed(job):
    """The job hears of it (SIGHUP), and leaves in good order: it can be continued and replayed."""
    running = started(job, "run", "job.toml", "--dir", "run", "--set=job.steps=1000000",
                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    try:
        job.wait_for("merge")
        running.stdout.close()
        running.send_signal(signal.SIGHUP)
        assert running.wait(60) == 75
    finally:
        running.kill()
    assert "identical" in job.replay()
