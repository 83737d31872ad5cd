"""A task with ``breakpoint()`` in it: run, and replayed at a terminal."""

import os
import pty
import select
import subprocess
import time

import pytest

from tests.installed import DDLOCO, WORK

TASK = """
from tests.tasks import Regression


class Stops(Regression):
    def batches(self, *, shard, shards, seed):
        return Stopping(super().batches(shard=shard, shards=shards, seed=seed))


class Stopping:
    def __init__(self, stream):
        self.stream, self.drawn = stream, 0

    def next(self):
        self.drawn += 1
        if self.drawn == 5:
            breakpoint()
        return self.stream.next()

    def state(self):
        return self.drawn, self.stream.state()

    def restore(self, state):
        self.drawn, inner = state
        self.stream.restore(inner)


def task():
    return Stops()
"""

JOB = """
[job]
task = "stops:task"
steps = 16
learners = 2
[sync]
fragments = 2
interval = 4
quorum = 2
"""

LEARNERS = ("learner-0.1", "learner-1.1")
ANSWER_S_MAX = 120.0


class Terminal:
    """A command at a terminal of its own."""

    def __init__(self, *command, cwd, env):
        self._ours, theirs = pty.openpty()
        given = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "cwd": cwd, "env": env}
        self.process = subprocess.Popen(command, start_new_session=True, **given)
        os.close(theirs)
        self.said = ""

    def until(self, *wanted):
        """Read until one of these texts is there, and return what came before it and which."""
        until = time.monotonic() + ANSWER_S_MAX
        while not (found := [each for each in wanted if each in self.said]):
            assert time.monotonic() < until, self.said
            if select.select([self._ours], [], [], 1.0)[0]:
                try:
                    self.said += os.read(self._ours, 65536).decode()
                except OSError:  # Linux reports so that no process has the other side open.
                    raise AssertionError(self.said) from None
        before, _, self.said = self.said.partition(found[0])
        return before, found[0]

    def type(self, line):
        """Type a line."""
        os.write(self._ours, f"{line}\n".encode())

    def close(self):
        """End it, and return its exit code."""
        code = self.process.wait(ANSWER_S_MAX)
        os.close(self._ours)
        return code


@pytest.mark.slow
def test_a_tasks_breakpoint_stops_a_replay_and_no_run(tmp_path):
    """The live run passes each place with one line; the replay stops in each learner in turn, at
    the terminal, and is identical."""
    (tmp_path / "stops.py").write_text(TASK)
    (tmp_path / "job.toml").write_text(JOB)
    env = {**os.environ, "PYTHONPATH": str(WORK), "TERM": "dumb"}
    done = subprocess.run(
        [*DDLOCO, "run", "job.toml", "--dir", "run"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=ANSWER_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("breakpoint() stops only in: ddloco replay RUN --pdb") == 2

    terminal = Terminal(*DDLOCO, "replay", "run", "--pdb", cwd=tmp_path, env=env)
    prompts = [f"({name}) " for name in LEARNERS]
    for _ in LEARNERS:
        _, prompt = terminal.until(*prompts)
        prompts.remove(prompt)
        terminal.type("p 'drawn', self.drawn")
        before, _ = terminal.until(prompt)
        assert "('drawn', 5)" in before
        terminal.type("c")
    terminal.until("identical: ")
    assert terminal.close() == 0
