"""A TCP relay between one learner and the syncer, which applies a link's faults to real bytes. It
drops nothing and keeps the order: bytes held back by a cut are delivered afterwards, as TCP does
over an unplugged line. Only a reset loses bytes in flight."""

import socket
import struct
from collections import deque
from collections.abc import Sequence
from urllib.parse import urlsplit

import trio

from ddloco.stage.files.faults import Direction, Fault

READ_BYTES = 65536
"""The most bytes of one read: a share of a loopback socket's buffer."""

BUFFER_BYTES_MAX = 16 * 2**20
"""How many bytes may wait in one direction of a connection before its source is no longer read, so
that TCP's flow control works as on a real line. A delay needs rate times delay: this allows
160 MB/s with a delay of 0.1 s, more than a learner sends."""

SLICE_S = 0.05
"""With a limited bandwidth, at most the bytes of this many seconds are sent at once, so that the
average rate is right and a change takes effect soon."""

CONNECTIONS_MAX = 64
"""A learner has two. During a cut, connections that one side has given up remain, two more every
half minute; a larger number means that another process uses the port."""

ABORT = struct.pack("ii", 1, 0)
"""SO_LINGER with a time of 0: closing sends RST and discards unsent bytes."""

WAYS: dict[Direction, tuple[Direction, ...]] = {
    "both": ("to-syncer", "from-syncer"),
    "to-syncer": ("to-syncer",),
    "from-syncer": ("from-syncer",),
}


class Way:
    """One direction of a link: the faults on it, and their sum."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._changed = trio.Event()
        self._free_at = 0.0

    def begin(self, fault: Fault) -> None:
        self._faults.append(fault)
        self._tell()

    def end(self, fault: Fault) -> None:
        self._faults.remove(fault)
        self._tell()

    def _tell(self) -> None:
        self._free_at = 0.0  # What was reserved was reserved at another rate.
        self._changed.set()
        self._changed = trio.Event()

    @property
    def delay_s(self) -> float:
        return sum(each.delay_s for each in self._faults if each.what == "delay")

    @property
    def bytes_per_s(self) -> float | None:
        rates = [each.mbit * 1e6 / 8 for each in self._faults if each.what == "bandwidth"]
        return min(rates, default=None)

    async def opened(self) -> None:
        while any(each.what == "cut" for each in self._faults):
            await self._changed.wait()

    async def admit(self, waiting: int) -> int:
        """Wait until some of the waiting bytes may be sent; returns how many. All connections of a
        link share its bandwidth: each slice takes the next free time."""
        admitted = waiting
        while (rate := self.bytes_per_s) is not None:
            admitted = min(waiting, max(1, int(rate * SLICE_S)))
            self._free_at = max(self._free_at, trio.current_time()) + admitted / rate
            with trio.move_on_at(self._free_at) as its_time:
                await self._changed.wait()
            if its_time.cancelled_caught:
                break
            admitted = waiting
        await self.opened()
        return admitted


class BrokenHereError(Exception):
    """The source's connection broke after the bytes that were forwarded."""


class Pipe:
    """One direction of one connection: a reader, a queue with times, a writer."""

    def __init__(
        self, way: Way, source: trio.SocketStream, sink: trio.SocketStream, bytes_max: int
    ) -> None:
        self._way = way
        self._source = source
        self._sink = sink
        self._bytes_max = bytes_max
        self._queue: deque[tuple[float, bytes | None]] = deque()
        self._moved = trio.lowlevel.ParkingLot()
        self.waiting_bytes = 0

    async def run(self) -> None:
        """Forward until the source has ended and everything is delivered, or the sink is gone."""
        broken = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read)
            try:
                await self._write()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # The other direction's reader learns the same, and its delivery tells.
            except BrokenHereError:
                broken = True  # Raised below, out of the nursery: as itself, in no group.
            nursery.cancel_scope.cancel()
        if broken:
            raise BrokenHereError

    async def _read(self) -> None:
        data: bytes | None = b"-"
        while data:
            while self.waiting_bytes >= self._bytes_max:
                await self._moved.park()
            try:
                data = bytes(await self._source.receive_some(READ_BYTES))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = None
            self._queue.append((trio.current_time() + self._way.delay_s, data))
            self.waiting_bytes += len(data or b"")
            self._moved.unpark_all()

    async def _write(self) -> None:
        while True:
            while not self._queue:
                await self._moved.park()
            due, data = self._queue[0]
            await trio.sleep_until(due)
            await self._way.opened()
            if data is None:
                raise BrokenHereError
            if not data:
                await self._sink.send_eof()
                return
            await self._send(data)
            self._queue.popleft()
            self.waiting_bytes -= len(data)
            self._moved.unpark_all()

    async def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            admitted = await self._way.admit(len(view))
            await self._sink.send_all(view[:admitted])
            view = view[admitted:]


