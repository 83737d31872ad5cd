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

Connections are counted in a thread: libzmq's I/O thread accepts thousands in a second, and an event
loop that is busy for a tenth of a second would see them when no descriptor is left.
"""

import array
import ctypes
import fcntl
import os
import resource
import select
import socket
import struct
import termios
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio
import zmq

from transport.endpoint import (
    FRAME_BYTES_MAX,
    PARTS_FORGIVEN,
    PARTS_MAX,
    RECEIVE_QUEUE_MESSAGES_MAX,
)

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

HANDSHAKE_S_MAX = 10.0
"""A connection that has not completed its handshake in this time, in seconds from when it was
accepted, is closed by libzmq. It is a few round trips, one of which may wait for a busy process."""

READMITTED_S, READMITTED_FACTOR, READMITTED_S_MAX = 1.0, 2.0, 30.0
"""Whose connection was cut for what it sent is admitted again after this time, which grows with
each cut up to the maximum. libzmq may hold several such messages of one connection, and while their
parts are dropped, a tenth of a second each, nobody else is heard. So even a peer that dials again
at once for ever takes a few hundredths of the time."""

FORGIVEN_S = 600.0
"""Who was not cut for this time, in seconds, begins with the first delay again."""

OFFENDERS_MAX = 1024
"""Offenders that are remembered; beyond that the one cut longest ago is forgotten."""

NEWS_MAX = 1024
"""Reports of cut connections and failed handshakes that wait for the event loop; the oldest are
discarded, as only the newest is shown."""

WATCH_S = 1.0
"""How often the thread looks for connections if libzmq reports none; it also bounds how long the
thread outlives a socket that was closed without `aclose`."""

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
        address: the peer's address without its port; empty if it is not tcp.
        heard_at: when it was accepted or last sent a message.
        owner: the name that belongs to its key; empty until its first message, and without keys.
        spoke: whether it has ever completed a message that was not dropped.
        since_look: whether it completed a message since the last check.
        base: bytes received when it was last checked just after a complete message.
        taken: messages received from all connections at that time.
        beyond: whether it exceeded the limit at the last check.
        cut: whether it was shut down; libzmq closes its descriptor when its messages are read.
    """

    inode: int
    address: str
    heard_at: float
    owner: str = ""
    spoke: bool = False
    since_look: bool = False
    base: int = 0
    taken: int = 0
    beyond: bool = False
    cut: bool = False


@dataclass(slots=True)
class Offender:
    """When a peer was last cut for what it sent, and from when it is admitted again."""

    cut_at: float
    delay_s: float

    @property
    def admitted_at(self) -> float:
        return self.cut_at + self.delay_s


class Offenders:
    """Peers whose connections were cut for what they sent: addresses, or with keys actors."""

    def __init__(self) -> None:
        self._known: dict[str, Offender] = {}
        """By name; the one cut most recently is last."""

    def add(self, who: str, now: float) -> None:
        """Remember that a connection of ``who`` was cut; each time doubles its delay."""
        known = self._known.pop(who, None)
        if known is not None and now < known.admitted_at:
            # Another of its connections, opened before the first was cut.
            self._known[who] = known
            return
        delay_s = READMITTED_S
        if known is not None and now - known.cut_at < FORGIVEN_S:
            delay_s = min(known.delay_s * READMITTED_FACTOR, READMITTED_S_MAX)
        while len(self._known) >= OFFENDERS_MAX:
            del self._known[next(iter(self._known))]
        self._known[who] = Offender(now, delay_s)

    def wait_s(self, who: str, now: float) -> float:
        """How long ``who`` is not admitted yet, in seconds; at most 0 if it is."""
        known = self._known.get(who)
        return known.admitted_at - now if known is not None else 0.0


