"""One whole round of four learners: send 64 MiB each, merge, all learners receive the result.

Divided: the product's seconds by those of raw TCP moving the same bytes in the same star (four
processes to a hub, the hub to all four), which is the floor, and by those of the same star whose
hub averages, for which the aim is 1.2. Then the same with 256 MiB.

* Ours: each learner encodes its 16 fragments of 4 MiB as in a job (copy and digests in a thread),
  sends them in chunks through codec and ZmqEndpoint; the hub assembles, checks digests, merges a
  fragment (RDA and Nesterov, in a thread, by the product's ``WorkExecutor``) once all four
  parts of it are there, and sends the result to all; each learner assembles it into shared memory
  and checks digests. Links, machines, pacing and tapes are not in it.
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
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import trio
import zmq
from bench_roundtrip import JOB, LISTENER, opened, plain, receive_into
from tools import Servant, median, median_interval, say, servant

from ddloco.config.job import job_from
from ddloco.protocol.effects import EncodeFragment, MergeFragment, Share
from ddloco.protocol.fragment_plan import FragmentPlan, Leaf
from ddloco.protocol.messages import Contribution, GlobalFragment, Said
from ddloco.runtime.array_table import Arrays, HostCopy
from ddloco.runtime.malloc import keep_freed_memory
from ddloco.runtime.shared_memory import Arena
from ddloco.workers.executor import WorkExecutor
from ddloco.workers.fragment_store import FragmentHistory
from transport import BULK, PROTOCOL_VERSION, Assembler, Codec, Header
from transport.codec import CHUNK_BYTES
from transport.endpoint import RECEIVE_QUEUE_MESSAGES_MAX, SEND_QUEUE_MESSAGES_MAX

LEARNERS = 4
FRAGMENTS = 16
TENSORS = 4  # of each fragment

RAW = {"raw by fragment": (FRAGMENTS, False), "raw whole": (1, False)}
AVERAGING = {"averaging by fragment": (FRAGMENTS, True), "averaging whole": (1, True)}


def measure(quick: bool) -> dict[str, Any]:
    """Seconds of every round, by size and kind, and ratios of medians."""
    if quick:
        return {"sizes": [_rounds(1 << 20, 2, 1)]}
    return {"sizes": [_rounds(64 << 20, 12), _rounds(256 << 20, 4)]}


def _rounds(nbytes: int, rounds: int, shapes: int = len(RAW)) -> dict[str, Any]:
    raw, averaging = list(RAW.items())[:shapes], list(AVERAGING.items())[:shapes]
    with ExitStack() as stack:
        say(f"rounds of {nbytes >> 20} MiB")
        kinds = {"ours": start_ours(stack, nbytes)}
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
        "{1:.2f} to {2:.2f} (aim 1.2): {3:.3f} s against {averaging_s:.3f} s; {ratio:.2f} times "
        "raw TCP, {floor_s:.3f} s; ZeroMQ alone {ratio_zeromq:.2f} times raw TCP".format(
            LEARNERS, *each["interval"], each["median_s"]["ours"], **each
        )
        for each in figures["sizes"]
    ]


# Ours.


def make_plan(nbytes: int) -> FragmentPlan:
    """Fragments of equal tensors."""
    elements = nbytes // 4 // FRAGMENTS // TENSORS
    fragments = tuple(
        tuple(Leaf(f"layer/{p:02}/{i}", (elements,), "float32") for i in range(TENSORS))
        for p in range(FRAGMENTS)
    )
    return FragmentPlan(fragments, tuple(range(FRAGMENTS)), FRAGMENTS)


def make_executor(incarnation: str, arrays: Arrays, plan: FragmentPlan) -> WorkExecutor:
    """The product's own, without a JAX process, which these kinds of work don't need."""
    job = job_from({"job": {"task": "none:none", "learners": LEARNERS}}, "bench")
    none: Any = None  # Neither a process nor snapshots.
    executor = WorkExecutor(
        job, incarnation, arrays, none, folder=Path(), keep=FragmentHistory(), sink=none
    )
    executor.lay_out(plan)
    return executor


def start_ours(stack: ExitStack, nbytes: int) -> list[Servant]:
    hub = stack.enter_context(servant(serve_hub, nbytes))
    address = hub.answer()
    return [
        stack.enter_context(servant(serve_learner, address, nbytes, f"learner-{m}.1"))
        for m in range(LEARNERS)
    ]


class Sender:
    """Sends one actor's messages, numbered per peer."""

    def __init__(self, endpoint: Any, sender: str) -> None:
        self.codec: Codec[Any] = Codec(Said, JOB)
        self._endpoint, self._sender = endpoint, sender
        self._said: dict[str, int] = defaultdict(int)

    def send(self, route: str, body: Any, payload: Any) -> None:
        """Encode and send."""
        number = self._said[route]
        self._said[route] += 1
        header = Header(
            version=PROTOCOL_VERSION,
            job=JOB,
            sender=self._sender,
            session=1,
            seq=number,
            clock={self._sender: number},
            body=body,
            tensors=payload.tensors,
        )
        for frames in self.codec.encode(header, payload):
            self._endpoint.send_nowait(route, frames)


