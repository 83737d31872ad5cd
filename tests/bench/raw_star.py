"""A star of plain sockets: all send to a hub, and the hub to all.

One thread for each direction of each connection, sockets with TCP_NODELAY, memory that was touched
before. The hub passes a piece on once all parts of it are there.
"""

import queue
import socket
import threading
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection

import numpy as np
from bench_roundtrip import plain, receive_into
from shaped_link import Place, enter
from star import LEARNERS, LOOPBACK
from tools import Servant, servant

from ddloco.stage.arrays.array_table import F32
from transport import Bytes


def start_raw(
    stack: ExitStack,
    nbytes: int,
    pieces: int,
    average: bool,
    places: tuple[Place, Place] = (LOOPBACK, LOOPBACK),
    learners: int = LEARNERS,
) -> list[Servant]:
    """The same star over plain sockets; see `star.start_ours` for places and learners."""
    hub = stack.enter_context(servant(serve_raw_hub, learners, nbytes, pieces, average, places[0]))
    address = hub.answer()
    return [
        stack.enter_context(servant(serve_raw_learner, address, nbytes, places[1]))
        for _ in range(learners)
    ]


def serve_raw_hub(
    connection: Connection, learners: int, nbytes: int, pieces: int, average: bool, place: Place
) -> None:
    """Receives from all, sends to all, a piece once all parts of it are there."""
    enter(place)
    with socket.create_server((place.address, 0)) as server:
        connection.send(server.getsockname())
        links = [plain(server.accept()[0]) for _ in range(learners)]
    RawStar(links, nbytes, pieces, average=average).start()
    connection.recv()  # It is not called for long; threads end with the process.


class RawStar:
    """What the hub's threads share.

    Args:
        links: the connections to all others.
        nbytes: what each sends in a round, and is sent.
        pieces: in how many pieces.
        average: whether what is sent is the average of what has arrived.
    """

    def __init__(
        self, links: list[socket.socket], nbytes: int, pieces: int, *, average: bool = False
    ) -> None:
        size = nbytes // 4 // pieces
        self._links, self._average = links, average
        self._cuts = [slice(i * size, (i + 1) * size) for i in range(pieces)]
        self._parts = [np.ones(nbytes // 4, np.float32) for _ in links]
        self._result = np.ones(nbytes // 4, np.float32)
        self._there = [0] * pieces
        self._lock = threading.Lock()
        self._ready: list[queue.SimpleQueue[Bytes]] = [queue.SimpleQueue() for _ in links]

    def start(self) -> None:
        """Start all threads."""
        for m in range(len(self._links)):
            for work in (self._receive, self._send):
                threading.Thread(target=work, args=(m,), daemon=True).start()

    def _receive(self, m: int) -> None:
        """One learner's parts, round after round."""
        while True:
            for index, cut in enumerate(self._cuts):
                try:
                    receive_into(self._links[m], memoryview(self._parts[m][cut]).cast("B"))
                except (EOFError, OSError):
                    return
                with self._lock:
                    self._there[index] += 1
                    last = self._there[index] == len(self._links)
                if last:
                    self._there[index] = 0
                    made = self.combined(index, [part[cut] for part in self._parts])
                    for each in self._ready:
                        each.put(made)

    def combined(self, index: int, parts: list[F32]) -> Bytes:
        """What is sent of a piece."""
        result = self._result[self._cuts[index]]
        if self._average:
            np.add(parts[0], parts[1], out=result)
            for part in parts[2:]:
                np.add(result, part, out=result)
            np.multiply(result, np.float32(1 / len(parts)), out=result)
        return result.view(np.uint8)

    def _send(self, m: int) -> None:
        """Every piece that is ready, to one learner."""
        while True:
            try:
                self._links[m].sendall(self._ready[m].get())
            except OSError:
                return


def serve_raw_learner(
    connection: Connection, address: tuple[str, int], nbytes: int, place: Place
) -> None:
    """Sends all and receives all at once, at each word."""
    enter(place)
    source, target = (memoryview(np.ones(nbytes, np.uint8)) for _ in range(2))
    with plain(socket.create_connection(address)) as link:
        while connection.recv():
            sender = threading.Thread(target=partial(link.sendall, source))
            sender.start()
            receive_into(link, target)
            sender.join()
            connection.send("whole")
