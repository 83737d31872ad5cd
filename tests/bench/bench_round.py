"""One whole round of four learners: send 64 MiB each, merge, all learners receive the result.

Divided: the product's seconds by those of raw TCP moving the same bytes in the same star (four
processes to a hub, the hub to all four), which is the floor, and by those of the same star whose
hub averages, for which the aim is 1.5. Then the same with 128 MiB.

* Ours: the product's encoding, codec, endpoint, assembly, digests and merges of 16 fragments, as
  ``star`` says. Links, machines, pacing and tapes are not in it. Bytes go over TCP, as between
  hosts; beside it the same where they are read in the memory of their sender, as on one host.
* Raw: sockets with TCP_NODELAY, one thread for each direction of each connection, memory that was
  touched before; the hub looks at nothing, and passes a piece on once all four parts of it are
  there. It is measured in pieces of a fragment and as one piece, and the faster of the two is the
  floor: no hub that must wait for all four can know less about the bytes.
* Beside it the same raw star whose hub averages with numpy (the thread that receives the last part
  of a piece adds them up), which is what merging would cost at the very least.
* And the same star over ZeroMQ and nothing else: pieces as in the product, sent and received by
  pyzmq in blocking calls, which nothing reads. What ours takes beyond it is the product's own.

A round lasts from telling all four processes to begin to the answer of the last. All kinds take
turns, one round each.
"""

import queue
import socket
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import zmq
from bench_roundtrip import plain, receive_into
from shaped_link import Place, enter
from star import FRAGMENTS, LEARNERS, LOOPBACK, start_ours
from tools import Servant, median, median_interval, say, servant

from ddloco.stage.process.malloc import keep_freed_memory
from transport.codec import CHUNK_BYTES
from transport.endpoint import RECEIVE_QUEUE_MESSAGES_MAX, SEND_QUEUE_MESSAGES_MAX

BEYOND = """\
Over TCP a round of 64 MiB takes 0.42 core-seconds of two cores. By perf's samples 39 % of them \
are the kernel's in ZeroMQ's I/O threads, 25 % the interpreter's, 9 % merges, 7 % digests. The \
aim would need bulk bytes on connections of their own, which are read into the arena without the \
interpreter in between. Pieces of 1 MiB in place of 2 take 4 % more; what else was tried is in \
[decision 042](decisions/042-payloads-stay-in-the-pieces-that-arrived.md)."""

RAW = {"raw by fragment": (FRAGMENTS, False), "raw whole": (1, False)}
AVERAGING = {"averaging by fragment": (FRAGMENTS, True), "averaging whole": (1, True)}


def measure(quick: bool) -> dict[str, Any]:
    """Seconds of every round, by size and kind, and ratios of medians."""
    if quick:
        return {"sizes": [_rounds(1 << 20, 2, 1)]}
    return {"sizes": [_rounds(64 << 20, 12), _rounds(128 << 20, 6)]}


def _rounds(nbytes: int, rounds: int, shapes: int = len(RAW)) -> dict[str, Any]:
    raw, averaging = list(RAW.items())[:shapes], list(AVERAGING.items())[:shapes]
    with ExitStack() as stack:
        say(f"rounds of {nbytes >> 20} MiB")
        kinds = {
            "ours": start_ours(stack, nbytes),
            "in place": start_ours(stack, nbytes, share=True),
        }
        for name, (pieces, average) in (*raw, *averaging):
            kinds[name] = start_raw(stack, nbytes, pieces, average)
        kinds["zeromq"] = _zeromq(stack, nbytes)
        seconds = timed(kinds, rounds)
    medians = {kind: median(each) for kind, each in seconds.items()}
    floor = min(medians[kind] for kind, _ in raw)
    averages = min(medians[kind] for kind, _ in averaging)
    return {
        "ratio": medians["ours"] / floor,
        "ratio_averaging": medians["ours"] / averages,
        "interval": [bound / averages for bound in median_interval(seconds["ours"])],
        "ratio_zeromq": medians["zeromq"] / floor,
        "ratio_in_place": medians["in place"] / averages,
        "floor_s": floor,
        "averaging_s": averages,
        "median_s": medians,
        "megabytes": nbytes / 2**20,
        "rounds": rounds,
    }


class Learner(Protocol):
    """A process that does a round when it is asked, and answers at its end."""

    def ask(self, what: Any) -> None:
        """Begin."""

    def answer(self) -> Any:
        """Wait for the end."""


