"""The actor's side of a JAX worker process: starting it and sending it requests."""

import contextlib
import math
import os
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import trio
from msgspec.structs import replace

from ddloco.job.config import Worker
from ddloco.stage.arrays.shared_memory import SharedMemory
from ddloco.stage.process.entry_point import KeptModules
from ddloco.workers import rpc
from ddloco.workers.environment import worker_environment
from ddloco.workers.fork_protocol import Fork, Rank
from ddloco.workers.forking import ForkedWorker, ForkServerProcess, open_fork_server
from ddloco.workers.ranks import local_ranks

T = TypeVar("T")

DISMISS_S_MAX = 8.0
"""How long, in seconds, the other processes of a learner may take to end in good order."""

LAST_LOOK_S = 0.5
"""How long, in seconds, is looked once more for a sign of life that should have come."""

EXIT_S_MAX = 5.0
"""How long, in seconds, to wait for the exit status of a worker whose socket has closed."""


class WorkerDiedError(Exception):
    """The worker process has ended; the text contains its exit status."""


class WorkerRequestError(Exception):
    """The worker answered that it could not fulfil a request; says why, and who is at fault."""

    def __init__(self, failed: rpc.Failed) -> None:
        super().__init__(failed.reason)
        self.failed = failed


def fitting(answer: rpc.Answer, answer_type: type[T]) -> T:
    """Return the answer, if it has the expected type; ``WorkerRequestError`` if the request
    failed."""
    if isinstance(answer, rpc.Failed):
        raise WorkerRequestError(answer)
    assert isinstance(answer, answer_type), f"{type(answer).__name__} is no answer to this"
    return answer


async def _fitting(coming: Awaitable[rpc.Answer], answer_type: type[T]) -> T:
    return fitting(await coming, answer_type)


@dataclass(frozen=True)
class _Coming(Awaitable[T]):
    """An answer that may be awaited once. Unlike a coroutine, it causes no warning if it is never
    awaited, as when a task is cancelled while it waits for an earlier answer."""

    wait: Callable[[], Awaitable[T]]

    def __await__(self) -> Generator[Any, Any, T]:
        return self.wait().__await__()


@dataclass(eq=False, slots=True)
class _Request:
    """A request without an answer: what the socket has not taken yet, and ``first``, set once all
    earlier requests have been answered."""

    unsent: bytes
    first: trio.Event = field(default_factory=trio.Event)


class WorkerProcess:
    """One worker; it answers requests in order, one at a time. If it has several processes,
    ``process`` is rank 0's, ``others`` are those on this host, and one may give no sign of life for
    ``stall_s`` seconds."""

    def __init__(
        self,
        process: ForkedWorker,
        link: socket.socket,
        others: Sequence[ForkedWorker] = (),
        stall_s: float = math.inf,
    ) -> None:
        self._process = process
        self._others = others
        self._stall_s = stall_s
        self._tells_of_life = False
        """Whether it has told so once: then it does again and again."""
        self._socket = link
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(link))
        self.show_trace: Callable[[rpc.Failed], None] = _print_trace
        """Called with the answer when user code raises."""
        self.note: Callable[[str, dict[str, Any]], None] = lambda *_: None
        """Called with what the worker has to say for the actor's log."""
        self._line: deque[_Request] = deque()
        """The running request and those that wait, in order. A lock would not do: a task enters a
        lock's queue only when it is scheduled, so a later request could overtake it."""
        self._received = bytearray()

    async def pid(self) -> int:
        return await self._process.pid()

    def ask(self, *requests: rpc.Request) -> list[Awaitable[rpc.Answer]]:
        """Enqueue requests at once, even if answers are awaited later; an answer raises
        ``WorkerDiedError`` if the process ended first. The worker computes while reports are
        written, and goes from one request to the next without waiting for the actor. Requests that
        follow each other are best asked for together: with the first, the kernel may run the worker
        in place of the actor, before it sends the second. Only where the socket is full, a request
        waits for its turn."""
        entries = [_Request(rpc.framed(request)) for request in requests]
        if not any(each.unsent for each in self._line):
            self._send_now(entries)
        self._line += entries
        return [_Coming(partial(self._answer, entry)) for entry in entries]

    def _send_now(self, entries: list[_Request]) -> None:
        try:
            sent = self._socket.send(b"".join(each.unsent for each in entries))
        except BlockingIOError:
            return
        except OSError:  # The process has ended; reading the answer will report it.
            sent = sum(len(each.unsent) for each in entries)
        for each in entries:
            sent_of_it = min(sent, len(each.unsent))
            each.unsent = each.unsent[sent_of_it:]
            sent -= sent_of_it

    async def _answer(self, entry: _Request) -> rpc.Answer:
        try:
            if self._line[0] is not entry:
                await entry.first.wait()
            if entry.unsent:
                with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self._stream.send_all(entry.unsent)
                entry.unsent = b""
            answer = await self._read()
        except (trio.BrokenResourceError, trio.ClosedResourceError, EOFError):
            raise WorkerDiedError(f"worker process ended, {await self._status()}") from None
        finally:
            self._line.remove(entry)
            if self._line:
                self._line[0].first.set()
        if isinstance(answer, rpc.Failed) and answer.trace:
            self.show_trace(answer)
        return answer

    def expect(self, request: rpc.Request, answer_type: type[T]) -> Awaitable[T]:
        """Like ``ask``, for an answer of one expected type; else it raises
        ``WorkerRequestError``."""
        (coming,) = self.ask(request)
        return _Coming(partial(_fitting, coming, answer_type))

    async def _read(self) -> rpc.Answer:
        """Read the next answer; what follows it belongs to the one after. ``EOFError`` if the
        process has closed the socket, ``WorkerDiedError`` if it gave no sign of life for too
        long."""
        while True:
            start = rpc.LENGTH_BYTES
            await self._receive(start)
            end = start + int.from_bytes(self._received[:start], "little")
            await self._receive(end)
            answer = rpc.decode_answer(self._received[start:end])
            del self._received[:end]
            match answer:
                case rpc.Alive():
                    self._tells_of_life = True
                case rpc.Told(event, fields):
                    self.note(event, fields)
                case _:
                    return answer

    async def _receive(self, nbytes: int) -> None:
        stall_s = self._stall_s if self._tells_of_life else math.inf
        while len(self._received) < nbytes:
            piece = await received_in_time(self._stream, stall_s)
            if piece is None:
                self._process.kill()
                said = f"worker process gave no sign of life for {stall_s:g} s"
                raise WorkerDiedError(said)
            if not piece:
                raise EOFError
            self._received += piece

    async def _status(self) -> str:
        with trio.move_on_after(EXIT_S_MAX):
            return await self._process.wait()
        return "and does not exit"

    async def dismiss(self, *, final: bool) -> None:
        """Have the processes on other hosts end in good order; ``final`` if not for another
        incarnation."""
        with trio.move_on_after(DISMISS_S_MAX), contextlib.suppress(WorkerDiedError):
            await self.expect(rpc.Dismiss(final), rpc.Ready)

    async def aclose(self) -> None:
        """Kill the process and wait for its end; it has nothing to save, and JAX exits slowly."""
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(self._stream)
            for each in (self._process, *self._others):
                each.kill()
            for each in (self._process, *self._others):
                await each.wait()
                each.close()


