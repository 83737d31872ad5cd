"""Processes of a job: who is signalled, whose end is a failure, and what follows from it."""

import os
import signal
import socket
import subprocess
from contextlib import asynccontextmanager, suppress

import pytest
import trio

from ddloco.job.config import job_from
from ddloco.roles.job_program import program_of
from ddloco.stage.nodes.subprocesses import Child, Processes, last_words

JOB = job_from({"job": {"task": "x:y", "learners": 2}}, "test")
STOP, CONT, KILL = signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL


class FakeChild:
    """A process that ends when it is told to."""

    result = None

    def __init__(self, code=0, said="", doomed=False):
        self.ended = trio.Event()
        self.doomed = doomed
        self.asked = 0
        self._end = (code, said)

    def ask_to_stop(self):
        self.asked += 1

    async def wait(self):
        await trio.lowlevel.checkpoint()
        self.ended.set()
        return self._end


@pytest.fixture
def processes(tmp_path):
    """A job with a syncer and two learners, none of them real."""
    made = Processes(program_of(JOB), tmp_path)
    made._children = {name: FakeChild() for name in ("syncer", "learner-0", "learner-1")}
    return made


async def end(processes, name, child):
    """Let a process end, and everything follow from it."""
    processes._children[name] = child
    await processes._watch(name, child)


async def test_the_last_end_is_the_syncer_s_to_follow(processes):
    """When no learner runs, the syncer is asked to end the job."""
    await end(processes, "learner-0", FakeChild())
    assert processes.newest("syncer").asked == 0
    await end(processes, "learner-1", FakeChild())
    assert processes.newest("syncer").asked == 1


async def test_who_will_come_back_is_waited_for(processes):
    """The job continues without a learner as long as one is to come."""
    processes.awaited = {"learner-0"}
    await end(processes, "learner-0", FakeChild(-KILL, doomed=True))
    await end(processes, "learner-1", FakeChild(-KILL, doomed=True))
    assert processes.newest("syncer").asked == 0
    processes.awaited.clear()
    await end(processes, "learner-0", FakeChild(-KILL, doomed=True))
    assert processes.newest("syncer").asked == 1


@pytest.mark.parametrize(
    ("child", "failures"),
    [
        (FakeChild(-KILL), {"learner-0": "killed by SIGKILL"}),
        (FakeChild(-KILL, doomed=True), {}),
        (FakeChild(1, "Traceback\nddloco: a bug\n", doomed=True), {"learner-0": "a bug"}),
        (FakeChild(1), {"learner-0": "exit status 1"}),
        (FakeChild(0), {}),
    ],
)
async def test_only_unwanted_ends_are_failures(processes, child, failures):
    """What chaos kills has not failed; what fails on its own has, also on the way out."""
    await end(processes, "learner-0", child)
    assert failures == processes.outcome.failures


async def test_a_failure_is_not_forgotten(processes):
    """A later incarnation that ends well does not undo what happened to an earlier one."""
    await end(processes, "learner-0", FakeChild(1, "it broke"))
    await end(processes, "learner-0", FakeChild(0))
    assert processes.outcome.failures == {"learner-0": "it broke"}


async def test_no_process_is_brought_back_at_the_end(processes):
    """Once the job is ending no process is started any more."""
    processes._dialled = {"learner-0": ["tcp://127.0.0.1:1"]}
    processes.awaited = {"learner-0"}
    processes.request_stop("enough")
    before = processes.newest("learner-0")
    await processes.bring("learner-0")
    assert processes.newest("learner-0") is before
    assert processes.awaited == set()
    assert processes.newest("syncer").asked == 1


def test_last_words():
    """The last line that says something, out of its frame."""
    assert last_words("  | ValueError: no\n  +-------\n\n") == "ValueError: no"
    assert last_words("one\nddloco: bad\n") == "bad"
    assert last_words("") == ""


def state(pid):
    """One letter: T is stopped; empty if there is no such process."""
    found = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], text=True, capture_output=True, check=False
    )
    return found.stdout[:1].replace("Z", "")


async def until(condition):
    """Wait for a process to become so."""
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110, processes set no event
            await trio.sleep(0.02)


@asynccontextmanager
async def group(script):
    """A shell that leads a process group of its own; nothing of it is left behind."""
    ours, theirs = socket.socketpair()
    process = await trio.lowlevel.open_process(
        ["sh", "-c", script], stdin=theirs, stderr=subprocess.PIPE, start_new_session=True
    )
    theirs.close()
    try:
        yield Child(process, trio.SocketStream(trio.socket.from_stdlib_socket(ours)))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, KILL)


@pytest.mark.parametrize(
    ("script", "result"),
    [
        ("""echo '{"t": 3}' >&0""", {"t": 3}),
        ("""printf '{"t": ' >&0; printf '3}' >&0""", {"t": 3}),
        ("""printf '{"t": ' >&0""", None),
        ("echo 3 >&0", None),
        ("true", None),
    ],
)
async def test_a_result_is_heard_whole_or_not_at_all(script, result):
    """An actor tells it on its standard input, which is a socket."""
    async with group(script) as child:
        assert await child.wait() == (0, "")
        assert child.result == result


async def test_a_process_group_is_stopped_slowed_and_swept(tmp_path):
    """All of it stops, or all but the actor; and no worker, stopped or not, outlives its actor."""
    noted = tmp_path / "worker"
    async with group(f"sleep 100 & echo $! > {noted}; wait") as child:
        actor = child.process.pid
        await until(lambda: noted.exists() and noted.read_text())
        worker = int(noted.read_text())

        child.send(STOP)
        await until(lambda: state(actor) == state(worker) == "T")
        child.send(CONT)
        await until(lambda: "T" not in state(actor) + state(worker))
        child.send_worker(STOP)
        await until(lambda: state(worker) == "T")
        await until(lambda: state(actor) != "T")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.wait)
            os.kill(actor, KILL)
            with trio.fail_after(30):
                await child.ended.wait()
        await until(lambda: not state(worker))
