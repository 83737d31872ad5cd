"""The process from which workers are forked: it has imported JAX, which takes about a second of a
core, and has used none of it. Each message on its socket asks for one worker: a ``Fork``, with
descriptors; another reports its process id and its end; when the actor closes that, the worker is
killed. Workers do not outlive the server, the server does not outlive the process that started it,
and what a worker has started ends with it.

A fork is safe here because no JAX backend has been opened yet: the only threads are those of
numpy's OpenBLAS, which stops them before a fork and starts them again when they are needed.
"""

import ctypes
import gc
import os
import re
import selectors
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import setproctitle

from ddloco.stage.process.terminal import outlive_readers
from ddloco.workers import server
from ddloco.workers.fork_protocol import (
    FORK_BYTES_MAX,
    FORK_FDS_MAX,
    SAID_CHARS_MAX,
    Began,
    Ended,
    Fork,
    News,
    NotForked,
    decode_fork,
    encode_news,
)

XLA_HEAD = re.compile(r"^[IWEF][0-9]{4} [0-9:.]+ +[0-9]+ [\w./]+:[0-9]+\] ")
"""Before each line of XLA's log: severity and date, time, thread, source."""

PR_SET_PDEATHSIG = 1
"""See prctl(2): the signal that a process gets when its parent has ended."""

PR_SET_CHILD_SUBREAPER = 36
"""See prctl(2): a process whose descendants become its children when their parents have ended. The
server and its workers are such ones: so the server has what a worker leaves behind, and a worker
that lives keeps what it has started."""

ORPHANS_S = 0.5
"""How long, in seconds, what a worker has left behind may take to end by itself: it may have files
to remove."""

ORPHANS_LOOK_S = 0.02


@dataclass
class _Child:
    """A worker that runs.

    Attributes:
        status: where its end is reported.
        saying: the file into which it writes what it says while it opens its devices.
    """

    status: socket.socket
    saying: int
    errors: int

    def close(self) -> None:
        self.status.close()
        os.close(self.saying)
        os.close(self.errors)


class ForkServer:
    """Forks workers and reports how they end; ``control`` closes when no more are needed."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._request = control, FORK_BYTES_MAX, FORK_FDS_MAX
        self._children: dict[int, _Child] = {}
        self._reaps = False
        """Whether what workers leave behind is this process's to end."""
        self._woken, self._waker = socket.socketpair()
        for each in (self._woken, self._waker):
            each.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._selector = selectors.DefaultSelector()
        for each in (control, self._woken):
            self._selector.register(each, selectors.EVENT_READ)

    def become_reaper(self) -> None:
        """Have what workers leave behind become children of this process, which has no others."""
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._reaps = True

    def serve(self) -> tuple[Fork, list[int]] | None:
        """Serve until the control socket closes, then kill the workers that are left. Returns, in
        the process of a new worker only, what was asked for and the descriptors; the last one is of
        a file for what it says while it opens its devices."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    self._reap()
                elif key.fileobj is not self._control:
                    self._kill(key.data)
                else:
                    message, fds, _, _ = socket.recv_fds(*self._request)
                    if not message:
                        self._end()
                        return None
                    if self._fork(fds):
                        return decode_fork(message), fds

    def _fork(self, fds: list[int]) -> bool:
        """Fork a worker; returns, in its process only, True."""
        status = socket.socket(fileno=fds.pop(0))
        parent = os.getpid()
        saying = _nameless_file()
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns of any thread; which ones there are is said above.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as error:
            _tell(status, NotForked(os.strerror(error.errno or 0)))
            status.close()
            pid = -1
        if pid == 0:
            self._become_worker(parent)
            # Before the worker can answer anything, so that its actor has the number by then.
            _tell(status, Began(os.getpid()))
            status.close()
            fds.append(saying)
            return True
        link, output, errors, *rest = fds
        for each in (link, output, *rest, *(() if pid > 0 else (errors, saying))):
            os.close(each)
        if pid > 0:
            self._children[pid] = _Child(status, saying, errors)
            self._selector.register(status, selectors.EVENT_READ, pid)
        return False

    def _become_worker(self, parent: int) -> None:
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        if os.getppid() != parent:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.close()

    def close(self) -> None:
        self._selector.close()
        for each in (self._control, self._woken, self._waker, *self._children.values()):
            each.close()

    def _kill(self, pid: int) -> None:
        """Kill a worker that its actor does not want any more, unless it has been reaped: then the
        number may be another process's."""
        if pid in self._children:
            os.kill(pid, signal.SIGKILL)
            self._forget(self._children[pid].status)

    def _forget(self, status: socket.socket) -> None:
        with suppress(KeyError):
            self._selector.unregister(status)

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            self._woken.recv(4096)
        for pid in list(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended == pid:
                child = self._children.pop(pid)
                self._forget(child.status)
                said = said_before_end(child)
                self._end_orphans()
                _tell(child.status, Ended(os.waitstatus_to_exitcode(status), said))
                child.close()

    def _end(self) -> None:
        for pid in list(self._children):
            self._kill(pid)
            os.waitpid(pid, 0)
            del self._children[pid]
        self._end_orphans()

    def _end_orphans(self) -> None:
        deadline = time.monotonic() + ORPHANS_S
        while self._reaps and (orphans := self._orphans()):
            over = time.monotonic() >= deadline
            for pid in orphans:
                if over:
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0 if over else os.WNOHANG)
            if not over:
                time.sleep(ORPHANS_LOOK_S)

    def _orphans(self) -> list[int]:
        found: list[int] = []
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # A thread that has ended, or a kernel that does not tell.
                found += map(int, (task / "children").read_text().split())
        return [pid for pid in found if pid not in self._children]


