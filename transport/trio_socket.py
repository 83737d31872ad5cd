"""ZeroMQ sockets under trio.

Why it is hard. A libzmq socket offers one file descriptor that is *edge* triggered: it turns
readable when the socket should be asked (`EVENTS`) what it can do, and any libzmq call may consume
that edge, a failed receive included. trio lets one task wait on a descriptor. So a reader and a
writer must share one waiter, and a task that uses the socket must tell the others what it learned.

`TrioSocket` does it with a leader and followers and no background task. A task that finds
nothing to do parks; one of the parked, the leader, waits on the descriptor. After *every* libzmq
call `_learn` reads `EVENTS` and wakes one task for each direction that is ready; that task
calls libzmq in turn and wakes the next. A leader that leaves, cancelled or not, promotes another.

Tried and rejected: zmq-anyio (a cancelled receive loses the next message), tractor (does not
install), wait-then-receive-once (1 of 100 queued messages arrived).
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import trio
import zmq

from transport.endpoint import COPY_BYTES_MAX, PARTS_FORGIVEN, Buffer, Frame, flat_frames

RETRY_S_MIN, RETRY_S_MAX = 0.0005, 0.02
"""Waits of a blocking ROUTER send to a full peer: `EVENTS` does not say which peer has room, and
relying on it would busy-loop. Short enough to go unnoticed, long enough to cost nothing."""

DROPPED_AT_ONCE = 256
"""Excess parts dropped before other tasks get a turn: a fifth of a millisecond of work."""

_Result = TypeVar("_Result")
_IN, _OUT, _EVENTS = int(zmq.POLLIN), int(zmq.POLLOUT), int(zmq.EVENTS)
_NOBLOCK, _SNDMORE = int(zmq.NOBLOCK), int(zmq.SNDMORE)
"""As plain numbers: joining two of zmq's flags takes a microsecond."""


