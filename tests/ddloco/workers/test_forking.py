"""Workers are forked from one process that has imported JAX; none outlives what it belongs to."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, closing
from pathlib import Path

import pytest
import trio

from ddloco.job.config import Worker
from ddloco.stage.arrays.shared_memory import SharedMemory
from ddloco.workers import rpc
from ddloco.workers.environment import worker_environment
from ddloco.workers.forking import started_early
from ddloco.workers.process import WorkerDiedError, open_worker
from tests.children import children_of

WAIT_S = 30.0


@pytest.fixture
async def opened():
    """Give a function that opens a worker, which is open until the test ends."""
    async with AsyncExitStack() as stack:

        async def open_one(name, worker=None):
            arena = stack.enter_context(closing(SharedMemory()))
            return await stack.enter_async_context(open_worker(name, arena, worker or Worker()))

        yield open_one


def command_of(pid: int) -> str:
    """A process as ``ps`` lists it."""
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0")


def parent_of(pid: int) -> int:
    """The process that started another."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that other processes do."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def wait_until_gone(*pids: int) -> None:
    """Wait until none of these processes runs."""
    wait_until(lambda: not any(is_running(pid) for pid in pids))


def is_running(pid: int) -> bool:
    """Whether a process is there, and no zombie that its parent has not asked about."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def answer_of(process) -> object:
    """The answer to a request that needs no task."""
    [coming] = process.ask(rpc.Score(None))
    return await coming


async def test_workers_with_one_environment_have_one_server():
    """The server ends with the last of them. A worker with another environment has its own."""
    with closing(SharedMemory()) as arena:
        async with open_worker("learner-0.1", arena, Worker()) as first:
            async with (
                open_worker("learner-1.1", arena, Worker()) as second,
                open_worker("learner-2.1", arena, Worker(threads=2)) as other,
            ):
                pids = [await each.pid() for each in (first, second, other)]
                servers = [parent_of(pid) for pid in pids]
            assert len(set(pids)) == 3
            assert servers[0] == servers[1] != servers[2]
            wait_until_gone(*pids[1:], servers[2])
            assert isinstance(await answer_of(first), rpc.Failed)
        wait_until_gone(pids[0], servers[0])


async def test_a_server_may_be_started_early():
    """The first worker with its environment finds it there. One that no worker needed is gone."""
    env, other = (worker_environment(os.environ, Worker(threads=n)) for n in (1, 2))
    of_other_tests = set(children_of(os.getpid()))
    with closing(SharedMemory()) as arena, started_early([env, other, env]):
        early = set(children_of(os.getpid())) - of_other_tests
        async with open_worker("learner-0.1", arena, Worker(threads=1)) as process:
            server = parent_of(await process.pid())
            assert server in early
        assert not is_running(server)
    wait_until_gone(*early)


async def test_it_is_listed_under_its_actors_name(opened):
    """So that ``ps`` and ``top`` tell the workers of a host apart."""
    pid = await (await opened("learner-7.3")).pid()
    wait_until(lambda: command_of(pid) == "ddloco worker of learner-7.3")


async def test_a_killed_worker_says_so_and_others_go_on(opened):
    """Its actor learns of the signal; the server and its other workers are unharmed."""
    first, second = await opened("learner-0.1"), await opened("learner-1.1")
    os.kill(await first.pid(), signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match="worker process ended, killed by signal 9"):
        await answer_of(first)
    assert isinstance(await answer_of(second), rpc.Failed)


async def test_workers_end_with_their_server(opened):
    """No worker is left that no process could end, and its actor is told."""
    process = await opened("learner-0.1")
    pid = await process.pid()
    os.kill(parent_of(pid), signal.SIGKILL)
    wait_until_gone(pid)
    with pytest.raises(WorkerDiedError, match="killed by signal 9"):
        await answer_of(process)


async def test_a_stopped_server_does_not_keep_an_actor_from_ending():
    """A SIGSTOP to the process group stops the server as well as the worker."""
    with closing(SharedMemory()) as arena, trio.fail_after(WAIT_S):
        async with open_worker("learner-0.1", arena, Worker()) as process:
            pid = await process.pid()
            server = parent_of(pid)
            for each in (pid, server):
                os.kill(each, signal.SIGSTOP)
    wait_until_gone(pid, server)


OWNER = """
import os, signal, trio
from ddloco.job.config import Worker
from ddloco.stage.arrays.shared_memory import SharedMemory
from ddloco.workers.process import open_worker

async def main():
    async with open_worker("learner-0.1", SharedMemory(), Worker()) as process:
        print(await process.pid(), flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


def test_nothing_outlives_a_killed_actor():
    """Neither the worker nor the server."""
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as owner:
        pid = int(owner.stdout.readline())
        server = parent_of(pid)
        owner.kill()
    wait_until_gone(pid, server)


async def test_a_server_that_cannot_start_is_named(monkeypatch, opened, capfd):
    """Whatever keeps it from importing JAX; its own words are on standard error."""
    monkeypatch.setattr("ddloco.workers.forking.SERVER", "ddloco.workers.absent")
    with pytest.raises(WorkerDiedError, match="worker process ended, exit status 1"):
        await answer_of(await opened("learner-0.1"))
    assert "No module named ddloco.workers.absent" in capfd.readouterr().err
