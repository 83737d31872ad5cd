"""Workers are forked from one process that has imported JAX, and that is kept for the next of them;
none outlives what it belongs to."""

import os
import resource
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
from ddloco.workers import forking, rpc
from ddloco.workers.environment import worker_environment
from ddloco.workers.forking import IDLE_MAX, discard_idle, start_early
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


def output_of(pid: int) -> str:
    """The file that is a process's standard output."""
    return str(Path(f"/proc/{pid}/fd/1").readlink())


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


@pytest.fixture
def none_idle():
    """No server of another test is there, and none is left."""
    discard_idle()
    yield
    discard_idle()


async def server_of(worker):
    """Open a worker and close it again; its server's process id."""
    with closing(SharedMemory()) as arena:
        async with open_worker("learner-0.1", arena, worker) as process:
            return parent_of(await process.pid())


@pytest.mark.parametrize("nice", [0, 7])
async def test_a_worker_leaves_the_processor_to_actors(opened, nice):
    """Its niceness is as the job file says, also after a worker of another one."""
    worker = await opened("learner-0.1", Worker(nice=nice))
    pid = await worker.pid()
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    wait_until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == min(mine + nice, 19))


async def test_workers_with_one_environment_have_one_server(none_idle):
    """A worker with another environment has its own. Both are kept for the next."""
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
            wait_until_gone(*pids[1:])
            assert isinstance(await answer_of(first), rpc.Failed)
        wait_until_gone(pids[0])
    assert [servers[2], servers[0]] == [
        await server_of(Worker(threads=2)),
        await server_of(Worker()),
    ]


def test_a_server_is_kept_from_one_run_to_the_next(none_idle):
    """A replay right after its run imports no JAX."""
    first, second = (trio.run(server_of, Worker()) for _ in range(2))
    assert first == second


async def test_only_the_last_servers_are_kept(none_idle):
    """Those that had a worker last."""
    servers = [await server_of(Worker(threads=1 + n)) for n in range(IDLE_MAX + 1)]
    wait_until_gone(servers[0])
    assert all(map(is_running, servers[1:]))
    assert await server_of(Worker(threads=2)) == servers[1]


async def test_a_kept_server_that_was_killed_is_replaced(none_idle):
    """As by the system, when memory is short; one that was stopped goes on."""
    first = await server_of(Worker())
    os.kill(first, signal.SIGKILL)
    wait_until_gone(first)
    second = await server_of(Worker())
    os.kill(second, signal.SIGSTOP)
    with trio.fail_after(WAIT_S):
        assert await server_of(Worker()) == second != first


async def test_what_a_process_may_use_is_asked_again(none_idle):
    """A worker has the limits that its process has when the worker is opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first = await server_of(Worker())
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        other = await server_of(Worker())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert first != other
    assert await server_of(Worker()) == first


async def test_a_worker_writes_where_its_process_writes_now(none_idle, opened, tmp_path):
    """Also where the server was started before standard output became another file."""
    await server_of(Worker())
    with (tmp_path / "said").open("wb") as file:
        before = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            pid = await (await opened("learner-0.1")).pid()
        finally:
            os.dup2(before, 1)
            os.close(before)
        wait_until(lambda: command_of(pid).startswith("ddloco worker"))
    assert output_of(pid) == str(tmp_path / "said")
    assert output_of(parent_of(pid)) != output_of(pid)


async def test_a_server_may_be_started_early(none_idle):
    """The first worker with its environment finds it there."""
    env, other = (worker_environment(os.environ, Worker(threads=n)) for n in (1, 2))
    of_other_tests = set(children_of(os.getpid()))
    start_early([env, other, env])
    early = set(children_of(os.getpid())) - of_other_tests
    assert len(early) == 2
    assert await server_of(Worker(threads=1)) in early


async def test_it_is_listed_under_its_actors_name(opened):
    """So that ``ps`` and ``top`` tell the workers of a host apart."""
    pid = await (await opened("learner-7.3")).pid()
    wait_until(lambda: command_of(pid) == "ddloco worker of learner-7.3")


async def test_a_killed_worker_says_so_and_others_go_on(opened):
    """Its actor learns of the signal; the server and its other workers are unharmed."""
    first, second = await opened("learner-0.1"), await opened("learner-1.1")
    os.kill(await first.pid(), signal.SIGKILL)
    known = forking.kills_for_memory() is not None
    why = "the kernel has killed nothing for want of memory" if known else "out of memory?"
    with pytest.raises(WorkerDiedError, match=f"worker process ended, killed by signal 9; {why}"):
        await answer_of(first)
    assert isinstance(await answer_of(second), rpc.Failed)


async def test_a_worker_that_was_killed_for_want_of_memory_says_so(opened, monkeypatch):
    """If the kernel's count has grown since it began; where nothing is counted, it is asked."""
    for before, after, said in ((3, 4, "has killed for want"), (None, None, r"memory\?")):
        monkeypatch.setattr(forking, "kills_for_memory", lambda count=before: count)
        worker = await opened("learner-0.1")
        monkeypatch.setattr(forking, "kills_for_memory", lambda count=after: count)
        os.kill(await worker.pid(), signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match=said):
            await answer_of(worker)


async def test_workers_end_with_their_server(none_idle, opened):
    """No worker is left that no process could end, and its actor is told."""
    process = await opened("learner-0.1")
    pid = await process.pid()
    os.kill(parent_of(pid), signal.SIGKILL)
    wait_until_gone(pid)
    with pytest.raises(WorkerDiedError, match="killed by signal 9"):
        await answer_of(process)


async def test_a_stopped_server_does_not_keep_an_actor_from_ending(none_idle):
    """A SIGSTOP to the process group stops the server as well as the worker."""
    with closing(SharedMemory()) as arena, trio.fail_after(WAIT_S):
        async with open_worker("learner-0.1", arena, Worker()) as process:
            pid = await process.pid()
            server = parent_of(pid)
            for each in (pid, server):
                os.kill(each, signal.SIGSTOP)
    wait_until_gone(pid)


OWNER = """
import os, signal, trio
from ddloco.job.config import Worker
from ddloco.stage.arrays.shared_memory import SharedMemory
from ddloco.workers.process import open_worker

async def main():
    async with open_worker("learner-0.1", SharedMemory(), Worker()) as process:
        print(await process.pid(), flush=True)
        if await trio.to_thread.run_sync(input):
            await trio.sleep_forever()

trio.run(main)
print("over", flush=True)
input()
"""


@pytest.mark.parametrize("how", ["killed", "at its end"])
def test_nothing_outlives_an_actor(how):
    """Neither the worker nor the server, which is kept until its process ends."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", OWNER], **pipes) as owner:
        pid = int(owner.stdout.readline())
        server = parent_of(pid)
        if how == "killed":
            owner.kill()
        else:
            owner.stdin.write("\n")
            owner.stdin.flush()
            assert owner.stdout.readline() == "over\n"
            wait_until_gone(pid)
            assert is_running(server)
            owner.stdin.write("\n")
            owner.stdin.flush()
            assert owner.wait() == 0
    wait_until_gone(pid, server)


async def test_a_server_that_cannot_start_is_named(none_idle, monkeypatch, opened, capfd):
    """Whatever keeps it from importing JAX; its own words are on standard error."""
    monkeypatch.setattr("ddloco.workers.forking.SERVER", "ddloco.workers.absent")
    with pytest.raises(WorkerDiedError, match="worker process ended, exit status 1"):
        await answer_of(await opened("learner-0.1"))
    assert "No module named ddloco.workers.absent" in capfd.readouterr().err