def _print_trace(failed: rpc.Failed) -> None:
    sys.stderr.write(failed.trace)
    sys.stderr.flush()


@contextlib.asynccontextmanager
async def open_worker(
    name: str,
    arena: SharedMemory,
    worker: Worker,
    recorded: Mapping[str, str] | None = None,
    kept: KeptModules | None = None,
    *,
    turns: Path | None = None,
    rank: Rank | None = None,
) -> AsyncIterator[WorkerProcess]:
    """Open a worker with the environment that ``worker`` describes; killed on exit. If it has
    several processes, all are started here, unless ``rank`` says that the others are started
    elsewhere. ``recorded`` is the fingerprint of a replay's tape, ``turns`` the file by which
    workers take turns at the terminal, where the task's own ``breakpoint()`` opens a debugger."""
    env = worker_environment(os.environ, worker, recorded, name)
    ranks = [rank] if rank is not None else local_ranks(worker)
    async with open_fork_server(env) as server:
        shared = arena.filenos()
        at_prompt = str(turns) if turns is not None else ""
        folder = str(Path.cwd())
        comes = tuple(each >= 0 for each in shared)
        fork = Fork(name, comes, kept, at_prompt, ranks[0], folder, worker.nice)
        forked, link = _forked(server, fork, [each for each in shared if each >= 0])
        others = [
            _forked(server, replace(fork, shared=(), turns="", rank=each), ()) for each in ranks[1:]
        ]
        stall_s = worker.stall_s if ranks[0] is not None else math.inf
        opened = WorkerProcess(forked, link, [each for each, _ in others], stall_s)
        try:
            yield opened
        finally:
            await opened.aclose()
            for _, each in others:
                each.close()


async def run_other_rank(
    name: str, worker: Worker, rank: Rank, met: Callable[[], None]
) -> tuple[int | None, str]:
    """Run a process that follows the rank 0 of a learner, which is elsewhere; killed if this is
    cancelled, or if it gives no sign of life. ``met`` is called at its signs of life, which begin
    when it has met the others. Returns its exit status, and how it ended in words."""
    async with open_fork_server(worker_environment(os.environ, worker)) as server:
        fork = Fork(name, (), rank=rank, folder=str(Path.cwd()), nice=worker.nice)
        forked, link = _forked(server, fork, ())
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(link))
        stuck = ended = ""
        try:
            if await _ends_by_itself(stream, worker.stall_s, met):
                with trio.move_on_after(EXIT_S_MAX):
                    await forked.wait()
            else:
                stuck = f"no sign of life for {worker.stall_s:g} s, "
        finally:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)
                forked.kill()
                ended = await forked.wait()
                forked.close()
        return forked.code, stuck + ended


async def _ends_by_itself(
    stream: trio.SocketStream, stall_s: float, alive: Callable[[], None]
) -> bool:
    """Wait until a process has ended, or has given no sign of life for too long after it once
    did; ``alive`` is called at each sign."""
    most_s = math.inf
    with contextlib.suppress(trio.BrokenResourceError):
        while piece := await received_in_time(stream, most_s):
            most_s = stall_s
            alive()
        return piece is not None
    return True


async def received_in_time(stream: trio.SocketStream, most_s: float) -> bytes | bytearray | None:
    """Return what arrives next, empty at the end; None if nothing arrives for so many seconds. If
    this process was stopped meanwhile, the time is over, but something may have arrived."""
    for wait_s in (most_s, LAST_LOOK_S):
        with trio.move_on_after(wait_s):
            return await stream.receive_some(rpc.READ_BYTES)
    return None


def _forked(
    server: ForkServerProcess, fork: Fork, shared: Sequence[int]
) -> tuple[ForkedWorker, socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        return server.fork(fork, theirs, shared), ours
