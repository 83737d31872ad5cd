"""Limits on the connections of a listening socket: their number, and unread bytes per connection.

libzmq limits the bytes of a part (``ZMQ_MAXMSGSIZE``) and the number of complete messages that it
queues (``ZMQ_RCVHWM``), but neither the parts of a message nor the number of connections. It keeps
every part of a message that never ends (3.1 GB in 25 s), and each connection uses a file descriptor
of the process, which may then fail to open its own files. The socket's interface shows none of
this. So this module combines three sources: a socket monitor reports each connection, the kernel
reports how many bytes it has received (``TCP_INFO``), and the endpoint reports which connection a
message came from (``ZMQ_SRCFD``). A connection that exceeds a limit is shut down from outside
libzmq, which then frees what it held. Connections other than tcp are counted but not measured,
because a peer on a Unix socket is a local process with access to the socket file.
"""

import array
import ctypes
import fcntl
import os
import resource
import socket
import struct
import termios
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import trio
import zmq

from transport.endpoint import (
    FRAME_BYTES_MAX,
    PARTS_FORGIVEN,
    PARTS_MAX,
    RECEIVE_QUEUE_MESSAGES_MAX,
)
from transport.trio_socket import TrioSocket

MESSAGE_BYTES_MAX = (PARTS_MAX + 1) * FRAME_BYTES_MAX
"""Bytes that a connection may send without completing a message while we read everything that is
complete: the largest message, and room for the overhead of encryption."""

UNREAD_BYTES_MAX = (RECEIVE_QUEUE_MESSAGES_MAX + 2) * FRAME_BYTES_MAX
"""The same limit while we do not read: as many messages as libzmq queues."""

ALARM = 4
"""A connection beyond this multiple of the limit is shut down at once, without a second look."""

LOOK_S = 0.1
"""Interval between checks; a connection can exceed its limit by what arrives in it, 80 MB on
loopback."""

CONNECTIONS_MIN = 64
DESCRIPTORS_SHARE = 2
"""Peers may use at most half of the process's file descriptors: tapes, logs, snapshots and workers
need the others, and a flood of connections must be detected before the last one is used."""

_libc = ctypes.CDLL(None, use_errno=True)

_EVENT = struct.Struct("=hi")
"""What a socket monitor says: an event, and its value. pyzmq's own function for it imports asyncio,
which every command that asks a syncer would wait for."""

_RECEIVED = struct.Struct("=Q")
_RECEIVED_AT = 128
"""Offset of ``tcpi_bytes_received`` in Linux's ``struct tcp_info``; present since Linux 4.1."""

_TCP_INFO = socket.IPPROTO_TCP, socket.TCP_INFO
_told = ctypes.create_string_buffer(_RECEIVED_AT + _RECEIVED.size)
_told_bytes = ctypes.c_uint()
_told_bytes_at = ctypes.byref(_told_bytes)
"""Where the kernel's answer is written; only trio's thread asks."""

Cut = Callable[[str, str], None]


@dataclass(slots=True)
class Connection:
    """One accepted connection.

    Args:
        inode: inode of its descriptor; the kernel may reuse the descriptor's number later.
        heard_at: when it was accepted or last sent a message.
        spoke: whether it has ever completed a message.
        since_look: whether it completed a message since the last check.
        base: bytes received when it was last checked just after a complete message.
        taken: messages received from all connections at that time.
        beyond: whether it exceeded the limit at the last check.
    """

    inode: int
    heard_at: float
    spoke: bool = False
    since_look: bool = False
    base: int = 0
    taken: int = 0
    beyond: bool = False


