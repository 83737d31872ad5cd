"""The ZeroMQ endpoint: one ROUTER for listening, and one DEALER for each dial.

`transport.trio_socket` makes the sockets work under trio, `transport.curve_auth` handles keys.

Tried and rejected: ZMTP heartbeats and socket monitors as signs of life (heartbeats turned a 4 s
stall that lost nothing into 112 lost messages). The link above judges liveness by what arrives.
"""

import errno
import math
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio
import zmq

from clocks import read_text
from transport.address_family import dials_ipv6, is_ipv6, listens_on_ipv6
from transport.connections import Connections
from transport.curve_auth import Curve, CurveGate, Refusal, refuse_old_protocols
from transport.endpoint import (
    COPY_BYTES_MAX,
    FRAME_BYTES_MAX,
    LINGER_S,
    PARTS_MAX,
    RECEIVE_QUEUE_MESSAGES_MAX,
    ROUTE_BYTES_MAX,
    SEND_QUEUE_MESSAGES_MAX,
    Arrival,
    Buffer,
    Deliver,
    EndpointStatistics,
    Frame,
    LaneFull,
    PeerGone,
    SharedFiles,
    check_frames,
    check_route,
)
from transport.shared_payloads import (
    ASK_AGAIN_S,
    BY_REFERENCE,
    SUPPORTED,
    SharedPayloads,
    SharingError,
    SharingPeer,
)
from transport.trio_socket import TrioSocket

PART_BYTES_DISCONNECT = 2 * FRAME_BYTES_MAX
"""Above this libzmq closes the connection without reading the part or telling us. A peer that sends
parts between `FRAME_BYTES_MAX` and this limit stays connected; the parts are dropped and counted.
"""

RECONNECT_S = 0.1
"""First wait before dialling again; a restarted syncer is found within this time."""

RECONNECT_S_MAX = 2.0
"""Longest wait, so that many learners do not overload a syncer that is away."""

DEAF_S = 30.0
"""After half this time without any reply, a dialled line that has sent something sends a probe;
after the whole time it is reconnected. A link waits as long for credit before it gives up."""

DEAF_DOUBLINGS_MAX = 4
"""Each reconnection without success doubles the wait, up to eight minutes: so a listener that is
away or stopped is not overloaded, and two dials that compete for one identity do so rarely."""

LINE_BYTES_S_MIN = 32 * 1024
"""The assumed minimum throughput of a line, for the time in which a reply is due: any line used for
training is faster, and a large message in flight must not be cut off because of its size."""

DIVIDER = "\x1f"
"""Separates the route from the secret in an identity; no route contains this character."""

NONCE_BYTES = 8
"""Random bytes that each dial adds to its identity: 64 bits cannot be guessed over a network."""

LIVING_S = 30.0
"""A connection that was heard from within this time keeps its route if another one claims it. A
learner in training reports every few seconds; a host that vanished is replaced after this time."""

LOOK_FOR_HOLDER_S = 0.5
"""Minimum interval between checks whether the connection that owns a route still exists."""

HOLDERS_MAX = 16_384
"""Routes whose connections are remembered, several times the maximum number of connections. Beyond
that the longest silent one is forgotten, and the next connection that claims its route gets it."""

PROBE, ANSWER = b"ddloco?", b"ddloco!"
"""The probe "are you there", followed by the identity of who asks, and its answer. Both are handled
below `deliver`, are one part long, and cannot be confused with a header."""


FILE = "file:"
"""Prefix of an address that is read from a file, whose one line may change during the run."""

LOOK_UP_S = 0.5
"""Interval at which such a file is read: the shortest interval between dials of a link."""

ADDRESS_CHARS_MAX = 1024


@asynccontextmanager
async def open_context(io_threads: int = 1) -> AsyncIterator[zmq.Context[Any]]:
    """Open a ZeroMQ context; on exit wait for lingering frames, then free it.

    The wait is bounded by the sockets' linger time. It happens in a thread, so that the event loop
    continues, and is shielded from cancellation: leaving early would free buffers that libzmq is
    still sending, which aborts the process. Sockets left open are closed, so that `term` returns.
    """
    context: zmq.Context[Any] = zmq.Context(io_threads)
    try:
        yield context
    finally:
        close = partial(context.destroy, linger=int(LINGER_S * 1000))
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(close)