class ProxiedConnection:
    def __init__(self, learner: trio.SocketStream, syncer: trio.SocketStream) -> None:
        self._streams = (learner, syncer)
        self._scope = trio.CancelScope()
        self.pipes: tuple[Pipe, ...] = ()

    def abort(self) -> None:
        """Break the connection: both sides see a reset, and bytes in flight are lost."""
        for stream in self._streams:
            make_abortive(stream)
        self._scope.cancel()

    async def run(self, to_syncer: Way, from_syncer: Way, bytes_max: int) -> None:
        learner, syncer = self._streams
        self.pipes = (
            Pipe(to_syncer, learner, syncer, bytes_max),
            Pipe(from_syncer, syncer, learner, bytes_max),
        )
        with self._scope:
            async with trio.open_nursery() as nursery:
                for pipe in self.pipes:
                    nursery.start_soon(self._carry, pipe)

    async def _carry(self, pipe: Pipe) -> None:
        try:
            await pipe.run()
        except BrokenHereError:
            self.abort()


class Proxy:
    def __init__(self, upstream: str, *, buffer_bytes_max: int = BUFFER_BYTES_MAX) -> None:
        there = urlsplit(upstream)
        self._host, self._port = there.hostname or "", there.port or 0
        self._bytes_max = buffer_bytes_max
        self._ways: dict[Direction, Way] = {way: Way() for way in WAYS["both"]}
        self._connections: list[ProxiedConnection] = []
        self._accepted = 0
        self._listeners: list[trio.SocketListener] = []

    async def listen(self) -> str:
        self._listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        host, port = self._listeners[0].socket.getsockname()[:2]
        return f"tcp://{host}:{port}"

    async def run(self) -> None:
        await trio.serve_listeners(self._relay, self._listeners)

    @property
    def connections(self) -> tuple[ProxiedConnection, ...]:
        return tuple(self._connections)

    def begin(self, fault: Fault) -> None:
        for way in WAYS[fault.direction]:
            self._ways[way].begin(fault)

    def end(self, fault: Fault) -> None:
        for way in WAYS[fault.direction]:
            self._ways[way].end(fault)

    def reset(self) -> None:
        """Break every connection; new ones are accepted as before."""
        for connection in self.connections:
            connection.abort()

    async def _relay(self, learner: trio.SocketStream) -> None:
        if self._accepted >= CONNECTIONS_MAX:
            make_abortive(learner)
            return
        self._accepted += 1
        try:
            syncer = await trio.open_tcp_stream(self._host, self._port)
            await self._connect(learner, syncer)
        except OSError:
            make_abortive(learner)  # As if no process listened.
        finally:
            self._accepted -= 1

    async def _connect(self, learner: trio.SocketStream, syncer: trio.SocketStream) -> None:
        connection = ProxiedConnection(learner, syncer)
        self._connections.append(connection)
        try:
            await connection.run(
                self._ways["to-syncer"], self._ways["from-syncer"], self._bytes_max
            )
        finally:
            self._connections.remove(connection)
            await trio.aclose_forcefully(syncer)  # serve_listeners closes the learner's.


class Bundle:
    """A learner's links to all syncers, harmed as one."""

    def __init__(self, upstreams: Sequence[str]) -> None:
        self._proxies = [Proxy(each) for each in upstreams]

    async def listen(self) -> list[str]:
        """Return where the learner dials instead, in the same order."""
        return [await each.listen() for each in self._proxies]

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for each in self._proxies:
                nursery.start_soon(each.run)

    def begin(self, fault: Fault) -> None:
        for each in self._proxies:
            each.begin(fault)

    def end(self, fault: Fault) -> None:
        for each in self._proxies:
            each.end(fault)

    def reset(self) -> None:
        for each in self._proxies:
            each.reset()


def make_abortive(stream: trio.SocketStream) -> None:
    """From now on, closing this sends RST."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
