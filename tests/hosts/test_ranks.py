"""A learner of two hosts: whatever befalls one of them, both come back as the next incarnation."""

import os
import shutil
import signal
import socket
import time
from functools import partial
from pathlib import Path

import pytest

from ddloco.stage.nodes.exit_codes import AGAIN, HELD
from tests.children import children_of
from tests.hosts.cluster import DDLOCO, ROOT, SYNCER, Cluster, wait_until
from tests.hosts.hosts import Hosts, missing

FIRST, OTHER, ALONE = "learner-0", "rank-1", "learner-1"
SETTINGS = (
    "learner.learner-0.processes=2",
    "worker.stall_s=4",
    "task.step_s=0.05",
    'worker.env={JAX_PLATFORMS="cpu"}',
)


class Ranked(Cluster):
    """A cluster whose first learner has two hosts.

    Attributes:
        ends: the exit statuses of its rank 0.
    """

    def __init__(self, hosts, folder):
        super().__init__(hosts, folder, SETTINGS)
        self.ends = []
        self.place = f"{hosts.addresses[FIRST]}:7777"

    def start(self, *names):
        """Start actors, and ranks of the first learner."""
        for name in names:
            if name not in {FIRST, OTHER}:
                super().start(name)
                continue
            self._starts[name] += 1
            rank = ["--rank", "0" if name == FIRST else "1", "--coordinator", self.place]
            run = [str(self.job), "--dir", str(self.folder / FIRST), "--join"]
            run += [f"--set={each}" for each in self.settings]
            command = [*DDLOCO, "learner", *run, "--connect", self.address, "--name", FIRST, *rank]
            with (self.folder / f"{name}.said").open("ab") as said:
                self.processes[name] = self.hosts.start(
                    name, command, cwd=ROOT, env=dict(os.environ), stdout=said, stderr=said
                )

    def worker(self, name):
        """The process that computes."""
        (server,) = children_of(self.processes[name].pid)
        (worker,) = children_of(server)
        return worker

    def returns(self):
        """Wait for the end of rank 0, start it again, and wait until it takes part."""
        self.ends.append(self.processes[FIRST].wait(60))
        since = len(self.merges())
        self.start(FIRST)
        self.wait_for([FIRST], since)


@pytest.fixture
def cluster(tmp_path):
    """Two learners, one of them on two hosts; each host's name is its own address."""
    if missing():
        pytest.skip(f"no hosts: {missing()}")
    with Hosts([SYNCER, FIRST, OTHER, ALONE], seed=1) as hosts:
        spaces = [Path("/etc/netns") / hosts.namespace(name) for name in hosts.addresses]
        try:
            for space, address in zip(spaces, hosts.addresses.values(), strict=True):
                space.mkdir(parents=True)
                (space / "hosts").write_text(f"{address} {socket.gethostname()}\n")
            (tmp_path / OTHER).mkdir()  # It has no run folder, and nothing to replay.
            yield Ranked(hosts, tmp_path)
        finally:
            for space in spaces:
                shutil.rmtree(space, ignore_errors=True)


@pytest.mark.slow
def test_each_fault_of_either_host_ends_both(cluster):
    """Kill, stop and cut; the other learner trains on, and the whole run replays."""
    cluster.start(SYNCER, FIRST, OTHER, ALONE)
    cluster.wait_for([FIRST, ALONE])

    os.kill(cluster.worker(OTHER), signal.SIGKILL)
    cluster.returns()
    os.kill(cluster.worker(FIRST), signal.SIGKILL)
    cluster.returns()
    os.kill(cluster.worker(OTHER), signal.SIGSTOP)
    cluster.returns()
    os.kill(cluster.worker(FIRST), signal.SIGSTOP)
    cluster.returns()
    cluster.kill(OTHER)
    cluster.start(OTHER)
    cluster.returns()
    merges = len(cluster.merges())
    cluster.hosts.line(OTHER, "both", cut=True)
    assert cluster.processes[FIRST].wait(60) == AGAIN
    wait_until(partial(cluster.takes_part, "learner-1.1", merges), "learner-1 trains on")
    cluster.hosts.line(OTHER, "both", cut=False)
    cluster.returns()

    assert cluster.ends == [AGAIN] * 6
    ends = cluster.stop()
    assert ends == dict.fromkeys(ends, HELD), ends
    told = [line for line in cluster.said(OTHER).splitlines() if "next incarnation" in line]
    assert len(told) == 5, told
    replayed = cluster.replay()
    assert "identical" in replayed.stdout, replayed.stdout + replayed.stderr


@pytest.mark.slow
def test_a_slow_host_slows_its_learner_only(cluster):
    """Its line takes 20 ms: the learner is slower, and is not taken for dead."""
    cluster.hosts.line(OTHER, "both", delay_s=0.02)
    cluster.start(SYNCER, FIRST, OTHER, ALONE)
    cluster.wait_for([FIRST, ALONE])
    time.sleep(10)
    assert cluster.steps(FIRST) < cluster.steps(ALONE)
    assert cluster.processes[FIRST].poll() is None
    ends = cluster.stop()
    assert ends == dict.fromkeys(ends, HELD), ends
    replayed = cluster.replay()
    assert "identical" in replayed.stdout, replayed.stdout + replayed.stderr
