"""What is only for people, or for later, fails: the job is the same to the bit, and ends with 0."""

import errno
import importlib
import os
import signal
import subprocess
import time
import uuid
from pathlib import Path

import pytest
from safetensors.numpy import load_file

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
    "spare memory": "ddloco.stage.nodes.single_process:give_back_spare",
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


def run(situation, *more):
    """Run it as one learner, whose model is the same each time; returns that."""
    assert situation.run(*MORE, *more, steps=24, method="lone") == 0, situation.said
    model = load_file(situation.run_folder / "model" / "model.safetensors")
    return {name: tensor.tobytes() for name, tensor in model.items()}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The model of a job of which nothing fails."""
    return run(Situation(tmp_path_factory.mktemp("sound"), "plain"))


def broken(monkeypatch, where, error, times):
    """Have a call raise, or take so many seconds, the first few times, of which it keeps count."""
    module, _, name = where.partition(":")
    owner = importlib.import_module(module)
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


IN_A_STORE = {
    "what the store has": "snapshot.object_storage:ObjectStorage.files",
    "the store's time": "snapshot.object_storage:ObjectStorage.now",
    "an old file in the store": "snapshot.object_storage:ObjectStorage.remove",
}
"""The same of a job whose snapshots are in an object store."""

CASES = [(what, ERRORS[n % len(ERRORS)], 10**9) for n, what in enumerate(CALLS)]
SLOW = [(what, error, times) for what in CALLS for error in ERRORS for times in (1, 10**9)]
SLOW += [(what, 5.0, 1) for what in CALLS]
SLOW += [(what, error, times) for what in IN_A_STORE for error in ERRORS for times in (1, 10**9)]
ALL = [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]


@pytest.mark.parametrize(("what", "error", "times"), ALL)
def test_the_job_is_the_same(situation, sound, monkeypatch, what, error, times):
    """Whatever it raises, the first time or always, and however long it takes."""
    raised = broken(monkeypatch, (CALLS | IN_A_STORE)[what], error, times)
    store = [f"--set=snapshot.place=memory://{uuid.uuid4()}"] if what in IN_A_STORE else []
    assert run(situation("plain"), *store) == sound
    assert raised, f"{what} is not asked for"


ON_HOSTS = {
    "syncer": {
        "a learner's tape": "ddloco.stage.tapes.receiver:TapeReceiver._handle",
        "a question of an observer": "ddloco.stage.observers.observer_server:ObserverServer.take",
        "news for an observer": "ddloco.stage.observers.observer_server:ObserverServer._send",
        "the losses of learners": "ddloco.roles.loss_log:LossLog.note",
        "who is missing": "ddloco.stage.nodes.waiting:Wait.tell",
        "who was refused a link": "ddloco.stage.nodes.auth_log:AuthRefusals.run",
        "what a task needs": "ddloco.roles.needs_note:note_needs",
        "spare memory": "ddloco.stage.nodes.serve:give_back_spare",
        "a line on the screen": "ddloco.stage.process.console:SafeConsole.print",
        "a line of the log": "ddloco.stage.process.log:_Lines.add",
    },
    "learner": {
        "its tape for the syncer": "ddloco.stage.tapes.sender:TapeSender._go_on",
        "the rest of its tape": "ddloco.stage.tapes.sender:TapeSender.finish",
        "a line of the log": "ddloco.stage.process.log:_Lines.add",
        "a line on the screen": "ddloco.stage.process.console:SafeConsole.print",
    },
}
"""The same of a syncer and of a learner that are processes, an observer beside them."""

ONE_ON_HOSTS = [(role, [what]) for role, calls in ON_HOSTS.items() for what in calls]
ON_HOSTS_CASES = [*ONE_ON_HOSTS, *((role, [*calls]) for role, calls in ON_HOSTS.items())]


@pytest.mark.slow
@pytest.mark.parametrize(("role", "what"), ON_HOSTS_CASES)
def test_a_job_on_hosts_ends_well(engine, installed, role, what):
    """Each of these fails each time: everyone ends with 0, and the model is there."""
    calls = ",".join(ON_HOSTS[role][each] for each in what)
    lost = {each: (calls, "fail") if each == role else () for each in ON_HOSTS}
    common = ("job.toml", "--set=job.learners=1", "--set=sync.quorum=1")
    bind = ("--bind", "tcp://127.0.0.1:*", "--dir", "a")
    engine.start("syncer", "syncer", *common, *bind, lost=lost["syncer"])
    at = engine.folder / "a" / "syncer.address"
    engine.wait_for(at)
    watching = started(engine, "observe", at.read_text().strip(), stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)  # fmt: skip
    words = ("learner", *common, "--connect", f"file:{at}", "--name", "learner-0", "--dir", "l")
    engine.start("learner", *words, lost=lost["learner"])
    try:
        assert engine.run() == {"syncer": 0, "learner": 0}, engine.said()
    finally:
        watching.kill()
        watching.wait()
    assert (engine.folder / "a" / "model" / "model.safetensors").is_file(), engine.said()
    failed = {each.suffix for each in engine.folder.glob("lost.*")}
    assert failed, f"{what} is not asked for"


@pytest.mark.slow
def test_a_job_of_processes_is_judged_by_what_they_say(situation, monkeypatch):
    """Not by their log, which cannot be read."""
    raised = broken(monkeypatch, CALLS["reading the log"], ERRORS[0], 10**9)
    made = situation("plain")
    assert made.run("--processes", steps=24) == 0, made.said
    assert "held-out loss" in made.said
    assert raised


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


@pytest.mark.parametrize(
    "form",
    [(), pytest.param(("--processes",), marks=pytest.mark.slow)],
    ids=["one process", "processes"],
)
def test_nobody_reads_what_it_says(job, form):
    """The reader ends after the first bytes, as ``| head`` does; the job does not."""
    out, into = os.pipe()
    running = started(job, "run", "job.toml", "--dir", "run", *form, stdout=into, stderr=into)
    os.close(into)
    os.read(out, 1)
    os.close(out)
    assert running.wait(120) == 0
    assert job.model


@pytest.mark.slow
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
