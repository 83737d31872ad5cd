"""Ordinary situations: what users bring every day, each a task of twenty lines and a sentence that
says what happens and what they expect. A new feature adds its own."""

import json
import shutil
import time
from pathlib import Path

import pytest

from tests.commands import here
from tests.installed import install

SITUATIONS = Path(__file__).parent / "situations"

JOB = """
[job]
task = "{task}:task"
learners = 3
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

    def write(self, *, steps=80, method="decoupled-diloco", table=""):
        """Write its job file."""
        job = JOB.format(task=self.name, steps=steps, method=method)
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

    def replay(self):
        """Replay it; returns what was said of that."""
        found = here("replay", self.run_folder, cwd=self.folder)
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
