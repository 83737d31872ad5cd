"""Many learners on one syncer: 10, 50, 200 and 1,000 learners over tcp on this machine.

Divided: the syncer's CPU seconds for a message with 1,000 learners, by those with 10; 1 says that a
message costs the same however many there are. Messages are counted in both directions. The syncer
is the real command with its worker and tape, tapes of learners are off. Learners are the real
machines, links and drivers, a few dozen in a process, over sockets of their own; only their
work is a stub without JAX: a step is 0.5 s of waiting (2.5 s with 1,000 learners, which share two
cores with the syncer), and a contribution is the newest globals times 0.999. Fragments are small,
so this is about messages, not bytes.

Beside it what ``ddloco status`` takes meanwhile, by what the same command takes to say ``--help``:
what is above 1 is importing the client, asking and being answered. And the syncer's memory for each
learner beyond the fewest.
"""

import os
import subprocess
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import trio
from tools import ROOT, Servant, median, say, servant

from clocks import MonotonicTime
from ddloco.job.config import load_job
from ddloco.job.protocol.events import Started
from ddloco.job.protocol.fragment_plan import wire_layout
from ddloco.job.protocol.messages import JobBody
from ddloco.job.protocol.validation import admission
from ddloco.job.protocol.work import EncodeFragment, FragmentEncoded, RunStep, StepFinished
from ddloco.machines.registry import machine_for
from ddloco.stage.actors.actor import new_actor
from ddloco.stage.actors.events import WorkFailed
from ddloco.stage.arrays.array_table import ArrayTable
from ddloco.stage.driver.driver import Driver
from ddloco.stage.driver.endpoints import dial, new_endpoint
from replay import Recorder
from tests.hosts.cluster import DDLOCO, SYNCER, Cluster, wait_until
from tests.hosts.fuzz import LEAVES
from tests.hosts.hosts import Loopback
from transport import Payload, describe
from transport.zeromq import open_context

SIZES = (10, 50, 200, 1000)
PROCESSES = 4
STEP_S = 0.5
AT_FULL_PACE = 200
"""Up to so many learners step in ``STEP_S``; more of them take as much longer."""
TOKENS = 8
STATUSES = 5
MOST = 0.8
"""Of the learners must be in one merge before it is measured."""


def measure(quick: bool) -> dict[str, Any]:
    """Figures by number of learners."""
    seconds = 3.0 if quick else 10.0
    figures: dict[str, Any] = {}
    for size in SIZES[:1] if quick else SIZES:
        found = figures[f"{size}"] = one_size(size, seconds)
        least = next(iter(figures.values()))
        found["learner_bytes"] = (found["bytes"] - least["bytes"]) / max(size - SIZES[0], 1)
        say(f"{size}: {figures[f'{size}']}")
    return figures


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    sizes = list(figures)
    least, most = figures[sizes[0]], figures[sizes[-1]]
    said = [
        (
            f"{most['cpu_s'] / least['cpu_s']:.2f} times the CPU for a message with {sizes[-1]} "
            f"learners as with {sizes[0]}"
        )
    ]
    for size, each in figures.items():
        said.append(
            f"{size} learners: {each['messages_per_s']:.0f} messages/s at "
            f"{1e6 * each['cpu_s']:.0f} us of CPU each ({100 * each['busy']:.0f} % of a core), "
            f"{each['averaged']:.0f} learners in a merge; ddloco status in "
            f"{each['status_s']:.2f} s, {each['status_s'] / each['help_s']:.1f} times --help; "
            f"{each['bytes'] / 2**20:.0f} MiB"
            + (f", {each['learner_bytes'] / 1024:.0f} KiB a learner" * (size != sizes[0]))
        )
    return said


