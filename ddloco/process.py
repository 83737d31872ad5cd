"""Starting a JAX worker process and asking it things, from the actor's side."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from typing import TypeVar

import trio

from ddloco import chores
from ddloco.arena import Arena
from ddloco.config import Worker
from ddloco.environment import worker_environment

T = TypeVar("T")

EXIT_S_MAX = 5.0
"""How long a worker may take to notice that its socket is closed before it is killed."""


class WorkerDiedError(Exception):
    """The worker process is gone; its exit status is in the text."""


class ChoreError(Exception):
    """A worker answered that it could not; whose fault it is, and why."""

    def __init__(self, failed: chores.Failed) -> None:
        super().__init__(failed.reason)
        self.failed = failed


class WorkerProcess:
    """One worker: requests are answered in order, one at a time."""

    def __init__(self, process: subprocess.Popen[bytes], stream: trio.SocketStream) -> None:
        self._process = process
        self._stream = stream
        self._turn = trio.Lock()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def ask(self, request: chores.Request) -> chores.Answer:
        """Send a request, wait for its answer.

        Raises:
            WorkerDiedError: the process ended first.
        """
        async with self._turn:
            try:
                await self._stream.send_all(chores.framed(request))
                size = int.from_bytes(await self._read(chores.LENGTH_BYTES), "little")
                return chores.decode_answer(await self._read(size))
            except (trio.BrokenResourceError, trio.ClosedResourceError, EOFError):
                raise WorkerDiedError(f"worker process ended, {await self._status()}") from None

    async def expect(self, request: chores.Request, answer_type: type[T]) -> T:
        """Send a request, wait for an answer of the one type that fits it.

        Raises:
            ChoreError: the worker could not do it.
            WorkerDiedError: the process ended first.
        """
        answer = await self.ask(request)
        if isinstance(answer, chores.Failed):
            raise ChoreError(answer)
        assert isinstance(answer, answer_type), f"{type(answer).__name__} is no answer to this"
        return answer

    async def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = await self._stream.receive_some(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    async def _status(self) -> str:
        with trio.move_on_after(EXIT_S_MAX):
            code = await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
            return f"killed by signal {-code}" if code < 0 else f"exit status {code}"
        return "and does not exit"

    async def aclose(self) -> None:
        """Close the socket and see the process end; killed if it does not."""
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(self._stream)
            for _ in range(int(EXIT_S_MAX / 0.05)):
                if self._process.poll() is not None:
                    return
                if self._turn.locked():
                    break  # In the middle of a chore that nobody waits for.
                await trio.sleep(0.05)
            self._process.kill()
            await trio.to_thread.run_sync(self._process.wait)


@contextlib.asynccontextmanager
async def open_worker(
    name: str, arena: Arena, worker: Worker, recorded: Mapping[str, str] | None = None
) -> AsyncIterator[WorkerProcess]:
    """A worker process with the environment that ``worker`` describes, ended on leaving.

    Args:
        name: whose worker it is, for people who look at the processes of a machine.
        arena: its shared memory.
        worker: threads and environment, from the job file.
        recorded: for a replay, the environment that the fingerprint on the tape names.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        descriptors = (theirs.fileno(), arena.fileno())
        process = subprocess.Popen(  # noqa: S603, ASYNC220, our own interpreter and module
            [sys.executable, "-m", "ddloco.worker", *map(str, descriptors), name],
            pass_fds=descriptors,
            env=worker_environment(os.environ, worker, recorded),
            stdin=subprocess.DEVNULL,
        )
    opened = WorkerProcess(process, trio.SocketStream(trio.socket.from_stdlib_socket(ours)))
    try:
        yield opened
    finally:
        await opened.aclose()
