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
* The same again whose hub computes our digests and merges, and whose learners compute digests, in
  the threads of the sockets: what our work would cost without ZeroMQ, codec and trio.
* And the same star over ZeroMQ and nothing else: pieces as in the product, sent and received by
  pyzmq in blocking calls, which nothing reads. What ours takes beyond it is the product's own.

A round lasts from telling all four processes to begin to the answer of the last. All kinds take
turns, one round each.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import zmq
from merging_star import start_merging
from raw_star import start_raw
from star import FRAGMENTS, LEARNERS, start_ours
from tools import Servant, median, median_interval, say, servant

from ddloco.stage.process.malloc import keep_freed_memory
from transport.codec import CHUNK_BYTES
from transport.endpoint import RECEIVE_QUEUE_MESSAGES_MAX, SEND_QUEUE_MESSAGES_MAX

BEYOND = """\
Over TCP a round of 64 MiB takes 0.42 core-seconds of two cores. By perf's samples 39 % of them \
are the kernel's in ZeroMQ's I/O threads, 25 % the interpreter's, 9 % merges, 7 % digests. \
Connections of their own for bulk bytes would gain little: with codec, assembler and trio above \
plain sockets a round took 0.270 s where ZeroMQ took 0.277 and plain sockets without them 0.190 \
(an experiment of 2026-11-27). The aim would need whole fragments that are read into the arena \
without the interpreter in between. What else was tried is in [decision \
042](decisions/042-payloads-stay-in-the-pieces-that-arrived.md)."""

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
        kinds["plain"] = start_merging(stack, nbytes)
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
        "ratio_plain": medians["plain"] / averages,
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
        "raw TCP, {floor_s:.3f} s; ZeroMQ alone {ratio_zeromq:.2f} times raw TCP; of raw TCP whose "
        "hub averages, plain sockets with our digests and merges take {ratio_plain:.2f} times as "
        "long, and what is read in place {ratio_in_place:.2f} times, {4:.3f} s".format(
            LEARNERS,
            *each["interval"],
            each["median_s"]["ours"],
            each["median_s"]["in place"],
            **each,
        )
        for each in figures["sizes"]
    ]


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