class Connections:
    """Watches one listening socket from its creation until `aclose`; `run` measures bytes."""

    def __init__(
        self, listening: zmq.Socket[Any], name: str, cut: Cut, failed: Callable[[int], None]
    ) -> None:
        self.limit = connections_max()
        self._listening = listening
        self._all_is_read: Callable[[], bool] = lambda: False
        self._news: deque[Callable[[], None]] = deque(maxlen=NEWS_MAX)
        """Calls of ``cut`` and ``failed`` that wait for the event loop."""
        self._report_cut = cut
        self._report_failed = failed
        self._lock = threading.Lock()
        """Guards the following against the thread."""
        self._there: dict[int, Connection] = {}
        self._offenders = Offenders()
        self._taken = 0
        self._closed = False
        events = (
            zmq.EVENT_ACCEPTED
            | zmq.EVENT_DISCONNECTED
            | zmq.EVENT_CLOSED
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_MONITOR_STOPPED
        )
        listening.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_S_MAX * 1000))
        address = f"inproc://connections-{name}"
        listening.monitor(address, events)
        self._told: zmq.Socket[Any] = listening.context.socket(zmq.PAIR)
        self._told.setsockopt(zmq.LINGER, 0)
        # No high-water mark: with one, libzmq's I/O thread would block until we read.
        self._told.setsockopt(zmq.RCVHWM, 0)
        self._told.connect(address)
        self._thread = threading.Thread(target=self._watch, name="connections", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._there)

    def heard(self, descriptor: int, owner: str = "") -> bool:
        """Record that a message arrived over that connection; False if it is to be dropped, because
        the connection was cut, or is cut now that its ``owner`` is known."""
        now = time.monotonic()
        if not self._knows(descriptor) and not self._closed:
            self._take_told()  # Libzmq reports a connection before its first message.
        with self._lock:
            self._taken += 1
            there = self._there.get(descriptor)
            if there is None:
                return True
            if there.cut:
                return False
            there.heard_at, there.since_look, there.owner = now, True, owner
            return not owner or self._admits(descriptor, owner, now)

    def spoke(self, descriptor: int) -> None:
        """Record that a message was not dropped: its connection is not cut to make room while there
        are others."""
        there = self._there.get(descriptor)
        if there is not None:
            there.spoke = True

    def excess(self, descriptor: int) -> None:
        with self._lock:
            self._offended(descriptor, f"a message of more than {PARTS_FORGIVEN} parts")

    async def run(self, all_is_read: Callable[[], bool]) -> None:
        """Measure until cancelled or closed; `all_is_read` says if every complete message was
        read."""
        self._all_is_read = all_is_read
        await self._look()

    async def aclose(self) -> None:
        """Stop watching. Call this before closing the socket: `ctx.term` waits for an open monitor
        for ever."""
        self._closed = True
        if not self._listening.closed:
            self._listening.disable_monitor()  # The thread reads that it was, and ends.
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._thread.join)
        self._told.close()

    def _knows(self, descriptor: int) -> bool:
        """Whether the descriptor belongs to a connection that was reported, not to a later one."""
        there = self._there.get(descriptor)
        return there is not None and there.inode == _inode(descriptor)

    # In the thread.

    def _watch(self) -> None:
        wakes = select.poll()
        wakes.register(self._told.FD, select.POLLIN)
        with suppress(zmq.ZMQError):  # The context was closed before the endpoint was.
            while not self._closed:
                self._take_told()
                wakes.poll(WATCH_S * 1000)

    def _accepted(self, descriptor: int) -> None:
        inode = _inode(descriptor)
        if inode is None:
            return
        now, address = time.monotonic(), _address(descriptor)[0]
        self._there[descriptor] = Connection(inode, address, now, taken=self._taken)
        if not self._admits(descriptor, address, now):
            return
        if len(self._there) > self.limit:
            self._shut(
                self._least_missed(descriptor),
                f"more than {self.limit} connections, and this one is idle",
            )

    def _least_missed(self, newest: int) -> int:
        """The connection to shut down, for there are too many. While one that was cut is still
        open, which it is until its messages are read, shutting down another that sent messages may
        free nothing; so the newest goes, which sent none yet."""
        there = self._there
        if any(each.cut for each in there.values()):
            return newest
        held = Counter(each.address for each in there.values() if not each.spoke)
        return min(there, key=lambda each: self._dispensable(there[each], held))

    def _dispensable(self, there: Connection, held: Counter[str]) -> tuple[bool, int, float]:
        """First those that never sent a message, of the address that has the most of them, and of
        these the one silent for longest."""
        return there.spoke, -held[there.address] if not there.spoke else 0, there.heard_at

    # In both.

    def _take_told(self) -> None:
        """Take what libzmq reports until there is no more, which clears the edge of its FD."""
        while True:
            with self._lock:  # It guards the monitor as well, which two threads must not read.
                if not int(self._told.getsockopt(zmq.EVENTS)) & int(zmq.POLLIN):
                    return
                self._take(*_EVENT.unpack(self._told.recv_multipart(zmq.NOBLOCK)[0]))

    # In both, with the lock.

    def _take(self, event: int, value: int) -> None:
        if event == zmq.EVENT_ACCEPTED:
            self._accepted(value)
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            self._news.append(partial(self._report_failed, value))
        else:
            self._there.pop(value, None)

    def _admits(self, descriptor: int, who: str, now: float) -> bool:
        wait_s = self._offenders.wait_s(who, now)
        if wait_s > 0.0:
            self._shut(descriptor, f"a connection of it was cut, it may dial in {wait_s:.0f} s")
        return wait_s <= 0.0

    def _offended(self, descriptor: int, reason: str) -> None:
        """Shut a connection down for what it sent; with keys, all of the same actor."""
        there = self._there.get(descriptor)
        if there is None or there.cut:
            return
        who = there.owner or there.address
        if who:
            self._offenders.add(who, time.monotonic())
        self._shut(descriptor, reason)
        for other, each in list(self._there.items()):
            if there.owner and each.owner == there.owner and not each.cut:
                self._shut(other, reason)

    # In the event loop.

    async def _look(self) -> None:
        while True:
            await trio.sleep(LOOK_S)
            while self._news:
                self._news.popleft()()
            with self._lock:
                for descriptor, there in list(self._there.items()):
                    if not there.cut:
                        self._look_at(descriptor, there)

    def _look_at(self, descriptor: int, there: Connection) -> None:
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
        # Sockets are read in turn, so by now a complete message of this one would have been read.
        turns = self._taken - there.taken > len(self._there)
        limit = MESSAGE_BYTES_MAX if turns or self._all_is_read() else UNREAD_BYTES_MAX
        if nbytes <= limit:
            there.beyond = False
        elif there.beyond or nbytes > ALARM * limit:
            self._offended(descriptor, f"{nbytes} bytes, and no message among them")
        else:
            there.beyond = True  # Shut down at the second check: our process may have been paused.

    def _shut(self, descriptor: int, reason: str) -> None:
        there = self._there[descriptor]
        if self._forget_other(descriptor, there):
            return
        there.cut = True
        address, port = _address(descriptor)
        with suppress(OSError), _borrowed(descriptor) as peer:  # Libzmq may close it at any time.
            _break(peer)
        where = f"{address}:{port}" if address else ""
        self._news.append(partial(self._report_cut, reason, where))


def connections_max() -> int:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(descriptors // DESCRIPTORS_SHARE, CONNECTIONS_MIN)


def _break(peer: socket.socket) -> None:
    """Break a connection whose descriptor libzmq will close. After `shutdown` libzmq would continue
    reading for as long as the peer sends. Connecting the socket to `AF_UNSPEC` resets a tcp
    connection at once and discards its unread bytes."""
    nowhere = struct.pack("=H14x", socket.AF_UNSPEC)
    if peer.family == socket.AF_UNIX or _libc.connect(peer.fileno(), nowhere, len(nowhere)):
        with suppress(OSError):
            peer.shutdown(socket.SHUT_RDWR)


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A connection of libzmq, which stays open."""
    peer = socket.socket(fileno=descriptor)
    try:
        yield peer
    finally:
        peer.detach()


def _address(descriptor: int) -> tuple[str, int]:
    """The peer's address and port; an empty one if it is not tcp, or closed by now."""
    with suppress(OSError), _borrowed(descriptor) as peer:
        name: Any = peer.getpeername()
        if isinstance(name, tuple):
            return str(name[0]), int(name[1])
    return "", 0


def _inode(descriptor: int) -> int | None:
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
