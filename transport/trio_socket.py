"""ZeroMQ sockets under trio.

Why it is hard. A libzmq socket offers one file descriptor that is *edge* triggered: it turns
readable when the socket should be asked (`EVENTS`) what it can do, and any libzmq call may eat
that edge, a failed receive included. trio lets one task wait on a descriptor. So a reader and a
writer must share one waiter, and whoever touches the socket must tell the others what it learned.

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
"""Waits of a blocking ROUTER send to a full peer: `EVENTS` cannot say which peer has room, and
believing it would spin the whole loop. Short enough to be unseen, long enough to be free."""

DROPPED_AT_ONCE = 256
"""Parts too many that are dropped before others have their turn: a third of a millisecond."""

_Result = TypeVar("_Result")
_IN, _OUT = int(zmq.POLLIN), int(zmq.POLLOUT)


class TrioSocket:
    """A ZeroMQ socket for trio: any number of tasks may send and receive; cancelling loses nothing.

    Sending takes parts as `send_nowait` of an endpoint does, less its limits. On a `signed` socket
    each message received is led by one more part: the name that ZAP gave to its sender's key, empty
    for a sender without one. ``excess`` is told over which connection a message of far too many
    parts came.
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
        self._dropping = False
        self._dropped = 0
        self.source = -1
        """The descriptor of the connection that the last message came over; -1 for none."""

    def bind(self, address: str) -> str:
        """Listen on `address` and return it as bound; port 0 and * are any free port."""
        if address.startswith("tcp://") and address.endswith(":0"):
            address = address[:-1] + "*"
        try:
            self._socket.bind(address)
        finally:
            self._learn()  # binding eats the edge like any other call
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def reconnect(self, address: str, to: str | None = None) -> None:
        """Give up the connection to `address`, with what waits to leave through it, and dial again,
        or dial `to` instead; an empty `address` is none.

        Without linger: what the old connection still said would reach the peer beside the new one.
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
            self._learn()  # these calls eat the edge like any other

    async def recv_multipart(self, parts_max: int = sys.maxsize) -> list[Frame]:
        """Wait for one message; parts after the first `parts_max` + 1 are dropped."""
        return await self._wait_done(_IN, partial(self._receive, parts_max))

    def recv_multipart_nowait(self, parts_max: int = sys.maxsize) -> list[Frame]:
        """Take one message that is here already, or raise `trio.WouldBlock`."""
        return self._try(partial(self._receive, parts_max))

    async def send_multipart(self, parts: Sequence[Buffer]) -> None:
        """Queue one message, waiting for room."""
        await self._wait_done(_OUT, partial(self._send, flat_frames(parts)))

    def send_multipart_nowait(self, parts: Sequence[Buffer]) -> None:
        """Queue one message if there is room, or raise `trio.WouldBlock`."""
        self._try(partial(self._send, flat_frames(parts)))

    def linger(self, seconds: float) -> None:
        """Queued frames have so long to leave, once this is closed."""
        if not self._socket.closed:
            self._socket.setsockopt(zmq.LINGER, int(seconds * 1000))
            self._learn()

    def readable(self) -> bool:
        """Whether something is here to be received; whoever waits for it is told as well."""
        return bool(self._learn() & _IN)

    async def aclose(self) -> None:
        """Close; waiting tasks get `trio.ClosedResourceError`. Queued frames linger."""
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
                if not self._learn() & want:
                    await self._wait_woken(want)
                elif want == _IN:  # it came in since we asked
                    await trio.lowlevel.checkpoint()
                else:  # there is room, but not for this peer of a ROUTER
                    await trio.sleep(retry_s)
                    retry_s = min(2 * retry_s, RETRY_S_MAX)
            else:
                # What was taken off the socket must reach the caller, cancelled or not.
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
        """Read EVENTS, as after every libzmq call, and wake whoever it concerns."""
        if self._socket.closed:
            return 0
        events = int(self._socket.getsockopt(zmq.EVENTS))
        for want, lot in self._parked.items():
            if lot and events & want:
                lot.unpark()
        if self._leader is None:
            # Whoever wakes tries again, and failing that becomes the leader.
            for lot in filter(None, self._parked.values()):
                lot.unpark()
                break
        elif events & self._leader_wants:
            self._leader.cancel()
        return events

    async def _wait_woken(self, want: int) -> None:
        if self._leader is not None:
            await self._parked[want].park()
            return
        with trio.CancelScope() as scope:
            self._leader, self._leader_wants = scope, want
            try:
                await trio.lowlevel.wait_readable(self._fd)
            finally:
                self._leader = None
                self._learn()

    def _receive(self, parts_max: int) -> list[Frame]:
        if self._dropping:
            self._drop()
        parts: list[Frame] = []
        more = True
        while more and len(parts) <= parts_max:
            frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            if not parts:
                self.source, self._dropped = _source(frame), 0
                if self._signed:
                    parts.append(_signature(frame))
            more = frame.more
            parts.append(frame.bytes if len(frame) <= COPY_BYTES_MAX else frame.buffer)
        self._dropping = more  # The rest of it before the next one.
        return parts

    def _drop(self) -> None:
        """Let go of what is left of a message of too many parts, a few at a time."""
        for _ in range(DROPPED_AT_ONCE):
            self._socket.recv(zmq.NOBLOCK)
            self._dropped += 1
            if self._dropped == PARTS_FORGIVEN:
                self._excess(self.source)
            if not self._socket.getsockopt(zmq.RCVMORE):
                self._dropping = False
                return
        raise zmq.Again

    def _send(self, parts: Sequence[Frame]) -> None:
        refused: zmq.ZMQError | None = None
        for number, part in enumerate(parts, 1):
            more = zmq.SNDMORE if number < len(parts) else 0
            try:
                self._socket.send(part, zmq.NOBLOCK | more, copy=len(part) <= COPY_BYTES_MAX)
            except zmq.ZMQError as error:
                if number == 1:
                    raise
                # The connection died between two parts. libzmq rolls the message back and
                # swallows its remaining parts, but only if we hand them over.
                refused = error
        if refused is not None:
            raise refused


def _source(frame: zmq.Frame) -> int:
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1  # It came from this process.


def _signature(frame: zmq.Frame) -> bytes:
    try:
        return str(frame.get("User-Id")).encode()
    except zmq.ZMQError:
        return b""
