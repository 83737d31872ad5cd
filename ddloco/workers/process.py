"""Starting a JAX worker process and asking it things, from the actor's side."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import TypeVar

import trio

from ddloco.config.job import Worker
from ddloco.runtime.shared_memory import Arena
from ddloco.workers import rpc
from ddloco.workers.environment import worker_environment

T = TypeVar("T")

READ_BYTES = 65536
"""Answers are short; only the description of a very large model takes more than one read."""

EXIT_S_MAX = 5.0
"""How long a worker whose socket closed may take to exit before we stop asking why."""


class WorkerDiedError(Exception):
    """The worker process is gone; its exit status is in the text."""


class ChoreError(Exception):
    """A worker answered that it could not; whose fault it is, and why."""

    def __init__(self, failed: rpc.Failed) -> None:
        super().__init__(failed.reason)
        self.failed = failed


def fitting(answer: rpc.Answer, answer_type: type[T]) -> T:
    """The answer, if it is of the one type that fits.

    Raises:
        ChoreError: the worker could not do it.
    """
    if isinstance(answer, rpc.Failed):
        raise ChoreError(answer)
    assert isinstance(answer, answer_type), f"{type(answer).__name__} is no answer to this"
    return answer


async def _fitting(coming: Awaitable[rpc.Answer], answer_type: type[T]) -> T:
    return fitting(await coming, answer_type)


class WorkerProcess:
    """One worker: requests are answered in order, one at a time."""

    def __init__(self, process: subprocess.Popen[bytes], link: socket.socket) -> None:
        self._process = process
        self._socket = link
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(link))
        self.show_trace: Callable[[str], None] = _print_trace
        """Told where user code raised."""
        self._line: deque[trio.Event] = deque()
        """Who asks, and who waits to ask, in order. A lock would not do: who waits for a lock has
        its place when its task has run, and a later request may begin before that."""

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def ask(self, request: rpc.Request) -> Awaitable[rpc.Answer]:
        """Take a place in line now, whatever else begins before the answer is awaited; the answer.

        A request that is the first in line leaves at once, while the event that asked for it is
        still being handled: the worker computes while reports are sent and written.

        Raises, when awaited:
            WorkerDiedError: the process ended first.
        """
        message, turn = rpc.framed(request), trio.Event()
        self._line.append(turn)
        sent = self._line[0] is turn and self._send_now(message)
        return self._answer(message, turn, sent=sent)

    def _send_now(self, message: bytes) -> bool:
        try:
            sent = self._socket.send(message)
        except BlockingIOError:
            return False
        except OSError:
            return True  # It is gone, as reading will find.
        assert sent == len(message), "a socket pair takes a short message whole or not at all"
        return True

    async def _answer(self, message: bytes, turn: trio.Event, *, sent: bool) -> rpc.Answer:
        try:
            if not sent:
                if self._line[0] is not turn:
                    await turn.wait()
                with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self._stream.send_all(message)
            answer = rpc.decode_answer(await self._read())
        except (trio.BrokenResourceError, trio.ClosedResourceError, EOFError):
            raise WorkerDiedError(f"worker process ended, {await self._status()}") from None
        finally:
            self._line.remove(turn)
            if self._line:
                self._line[0].set()
        if isinstance(answer, rpc.Failed) and answer.trace:
            self.show_trace(answer.trace)
        return answer

    def expect(self, request: rpc.Request, answer_type: type[T]) -> Awaitable[T]:
        """As ``ask``, for an answer of the one type that fits.

        Raises, when awaited:
            ChoreError: the worker could not do it.
            WorkerDiedError: the process ended first.
        """
        return _fitting(self.ask(request), answer_type)

    async def _read(self) -> bytes:
        """One whole message; nothing follows it before the next request."""
        data = bytearray()
        wanted = rpc.LENGTH_BYTES
        while len(data) < wanted:
            piece = await self._stream.receive_some(READ_BYTES)
            if not piece:
                raise EOFError
            data += piece
            if len(data) >= rpc.LENGTH_BYTES:
                size = int.from_bytes(data[: rpc.LENGTH_BYTES], "little")
                wanted = rpc.LENGTH_BYTES + size
        return bytes(data[rpc.LENGTH_BYTES :])

    async def _status(self) -> str:
        with trio.move_on_after(EXIT_S_MAX):
            code = await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
            return _ended(code)
        return "and does not exit"

    async def aclose(self) -> None:
        """End the process and see it end; it has nothing to lose, and JAX is slow to leave."""
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(self._stream)
            self._process.kill()
            await trio.to_thread.run_sync(self._process.wait)


def _ended(code: int) -> str:
    """How a process ended, and what that often means where it cannot say so itself."""
    if code >= 0:
        return f"exit status {code}"
    said = f"killed by signal {-code}"
    room, _ = resource.getrlimit(resource.RLIMIT_AS)
    if room != resource.RLIM_INFINITY:
        return (
            f"{said}; it may use {room / 2**30:.1f} GiB of address space (ulimit -v), too little?"
        )
    return f"{said}; out of memory?" if -code == signal.SIGKILL else said


def _print_trace(trace: str) -> None:
    sys.stderr.write(trace)
    sys.stderr.flush()


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """A process that begins in here has SIGINT and SIGTERM blocked, until it has said otherwise.

    They may be sent to our whole group at any moment, also while Python starts in the new process.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
        shared = arena.filenos()
        with _signals_blocked():
            process = subprocess.Popen(  # noqa: S603, ASYNC220, our own interpreter and module
                # -P: the current folder, where tasks come from, must not hide our own modules.
                [
                    *(sys.executable, "-P", "-m", "ddloco.workers.server"),
                    *(str(theirs.fileno()), ",".join(map(str, shared)), name),
                ],
                pass_fds=[theirs.fileno(), *(each for each in shared if each >= 0)],
                env=worker_environment(os.environ, worker, recorded),
                stdin=subprocess.DEVNULL,
            )
    opened = WorkerProcess(process, ours)
    try:
        yield opened
    finally:
        await opened.aclose()
