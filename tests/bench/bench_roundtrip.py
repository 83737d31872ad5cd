"""A 4 MiB fragment there and back over loopback TCP, against raw sockets.

Divided: the product's seconds by those of two raw TCP sockets that move the same bytes there and
back; 1 is the floor. The product's part: a Contribution with one tensor, its digest computed where
it is sent and checked where it arrives, cut into chunks by the codec, carried by two ZmqEndpoints,
put together by the assembler. Links, outboxes and tapes are not in it (see ``door``).
Raw: one connection with TCP_NODELAY, ``sendall`` from and ``recv_into`` to memory that was touched
before. Fair, because nothing that runs on one TCP connection copies less; the bytes must pass the
kernel twice. Each side of either is a process of its own, and the two kinds take turns in short
blocks, so that noise hits both. Aim: as small as can be; what digests and copies cost is seen here.
"""

import socket
from contextlib import asynccontextmanager
from functools import partial
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import numpy as np
import trio
from tools import median, median_interval, servant

from ddloco.job.protocol.messages import Contribution, JobBody
from ddloco.stage.driver.endpoints import new_endpoint
from ddloco.stage.process.malloc import keep_freed_memory
from transport import BULK, PROTOCOL_VERSION, Assembler, Codec, Header, Payload, describe
from transport.zeromq import open_context

JOB = "bench"
LISTENER, DIALLER = "syncer", "learner-0.1"
ROUTE, IDENTITY = f"{LISTENER}/{BULK}", f"{DIALLER}/{BULK}"


def measure(quick: bool) -> dict[str, Any]:
    """Seconds of every round trip, of both kinds, and the ratio of their medians."""
    nbytes, blocks, each = (1 << 18, 2, 3) if quick else (4 << 20, 10, 10)
    ours: list[float] = []
    raws: list[float] = []
    with (
        servant(serve_echo) as echo,
        servant(serve_raw_echo, nbytes) as raw_echo,
        servant(serve_pings, echo.answer(), nbytes) as pings,
        servant(serve_raw_pings, raw_echo.answer(), nbytes) as raw_pings,
    ):
        for pinger in (pings, raw_pings):
            pinger.request(each)  # Warm.
        for _ in range(blocks):
            ours += pings.request(each)
            raws += raw_pings.request(each)
    floor = median(raws)
    return {
        "ratio": median(ours) / floor,
        "interval": [bound / floor for bound in median_interval(ours)],
        "ours_s": median(ours),
        "raw_s": floor,
        "best_ours_s": min(ours),
        "best_raw_s": min(raws),
        "megabytes": nbytes / 2**20,
        "times": len(ours),
    }


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    return [
        "{ratio:.2f} times raw TCP there and back, {0:.2f} to {1:.2f}: {2:.2f} against {3:.2f} ms "
        "for {megabytes:.2f} MiB; best of {times} {4:.2f} against {5:.2f} ms".format(
            *figures["interval"],
            *(1e3 * figures[key] for key in ("ours_s", "raw_s", "best_ours_s", "best_raw_s")),
            **figures,
        )
    ]


# Ours.


class Side:
    """One side of the product's round trip."""

    def __init__(self, endpoint: Any, sender: str, route: str, data: Any) -> None:
        self._endpoint, self._sender, self._route, self._data = endpoint, sender, route, data
        self._codec: Codec[Any] = Codec(JobBody, JOB)
        self._assembler = Assembler(self._codec)
        self._layout = (("w", (len(data) // 4,), "float32"),)
        self._seq = 0

    def send(self) -> None:
        """Digest, encode, send."""
        payload = Payload(describe(self._data, self._layout), self._data)
        header = Header(
            version=PROTOCOL_VERSION,
            job=JOB,
            sender=self._sender,
            session=1,
            seq=self._seq,
            clock={self._sender: self._seq},
            body=Contribution(1, 0, 0, 1, 1, 1),
            tensors=payload.tensors,
        )
        self._seq += 1
        for frames in self._codec.encode(header, payload):
            self._endpoint.send_nowait(self._route, frames)

    def feed(self, arrival: Any) -> Any:
        """Put together; the message once it is whole and its digests are checked."""
        return self._assembler.feed(arrival.frames)


@asynccontextmanager
async def opened():
    """An endpoint as a job has it."""
    async with open_context() as context:
        endpoint = new_endpoint(context)
        try:
            yield endpoint
        finally:
            await endpoint.aclose()


def serve_echo(connection: Connection) -> None:
    """The listening side; says its address, and answers each fragment with one as long."""
    keep_freed_memory()

    async def main() -> None:
        async with opened() as endpoint:
            connection.send(await endpoint.listen("tcp://127.0.0.1:*"))
            sides: list[Side] = []

            async def deliver(arrival: Any) -> None:
                if not sides:
                    sides.append(Side(endpoint, LISTENER, IDENTITY, np.ones(0, np.uint8)))
                message = sides[0].feed(arrival)
                if message is not None:
                    data = message.payload.data
                    if not sides[0]._data.size:
                        sides[0] = Side(endpoint, LISTENER, IDENTITY, data)
                    sides[0].send()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(endpoint.run, deliver)
                await trio.to_thread.run_sync(connection.recv)
                nursery.cancel_scope.cancel()

    trio.run(main)


def serve_pings(connection: Connection, address: str, nbytes: int) -> None:
    """The dialling side; runs as many round trips as it is told, says how long each took."""
    keep_freed_memory()

    async def main() -> None:
        async with opened() as endpoint:
            await endpoint.dial(address, route=ROUTE, identity=IDENTITY)
            data = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
            side = Side(endpoint, DIALLER, ROUTE, data)
            back = trio.Event()

            async def deliver(arrival: Any) -> None:
                if side.feed(arrival) is not None:
                    back.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(endpoint.run, deliver)
                while times := await trio.to_thread.run_sync(connection.recv):
                    took: list[float] = []
                    for _ in range(times):
                        back = trio.Event()
                        begun = perf_counter()
                        side.send()
                        await back.wait()
                        took.append(perf_counter() - begun)
                    connection.send(took)
                nursery.cancel_scope.cancel()

    trio.run(main)


# Raw.


def receive_into(link: socket.socket, view: memoryview) -> None:
    """Fill ``view``.

    Raises:
        EOFError: the other side has closed.
    """
    done = 0
    while done < len(view):
        got = link.recv_into(view[done:])
        if not got:
            raise EOFError
        done += got


def plain(link: socket.socket) -> socket.socket:
    """A connection that does not wait for more to send."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def serve_raw_echo(connection: Connection, nbytes: int) -> None:
    """Answer each run of bytes with one as long."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection.send(server.getsockname()[1])
        link, _ = server.accept()
    with plain(link):
        view = memoryview(bytearray(nbytes))
        for _ in iter(partial(receive_into, link, view), False):
            link.sendall(view)


def serve_raw_pings(connection: Connection, port: int, nbytes: int) -> None:
    """As ``serve_pings``."""
    with plain(socket.create_connection(("127.0.0.1", port))) as link:
        source, target = memoryview(bytearray(nbytes)), memoryview(bytearray(nbytes))
        while times := connection.recv():
            took: list[float] = []
            for _ in range(times):
                begun = perf_counter()
                link.sendall(source)
                receive_into(link, target)
                took.append(perf_counter() - begun)
            connection.send(took)