@dataclass(slots=True, eq=False)
class _Line:
    """One socket of an endpoint; `route` is None for the listening socket, which serves many.

    Of a dialled one, `unheard_since` is since when it has been sending without any reply (None
    while nothing is unanswered), `unheard_bytes` how much it has sent since, and `in_vain` how
    often it was reconnected without success.
    """

    socket: TrioSocket
    route: str | None
    identity: bytes = b""
    gate: CurveGate | None = None
    connections: Connections | None = None
    held: Arrival | None = None
    address: str = ""
    written_in: str = ""
    unheard_since: float | None = None
    unheard_bytes: int = 0
    probed: bool = False
    in_vain: int = 0
    asked_at: float = -math.inf

    def said(self, nbytes: int) -> None:
        self.unheard_bytes += nbytes
        if self.unheard_since is None:
            self.unheard_since = trio.current_time()

    def heard(self) -> None:
        """Record that something arrived: the peer still associates this line with its sender."""
        self.unheard_since, self.unheard_bytes, self.probed, self.in_vain = None, 0, False, 0

    def overdue_s(self, deaf_s: float) -> float:
        """How long a reply has been overdue, in seconds; negative while there is time left."""
        if self.unheard_since is None:
            return -deaf_s
        doubled = deaf_s * 2 ** min(self.in_vain, DEAF_DOUBLINGS_MAX)
        patience = doubled + self.unheard_bytes / LINE_BYTES_S_MIN
        return trio.current_time() - self.unheard_since - patience


@dataclass(slots=True)
class _Holder:
    identity: bytes
    heard_at: float
    looked_at: float


