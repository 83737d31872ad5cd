"""ZeroMQ under trio: the only file that imports zmq.

Why it is hard. A libzmq socket offers one file descriptor that is *edge* triggered: it turns
readable when the socket should be asked (`EVENTS`) what it can do, and any libzmq call may eat
that edge, a failed receive included. trio lets one task wait on a descriptor. So a reader and a
writer must share one waiter, and whoever touches the socket must tell the others what it learned.

`TrioSocket` does it with a leader and followers and no background task. A task that finds
nothing to do parks; one of the parked, the leader, waits on the descriptor. After *every* libzmq
call `_learn` reads `EVENTS` and wakes one task for each direction that is ready; that task
calls libzmq in turn and wakes the next. A leader that leaves, cancelled or not, promotes another.

Tried and rejected: zmq-anyio (a cancelled receive loses the next message), tractor (does not
install), wait-then-receive-once (1 of 100 queued messages arrived), ZMTP heartbeats and socket
monitors (heartbeats turned a 4 s stall that lost nothing into 112 lost messages; an open monitor
hangs `ctx.term`). Liveness is judged by the link above, from what arrives.
"""

import errno
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import trio
import zmq

from transport.endpoint import (
    COPY_BYTES_MAX,
    FRAME_BYTES_MAX,
    LINGER_S,
    PARTS_MAX,
    SEND_QUEUE_MESSAGES_MAX,
    Arrival,
    Buffer,
    Deliver,
    EndpointStatistics,
    Frame,
    LaneFull,
    PeerGone,
    check_frames,
    check_route,
    flat_frames,
)

PART_BYTES_DISCONNECT = 2 * FRAME_BYTES_MAX
"""A part above this is not even read: libzmq closes the connection. Between `FRAME_BYTES_MAX` and
here a peer is merely wrong, and is counted; libzmq cannot tell us about the ones it closes."""

RECONNECT_S = 0.1
"""First wait before dialling again; a restarted syncer is found within this."""

RECONNECT_S_MAX = 2.0
"""Longest wait: a cluster of learners must not hammer a syncer that is away."""

RETRY_S_MIN, RETRY_S_MAX = 0.0005, 0.02
"""Waits of a blocking ROUTER send to a full peer: `EVENTS` cannot say which peer has room, and
believing it would spin the whole loop. Short enough to be unseen, long enough to be free."""

_Result = TypeVar("_Result")
_IN, _OUT = int(zmq.POLLIN), int(zmq.POLLOUT)


@asynccontextmanager
async def open_context(io_threads: int = 1) -> AsyncIterator[zmq.Context[Any]]:
    """Open a ZeroMQ context, and on the way out wait for lingering frames, then free it.

    The wait is bounded by the linger of the sockets. It happens in a thread, so that the loop
    lives on, and shielded: leaving early would free buffers that libzmq is still sending, which
    aborts the process. Sockets left open are closed here, so that `term` cannot hang on them.
    """
    context: zmq.Context[Any] = zmq.Context(io_threads)
    try:
        yield context
    finally:
        close = partial(context.destroy, linger=int(LINGER_S * 1000))
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(close)


class TrioSocket:
    """A ZeroMQ socket for trio: any number of tasks may send and receive; cancelling loses nothing.

    Sending takes parts as `send_nowait` of an endpoint does, less its limits.
    """

    def __init__(self, socket: zmq.Socket[Any]) -> None:
        self._socket = socket
        self._fd: int = socket.FD
        self._parked = {_IN: trio.lowlevel.ParkingLot(), _OUT: trio.lowlevel.ParkingLot()}
        self._leader: trio.CancelScope | None = None
        self._leader_wants = 0

    def bind(self, address: str) -> str:
        """Listen on `address` and return it as bound; port 0 and * are any free port."""
        if address.startswith("tcp://") and address.endswith(":0"):
            address = address[:-1] + "*"
        try:
            self._socket.bind(address)
        finally:
            self._learn()  # binding eats the edge like any other call
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

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
        parts: list[Frame] = []
        more = True
        while more:
            frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            more = frame.more
            if len(parts) <= parts_max:
                parts.append(frame.bytes if len(frame) <= COPY_BYTES_MAX else frame.buffer)
        return parts

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


@dataclass(slots=True, eq=False)
class _Line:
    """One socket of an endpoint. `route` is None on the listening socket, which serves many."""

    socket: TrioSocket
    route: str | None
    held: Arrival | None = None


