"""Ordinary situations: what users bring every day, each a task of twenty lines and a sentence that
says what happens and what they expect. A new feature adds its own."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.commands import here
from tests.installed import CHECKOUT, install

SITUATIONS = Path(__file__).parent / "situations"

JOB = """
[job]
task = "{task}:task"
learners = {learners}
steps = {steps}
method = "{method}"
"""

SYNC = """
[sync]
fragments = 2
interval = 4
"""


class Situation:
    """A job in a folder of its own, and what became of it."""

    def __init__(self, folder, name):
        self.folder, self.name, self.run_folder = folder, name, folder / "run"
        for each in ("model", name):
            shutil.copy(SITUATIONS / f"{each}.py", folder)

    def write(self, *, steps=80, learners=2, method="decoupled-diloco", table=""):
        """Write its job file."""
        job = JOB.format(task=self.name, steps=steps, learners=learners, method=method)
        job += SYNC if method == "decoupled-diloco" else ""
        (self.folder / "job.toml").write_text(job + table)

    def run(self, *more, method="decoupled-diloco", **said):
        """Run it to its end in this process."""
        self.write(method=method, **said)
        where = ["job.toml", "--dir", self.run_folder, "--set=sync.quorum=1"]
        where = where if method == "decoupled-diloco" else where[:-1]
        self.ended = here("run", *where, *more, cwd=self.folder)
        self.said = self.ended.stdout + self.ended.stderr
        return self.ended.returncode

    def replayed(self):
        """Replay it; returns how that ended."""
        return here("replay", self.run_folder, cwd=self.folder)

    def replay(self):
        """Replay it, which goes well; returns what was said of that."""
        found = self.replayed()
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout

    def logged(self, event):
        """The lines of its log about an event."""
        lines = map(json.loads, (self.run_folder / "log.jsonl").read_text().splitlines())
        return [line for line in lines if line["event"] == event]

    def wait_for(self, event):
        """Wait until its log tells of such an event."""
        deadline = time.monotonic() + 120.0
        path = self.run_folder / "log.jsonl"
        while not (path.exists() and f'"{event}"' in path.read_text()):
            assert time.monotonic() < deadline, f"no {event}"
            time.sleep(0.05)

    @property
    def model(self):
        """Whether there is a model."""
        return (self.run_folder / "model" / "model.safetensors").is_file()


@pytest.fixture
def situation(tmp_path):
    """Make a situation by the name of its task."""
    return lambda name: Situation(tmp_path, name)


@pytest.fixture(scope="session")
def installed():
    """The wheel is there, for what is started as users start it."""
    install()


AGAIN = (75, -9)
"""An engine starts a process again that has ended so."""

ENDS_S = 100.0


class Engine:
    """Starts the processes of a job, and starts again whatever has not ended for good."""

    def __init__(self, folder):
        self.folder, self.mark = folder, folder / "lost"
        self.commands, self.running, self.ends, self.restarts = {}, {}, {}, 0

    def start(self, name, *words, lost=()):
        """Start one, lost at a call or not."""
        runs = ["ddloco"] if not lost else ["tests.ordinary.losing", self.mark, *lost]
        self.commands[name] = [sys.executable, "-m", *map(str, (*runs, *words))]
        self._start(name)

    def _start(self, name):
        with (self.folder / f"{name}.txt").open("ab") as said:
            env = {"PYTHONPATH": f"{CHECKOUT}:{self.folder}", "PATH": "/usr/bin:/bin", "NPROC": "1"}
            self.running[name] = subprocess.Popen(
                self.commands[name], cwd=self.folder, stdout=said, stderr=said, env=env
            )

    def run(self, restarts=True):
        """Look after them until all have ended for good; returns their exit codes."""
        self.look_after(ENDS_S, restarts)
        assert not self.running, self.said()
        return self.ends

    def look_after(self, for_s, restarts=True):
        """Start again whatever has ended and may be, for so long, or until all have ended."""
        deadline = time.monotonic() + for_s
        while self.running and time.monotonic() < deadline:
            time.sleep(0.05)
            for name, process in list(self.running.items()):
                code = process.poll()
                if code is None:
                    continue
                del self.running[name]
                self.ends[name] = code
                assert code in (0, *AGAIN), self.said()
                if code in AGAIN and restarts:
                    self.restarts += 1
                    self._start(name)

    def wait_for(self, path):
        """Wait until there is a file."""
        deadline = time.monotonic() + ENDS_S
        while not (self.folder / path).exists():
            time.sleep(0.05)
            assert time.monotonic() < deadline, self.said()

    def said(self):
        """What all have said, for a failure."""
        return "\n".join(f"{p.name}: {p.read_text()[-1500:]}" for p in self.folder.glob("*.txt"))

    def kill(self):
        """End whatever runs."""
        for process in self.running.values():
            process.kill()
            process.wait()


@pytest.fixture
def engine(situation):
    """A small job, of which nothing runs yet."""
    made = situation("plain")
    made.write(steps=24)
    engine = Engine(made.folder)
    yield engine
    engine.kill()
