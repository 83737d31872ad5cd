"""A job on hosts of its own: every actor started by hand on its host, as a user would."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.children import children_of
from tests.hosts.hosts import Hosts, Loopback, Process, send
from tests.reruns import look_at

ROOT = Path(__file__).parents[2]
DDLOCO = [sys.executable, "-m", "ddloco"]
Settings = tuple[str, ...]
SYNCER = "syncer"
PORT = 5555

WAIT_S = 120.0
"""For what is sure to come, on however busy a machine."""

JOB = """
[job]
name = "hosts"
task = "tests.tasks:regression"
steps = 1000000

[task]
step_s = 0.05

[sync]
fragments = 4
interval = 8

[outer]
lr = 0.7
momentum = 0.6

[transport]
insecure = true
"""


def wait_until(condition: Callable[[], Any], what: str, seconds: float = WAIT_S) -> Any:
    """Look now and then until it is so, and give what the condition gave."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not so within {seconds} s: {what}")


def free_port() -> int:
    """A free port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Log:
    """One host's log, read as it grows."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0
        self.lines: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """All lines so far."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._at += len(whole)
            self.lines += [json.loads(line) for line in whole.splitlines()]
        return self.lines


class Cluster:
    """The actors of a job, each on its host with a run folder of its own.

    Args:
        hosts: one for each actor, called as it is.
        folder: where job file and run folders are.
        settings: overrides of the job file, as after ``--set``.
    """

    def __init__(
        self, hosts: Hosts | Loopback, folder: Path, settings: tuple[str, ...] = ()
    ) -> None:
        self.hosts = hosts
        self.folder = folder
        learners = [name for name in hosts.addresses if name.startswith("learner-")]
        self.job = folder / "job.toml"
        self.job.write_text(JOB)
        settings = (f"job.learners={len(learners)}", *settings)
        self.settings = settings
        here = isinstance(hosts, Loopback)
        self.address = f"tcp://{hosts.addresses[SYNCER]}:{free_port() if here else PORT}"
        self.processes: dict[str, Process] = {}
        self.logs = {name: Log(folder / name / "log.jsonl") for name in hosts.addresses}
        self.clock = folder / "clock"
        """How far off the wall clock is; see ``wall/sitecustomize.py``. It runs right without."""
        self.descriptors_max = dict[str, int]()
        """How many descriptors an actor may have, where that is not as many as we may."""
        self._starts: Counter[str] = Counter()

    def start(self, *names: str) -> None:
        """Start actors, for the first time or again."""
        for name in names:
            self._starts[name] += 1
            role = [SYNCER, "--bind", self.address]
            if name != SYNCER:
                role = ["learner", "--connect", self.address, "--name", name]
            run = [str(self.job), "--dir", str(self.folder / name), "--join"]
            run += [f"--set={each}" for each in self.settings]
            command = [*DDLOCO, role[0], *run, *role[1:]]
            if name in self.descriptors_max:
                most = self.descriptors_max[name]
                command = ["sh", "-c", f'ulimit -n {most} && exec "$@"', "sh", *command]
            with (self.folder / f"{name}.said").open("ab") as said:
                self.processes[name] = self.hosts.start(
                    name, command, cwd=ROOT, env=self._environment(), stdout=said, stderr=said
                )

    def _environment(self) -> dict[str, str]:
        if not self.clock.exists():
            return dict(os.environ)
        wall = str(Path(__file__).parent / "wall")
        return {**os.environ, "PYTHONPATH": wall, "WALL_CLOCK_SHIFT": str(self.clock)}

    def send(self, name: str, number: signal.Signals) -> None:
        """Signal an actor and its worker."""
        send(self.processes[name], number)

    def kill(self, name: str) -> None:
        """SIGKILL an actor and its worker, and wait until they are gone."""
        self.send(name, signal.SIGKILL)
        self.processes[name].wait(WAIT_S)

    def kill_worker(self, name: str) -> None:
        """SIGKILL an actor's JAX process alone, and not the fork server that started it."""
        (server,) = children_of(self.processes[name].pid)
        (worker,) = children_of(server)
        os.kill(worker, signal.SIGKILL)

    def incarnation(self, name: str) -> str:
        """An actor's newest."""
        return f"{name}.{self._starts[name]}"

    def stop(self) -> dict[str, int]:
        """Ask the syncer to end the job; returns the exit status of all."""
        keys = self.folder / "keys"
        known = ["--keys", str(keys)] if keys.exists() else []
        stop = [*DDLOCO, "stop", self.address, "--timeout", str(WAIT_S), *known]
        stopped = self.hosts.call(SYNCER, stop, cwd=ROOT)
        assert stopped.returncode == 0, stopped.stdout + stopped.stderr
        return {name: each.wait(WAIT_S) for name, each in self.processes.items()}

    def said(self, name: str) -> str:
        """What an actor printed."""
        return (self.folder / f"{name}.said").read_text()

    def merges(self) -> list[dict[str, Any]]:
        """The syncer's merges so far."""
        return self.events(SYNCER, "merge")

    def events(self, name: str, event: str) -> list[dict[str, Any]]:
        """The lines of one kind in an actor's log."""
        return [line for line in self.logs[name].read() if line["event"] == event]

    def steps(self, name: str) -> int:
        """How many steps an actor has finished, in all its incarnations."""
        return len(self.events(name, "step"))

    def takes_part(self, incarnation: str, since: int = 0) -> bool:
        """Whether a learner's contribution is in a merge after so many."""
        return any(incarnation in merge["learners"] for merge in self.merges()[since:])

    def wait_for(self, names: list[str], since: int = 0) -> None:
        """Wait until each of these learners takes part, as the newest of its incarnations."""
        for name in names:
            who = self.incarnation(name)
            wait_until(partial(self.takes_part, who, since), f"{who} takes part in a merge")

    def status(self, keys: Path | None = None) -> dict[str, Any]:
        """What ``ddloco status`` says, asked on the syncer's host."""
        command = [*DDLOCO, "status", self.address, "--json", "--timeout", "30"]
        command += ["--keys", str(keys)] if keys is not None else []
        told = self.hosts.call(SYNCER, command, cwd=ROOT)
        assert told.returncode == 0, told.stdout + told.stderr
        return json.loads(told.stdout)

    def sockets(self, name: str) -> int:
        """How many sockets an actor has open."""
        count = 0
        for each in Path(f"/proc/{self.processes[name].pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                count += each.readlink().name.startswith("socket:")
        return count

    def resident(self, name: str) -> int:
        """Bytes of memory that an actor has resident."""
        pages = Path(f"/proc/{self.processes[name].pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def peak(self, name: str) -> int:
        """The most bytes of memory that an actor ever had resident."""
        told = Path(f"/proc/{self.processes[name].pid}/status").read_text().split("VmHWM:")[1]
        return int(told.split()[0]) * 1024

    def replay(self) -> subprocess.CompletedProcess[str]:
        """Copy the hosts' run folders together, as the README says, and replay them as one."""
        together = self.folder / "together"
        for name in self.processes:
            log = shutil.ignore_patterns("log.jsonl")
            shutil.copytree(self.folder / name, together, dirs_exist_ok=True, ignore=log)
        command = [*DDLOCO, "replay", str(together)]
        done = subprocess.run(
            command, cwd=ROOT, text=True, capture_output=True, timeout=300, check=False
        )
        look_at(done.stdout)
        return done