class ZmqEndpoint:
    """`Endpoint` over ZeroMQ: one ROUTER for all addresses listened on, one DEALER per dial.

    Works over inproc, ipc and tcp. Sends are never blocking, so that a stopped peer stops nobody
    else, and the ROUTER is mandatory, so that a full or absent peer is an error and not silence.

    With `handover` a new connection takes an identity over from an older one; without it the
    newer is not heard. A connection that breaks while its messages wait unread keeps its identity
    until they are read, so without `handover` the redial of the same peer can stay deaf for good
    and the peer must dial again under another identity.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        *,
        linger_s: float = LINGER_S,
        queue_messages_max: int = SEND_QUEUE_MESSAGES_MAX,
        handover: bool = False,
    ) -> None:
        self._context = context
        self._linger_s = linger_s
        self._queue_messages_max = queue_messages_max
        self._handover = handover
        self._listening: _Line | None = None
        self._dialled: dict[str, _Line] = {}
        self._counts: Counter[str] = Counter()
        self._running: Callable[[_Line], None] | None = None
        self._closed = trio.Event()

    async def listen(self, address: str) -> str:
        """Bind the ROUTER to `address` as well; see `Endpoint.listen`."""
        await trio.lowlevel.checkpoint()
        self._check_open()
        if self._listening is None:
            router = self._open(zmq.ROUTER)
            router.setsockopt(zmq.ROUTER_MANDATORY, 1)
            router.setsockopt(zmq.ROUTER_HANDOVER, int(self._handover))
            self._listening = self._added(_Line(TrioSocket(router), None))
        try:
            return self._listening.socket.bind(address)
        except zmq.ZMQError as error:
            raise OSError(error.errno, f"cannot listen on {address}: {error}") from error

    async def dial(self, address: str, *, route: str, identity: str) -> None:
        """Connect a DEALER; see `Endpoint.dial`."""
        await trio.lowlevel.checkpoint()
        self._check_open()
        check_route(route)
        if route in self._dialled:
            raise ValueError(f"already dialled: {route}")
        dealer = self._open(zmq.DEALER)
        try:
            dealer.setsockopt(zmq.ROUTING_ID, check_route(identity))
            dealer.connect(address)
        except zmq.ZMQError as error:
            dealer.close(0)
            raise OSError(error.errno, f"cannot dial {address}: {error}") from error
        except ValueError:
            dealer.close(0)
            raise
        self._dialled[route] = self._added(_Line(TrioSocket(dealer), route))

    async def run(self, deliver: Deliver) -> None:
        """Receive from every socket, those opened later too; see `Endpoint.run`."""
        await trio.lowlevel.checkpoint()
        self._check_open()
        if self._running is not None:
            raise trio.BusyResourceError("this endpoint is running already")
        try:
            async with trio.open_nursery() as nursery:
                self._running = lambda line: nursery.start_soon(self._receive, line, deliver)
                for line in self._lines():
                    self._running(line)
                await self._closed.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._running = None
        self._check_open()

    def send_nowait(self, route: str, frames: Sequence[Buffer]) -> None:
        """Send through the DEALER called `route`, or else to that peer of the ROUTER."""
        self._check_open()
        flat = check_frames(frames)
        line = self._dialled.get(route, self._listening)
        if line is None:
            self._counts["sends_refused_gone"] += 1
            raise PeerGone(route)
        try:
            parts = flat if line.route == route else (route.encode(), *flat)
            line.socket.send_multipart_nowait(parts)
        except trio.WouldBlock:
            self._counts["sends_refused_full"] += 1
            raise LaneFull(route) from None
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            self._counts["sends_refused_gone"] += 1
            raise PeerGone(route) from None
        self._counts["messages_sent"] += 1
        self._counts["bytes_sent"] += sum(map(len, flat))

    def statistics(self) -> EndpointStatistics:
        """Return what has been counted so far."""
        return EndpointStatistics(**self._counts)

    async def aclose(self) -> None:
        """Close every socket. The waiting for lingering frames is `open_context`'s."""
        self._closed.set()
        for line in self._lines():
            await line.socket.aclose()
        await trio.lowlevel.cancel_shielded_checkpoint()

    def _lines(self) -> list[_Line]:
        return [line for line in (self._listening, *self._dialled.values()) if line is not None]

    def _added(self, line: _Line) -> _Line:
        if self._running is not None:
            self._running(line)
        return line

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise trio.ClosedResourceError("this endpoint was closed")

    def _open(self, kind: int) -> zmq.Socket[Any]:
        socket: zmq.Socket[Any] = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, int(self._linger_s * 1000))
        socket.setsockopt(zmq.SNDHWM, self._queue_messages_max)
        socket.setsockopt(zmq.RCVHWM, self._queue_messages_max)
        socket.setsockopt(zmq.MAXMSGSIZE, PART_BYTES_DISCONNECT)
        socket.setsockopt(zmq.RECONNECT_IVL, int(RECONNECT_S * 1000))
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, int(RECONNECT_S_MAX * 1000))
        socket.setsockopt(zmq.HEARTBEAT_IVL, 0)
        return socket

    async def _receive(self, line: _Line, deliver: Deliver) -> None:
        while True:
            if line.held is None:
                try:
                    parts = await line.socket.recv_multipart(PARTS_MAX + 1)
                except trio.ClosedResourceError:
                    return  # `run` says so, once for all sockets
                line.held = self._admitted(line, parts)
            if line.held is not None:
                # Held until delivered: a cancelled delivery is handed out by the next run.
                await deliver(line.held)
                line.held = None

    def _admitted(self, line: _Line, parts: list[Frame]) -> Arrival | None:
        """Return the arrival, or count why there is none."""
        route, frames = line.route, tuple(parts)
        if route is None:
            route, frames = _route_of(parts[0]), tuple(parts[1:])
        if route is None:
            self._counts["arrivals_refused_route"] += 1
        elif not 0 < len(frames) <= PARTS_MAX:
            self._counts["arrivals_refused_parts"] += 1
        elif max(map(len, frames)) > FRAME_BYTES_MAX:
            self._counts["arrivals_refused_oversize"] += 1
        else:
            self._counts["messages_received"] += 1
            self._counts["bytes_received"] += sum(map(len, frames))
            return Arrival(route, frames)
        return None


def _route_of(identity: Frame) -> str | None:
    """Read a peer's identity as a route; libzmq makes up unprintable ones for the nameless."""
    try:
        route = str(identity, "utf-8")
        check_route(route)
    except ValueError:
        return None
    return route