def one_size(size: int, seconds: float) -> dict[str, Any]:
    """So many learners for so long."""
    names = [f"learner-{number}" for number in range(size)]
    settings = (f"sync.quorum={size // 2}", "sync.interval=8", "sync.fragments=4")
    with tempfile.TemporaryDirectory() as place:
        hosts = Loopback([SYNCER, *names])
        cluster = Cluster(hosts, Path(place), settings)
        with hosts:
            cluster.start(SYNCER)
            share = -(-size // PROCESSES)
            shares = [names[at : at + share] for at in range(0, size, share)]
            what = (cluster.address, str(cluster.job), cluster.settings)
            with ExitStack() as stack:
                groups = [
                    stack.enter_context(servant(serve_learners, each, *what)) for each in shares
                ]
                wait_until(partial(together, cluster, size), f"most of {size} in a merge")
                return observed(cluster, groups, seconds)


def observed(cluster: Cluster, groups: list[Servant], seconds: float) -> dict[str, Any]:
    """Watch it for a while, then ask for its status a few times."""
    merges, counted, used_s = len(cluster.merges()), messages_of(groups), cpu_s(cluster)
    begun = time.monotonic()
    time.sleep(seconds)
    messages, busy_s = messages_of(groups) - counted, cpu_s(cluster) - used_s
    took_s = time.monotonic() - begun
    merged = cluster.merges()[merges:]
    asked = [timed(["status", cluster.address, "--json"]) for _ in range(STATUSES)]
    helped = [timed(["status", "--help"]) for _ in range(STATUSES)]
    return {
        "messages_per_s": messages / took_s,
        "cpu_s": busy_s / messages,
        "busy": busy_s / took_s,
        "bytes": resident_bytes(cluster),
        "merges": len(merged),
        "averaged": median([len(each["learners"]) for each in merged]) if merged else 0,
        "status_s": median(asked),
        "help_s": median(helped),
    }


def together(cluster: Cluster, size: int) -> bool:
    """Whether most were in one merge."""
    return any(len(each["learners"]) >= MOST * size for each in cluster.merges())


def messages_of(groups: list[Servant]) -> int:
    """Messages that the learners have sent and received so far."""
    for each in groups:
        each.ask("count")
    return sum(each.answer() for each in groups)


def cpu_s(cluster: Cluster) -> float:
    """CPU seconds of the syncer's own process so far, threads included."""
    stat = Path(f"/proc/{cluster.processes[SYNCER].pid}/stat").read_text()
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def resident_bytes(cluster: Cluster) -> int:
    """Resident memory of the syncer's own process."""
    pages = Path(f"/proc/{cluster.processes[SYNCER].pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def timed(words: list[str]) -> float:
    """Seconds of a ddloco command, from start to end."""
    begun = time.perf_counter()
    subprocess.run([*DDLOCO, *words], cwd=ROOT, capture_output=True, check=True, timeout=60)
    return time.perf_counter() - begun


# The learners.


class Stub:
    """The work of a learner that only waits.

    Args:
        plan: of the job.
        arrays: the actor's.
        step_s: the duration of a step, in seconds.
    """

    def __init__(self, plan: Any, arrays: ArrayTable, step_s: float) -> None:
        self._plan, self._arrays, self._step_s = plan, arrays, step_s
        self._newest: dict[int, Any] = {}

    async def do(self, work: Any) -> Any:
        """Do one piece of work."""
        if isinstance(work, RunStep):
            for each in work.overwrites:
                self._newest[each.fragment] = self._arrays.get(each.handle).data.view(np.float32)
            await trio.sleep(self._step_s)
            return StepFinished(work.work, work.step, 1.0, TOKENS, b"")
        if isinstance(work, EncodeFragment):
            data = (self._newest[work.fragment] * np.float32(0.999)).view(np.uint8)
            payload = Payload(describe(data, wire_layout(self._plan, work.fragment)), data)
            self._arrays.put(work.out, payload)
            return FragmentEncoded(work.work, payload.digest)
        return WorkFailed(work.work, "worker", "a stub does no such work")


class Quiet:
    """A log without a reader."""

    def observe(self, *_: Any) -> None:
        """Say nothing."""


def serve_learners(
    connection: Connection, names: list[str], address: str, path: str, settings: tuple[str, ...]
) -> None:
    """Some of the learners; says how many messages came and went when it is asked."""
    job = load_job(Path(path), list(settings))
    plan = job.plan(LEAVES)
    step_s = STEP_S * max(job.job.learners / AT_FULL_PACE, 1.0)

    async def main() -> None:
        async with open_context() as context, trio.open_nursery() as nursery:
            endpoints = []
            for name in names:
                who, arrays = f"{name}.1", ArrayTable()
                endpoint = new_endpoint(context)
                await dial(endpoint, SYNCER, address, who)
                endpoints.append(endpoint)
                log: Any = Quiet()
                driver = Driver(
                    new_actor(who, machine_for(job, who)),
                    said=JobBody,
                    job_id=job.id,
                    actors=job.names(),
                    endpoint=endpoint,
                    executor=Stub(plan, arrays, step_s),
                    arrays=arrays,
                    recorder=Recorder(None),
                    time=MonotonicTime(),
                    log=log,
                    admits=admission(plan, 0),
                )
                nursery.start_soon(driver.run, Started(who, LEAVES, copies=True))
            while await trio.to_thread.run_sync(connection.recv):
                counts = [each.statistics() for each in endpoints]
                connection.send(sum(c.messages_sent + c.messages_received for c in counts))
            nursery.cancel_scope.cancel()

    trio.run(main)
