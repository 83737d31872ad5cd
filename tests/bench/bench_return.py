"""A learner that comes back: how long until it contributes, against raw TCP for the same bytes.

Divided: the seconds from the returned learner's handshake to the merge that holds its first
contribution, by those that one raw TCP connection over loopback needs for the bytes of its state
(parameters and Adam's two moments). State goes through the syncer, so two such transfers, two
copies between processes, and a first step, which compiles, are what 1 leaves out. The syncer's own
log has both ends of that time; steps are 0.1 s, two learners.

* The donor: the median of its steps meanwhile, by the median before the return.
* A size is run where there is memory for it, going by what the size before it needed for a byte;
  where there is not, a line says so, with both figures.
"""

import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from bench_roundtrip import plain, receive_into
from tools import median, say

from tests.children import descendants_of
from tests.hosts.cluster import SYNCER, Cluster, wait_until
from tests.hosts.hosts import Loopback

BEYOND = """\
Of 2.4 to 2.9 s with 100 MB the state takes 1.3: it is sent twice, through the syncer, and copied \
between each actor and its worker. In the rest the worker installs it, runs its first step twice, \
and waits for the next merge. The aim would need a donor that sends to the learner itself, and a \
first step that is checked while the learner already takes part."""

AIMS = {"100": " (aim 3)"}

DONOR, COMER = "learner-0", "learner-1"
SIZES_MB = (1.0, 100.0, 1000.0)
STATES = 3  # Parameters and Adam's two moments.
SPARE_BYTES = 2e9
MEMORY_COUNTS_MB = 50
"""In a smaller job the interpreters are most of the memory."""
STEPS_BEFORE = 10
RETURN_S_MAX = 150.0


def settings(megabytes: float) -> tuple[str, ...]:
    """The job's."""
    return (
        "job.task=tests.bench.slab:slab",
        f"task={{megabytes={megabytes},step_s=0.1}}",
        "sync.fragments=4",
        "sync.interval=16",
        "inner.optimizer=adam",
    )


def measure(quick: bool) -> dict[str, Any]:
    """Seconds of each return, by megabytes, and of what they are compared with."""
    figures: dict[str, Any] = {}
    per_mb = 0.0
    for megabytes in SIZES_MB[:1] if quick else SIZES_MB:
        need, free = megabytes * per_mb + SPARE_BYTES, available_bytes()
        if need > free:
            figures[f"{megabytes:.0f}"] = (
                f"not run: it needs about {need / 1e9:.0f} GB of memory, {free / 1e9:.0f} are free"
            )
            continue
        figures[f"{megabytes:.0f}"] = told = one_return(megabytes)
        if megabytes >= MEMORY_COUNTS_MB:
            per_mb = told["memory_bytes"] / megabytes
        say(f"{megabytes:.0f} MB: {figures[f'{megabytes:.0f}']}")
    return figures


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    said = []
    for megabytes, each in figures.items():
        if isinstance(each, str):
            said.append(f"{megabytes} MB: {each}")
            continue
        said.append(
            f"{megabytes} MB: {each['return_s']:.2f} s from handshake to first contribution, "
            f"{each['ratio']:.1f} times raw TCP{AIMS.get(megabytes, '')} for "
            f"{each['state_mb']:.0f} MB of state ({each['raw_s']:.3f} s), "
            f"state there after {each['state_s']:.2f} s; the donor's steps "
            f"{each['donor_ratio']:.2f} times as long meanwhile ({each['donor_steps']} "
            f"steps); {each['memory_bytes'] / 1e9:.1f} GB of memory in all"
        )
    return said


def available_bytes() -> float:
    """Memory that the system could give."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return float(line.split()[1]) * 1024
    return 0.0


def proportional_bytes(process: Any) -> float:
    """Memory of an actor, its fork server and its worker, what they share counted once."""
    total = 0.0
    for pid in (process.pid, *descendants_of(process.pid)):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += float(line.split()[1]) * 1024
    return total


def one_return(megabytes: float) -> dict[str, Any]:
    """Kill a learner, start it again, and see when it is back."""
    with tempfile.TemporaryDirectory() as place:
        hosts = Loopback([SYNCER, DONOR, COMER])
        cluster = Cluster(hosts, Path(place), settings(megabytes))
        with hosts:
            cluster.start(SYNCER, DONOR, COMER)
            cluster.wait_for([DONOR, COMER])
            cluster.kill(COMER)
            alone = cluster.steps(DONOR)
            wait_until(lambda: cluster.steps(DONOR) >= alone + STEPS_BEFORE, "steps without it")
            before = [line["step_s"] for line in cluster.events(DONOR, "step")[alone:]]
            cluster.start(COMER)
            who = cluster.incarnation(COMER)
            joined = wait_until(lambda: joined_of(cluster, who), f"{who} joins")
            steps, seen_at = cluster.steps(DONOR), time.monotonic()
            merge = wait_until(lambda: first_merge(cluster, who), f"{who} in a merge", RETURN_S_MAX)
            seen_s = time.monotonic() - seen_at
            meanwhile = [line["step_s"] for line in cluster.events(DONOR, "step")[steps:]]
            taken = [line["at"] for line in cluster.events(COMER, "state taken over")[-1:]]
            memory = sum(map(proportional_bytes, cluster.processes.values()))
            waiting = [line["at"] for line in cluster.events(COMER, "waiting")[-1:]]
            cluster.stop()
    state_bytes = int(STATES * megabytes * 1e6)
    raw_s = raw_tcp(state_bytes)
    return_s = merge["at"] - joined["at"]
    return {
        "return_s": return_s,
        "seen_s": seen_s,
        "state_s": taken[0] - waiting[0] if taken and waiting else float("nan"),
        "state_mb": state_bytes / 1e6,
        "raw_s": raw_s,
        "ratio": return_s / raw_s,
        "donor_ratio": median(meanwhile) / median(before) if meanwhile else float("nan"),
        "donor_steps": len(meanwhile),
        "memory_bytes": memory,
    }


def joined_of(cluster: Cluster, who: str) -> dict[str, Any] | None:
    """The log's line on a learner's handshake."""
    joined = [each for each in cluster.events(SYNCER, "joined") if each["learner"] == who]
    return joined[0] if joined else None


def first_merge(cluster: Cluster, who: str) -> dict[str, Any] | None:
    """The first merge with a learner's contribution."""
    return next((each for each in cluster.merges() if who in each["learners"]), None)


def raw_tcp(nbytes: int) -> float:
    """Seconds for so many bytes through one connection; the faster of two times."""
    source, target = (memoryview(np.ones(nbytes, np.uint8)) for _ in range(2))
    took: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = plain(socket.create_connection(server.getsockname()))
        here = plain(server.accept()[0])
    with there, here:
        for _ in range(2):
            begun = time.perf_counter()
            sender = threading.Thread(target=there.sendall, args=(source,))
            sender.start()
            receive_into(here, target)
            sender.join()
            took.append(time.perf_counter() - begun)
    return min(took)