def _nameless_file() -> int:
    """The descriptor of a file without a name; in memory, where the system lets us."""
    with suppress(OSError):  # Some sandboxes have no memfd_create.
        return os.memfd_create("ddloco worker says")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _tell(link: socket.socket, news: News) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):
        link.send(encode_news(news))


def said_before_end(child: _Child) -> str:
    """What a worker has said that ended while it opened its devices: all of it goes to its standard
    error, the last line is returned, without the head that XLA's log gives it."""
    with open(child.saying, "rb", closefd=False) as file:
        file.seek(0)
        said = file.read()
    with suppress(OSError), open(child.errors, "wb", closefd=False) as errors:
        errors.write(said)
    text = said.decode(errors="replace")
    last = text.rstrip("\n").rpartition("\n")[2]
    return XLA_HEAD.sub("", last).strip()[:SAID_CHARS_MAX]


def run_worker(fork: Fork, fds: list[int]) -> None:
    setproctitle.setproctitle(f"ddloco worker of {fork.name}")
    code = 1
    try:
        os.chdir(fork.folder)
        link, saying = socket.socket(fileno=fds.pop(0)), fds.pop()
        for stream in (1, 2, 0) if fork.turns else (1, 2):
            os.dup2(fds[0], stream)
            os.close(fds.pop(0))
        outlive_readers()  # User code may print, and nobody may read it any more.
        shared = [fds.pop(0) if each else -1 for each in fork.shared]
        code = server.serve_requests(fork, link, shared, saying)
    except SystemExit as error:  # From user code.
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001, as the interpreter does for a program of its own
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # There is nothing to save, and JAX exits slowly.


def serve_forks() -> None:
    setproctitle.setproctitle("ddloco fork server")
    gc.collect()
    gc.freeze()  # So that workers need not copy what they only share.
    server = ForkServer(socket.socket(fileno=int(sys.argv[1])))
    server.become_reaper()
    forked = server.serve()
    if forked is not None:
        run_worker(*forked)
    os._exit(0)


if __name__ == "__main__":
    serve_forks()