class Hub:
    """Merges each fragment once all parts are there, and tells all learners."""

    def __init__(self, endpoint: Any, nbytes: int, nursery: trio.Nursery) -> None:
        self._plan = make_plan(nbytes)
        self._arrays = Arrays(Arena())
        self._executor = make_executor("syncer.1", self._arrays, self._plan)
        self._sender = Sender(endpoint, LISTENER)
        self._assemblers: dict[str, Assembler[Any]] = {}
        self._nursery = nursery
        self._work = 0
        self._parts: dict[int, dict[str, str]] = defaultdict(dict)
        self._globals: list[tuple[str, str, str]] = []
        for p in range(FRAGMENTS):
            start, stop = self._plan.fragment_slice(p)
            self._globals.append((f"theta/{p}/0", f"momentum/{p}/0", ""))
            for handle in self._globals[p][:2]:
                self._arrays.put(handle, np.zeros((stop - start) // 4, np.float32))

    async def deliver(self, arrival: Any) -> None:
        """Take one ZeroMQ message."""
        if arrival.route not in self._assemblers:
            self._assemblers[arrival.route] = Assembler(self._sender.codec)
        message = self._assemblers[arrival.route].feed(arrival.frames)
        if message is None:
            return
        self._work += 1
        p, parts = message.header.body.fragment, self._parts[message.header.body.fragment]
        handle = parts[arrival.route] = f"in/{self._work}"
        self._arrays.put(handle, message.payload)
        if len(parts) == LEARNERS:
            self._nursery.start_soon(self._merge, p, dict(parts))
            parts.clear()

    async def _merge(self, p: int, parts: dict[str, str]) -> None:
        self._work += 1
        number = self._work
        theta, momentum, wire = self._globals[p]
        out = (f"theta/{p}/{number}", f"momentum/{p}/{number}", f"wire/{p}/{number}")
        shares = tuple(Share(route, parts[route], 1.0, 0) for route in sorted(parts))
        done = await self._executor.do(
            MergeFragment(number, number, p, theta, momentum, shares, {}, {}, out)
        )
        assert len(done.accepted) == LEARNERS, done
        self._globals[p] = out
        for handle in (theta, momentum, wire, *parts.values()):
            self._arrays.free(handle)
        payload = self._arrays.get(out[2])
        for route in parts:
            self._sender.send(route, GlobalFragment(p, number), payload)


def serve_hub(connection: Connection, nbytes: int) -> None:
    """The syncer's side; says its address, then serves until it is told to end."""
    keep_freed_memory()

    async def main() -> None:
        async with opened() as endpoint, trio.open_nursery() as nursery:
            connection.send(await endpoint.listen("tcp://127.0.0.1:*"))
            nursery.start_soon(endpoint.run, Hub(endpoint, nbytes, nursery).deliver)
            await trio.to_thread.run_sync(connection.recv)
            nursery.cancel_scope.cancel()

    trio.run(main)


def serve_learner(connection: Connection, address: str, nbytes: int, incarnation: str) -> None:
    """A learner's side: at each word one round."""
    keep_freed_memory()
    route = f"{LISTENER}/{BULK}"

    async def main() -> None:
        arrays = Arrays(Arena())
        plan = make_plan(nbytes)
        executor = make_executor(incarnation, arrays, plan)
        rng = np.random.default_rng(list(incarnation.encode()))
        region = arrays.arena.allocate(plan.total_bytes)
        region.data.view(np.float32)[:] = 0.01 * rng.standard_normal(nbytes // 4, np.float32)
        arrays.put("host", HostCopy(region))
        async with opened() as endpoint:
            await endpoint.dial(address, route=route, identity=f"{incarnation}/{BULK}")
            sender = Sender(endpoint, incarnation)
            assembler = Assembler(sender.codec, allocate=arrays.allocate)
            missing, whole = 0, trio.Event()

            async def deliver(arrival: Any) -> None:
                nonlocal missing
                message = assembler.feed(arrival.frames)
                if message is not None:
                    arrays.put("in", message.payload)
                    arrays.free("in")
                    missing -= 1
                    if not missing:
                        whole.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(endpoint.run, deliver)
                while await trio.to_thread.run_sync(connection.recv):
                    missing, whole = FRAGMENTS, trio.Event()
                    for p in range(FRAGMENTS):
                        await executor.do(EncodeFragment(p, p, "host", f"out/{p}"))
                        payload = arrays.get(f"out/{p}")
                        sender.send(route, Contribution(1, p, 0, 1, 1, 1), payload)
                        arrays.free(f"out/{p}")
                    await whole.wait()
                    connection.send("whole")
                nursery.cancel_scope.cancel()

    trio.run(main)


# Raw.


def start_raw(stack: ExitStack, nbytes: int, pieces: int, average: bool) -> list[Servant]:
    hub = stack.enter_context(servant(serve_raw_hub, nbytes, pieces, average))
    port = hub.answer()
    return [stack.enter_context(servant(serve_raw_learner, port, nbytes)) for _ in range(LEARNERS)]


def serve_raw_hub(connection: Connection, nbytes: int, pieces: int, average: bool) -> None:
    """Receives from all, sends to all, a piece once all parts of it are there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection.send(server.getsockname()[1])
        links = [plain(server.accept()[0]) for _ in range(LEARNERS)]
    star = RawStar(links, nbytes, pieces, average)
    threads = [
        threading.Thread(target=work, args=(m,), daemon=True)
        for m in range(LEARNERS)
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
                    last = self._there[index] == LEARNERS
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
        np.multiply(result, np.float32(1 / LEARNERS), out=result)

    def send(self, m: int) -> None:
        """Every piece that is ready, to one learner."""
        for index in iter(self._ready[m].get, -1):
            try:
                self._links[m].sendall(memoryview(self._result[self._cuts[index]]).cast("B"))
            except OSError:
                return


def serve_raw_learner(connection: Connection, port: int, nbytes: int) -> None:
    """Sends all and receives all at once, at each word."""
    source, target = (memoryview(np.ones(nbytes, np.uint8)) for _ in range(2))
    with plain(socket.create_connection(("127.0.0.1", port))) as link:
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
