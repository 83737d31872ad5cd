"""Real jobs for the tests of this folder.

A command that a test runs to its end is called in this process, where JAX has been imported once
for all workers. What runs in the background is a process of its own, started as a user starts it,
with the console script that the wheel installs.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands import CALL_S_MAX, here
from tests.conftest import shared
from tests.installed import DDLOCO, WORK, install
from tests.reruns import look_at

JOB = """
[job]
name = "small"
task = "tests.tasks:regression"
steps = 40
learners = 2

[task]
step_s = 0.01

[sync]
fragments = 4
interval = 8

[outer]
lr = 0.7
momentum = 0.6
"""


@pytest.fixture(scope="session", autouse=True)
def installed_once():
    """The wheel is there before anything is started."""
    install()


SNAPSHOTS = "\n[snapshot]\nevery_steps = 10\n"


class Job:
    """A job file in a folder of its own, and what can be done with it."""

    def __init__(self, folder: Path, text: str = JOB) -> None:
        self.file = folder / "job.toml"
        self.file.write_text(text)
        self.run_folder = folder / "run"
        self.said = ""
        self.started: list[subprocess.Popen[str]] = []

    def command(self, *more: str) -> list[str]:
        """The command line that runs it."""
        return [*DDLOCO, "run", str(self.file), "--dir", str(self.run_folder), *more]

    def run(self, *more: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end, or until it is refused."""
        return call_here(*self.command(*more)[len(DDLOCO) :])

    def start(self, *more: str) -> subprocess.Popen[str]:
        """Start it in the background."""
        self.started.append(
            subprocess.Popen(
                self.command(*more),
                cwd=WORK,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )
        return self.started[-1]

    def end(self) -> None:
        """End what still runs: a test that failed leaves nothing behind that slows the others."""
        for each in self.started:
            if each.poll() is None:
                each.terminate()
                each.communicate(timeout=60)

    def stop(self, running: "subprocess.Popen[str]") -> str:
        """End it in good order, as Ctrl-C does, from wherever it is; what it said."""
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=180)
        return said

    def wait_until(self, condition: Callable[[], Any], seconds: float = 180.0) -> Any:
        """Look now and then until it is so; what the condition gave."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := condition():
                return found
            time.sleep(0.05)
        raise AssertionError(f"not so within {seconds} s: {self.log()[-3:]}")

    def merges(self) -> list[dict]:
        """The lines of its log on merges so far."""
        return [line for line in self.log() if line["event"] == "merge"]

    def log(self) -> list[dict]:
        """The lines of its log so far."""
        path = self.run_folder / "log.jsonl"
        if not path.exists():
            return []
        text = path.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def snapshots(self) -> list[str]:
        """The ids of its snapshots in its run folder, the oldest first."""
        names = [path.stem for path in self.run_folder.glob("snapshots/snapshots/*.json")]
        return sorted(names, key=lambda name: int(name.rpartition("-")[2]))

    def wait_for(self, event: str, count: int) -> None:
        """Wait until the log tells of ``count`` such events."""
        self.wait_until(lambda: sum(line["event"] == event for line in self.log()) >= count)


def call(
    command: list[str], cwd: Path = WORK, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, as a process."""
    done = subprocess.run(
        command, cwd=cwd, env=env, text=True, capture_output=True, timeout=CALL_S_MAX, check=False
    )
    look_at(done.stdout)
    return done


def call_here(*words: object, cwd: Path = WORK) -> subprocess.CompletedProcess[str]:
    """Call a command in this process, where users of tests work."""
    return here(*words, cwd=cwd)


def replay(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Replay a run folder."""
    return call_here("replay", str(folder), *more)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job that has not been run yet."""
    made = Job(tmp_path)
    yield made
    made.end()


def recorded_once(
    tmp_path_factory: pytest.TempPathFactory, kind: str, text: str, *more: str
) -> Job:
    """A job that ran to its end in one process, once for all tests of all processes; look at it, do
    not change it."""
    folder = shared(tmp_path_factory) / kind
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done, said = Job(folder, text), folder / "said"
        if not said.exists():
            ended = done.run("--overwrite", *more)
            assert ended.returncode == 0, ended.stdout + ended.stderr
            said.write_text(ended.stdout)
        done.said = said.read_text()
    return done


QUORUM = "--set=sync.quorum=2"
"""Of all: none of them may still be compiling when the others are through."""


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Two learners, forty global steps."""
    return recorded_once(tmp_path_factory, "finished", JOB, QUORUM)


@pytest.fixture(scope="session")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The same with a snapshot after every ten global steps."""
    return recorded_once(tmp_path_factory, "pictured", JOB + SNAPSHOTS, QUORUM)


@pytest.fixture(scope="session")
def resumed(tmp_path_factory: pytest.TempPathFactory, pictured: Job) -> Job:
    """A run that continued from the first snapshot of the one before."""
    begins = f"--from={pictured.run_folder / 'snapshots' / pictured.snapshots()[0]}"
    return recorded_once(tmp_path_factory, "resumed", JOB + SNAPSHOTS, QUORUM, begins)


@pytest.fixture
def copied(finished: Job, tmp_path: Path) -> Path:
    """A copy of a finished run's folder, to be damaged."""
    return Path(shutil.copytree(finished.run_folder, tmp_path / "copy"))


@pytest.fixture(scope="session")
def tools():
    """The helpers above, for test modules (which cannot import a conftest)."""

    class Tools:
        Job = Job
        JOB = JOB
        DDLOCO = DDLOCO
        WORK = WORK
        call = staticmethod(call)
        call_here = staticmethod(call_here)
        replay = staticmethod(replay)
        kill = staticmethod(lambda pid: os.kill(pid, signal.SIGKILL))

    return Tools