class Connections:
    """Watches one listening socket while `run` runs.

    Args:
        listening: the socket, not yet bound.
        name: a name for the monitor, unique in the socket's context.
        cut: called with the reason and the peer's address when a connection is shut down.
        failed: called with libzmq's error code for each failed handshake.
    """

    def __init__(
        self, listening: zmq.Socket[Any], name: str, cut: Cut, failed: Callable[[int], None]
    ) -> None:
        self.limit = connections_max()
        self._listening = listening
        self._all_is_read: Callable[[], bool] = lambda: False
        self._cut = cut
        self._failed = failed
        self._there: dict[int, Connection] = {}
        self._taken = 0
        events = (
            zmq.EVENT_ACCEPTED
            | zmq.EVENT_DISCONNECTED
            | zmq.EVENT_CLOSED
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        )
        address = f"inproc://connections-{name}"
        listening.monitor(address, events)
        told: zmq.Socket[Any] = listening.context.socket(zmq.PAIR)
        told.setsockopt(zmq.LINGER, 0)
        # No high-water mark: with one, libzmq's I/O thread would block until we read.
        told.setsockopt(zmq.RCVHWM, 0)
        told.connect(address)
        self._told = TrioSocket(told)

    def __len__(self) -> int:
        return len(self._there)

    def heard(self, descriptor: int) -> None:
        """Record that a message arrived over that connection."""
        self._taken += 1
        there = self._there.get(descriptor)
        if there is not None:
            there.heard_at, there.spoke, there.since_look = trio.current_time(), True, True

    def excess(self, descriptor: int) -> None:
        """Shut down a connection that sent a message with an implausible number of parts."""
        if descriptor in self._there:
            self._shut(descriptor, f"a message of more than {PARTS_FORGIVEN} parts")

    async def run(self, all_is_read: Callable[[], bool]) -> None:
        """Watch until cancelled or closed; `all_is_read` says if every complete message was
        read."""
        self._all_is_read = all_is_read
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                nursery.start_soon(self._look)
        except* trio.ClosedResourceError:
            pass  # The endpoint reports this, once for all its sockets.

    async def aclose(self) -> None:
        """Stop watching. Call this before closing the socket: `ctx.term` waits for an open monitor
        for ever."""
        if not self._listening.closed:
            self._listening.disable_monitor()
        await self._told.aclose()

    async def _watch(self) -> None:
        while True:
            said, _ = await self._told.recv_multipart()
            event, value = _EVENT.unpack(said)
            if event == zmq.EVENT_ACCEPTED:
                self._accepted(value)
            elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                self._failed(value)
            else:
                self._there.pop(value, None)

    def _accepted(self, descriptor: int) -> None:
        inode = _inode(descriptor)
        if inode is None:
            return
        self._there[descriptor] = Connection(inode, trio.current_time(), taken=self._taken)
        while len(self._there) > self.limit:
            # Shut down the one that never sent a message, or else the one silent for longest.
            oldest = min(self._there, key=lambda each: self._dispensable(self._there[each]))
            self._shut(oldest, f"more than {self.limit} connections, and this one is idle")

    def _dispensable(self, there: Connection) -> tuple[bool, float]:
        return there.spoke, there.heard_at

    async def _look(self) -> None:
        while True:
            await trio.sleep(LOOK_S)
            for descriptor in list(self._there):
                self._look_at(descriptor, self._there[descriptor])

    def _look_at(self, descriptor: int, there: Connection) -> None:
        """Shut a connection down if it sent too many bytes without completing a message."""
        received = _received(descriptor)
        if received is None:  # It is closed, or not tcp.
            self._forget_other(descriptor, there)
        elif there.since_look:
            there.since_look, there.beyond = False, False
            there.base, there.taken = received - _waiting(descriptor), self._taken
        elif received - there.base <= MESSAGE_BYTES_MAX:  # Nearly always, and it is cheap to see.
            there.beyond = False
        elif not self._forget_other(descriptor, there):
            self._judge(descriptor, there, received - _waiting(descriptor) - there.base)

    def _forget_other(self, descriptor: int, there: Connection) -> bool:
        """Forget a connection if its descriptor belongs to something else by now."""
        if _inode(descriptor) == there.inode:
            return False
        del self._there[descriptor]
        return True

    def _judge(self, descriptor: int, there: Connection, nbytes: int) -> None:
        """Shut a connection down if so many bytes without a complete message are too many."""
        # Sockets are read in turn, so by now a complete message of this one would have been read.
        turns = self._taken - there.taken > len(self._there)
        limit = MESSAGE_BYTES_MAX if turns or self._all_is_read() else UNREAD_BYTES_MAX
        if nbytes <= limit:
            there.beyond = False
        elif there.beyond or nbytes > ALARM * limit:
            self._shut(descriptor, f"{nbytes} bytes, and no message among them")
        else:
            there.beyond = True  # Shut down at the second check: our process may have been paused.

    def _shut(self, descriptor: int, reason: str) -> None:
        there = self._there.pop(descriptor)
        if _inode(descriptor) != there.inode:
            return
        peer = socket.socket(fileno=descriptor)
        name: Any = ""
        try:
            with suppress(OSError):  # The peer may close it at any time.
                name = peer.getpeername()
            _break(peer)
        finally:
            peer.detach()
        self._cut(reason, f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "")


def connections_max() -> int:
    """The number of connections that this process can accept."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(descriptors // DESCRIPTORS_SHARE, CONNECTIONS_MIN)


def _break(peer: socket.socket) -> None:
    """Break a connection whose descriptor libzmq will close.

    After `shutdown` libzmq would continue reading for as long as the peer sends. Connecting
    the socket to `AF_UNSPEC` resets a tcp connection at once and discards its unread bytes.
    """
    nowhere = struct.pack("=H14x", socket.AF_UNSPEC)
    if peer.family == socket.AF_UNIX or _libc.connect(peer.fileno(), nowhere, len(nowhere)):
        with suppress(OSError):
            peer.shutdown(socket.SHUT_RDWR)


def _inode(descriptor: int) -> int | None:
    """The inode of an open descriptor; None if it is closed."""
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return None


def _received(descriptor: int) -> int | None:
    """The bytes that the kernel has received for a connection; None if it cannot tell.

    A thousand learners have two thousand connections, so this is called 20,000 times a second. A
    socket object for each call would take three times as long.
    """
    _told_bytes.value = _RECEIVED_AT + _RECEIVED.size
    if _libc.getsockopt(descriptor, *_TCP_INFO, _told, _told_bytes_at):
        return None
    if _told_bytes.value < _RECEIVED_AT + _RECEIVED.size:
        return None
    return _RECEIVED.unpack_from(_told, _RECEIVED_AT)[0]


def _waiting(descriptor: int) -> int:
    """The bytes of a connection that libzmq has not read yet; 0 if it has just been closed."""
    waiting = array.array("i", [0])
    with suppress(OSError):
        fcntl.ioctl(descriptor, termios.FIONREAD, waiting)
    return waiting[0]
