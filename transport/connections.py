"""The connections of a socket that listens: how many there may be, and what each may make us hold.

libzmq bounds the bytes of a part (``ZMQ_MAXMSGSIZE``) and how many whole messages it takes in
(``ZMQ_RCVHWM``), but neither the parts of a message nor the connections. Of a message that never
ends it keeps every part, 3.1 GB in 25 s; and each connection takes a descriptor of the process,
which then cannot open its own files. Nothing of that is seen through the socket. So a monitor tells
of each connection, the kernel how many bytes it has brought (``TCP_INFO``), the endpoint whose
message it was given (``ZMQ_SRCFD``), and who is beyond a limit is shut down from outside: libzmq
finds the connection closed, and lets go of what it held. Connections that are not tcp are counted,
not measured: whoever may use a socket file is of this machine, and known to it.
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
from zmq.utils.monitor import parse_monitor_message

from transport.endpoint import (
    FRAME_BYTES_MAX,
    PARTS_FORGIVEN,
    PARTS_MAX,
    RECEIVE_QUEUE_MESSAGES_MAX,
)
from transport.trio_socket import TrioSocket

MESSAGE_BYTES_MAX = (PARTS_MAX + 1) * FRAME_BYTES_MAX
"""What a connection may bring without a message of it being whole, while everything that is whole
is taken in: the largest message, and room for what keys add to it."""

UNREAD_BYTES_MAX = (RECEIVE_QUEUE_MESSAGES_MAX + 2) * FRAME_BYTES_MAX
"""The same while we ourselves do not read: as many messages as libzmq takes in."""

ALARM = 4
"""So many times the limit is not forgiven even once."""

LOOK_S = 0.1
"""How often is looked: what comes in between is beyond the limit, 80 MB on loopback."""

CONNECTIONS_MIN = 64
DESCRIPTORS_SHARE = 2
"""At most every second descriptor of the process is a peer's: tapes, logs, snapshots and workers
need theirs, and a flood must be found before the last one is taken."""

_libc = ctypes.CDLL(None, use_errno=True)

_RECEIVED = struct.Struct("=Q")
_RECEIVED_AT = 128
"""Where ``tcpi_bytes_received`` stands in Linux' ``struct tcp_info``; since 4.1."""

Cut = Callable[[str, str], None]


@dataclass(slots=True)
class Connection:
    """One connection: ``inode`` is what its descriptor names, which may name another one later.

    ``base`` is what it had brought when it was last looked at with nothing unfinished to blame it
    for, ``taken`` how many messages had been taken in of everybody by then; ``beyond`` says that
    it was over the limit when looked at last.
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
        name: of the socket; no other in its context has it.
        cut: told why a connection was shut down, and from where it came.
        failed: told of each handshake that failed, with libzmq's number for the reason.
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
        # Without a mark: at one, libzmq's own thread would wait for us to read.
        told.setsockopt(zmq.RCVHWM, 0)
        told.connect(address)
        self._told = TrioSocket(told)

    def __len__(self) -> int:
        return len(self._there)

    def heard(self, descriptor: int) -> None:
        """A message was taken in, of that connection."""
        self._taken += 1
        there = self._there.get(descriptor)
        if there is not None:
            there.heard_at, there.spoke, there.since_look = trio.current_time(), True, True

    def excess(self, descriptor: int) -> None:
        """A message of that connection has more parts than anybody says by mistake."""
        if descriptor in self._there:
            self._shut(descriptor, f"a message of more than {PARTS_FORGIVEN} parts")

    async def run(self, all_is_read: Callable[[], bool]) -> None:
        """Watch, until cancelled or closed; asks whether no whole message waits to be read."""
        self._all_is_read = all_is_read
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                nursery.start_soon(self._look)
        except* trio.ClosedResourceError:
            pass  # The endpoint says so, once for all its sockets.

    async def aclose(self) -> None:
        """Stop watching; to be called before the socket is closed: `ctx.term` waits for an open
        monitor for ever."""
        if not self._listening.closed:
            self._listening.disable_monitor()
        await self._told.aclose()

    async def _watch(self) -> None:
        while True:
            parts = [bytes(part) for part in await self._told.recv_multipart()]
            event = parse_monitor_message(parts)
            value = int(event["value"])
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._accepted(value)
            elif event["event"] == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                self._failed(value)
            else:
                self._there.pop(value, None)

    def _accepted(self, descriptor: int) -> None:
        inode = _inode(descriptor)
        if inode is None:
            return
        self._there[descriptor] = Connection(inode, trio.current_time(), taken=self._taken)
        while len(self._there) > self.limit:
            # Whoever has said nothing goes first, and of those whoever has had most time to.
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
        """Whether a connection has brought too much that is no whole message."""
        if _inode(descriptor) != there.inode:
            del self._there[descriptor]
            return
        brought = _brought(descriptor)
        if brought is None:
            return
        if there.since_look:
            there.since_look, there.beyond = False, False
            there.base, there.taken = brought, self._taken
            return
        # Sockets are read in turns: whoever had a whole message would have been heard by now.
        turns = self._taken - there.taken > len(self._there)
        limit = MESSAGE_BYTES_MAX if turns or self._all_is_read() else UNREAD_BYTES_MAX
        if brought - there.base <= limit:
            there.beyond = False
        elif there.beyond or brought - there.base > ALARM * limit:
            self._shut(descriptor, f"{brought - there.base} bytes, and no message among them")
        else:
            there.beyond = True  # Twice in a row: we may only have been stopped for a while.

    def _shut(self, descriptor: int, reason: str) -> None:
        there = self._there.pop(descriptor)
        if _inode(descriptor) != there.inode:
            return
        peer = socket.socket(fileno=descriptor)
        name: Any = ""
        try:
            with suppress(OSError):  # It may go by itself at any time.
                name = peer.getpeername()
            _break(peer)
        finally:
            peer.detach()
        self._cut(reason, f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "")


def connections_max() -> int:
    """How many connections this process can bear."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(descriptors // DESCRIPTORS_SHARE, CONNECTIONS_MIN)


def _break(peer: socket.socket) -> None:
    """Break a connection that somebody else will close.

    `shutdown` would leave libzmq reading for as long as the peer goes on sending. Connecting to
    nowhere resets a tcp connection at once, with all that it has brought and that was not read.
    """
    nowhere = struct.pack("=H14x", socket.AF_UNSPEC)
    if peer.family == socket.AF_UNIX or _libc.connect(peer.fileno(), nowhere, len(nowhere)):
        with suppress(OSError):
            peer.shutdown(socket.SHUT_RDWR)


def _inode(descriptor: int) -> int | None:
    """What a descriptor names now; None for nothing."""
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return None


def _brought(descriptor: int) -> int | None:
    """The bytes that libzmq has taken from a connection; None where that is not known."""
    peer = socket.socket(fileno=descriptor)
    try:
        told = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + _RECEIVED.size)
        waiting = array.array("i", [0])
        fcntl.ioctl(descriptor, termios.FIONREAD, waiting)
    except OSError:
        return None
    finally:
        peer.detach()
    if len(told) < _RECEIVED_AT + _RECEIVED.size:
        return None
    return _RECEIVED.unpack_from(told, _RECEIVED_AT)[0] - waiting[0]
