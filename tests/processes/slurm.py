"""A Slurm of several nodes on this machine, for tests: ports and folders of its own, no systemd.

It needs root, and Debian's slurm-wlm and munge.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.hosts.cluster import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "scancel")

CONFIGURATION = """\
ClusterName=ddtest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pidfile
SlurmdPidFile={folder}/slurmd.%n.pidfile
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2,requeue_delay=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
SlurmctldTimeout=10
SlurmdTimeout=10
MessageTimeout=10
KillWait=30
MinJobAge=300
BatchStartTimeout=10
InactiveLimit=0
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
"""
"""A lost node is noticed within ten seconds, and a job that was requeued starts after one."""

NODE = """\
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=3 Sockets=1 \
CoresPerSocket=3 ThreadsPerCore=1 RealMemory=4000 State=UNKNOWN
"""

PARTITIONS = """\
PartitionName=main Nodes={nodes} Default=YES MaxTime=INFINITE State=UP PriorityTier=1 \
PreemptMode=REQUEUE GraceTime=20
PartitionName=urgent Nodes={nodes} Default=NO MaxTime=INFINITE State=UP PriorityTier=10 \
PreemptMode=OFF
"""


def missing() -> str:
    """Why there can be no Slurm here; empty if there can."""
    lacking = [each for each in PROGRAMS if shutil.which(each) is None]
    if lacking:
        return f"needs Debian's slurm-wlm and munge: no {', '.join(lacking)}"
    return "" if os.getuid() == 0 else "needs root"


class Slurm:
    """A controller and some nodes.

    Args:
        folder: an empty one, for all that they write.
        nodes: their names.
    """

    def __init__(self, folder: Path, nodes: tuple[str, ...]) -> None:
        self._folder, self._nodes = folder, nodes
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.conf = folder / "slurm.conf"
        self.environment = {**os.environ, "SLURM_CONF": str(self.conf)}

    def __enter__(self) -> Self:
        """Start all, and wait until all nodes are idle."""
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End all that was started, jobs included."""
        for process in self._daemons.values():
            process.kill()
        for process in self._daemons.values():
            process.wait()
        self._kill(self._processes(""))

    def _start(self) -> None:
        folder, host = self._folder, socket.gethostname().partition(".")[0]
        (folder / "state").mkdir(parents=True)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        text = CONFIGURATION.format(host=host, port=free_port(), folder=folder)
        for node in self._nodes:
            (folder / f"spool.{node}").mkdir()
            text += NODE.format(node=node, host=host, port=free_port())
        self.conf.write_text(text + PARTITIONS.format(nodes=",".join(self._nodes)))
        munge = folder / "munge.socket"
        self._daemon(
            "munged", "--foreground", "--force", f"--socket={munge}", f"--key-file={key}",
            f"--pid-file={folder}/munged.pidfile", f"--seed-file={folder}/munge.seed",
            "--num-threads=1",
        )  # fmt: skip
        wait_until(munge.exists, "munged listens")
        self._daemon("slurmctld", "-D", "-i", "-f", str(self.conf))
        for node in self._nodes:
            self.start_node(node)
        wait_until(self._all_idle, "all nodes are idle")

    def _all_idle(self) -> bool:
        said = self.call("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N", check=False)
        return len(said.split()) == len(self._nodes)

    def _daemon(self, *command: str, name: str = "") -> None:
        name = name or command[0]
        with (self._folder / f"{name}.out").open("ab") as said:
            self._daemons[name] = subprocess.Popen(
                command, env=self.environment, stdout=said, stderr=said, start_new_session=True
            )

    def start_node(self, node: str) -> None:
        """Start a node, for the first time or again."""
        self._daemon("slurmd", "-D", "-N", node, "-f", str(self.conf), name=node)

    def lose_node(self, node: str) -> None:
        """End a node and all that runs on it, at once, so that nobody can tell the controller."""
        process = self._daemons.pop(node)
        process.kill()
        process.wait()
        self._kill(self._stepds(node))
        self._kill(self._processes(node))

    def call(self, *command: str, check: bool = True, text: str | None = None) -> str:
        """What a command of Slurm prints."""
        done = subprocess.run(
            command, env=self.environment, input=text, capture_output=True, text=True, check=False
        )
        assert not check or done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def jobs(self) -> dict[str, tuple[str, str]]:
        """State and node of each job, by its name and its number in an array."""
        lines = self.call("squeue", "-h", "-r", "-o", "%j|%K|%T|%N", check=False).splitlines()
        rows = [line.split("|") for line in lines]
        return {
            name if number == "N/A" else f"{name}-{number}": (state, node)
            for name, number, state, node in rows
        }

    def id_of(self, name: str) -> str:
        """The id of the job with a name."""
        return self.call("squeue", "-h", "--name", name, "-o", "%i").strip()

    def kill(self, *words: str) -> None:
        """Kill the one process whose command line has all of these words."""
        found = [
            pid
            for pid in self._processes("")
            if all(each in _read(pid, "cmdline").split("\0") for each in words)
            and "srun" not in _read(pid, "cmdline").partition("\0")[0]
        ]
        assert found, words
        self._kill(found)

    def _processes(self, node: str) -> list[int]:
        """What this Slurm has started, on one node or on all."""
        wanted = {f"SLURM_CONF={self.conf}"} | ({f"SLURMD_NODENAME={node}"} if node else set())
        return [pid for pid in _pids() if wanted <= set(_read(pid, "environ").split("\0"))]

    def _stepds(self, node: str) -> list[int]:
        """The processes of Slurm itself that watch what runs on a node."""
        log = str(self._folder / f"slurmd.{node}.log")
        return [
            pid
            for pid in _pids()
            if _read(pid, "comm").strip().startswith("slurmstepd") and log in _open_files(pid)
        ]

    def _kill(self, pids: list[int]) -> None:
        for pid in pids:
            if pid != os.getpid():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _pids() -> list[int]:
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]


def _read(pid: int, what: str) -> str:
    try:
        return Path(f"/proc/{pid}/{what}").read_text(errors="replace")
    except OSError:
        return ""


def _open_files(pid: int) -> list[str]:
    try:
        return [str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
    """Wait for something to be true; returns it."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.1)
    return found
