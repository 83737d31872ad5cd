"""The fork server, where the system has no process for it."""

import errno
import os
import signal
import socket

import pytest

from ddloco.workers.fork_protocol import Fork, NotForked, decode_news, encode_fork
from ddloco.workers.fork_server import ForkServer, _nameless_file


@pytest.fixture
def control():
    """Both ends of a control socket; the signals of this process are as before afterwards."""
    handler, wakeup = signal.getsignal(signal.SIGCHLD), signal.set_wakeup_fd(-1)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs
    signal.signal(signal.SIGCHLD, handler)
    signal.set_wakeup_fd(wakeup)


def test_too_many_processes_are_an_answer(control, monkeypatch):
    """The server continues, and the actor that asked is told why there is no worker."""

    def fork():
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fork)
    ours, theirs = control
    status, status_there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link, link_there = socket.socketpair()
    with status, link:
        with status_there, link_there:
            fds = [status_there.fileno(), link_there.fileno(), 1, 2]
            socket.send_fds(ours, [encode_fork(Fork("learner-0.1", ()))], fds)
        ours.shutdown(socket.SHUT_WR)
        server = ForkServer(theirs)
        assert server.serve() is None
        server.close()
        assert decode_news(status.recv(4096)) == NotForked("Resource temporarily unavailable")
        assert status.recv(4096) == b"", "nothing of the worker is kept"
        assert link.recv(4096) == b""


def test_without_files_in_memory_there_is_a_temporary_one(monkeypatch):
    """Some sandboxes have no memfd_create."""

    def refused(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "memfd_create", refused)
    descriptor = _nameless_file()
    try:
        os.write(descriptor, b"said")
        os.lseek(descriptor, 0, os.SEEK_SET)
        assert os.read(descriptor, 10) == b"said"
    finally:
        os.close(descriptor)