def timed(kinds: Mapping[str, Sequence[Learner]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each round of each kind; they take turns, and the first round only warms."""
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for index in range(rounds + 1):
        for kind, learners in kinds.items():
            begun = perf_counter()
            for learner in learners:
                learner.ask("begin")
            for learner in learners:
                learner.answer()
            if index:
                seconds[kind].append(perf_counter() - begun)
        say(f"round {index} of {rounds}")
    return seconds


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    return [
        "{megabytes:.0f} MiB x {0}: {ratio_averaging:.2f} times raw TCP whose hub averages, "
        "{1:.2f} to {2:.2f} (aim 1.5): {3:.3f} s against {averaging_s:.3f} s; {ratio:.2f} times "
        "raw TCP, {floor_s:.3f} s; ZeroMQ alone {ratio_zeromq:.2f} times raw TCP; read in place "
        "{ratio_in_place:.2f} times raw TCP whose hub averages, {4:.3f} s".format(
            LEARNERS,
            *each["interval"],
            each["median_s"]["ours"],
            each["median_s"]["in place"],
            **each,
        )
        for each in figures["sizes"]
    ]


# Raw.


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
    star = RawStar(links, nbytes, pieces, average)
    threads = [
        threading.Thread(target=work, args=(m,), daemon=True)
        for m in range(learners)
        for work in (star.receive, star.send)
    ]
    for thread in threads:
        thread.start()
    connection.recv()  # It is not called for long; threads end with the process.


class RawStar:
    """What the raw hub's threads share."""

    def __init__(self, links: list[socket.socket], nbytes: int, pieces: int, average: bool) -> None:
        size = nbytes // 4 // pieces
        self._links, self._average = links, average
        self._cuts = [slice(i * size, (i + 1) * size) for i in range(pieces)]
        self._parts = [np.ones(nbytes // 4, np.float32) for _ in links]
        self._result = np.ones(nbytes // 4, np.float32)
        self._there = [0] * pieces
        self._lock = threading.Lock()
        self._ready: list[queue.SimpleQueue[int]] = [queue.SimpleQueue() for _ in links]

    def receive(self, m: int) -> None:
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
                    self._combine(cut)
                    for each in self._ready:
                        each.put(index)

    def _combine(self, cut: slice) -> None:
        if not self._average:
            return
        result = self._result[cut]
        np.add(self._parts[0][cut], self._parts[1][cut], out=result)
        for part in self._parts[2:]:
            np.add(result, part[cut], out=result)
        np.multiply(result, np.float32(1 / len(self._links)), out=result)

    def send(self, m: int) -> None:
        """Every piece that is ready, to one learner."""
        for index in iter(self._ready[m].get, -1):
            try:
                self._links[m].sendall(memoryview(self._result[self._cuts[index]]).cast("B"))
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


# ZeroMQ alone.


def _zeromq(stack: ExitStack, nbytes: int) -> list[Servant]:
    hub = stack.enter_context(servant(serve_zeromq_hub, nbytes))
    address = hub.answer()
    return [
        stack.enter_context(servant(serve_zeromq_learner, address, nbytes, f"learner-{m}"))
        for m in range(LEARNERS)
    ]


def serve_zeromq_hub(connection: Connection, nbytes: int) -> None:
    """Receives from all, sends to all, a piece once all parts of it are there."""
    keep_freed_memory()
    result = memoryview(np.ones(nbytes, np.uint8))
    with zmq.Context() as context, _limited(context.socket(zmq.ROUTER)) as hub:
        connection.send(f"tcp://127.0.0.1:{hub.bind_to_random_port('tcp://127.0.0.1')}")
        parts: dict[int, list[bytes]] = defaultdict(list)
        while not connection.poll():
            if not hub.poll(timeout=100):
                continue
            learner, head = hub.recv(), hub.recv()
            hub.recv(copy=False)
            index = int(head)
            parts[index].append(learner)
            if len(parts[index]) == LEARNERS:
                piece = result[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
                for each in parts.pop(index):
                    hub.send_multipart([each, head, piece], copy=False)


def serve_zeromq_learner(connection: Connection, address: str, nbytes: int, name: str) -> None:
    """Sends all pieces and receives as many, at each word."""
    keep_freed_memory()
    source = memoryview(np.ones(nbytes, np.uint8))
    with zmq.Context() as context, _limited(context.socket(zmq.DEALER)) as link:
        link.setsockopt(zmq.ROUTING_ID, name.encode())
        link.connect(address)
        starts = range(0, nbytes, CHUNK_BYTES)
        while connection.recv():
            for index, start in enumerate(starts):
                piece = source[start : start + CHUNK_BYTES]
                link.send_multipart([b"%d" % index, piece], copy=False)
            for _ in starts:
                link.recv_multipart(copy=False)
            connection.send("whole")


def _limited(socket: Any) -> Any:
    """With the queues of the product."""
    socket.setsockopt(zmq.SNDHWM, SEND_QUEUE_MESSAGES_MAX)
    socket.setsockopt(zmq.RCVHWM, RECEIVE_QUEUE_MESSAGES_MAX)
    socket.setsockopt(zmq.LINGER, 0)
    return socket
