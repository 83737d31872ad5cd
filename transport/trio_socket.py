"""ZeroMQ sockets under trio.

Why it is hard. A libzmq socket offers one file descriptor that is *edge* triggered: it turns
readable when the socket should be asked (`EVENTS`) what it can do, and any libzmq call may consume
that edge, a failed receive included. So a task that sends must tell the one that waits for messages
what it learned: after *every* libzmq call `_learn` reads `EVENTS`, and wakes the task that waits if
there is a message. Sends never wait: a full queue is the sender's business, at once.

Tried and rejected: zmq-anyio (a cancelled receive loses the next message), tractor (does not
install), wait-then-receive-once (1 of 100 queued messages arrived).
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import trio
import zmq

from transport.endpoint import COPY_BYTES_MAX, PARTS_FORGIVEN, Buffer, Frame, flat_frames

DROPPED_AT_ONCE = 256
"""Excess parts dropped before other tasks get a turn: a fifth of a millisecond of work."""

_Result = TypeVar("_Result")
_IN, _EVENTS = int(zmq.POLLIN), int(zmq.EVENTS)
_NOBLOCK, _SNDMORE = int(zmq.NOBLOCK), int(zmq.SNDMORE)
"""As plain numbers: joining two of zmq's flags takes a microsecond."""


class TrioSocket:
    """A ZeroMQ socket for trio: one task may receive, any may send; cancelling loses nothing.

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
        self._waiting: trio.CancelScope | None = None
        """Of the task that waits for a message; cancelled when there is one."""
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

    def speak_ipv6(self) -> None:
        """Have what it binds and dials from now on be of IPv6, and of IPv4 beside it."""
        self._socket.setsockopt(zmq.IPV6, 1)
        self._learn()

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
                with suppress(zmq.ZMQError):  # libzmq has given up what sent it broken frames.
                    self._socket.disconnect(address)
            self._socket.connect(address if to is None else to)
        finally:
            self._socket.setsockopt(zmq.LINGER, linger)
            self._learn()  # these calls consume the edge, like any other

    async def recv_multipart(self, parts_max: int = sys.maxsize) -> list[Frame]:
        """Wait for one message; parts after the first `parts_max` + 1 are dropped."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            try:
                result = self._try(partial(self._receive, parts_max))
            except trio.WouldBlock:
                if self._events & _IN:  # It became readable in the meantime.
                    await trio.lowlevel.checkpoint()
                else:
                    await self._wait_readable()
            else:
                # A message taken off the socket must reach the caller, cancelled or not.
                await trio.lowlevel.cancel_shielded_checkpoint()
                return result

    def send_multipart_nowait(self, parts: Sequence[Buffer]) -> None:
        """Queue one message if there is room, or raise `trio.WouldBlock`."""
        self._try(partial(self._send, flat_frames(parts)))

    def linger(self, seconds: float) -> None:
        if not self._socket.closed:
            self._socket.setsockopt(zmq.LINGER, int(seconds * 1000))
            self._learn()

    def readable(self) -> bool:
        """Whether a message can be received; also wakes a task that waits for one."""
        return bool(self._learn() & _IN)

    async def aclose(self) -> None:
        """Close; a waiting task raises `trio.ClosedResourceError`. Queued frames linger."""
        if not self._socket.closed:
            trio.lowlevel.notify_closing(self._fd)
            self._socket.close()
        await trio.lowlevel.cancel_shielded_checkpoint()

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
        """Read EVENTS, as is required after every libzmq call, and wake the task that waits."""
        if self._socket.closed:
            return 0
        self._events = events = int(self._socket.getsockopt(_EVENTS))
        if self._waiting is not None and events & _IN:
            self._waiting.cancel()
        return events

    async def _wait_readable(self) -> None:
        """Wait until it is worth another try, which must follow without a checkpoint."""
        if self._waiting is not None:
            raise trio.BusyResourceError("another task receives from this socket")
        with trio.CancelScope() as scope:
            self._waiting = scope
            try:
                await trio.lowlevel.wait_readable(self._fd)
            finally:
                self._waiting = None

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
