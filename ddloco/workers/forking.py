"""The actor's side of a fork server: starting it, and having it fork workers.

``fork_server`` is the process. All workers that are open at a time in one trio run, with the same
environment and in the same folder, come from one server.
"""

import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import trio

from ddloco.workers.fork_protocol import (
    NEWS_BYTES_MAX,
    Began,
    Ended,
    Fork,
    NotForked,
    decode_news,
    encode_fork,
)

SERVER = "ddloco.workers.fork_server"
"""The module that the server runs."""


class ForkedWorker:
    """A worker process that a server forks, or will fork.

    Args:
        status: messages about it arrive here.
        server: the fork server.

    Attributes:
        code: its exit status, negative if a signal ended it; None before.
    """

    def __init__(self, status: socket.socket, server: "ForkServerProcess") -> None:
        self._status = trio.socket.from_stdlib_socket(status)
        self._server = server
        self.code: int | None = None
        self._pid = 0
        self._ended = ""
        self._one_reads = trio.Lock()

    async def pid(self) -> int:
        """The process id, once there is one; 0 if it ended before that."""
        await self._heard(lambda: self._pid != 0)
        return self._pid

    async def wait(self) -> str:
        """Wait for its end, and say how it ended."""
        await self._heard(lambda: False)
        return self._ended

    def kill(self) -> None:
        """Kill it, if it has not ended."""
        self._server.wake()
        with suppress(OSError):  # It has ended: the server closed its side.
            self._status.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket; the worker is killed if it runs."""
        self._status.close()

    async def _heard(self, enough: Callable[[], bool]) -> None:
        async with self._one_reads:
            while not self._ended and not enough():
                said = await self._status.recv(NEWS_BYTES_MAX)
                match decode_news(said) if said else None:
                    case Began(pid):
                        self._pid = pid
                    case Ended(code, said):
                        self.code = code
                        self._ended = _ending(code) + (f": {said}" if said else "")
                    case NotForked(reason):
                        self._ended = f"could not be forked: {reason}"
                    case None:
                        self._ended = await self._server.wait()


class ForkServerProcess:
    """A running fork server. Starts at once, and does not wait until it has imported JAX.

    Args:
        env: the environment of the server and all its workers.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, _signals_blocked():
            self._process = subprocess.Popen(  # noqa: S603, our own interpreter and module
                # -P: modules in the current folder, where tasks are, must not hide ours.
                [sys.executable, "-P", "-m", SERVER, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=env,
                stdin=subprocess.DEVNULL,
            )
        self.workers = 0
        """How many workers need it."""

    def fork(self, fork: Fork, link: socket.socket, shared: Sequence[int]) -> ForkedWorker:
        """Have a worker forked.

        Args:
            fork: what is asked for.
            link: the worker's end of the socket for requests.
            shared: the descriptors of the arena's files.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            fds = [theirs.fileno(), link.fileno(), *([0] if fork.turns else []), *shared]
            # If the server has ended, reading ``ours`` will tell.
            with suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(self._control, [encode_fork(fork)], fds)
        return ForkedWorker(ours, self)

    def wake(self) -> None:
        """Have it continue, if it was stopped together with its workers (SIGSTOP)."""
        self._process.send_signal(signal.SIGCONT)

    async def wait(self) -> str:
        """Wait for its end, and say how it ended."""
        return _ending(await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True))

    def discard(self) -> None:
        """Kill it; it has no workers."""
        self._control.close()
        self._process.kill()
        self._process.wait()

    async def aclose(self) -> None:
        """Have it end, and wait for that."""
        self._control.close()
        self.wake()
        with trio.CancelScope(shield=True):
            await self.wait()


_Key = tuple[object, ...]

_early: dict[_Key, ForkServerProcess] = {}
"""Servers that were started before anything needs them."""

_servers: trio.lowlevel.RunVar[dict[_Key, ForkServerProcess]] = trio.lowlevel.RunVar("fork servers")


def _key(env: Mapping[str, str]) -> _Key:
    """What workers of one server have in common: the environment, and the folder of the task."""
    return (Path.cwd(), *sorted(env.items()))


@contextmanager
def started_early(envs: Iterable[Mapping[str, str]]) -> Iterator[None]:
    """Start the fork servers of these environments, so that they import JAX while the caller does
    something else. At the end, those that no worker has needed are killed."""
    keys = {_key(env): env for env in envs}
    _early.update({key: ForkServerProcess(env) for key, env in keys.items()})
    try:
        yield
    finally:
        for key in keys:
            if key in _early:
                _early.pop(key).discard()


@asynccontextmanager
async def open_fork_server(env: Mapping[str, str]) -> AsyncIterator[ForkServerProcess]:
    """Open the fork server of an environment, or use the one that is open already. It is
    closed when its last worker is."""
    try:
        servers = _servers.get()
    except LookupError:
        _servers.set(servers := {})
    key = _key(env)
    if key not in servers:
        servers[key] = _early.pop(key, None) or ForkServerProcess(env)
    server = servers[key]
    server.workers += 1
    try:
        yield server
    finally:
        server.workers -= 1
        if not server.workers:
            del servers[key]
            await server.aclose()


def _ending(code: int) -> str:
    """How a process ended, with a likely cause if it was killed by a signal."""
    if code >= 0:
        return f"exit status {code}"
    said = f"killed by signal {-code}"
    room, _ = resource.getrlimit(resource.RLIMIT_AS)
    if room != resource.RLIM_INFINITY:
        return (
            f"{said}; it may use {room / 2**30:.1f} GiB of address space (ulimit -v), too little?"
        )
    return f"{said}; out of memory?" if -code == signal.SIGKILL else said


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block SIGINT and SIGTERM in processes started in this context, until they unblock them.

    These signals may be sent to the process group at any time, even while Python is still starting
    in the new process.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