class TrioSocket:
    """A ZeroMQ socket for trio: any number of tasks may send and receive; cancelling loses nothing.

    Sending accepts the same parts as an endpoint's `send_nowait`, without its limits. On a `signed`
    socket each received message starts with one extra part: the name that ZAP gave to its sender's
    key, empty if it has none. ``excess`` is called with the connection's descriptor when a message
    has more than `PARTS_FORGIVEN` excess parts.
    """

    def __init__(
        self,
        socket: zmq.Socket[Any],
        *,
        signed: bool = False,
        excess: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._socket = socket
        self._signed = signed
        self._excess = excess
        self._fd: int = socket.FD
        self._parked = {_IN: trio.lowlevel.ParkingLot(), _OUT: trio.lowlevel.ParkingLot()}
        self._leader: trio.CancelScope | None = None
        self._leader_wants = 0
        self._events = 0
        """What the socket could do after the newest libzmq call."""
        self._dropping = False
        self._dropped = 0
        self.source = -1
        """The descriptor of the last message's connection; -1 if it came from this process."""

    def bind(self, address: str) -> str:
        """Listen on `address`; returns it as bound. Port 0 and * mean any free port."""
        if address.startswith("tcp://") and address.endswith(":0"):
            address = address[:-1] + "*"
        try:
            self._socket.bind(address)
        finally:
            self._learn()  # binding consumes the edge, like any other call
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def reconnect(self, address: str, to: str | None = None) -> None:
        """Close the connection to `address` and discard its queue, then dial it again, or dial `to`
        instead. An empty `address` means that there is no connection to close.

        Linger is off meanwhile: otherwise queued messages of the old connection would reach the
        peer mixed with those of the new one.
        """
        if self._socket.closed:
            raise trio.ClosedResourceError("this socket was closed")
        linger = self._socket.getsockopt(zmq.LINGER)
        try:
            self._socket.setsockopt(zmq.LINGER, 0)
            if address:
                self._socket.disconnect(address)
            self._socket.connect(address if to is None else to)
        finally:
            self._socket.setsockopt(zmq.LINGER, linger)
            self._learn()  # these calls consume the edge, like any other

    async def recv_multipart(self, parts_max: int = sys.maxsize) -> list[Frame]:
        """Wait for one message; parts after the first `parts_max` + 1 are dropped."""
        return await self._wait_done(_IN, partial(self._receive, parts_max))

    def recv_multipart_nowait(self, parts_max: int = sys.maxsize) -> list[Frame]:
        """Receive a message that has already arrived, or raise `trio.WouldBlock`."""
        return self._try(partial(self._receive, parts_max))

    async def send_multipart(self, parts: Sequence[Buffer]) -> None:
        """Queue one message, waiting for room if necessary."""
        await self._wait_done(_OUT, partial(self._send, flat_frames(parts)))

    def send_multipart_nowait(self, parts: Sequence[Buffer]) -> None:
        """Queue one message if there is room, or raise `trio.WouldBlock`."""
        self._try(partial(self._send, flat_frames(parts)))

    def linger(self, seconds: float) -> None:
        """Set how long queued frames may take to leave after a close."""
        if not self._socket.closed:
            self._socket.setsockopt(zmq.LINGER, int(seconds * 1000))
            self._learn()

    def readable(self) -> bool:
        """Whether a message can be received; also wakes a task that waits for one."""
        return bool(self._learn() & _IN)

    async def aclose(self) -> None:
        """Close; waiting tasks raise `trio.ClosedResourceError`. Queued frames linger."""
        if not self._socket.closed:
            trio.lowlevel.notify_closing(self._fd)
            self._socket.close()
            for lot in self._parked.values():
                lot.unpark_all()
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def _wait_done(self, want: int, attempt: Callable[[], _Result]) -> _Result:
        await trio.lowlevel.checkpoint_if_cancelled()
        retry_s = RETRY_S_MIN
        while True:
            try:
                result = self._try(attempt)
            except trio.WouldBlock:
                if not self._events & want:
                    await self._wait_woken(want)
                elif want == _IN:  # it became readable in the meantime
                    await trio.lowlevel.checkpoint()
                else:  # the socket has room, but not for this peer of a ROUTER
                    await trio.sleep(retry_s)
                    retry_s = min(2 * retry_s, RETRY_S_MAX)
            else:
                # A message taken off the socket must reach the caller, cancelled or not.
                await trio.lowlevel.cancel_shielded_checkpoint()
                return result

    def _try(self, attempt: Callable[[], _Result]) -> _Result:
        if self._socket.closed:
            raise trio.ClosedResourceError("this socket was closed")
        try:
            return attempt()
        except zmq.Again:
            raise trio.WouldBlock from None
        finally:
            self._learn()

    def _learn(self) -> int:
        """Read EVENTS, as is required after every libzmq call, and wake the tasks concerned."""
        if self._socket.closed:
            return 0
        self._events = events = int(self._socket.getsockopt(_EVENTS))
        for want, lot in self._parked.items():
            if lot and events & want:
                lot.unpark()
        if self._leader is None:
            # The task that wakes tries again, and becomes the leader if it has to wait.
            for lot in filter(None, self._parked.values()):
                lot.unpark()
                break
        elif events & self._leader_wants:
            self._leader.cancel()
        return events

    async def _wait_woken(self, want: int) -> None:
        """Wait until it is worth another try, which must follow without a checkpoint."""
        if self._leader is not None:
            await self._parked[want].park()
            return
        try:
            with trio.CancelScope() as scope:
                self._leader, self._leader_wants = scope, want
                try:
                    await trio.lowlevel.wait_readable(self._fd)
                finally:
                    self._leader = None
        except BaseException:
            self._learn()  # No try follows that would promote another leader.
            raise

    def _receive(self, parts_max: int) -> list[Frame]:
        if self._dropping:
            self._drop()
        parts: list[Frame] = []
        more = True
        while more and len(parts) <= parts_max:
            frame = self._socket.recv(_NOBLOCK, copy=False)
            if not parts:
                self.source, self._dropped = _source(frame), 0
                if self._signed:
                    parts.append(_signature(frame))
            more = frame.more
            parts.append(frame.bytes if len(frame) <= COPY_BYTES_MAX else frame.buffer)
        self._dropping = more  # The remaining parts are dropped before the next message.
        return parts

    def _drop(self) -> None:
        """Drop the remaining parts of a message with too many, a limited number at a time."""
        receive = partial(self._socket.recv, _NOBLOCK, copy=False)  # Says itself if more follow.
        for _ in range(DROPPED_AT_ONCE):
            more = receive().more
            self._dropped += 1
            if self._dropped == PARTS_FORGIVEN:
                self._excess(self.source)
            if not more:
                self._dropping = False
                return
        raise zmq.Again

    def _send(self, parts: Sequence[Frame]) -> None:
        refused: zmq.ZMQError | None = None
        for number, part in enumerate(parts, 1):
            more = _SNDMORE if number < len(parts) else 0
            try:
                self._socket.send(part, _NOBLOCK | more, copy=len(part) <= COPY_BYTES_MAX)
            except zmq.ZMQError as error:
                if number == 1:
                    raise
                # The connection died between two parts. libzmq rolls the message back and
                # discards its remaining parts, but only if we pass them on.
                refused = error
        if refused is not None:
            raise refused


def _source(frame: zmq.Frame) -> int:
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1  # The message came from this process.


def _signature(frame: zmq.Frame) -> bytes:
    try:
        return str(frame.get("User-Id")).encode()
    except zmq.ZMQError:
        return b""