class ZmqEndpoint:
    """`Endpoint` over ZeroMQ: one ROUTER for all addresses listened on, one DEALER per dial.

    Works over inproc, ipc and tcp. Sends never block, so that a stopped peer stops no other. The
    ROUTER is in mandatory mode, so that sending to a full or absent peer raises an error.

    The identity of each dial is its route followed by a random secret, so that no other dialler can
    take over its connection: libzmq assigns identities before it compares keys. If two connections
    claim one route, the endpoint accepts the first for as long as that connection lives.

    A new connection takes over the identity of an older one of the same dial. A connection that
    breaks while its messages wait unread keeps its identity until they are read, so without such a
    handover a peer that reconnects would be ignored for good.

    At a handover libzmq detaches the older connection but leaves it open, so its owner does not
    notice. A dialled line that has sent something and received nothing therefore sends a probe,
    which the listening endpoint answers by itself. After `deaf_s` without an answer the line is
    reconnected, which takes its identity back. A line that sends nothing is left alone.

    With `curve` every connection over tcp or ipc is encrypted and authenticated on both sides: a
    dial reaches only the holder of the key for its route's peer; unknown keys are refused at the
    handshake; and messages under an identity that does not belong to the sender's key are dropped.
    Handshakes are answered while `run` runs. Inproc connections are not authenticated, so
    everything that arrives over them is dropped: make endpoints within one process without `curve`.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        *,
        linger_s: float = LINGER_S,
        queue_messages_max: int = SEND_QUEUE_MESSAGES_MAX,
        curve: Curve | None = None,
        deaf_s: float = DEAF_S,
    ) -> None:
        self.refusals: dict[str, Refusal] = {}
        """The latest refusal by counter of `statistics`: why, and from which address."""
        self._context = context
        self._linger_s = linger_s
        self._queue_messages_max = queue_messages_max
        self._curve = curve
        self._deaf_s = deaf_s
        self._listening: _Line | None = None
        self._dialled: dict[str, _Line] = {}
        self._holders: dict[str, _Holder] = {}
        """By route; the one heard most recently is last."""
        self._counts: Counter[str] = Counter()
        self._running: Callable[[_Line], None] | None = None
        self._shared: SharedPayloads | None = None
        self._nursery: trio.Nursery | None = None
        self._closed = trio.Event()

    async def listen(self, address: str) -> str:
        await trio.lowlevel.checkpoint()
        self._check_open()
        if self._listening is None:
            router = self._open(zmq.ROUTER)
            router.setsockopt(zmq.ROUTER_MANDATORY, 1)
            router.setsockopt(zmq.ROUTER_HANDOVER, 1)
            self._listening = self._added(self._guarded(router))
        if listens_on_ipv6(address):
            self._listening.socket.speak_ipv6()
        try:
            return self._listening.socket.bind(address)
        except zmq.ZMQError as error:
            raise OSError(error.errno, f"cannot listen on {address}: {error}") from error

    async def dial(self, address: str, *, route: str, identity: str) -> None:
        await trio.lowlevel.checkpoint()
        found = _written_in(address) if address.startswith(FILE) else address
        ipv6 = await dials_ipv6(found)
        self._check_open()
        check_route(route)
        if route in self._dialled:
            raise ValueError(f"already dialled: {route}")
        dealer = self._open(zmq.DEALER)
        try:
            wire = _secret_identity(identity)
            dealer.setsockopt(zmq.ROUTING_ID, wire)
            if self._curve is not None:
                self._curve.seal(dealer, _peer_of(route))
            dealer.setsockopt(zmq.IPV6, int(ipv6))
            if found:
                dealer.connect(found)
        except zmq.ZMQError as error:
            dealer.close(0)
            raise OSError(error.errno, f"cannot dial {address}: {error}") from error
        except ValueError:
            dealer.close(0)
            raise
        line = _Line(TrioSocket(dealer), route, wire, address=found)
        line.written_in = address if address.startswith(FILE) else ""
        self._dialled[route] = self._added(line)
        _probe(line)

    async def disconnect(self, route: str) -> None:
        self._check_open()
        line = self._dialled.pop(route, None)
        if line is None:
            raise ValueError(f"not dialled: {route}")
        await line.socket.aclose()

    async def run(self, deliver: Deliver) -> None:
        await trio.lowlevel.checkpoint()
        self._check_open()
        if self._running is not None:
            raise trio.BusyResourceError("this endpoint is running already")
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._running = lambda line: self._attend(nursery, line, deliver)
                for line in self._lines():
                    self._running(line)
                nursery.start_soon(self._look_up, deliver)
                if self._shared is not None:
                    nursery.start_soon(self._shared.serve)
                await self._closed.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._running = self._nursery = None
        self._check_open()

    def send_nowait(self, route: str, frames: Sequence[Buffer]) -> None:
        self._check_open()
        flat = check_frames(frames)
        line = self._dialled.get(route, self._listening)
        if line is None:
            self._counts["sends_refused_gone"] += 1
            raise PeerGone(route)
        identity = line.identity if line.route == route else self._identity_of(route)
        peer, loan = self._sharing_peer(line, route, identity, flat), None
        sent = flat
        if peer is not None and (lent := peer.reference(flat[-1])) is not None:
            loan, reference = lent
            sent = (flat[0], reference, BY_REFERENCE)
        try:
            line.socket.send_multipart_nowait(sent if line.route == route else (identity, *sent))
            loan = None
        except trio.WouldBlock:
            self._counts["sends_refused_full"] += 1
            if line.route is not None:
                line.said(0)  # Full, or libzmq has given the connection up, as for broken frames.
            raise LaneFull(route) from None
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            self._counts["sends_refused_gone"] += 1
            raise PeerGone(route) from None
        finally:
            if peer is not None and loan is not None:
                peer.withdraw(loan)
        nbytes = sum(map(len, flat))
        self._counts["messages_sent"] += 1
        self._counts["bytes_sent"] += nbytes
        self._counts["sent_by_reference"] += len(flat[-1]) if sent is not flat else 0
        if line.route is not None:
            line.said(sum(map(len, sent)))

    def share(self, own: SharedFiles) -> None:
        """See `Endpoint.share`; nothing on systems that cannot do it."""
        if SUPPORTED:
            self._shared = SharedPayloads(own, self._identity_of, _route_of)

    def _sharing_peer(
        self, line: _Line, route: str, identity: bytes, frames: tuple[Frame, ...]
    ) -> SharingPeer | None:
        """With whom the last part may be shared: the second one, if it is large. Before the first
        such part a dialled line asks its peer for the name of its socket; until there is an answer,
        bytes are sent."""
        if self._shared is None:
            return None
        self._shared.give_back()
        if len(frames) < PARTS_MAX or len(frames[-1]) <= COPY_BYTES_MAX:
            return None
        peer = self._shared.of(route, identity)
        if peer is None and line.route is not None:
            now = trio.current_time()
            if now - line.asked_at >= ASK_AGAIN_S:
                line.asked_at = now
                _probe(line)
        return peer

    def _answered(self, line: _Line, name: bytes) -> None:
        """Share memory with the peer of a dialled line that has asked for the name of its socket,
        if the peer has one."""
        route, asked = line.route, line.asked_at > -math.inf
        if name and route is not None and asked and self._shared and self._nursery:
            self._nursery.start_soon(self._shared.connect, route, line.identity, name)

    def reaches(self, route: str) -> bool:
        """For peers of the ROUTER, send an unsolicited answer; see `Endpoint.reaches`."""
        self._check_open()
        if route in self._dialled or self._listening is None:
            return route in self._dialled
        check_route(route)
        there = _is_there(self._listening, self._identity_of(route))
        if not there:
            self._holders.pop(route, None)  # The next connection that claims the route gets it.
        return there

    def statistics(self) -> EndpointStatistics:
        return EndpointStatistics(**self._counts)

    def hurry(self, linger_s: float) -> None:
        """Limit how long frames already sent may take to leave after a close."""
        for line in self._lines():
            line.socket.linger(linger_s)

    async def aclose(self) -> None:
        """Close every socket. `open_context` waits for lingering frames."""
        self._closed.set()
        for line in self._lines():
            if line.connections is not None:
                await line.connections.aclose()
            if line.gate is not None:
                await line.gate.aclose()
            await line.socket.aclose()
        await trio.lowlevel.cancel_shielded_checkpoint()

    def _lines(self) -> list[_Line]:
        return [line for line in (self._listening, *self._dialled.values()) if line is not None]

    def _guarded(self, router: zmq.Socket[Any]) -> _Line:
        gate = None
        if self._curve is not None:
            gate = CurveGate(self._context, router, self._curve, self._refused_handshake)
        else:
            refuse_old_protocols(router)
        failed = gate.failed if gate is not None else lambda _: None
        connections = Connections(router, f"{id(router):x}", self._cut_connection, failed)
        reading = TrioSocket(router, signed=gate is not None, excess=connections.excess)
        return _Line(reading, None, gate=gate, connections=connections)

    def _cut_connection(self, reason: str, address: str) -> None:
        self._counts["connections_cut"] += 1
        self.refusals["connections_cut"] = Refusal(reason, address)

    def _refused_handshake(self, refusal: Refusal) -> None:
        self._counts["handshakes_refused"] += 1
        self.refusals["handshakes_refused"] = refusal

    def _attend(self, nursery: trio.Nursery, line: _Line, deliver: Deliver) -> None:
        nursery.start_soon(self._receive, line, deliver)
        if line.gate is not None:
            nursery.start_soon(line.gate.run)
        if line.connections is not None:
            nursery.start_soon(line.connections.run, lambda: not line.socket.readable())
        if line.route is not None and not line.address.startswith("inproc:"):
            nursery.start_soon(self._mend, line)

    async def _look_up(self, deliver: Deliver) -> None:
        """Reconnect lines whenever the address in their file changes, and say so. All lines of a
        file are reconnected before any of them is reported: a handshake over the first one must not
        be lost with the next one."""
        while True:
            await trio.sleep(LOOK_UP_S)
            written = {file: _written_in(file) for file in self._files()}
            moved = [
                line
                for line in self._dialled.values()
                if written.get(line.written_in) and self._moves(line, written[line.written_in])
            ]
            for line in moved:
                assert line.route is not None, "it was dialled"
                await deliver(Arrival(line.route, ()))

    def _files(self) -> set[str]:
        return {line.written_in for line in self._dialled.values() if line.written_in}

    def _moves(self, line: _Line, found: str) -> bool:
        """Reconnect a line to an address; returns whether it led to another one before."""
        before = line.address
        if found == before:
            return False
        try:
            if is_ipv6(found):
                line.socket.speak_ipv6()
            line.socket.reconnect(before, found)
        except (trio.ClosedResourceError, zmq.ZMQError):
            return False  # Not an address, or one that cannot be dialled from here.
        line.address = found
        line.heard()
        _probe(line)
        return bool(before)

    async def _mend(self, line: _Line) -> None:
        while True:
            await trio.sleep(self._deaf_s / 8)
            overdue_s = line.overdue_s(self._deaf_s)
            if not line.address:
                continue
            try:
                if overdue_s >= 0.0:
                    line.socket.reconnect(line.address)
                    self._counts["lines_mended"] += 1
                    line.unheard_since, line.unheard_bytes = trio.current_time(), 0
                    line.in_vain, line.probed = line.in_vain + 1, False
                if not line.probed and overdue_s >= -self._deaf_s / 2:
                    # Also over a new connection, so that it takes its identity back at once, and
                    # a line with nothing more to send is not reconnected for ever.
                    line.probed = True
                    line.socket.send_multipart_nowait([PROBE + line.identity])
            except trio.ClosedResourceError:
                return
            except trio.WouldBlock:
                continue  # Full: if a peer reads the queue, it will answer one of its messages.

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
        socket.setsockopt(zmq.RCVHWM, RECEIVE_QUEUE_MESSAGES_MAX)
        socket.setsockopt(zmq.MAXMSGSIZE, PART_BYTES_DISCONNECT)
        socket.setsockopt(zmq.RECONNECT_IVL, int(RECONNECT_S * 1000))
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, int(RECONNECT_S_MAX * 1000))
        socket.setsockopt(zmq.HEARTBEAT_IVL, 0)
        return socket

    async def _receive(self, line: _Line, deliver: Deliver) -> None:
        while True:
            if line.held is None:
                try:
                    parts = await line.socket.recv_multipart(PARTS_MAX + 3)
                except trio.ClosedResourceError:
                    return  # `run` reports this, once for all sockets
                line.held = self._heard(line, parts)
            if line.held is not None:
                # Kept until delivered: the next run delivers it again after a cancellation.
                await deliver(line.held)
                line.held = None

    def _heard(self, line: _Line, parts: list[Frame]) -> Arrival | None:
        """The arrival, or None if it is dropped; its connection is judged by it."""
        if line.connections is None:
            return self._admitted(line, parts)
        source = line.socket.source
        owner = str(parts[0], "utf-8") if line.gate is not None else ""
        if not line.connections.heard(source, owner):
            return None
        arrival = self._admitted(line, parts)
        if arrival is not None:
            line.connections.spoke(source)
        return arrival

    def _admitted(self, line: _Line, parts: list[Frame]) -> Arrival | None:
        """The arrival, or None, counted, if it is dropped."""
        route, signature = line.route, b"" if line.gate is None else parts.pop(0)
        identity = b""
        if route is None:
            identity = bytes(parts.pop(0))
            route = _route_of(identity)
        frames = tuple(parts)
        if line.route is not None:
            line.heard()
        if self._shared is not None:
            self._shared.give_back()
        if route is None:
            self._counts["arrivals_refused_route"] += 1
        elif line.gate is not None and not self._proven(route, str(signature, "utf-8")):
            self._counts["arrivals_refused_identity"] += 1
        elif line.route is None and not self._holds(line, route, identity):
            self._counts["arrivals_refused_taken"] += 1
            reason = f"another connection has the route {route}"
            self.refusals["arrivals_refused_taken"] = Refusal(reason)
        elif (found := self._read_in_place(route, line.identity or identity, frames)) is None:
            self._counts["arrivals_refused_reference"] += 1
        elif not 0 < len(frames := found) <= PARTS_MAX:
            self._counts["arrivals_refused_parts"] += 1
        elif max(map(len, frames)) > FRAME_BYTES_MAX:
            self._counts["arrivals_refused_oversize"] += 1
        elif line.route is None and len(frames) == 1 and frames[0][: len(PROBE)] == PROBE:
            if frames[0][len(PROBE) :] != identity:  # Changed on the way: only another connection
                self._counts["arrivals_refused_route"] += 1  # mends what this one is known by.
                return None
            # On failure there is no answer: a full or vanished peer probes again.
            with suppress(trio.WouldBlock, zmq.ZMQError, trio.ClosedResourceError):
                name = self._shared.name if self._shared is not None else b""
                line.socket.send_multipart_nowait([identity, ANSWER + name])
        elif line.route is not None and len(frames) == 1 and frames[0][: len(ANSWER)] == ANSWER:
            self._answered(line, bytes(frames[0][len(ANSWER) :]))
        else:
            self._counts["messages_received"] += 1
            self._counts["bytes_received"] += sum(map(len, frames))
            return Arrival(route, frames)
        return None

    def _read_in_place(
        self, route: str, identity: bytes, frames: tuple[Frame, ...]
    ) -> tuple[Frame, ...] | None:
        """The parts, with the bytes that they refer to; None if those are not shared."""
        if len(frames) != PARTS_MAX + 1 or frames[-1] != BY_REFERENCE:
            return frames
        peer = self._shared.of(route, identity) if self._shared is not None else None
        if peer is None:
            return None
        try:
            return frames[0], peer.part(frames[1])
        except SharingError as error:
            self.refusals["arrivals_refused_reference"] = Refusal(f"{route}: {error}")
            return None

    def _identity_of(self, route: str) -> bytes:
        """The identity of the connection that owns a route; the route itself if none does."""
        holder = self._holders.get(route)
        return holder.identity if holder is not None else route.encode()

    def _holds(self, line: _Line, route: str, identity: bytes) -> bool:
        """Whether a connection owns the route that it claims, or owns it from now on."""
        now = trio.current_time()
        holder = self._holders.pop(route, None)
        if holder is None:
            holder = _Holder(identity, now, now)
            while len(self._holders) >= HOLDERS_MAX:
                del self._holders[next(iter(self._holders))]
        elif holder.identity != identity and not self._has_gone(line, holder, now):
            self._holders[route] = holder
            return False
        holder.identity, holder.heard_at = identity, now
        self._holders[route] = holder
        return True

    def _has_gone(self, line: _Line, holder: _Holder, now: float) -> bool:
        if now - holder.heard_at >= LIVING_S:
            return True
        if now - holder.looked_at < LOOK_FOR_HOLDER_S:
            return False
        holder.looked_at = now
        return not _is_there(line, holder.identity)

    def _proven(self, route: str, signature: str) -> bool:
        assert self._curve is not None, "there is no gate without keys"
        if signature and signature == self._curve.owner(_peer_of(route)):
            return True
        reason = f"the key of {signature or 'no actor'} was used for {route}"
        self.refusals["arrivals_refused_identity"] = Refusal(reason)
        return False


def _written_in(address: str) -> str:
    """The address in a file; empty if there is none."""
    path = Path(address.removeprefix(FILE))
    try:
        return read_text(path, ADDRESS_CHARS_MAX).partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _probe(line: _Line) -> None:
    """Send a probe, so that the listener knows of the line before it has messages to send."""
    with suppress(trio.WouldBlock):  # Not connected yet.
        line.socket.send_multipart_nowait([PROBE + line.identity])


def _is_there(line: _Line, identity: bytes) -> bool:
    """Whether a connection of that identity exists, found out by an unsolicited answer."""
    try:
        line.socket.send_multipart_nowait([identity, ANSWER])
    except trio.WouldBlock:
        return True  # It exists, and its queue is full.
    except zmq.ZMQError as error:
        if error.errno != errno.EHOSTUNREACH:
            raise
        return False
    return True


def _secret_identity(identity: str) -> bytes:
    """An identity for one dial; raises `ValueError` if the name is not a route or is too long."""
    wire = check_route(identity)
    if len(wire) > ROUTE_BYTES_MAX - 1 - 2 * NONCE_BYTES:
        most = ROUTE_BYTES_MAX - 1 - 2 * NONCE_BYTES
        raise ValueError(f"an identity has at most {most} bytes, this one {len(wire)}")
    return wire + f"{DIVIDER}{secrets.token_hex(NONCE_BYTES)}".encode()


def _route_of(identity: bytes) -> str | None:
    """The route in a peer's identity; None if invalid, such as those that libzmq generates."""
    try:
        route = str(identity, "utf-8").partition(DIVIDER)[0]
        check_route(route)
    except ValueError:
        return None
    return route


def _peer_of(route: str) -> str:
    """``learner-3.2`` for ``learner-3.2/control``; a route without a lane is the peer's name."""
    return route.rpartition("/")[0] or route
