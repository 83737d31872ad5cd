"""The actor's side of a fork server: starting it, and having it fork workers. All workers of a
process with the same environment and limits come from one server, also one after the other: a
replay right after its run imports no JAX."""

import atexit
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress

import trio

from ddloco.stage.process.memory import kills_for_memory
from ddloco.workers.fork_protocol import (
    FOR_ACTOR,
    NEWS_BYTES_MAX,
    Began,
    Ended,
    Fork,
    NotForked,
    decode_news,
    encode_fork,
)

SERVER = "ddloco.workers.fork_server"

IDLE_MAX = 2
"""How many servers without a worker are kept for the next one, those that were in use last: each
takes about 180 MB of memory and no processor time, and a new one a second of a core."""

LIMITS = [number for name, number in sorted(vars(resource).items()) if name.startswith("RLIMIT_")]
"""The limits that the system has for a process (``ulimit``)."""


class ForkedWorker:
    """A worker process that a server forks, or will fork. ``code`` is its exit status, negative if
    a signal ended it; None before."""

    def __init__(self, status: socket.socket, server: "ForkServerProcess") -> None:
        self._status = trio.socket.from_stdlib_socket(status)
        self._server = server
        self.code: int | None = None
        self._pid = 0
        self._ended = ""
        self._kills_before = kills_for_memory()
        self._one_reads = trio.Lock()

    async def pid(self) -> int:
        """The process id, once there is one; 0 if it ended before that."""
        await self._heard(lambda: self._pid != 0)
        return self._pid

    async def wait(self) -> str:
        await self._heard(lambda: False)
        return self._ended

    def kill(self) -> None:
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
                        how = _ending(code, self._kills_before)
                        self._ended = f"{how}: {said}" if said else how
                    case NotForked(reason):
                        self._ended = f"could not be forked: {reason}"
                    case None:
                        self._ended = await self._server.wait()


class ForkServerProcess:
    """A running fork server. Starts at once, and does not wait until it has imported JAX."""

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

    def fork(self, fork: Fork, link: socket.socket, shared: Sequence[int]) -> ForkedWorker:
        """Have a worker forked, with the descriptors of the arena's files. It writes to what are
        this process's standard output and standard error now."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs, _outputs() as outputs:
            fds = [theirs.fileno(), link.fileno(), *outputs, *([0] if fork.turns else []), *shared]
            # If the server has ended, reading ``ours`` will tell.
            with suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(self._control, [encode_fork(fork)], fds)
        return ForkedWorker(ours, self)

    def wake(self) -> None:
        """Have it continue, if it was stopped together with its workers (SIGSTOP)."""
        self._process.send_signal(signal.SIGCONT)

    def has_ended(self) -> bool:
        """Whether it has closed its end of the socket, on which it never says anything."""
        try:
            return self._control.recv(1, socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    async def wait(self) -> str:
        return _ending(await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True))

    def discard(self) -> None:
        self._control.close()
        self._process.kill()
        self._process.wait()


_Key = tuple[object, ...]

_servers: dict[_Key, ForkServerProcess] = {}
"""The servers of this process; those without a worker in the order in which they lost the last."""

_lock = threading.Lock()
"""Held while ``_servers`` is changed: jobs may run in several threads."""


def _key(env: Mapping[str, str]) -> _Key:
    """What workers of one server have in common, since they inherit it: the environment, and what
    the system lets them use."""
    limits = (resource.getrlimit(each) for each in LIMITS)
    return (*limits, frozenset(os.sched_getaffinity(0)), *sorted(env.items()))


def start_early(envs: Iterable[Mapping[str, str]]) -> None:
    """Start the fork servers of these environments, so that they import JAX while the caller does
    something else."""
    with _lock:
        for env in envs:
            _server_of(_key(env), env)


def _server_of(key: _Key, env: Mapping[str, str]) -> ForkServerProcess:
    """The server that is there, unless it has ended meanwhile, or a new one."""
    server = _servers.get(key)
    if server is not None and not server.workers and server.has_ended():
        _servers.pop(key).discard()
        server = None
    if server is None:
        server = _servers[key] = ForkServerProcess(env)
    return server


@asynccontextmanager
async def open_fork_server(env: Mapping[str, str]) -> AsyncIterator[ForkServerProcess]:
    """Open the fork server of an environment, or use the one that is there. Once it has no worker
    it is kept for the next, until ``IDLE_MAX`` others have lost theirs or this process ends."""
    key = _key(env)
    with _lock:
        server = _server_of(key, env)
        server.workers += 1
    server.wake()
    try:
        yield server
    finally:
        with _lock:
            server.workers -= 1
            if not server.workers:
                _servers[key] = _servers.pop(key)
                discard_idle(IDLE_MAX)


def discard_idle(kept: int = 0) -> None:
    """End the servers without a worker, except so many of those that were in use last."""
    idle = [key for key, each in _servers.items() if not each.workers]
    for key in idle[: max(0, len(idle) - kept)]:
        _servers.pop(key).discard()


atexit.register(discard_idle)


@contextmanager
def _outputs() -> Iterator[list[int]]:
    """The descriptors of standard output and standard error; where one is closed, of no file."""
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123, a descriptor is what is wanted
        yield [each if _is_open(each) else nowhere.fileno() for each in (1, 2)]


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _ending(code: int, kills_before: int | None = None) -> str:
    """How a process ended, with a likely cause if it was killed by a signal; ``kills_before`` is
    what ``kills_for_memory`` had counted when it began, None if that is not known."""
    if code >= 0:
        return f"exit status {code}"
    said = f"killed by signal {-code}"
    room, _ = resource.getrlimit(resource.RLIMIT_AS)
    if room != resource.RLIM_INFINITY:
        return (
            f"{said}; it may use {room / 2**30:.1f} GiB of address space (ulimit -v), too little?"
        )
    if -code != signal.SIGKILL:
        return said
    kills = kills_for_memory()
    if kills is None or kills_before is None:
        return f"{said}; out of memory?"
    if kills > kills_before:
        return f"{said}; the kernel has killed for want of memory meanwhile"
    return f"{said}; the kernel has killed nothing for want of memory meanwhile"


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block the signals for the actor in processes started in this context, until they unblock
    them. They may be sent to the process group while Python is still starting in the new
    process."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_ACTOR)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
