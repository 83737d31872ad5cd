"""A star of plain sockets whose hub and learners do what the product does with the bytes.

Learners compute the digests of the fragments that they send and receive; the hub those of what has
arrived, merges (RDA and Nesterov, by the product's ``WorkExecutor``), and computes those of the
result, all in the threads that read the sockets. Neither ZeroMQ, nor codec, nor trio is in it.
"""

import socket
import threading
from contextlib import ExitStack
from multiprocessing.connection import Connection

import numpy as np
from bench_roundtrip import plain, receive_into
from raw_star import RawStar
from star import FRAGMENTS, LEARNERS, Versions, make_plan
from tools import Servant, servant

from ddloco.job.protocol.fragment_plan import FragmentPlan
from ddloco.stage.arrays.array_table import F32
from ddloco.stage.process.malloc import keep_freed_memory
from transport import Bytes, Payload, describe


def start_merging(stack: ExitStack, nbytes: int) -> list[Servant]:
    """The processes of learners, whose rounds begin and end at a word."""
    hub = stack.enter_context(servant(serve_hub, nbytes))
    address = hub.answer()
    return [stack.enter_context(servant(serve_learner, address, nbytes)) for _ in range(LEARNERS)]


def payload_of(plan: FragmentPlan, p: int, data: Bytes) -> Payload:
    """A fragment's bytes with their digests."""
    layout = tuple((leaf.name, leaf.shape, leaf.dtype) for leaf in plan.fragments[p])
    return Payload(describe(data, layout), data)


class MergingStar(RawStar):
    """A hub that merges.

    Args:
        links: the connections to all learners.
        nbytes: of the parameters.
    """

    def __init__(self, links: list[socket.socket], nbytes: int) -> None:
        super().__init__(links, nbytes, FRAGMENTS)
        self._versions = Versions(nbytes)
        self._one_by_one = threading.Lock()

    def combined(self, index: int, parts: list[F32]) -> Bytes:
        """The merge of all parts of a fragment."""
        versions = self._versions
        payloads = [payload_of(versions.plan, index, part.view(np.uint8)) for part in parts]
        with self._one_by_one:  # Tables and numbers are of one thread.
            arrived = {f"learner-{m}": versions.arrived(each) for m, each in enumerate(payloads)}
            work = versions.merge(index, arrived)
            theta = versions.arrays.shared.array(parts[0].nbytes).view(np.float32)
        done, made = versions.executor._merge(work, (theta, None))
        assert len(done.accepted) == len(parts), done
        with self._one_by_one:
            for handle, array in zip(work.makes, made, strict=True):
                versions.arrays.put(handle, array)
            return versions.merged(work).data


def serve_hub(connection: Connection, nbytes: int) -> None:
    """The hub's side; says its address, then serves until it is told to end."""
    keep_freed_memory()
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection.send(server.getsockname())
        links = [plain(server.accept()[0]) for _ in range(LEARNERS)]
    MergingStar(links, nbytes).start()
    connection.recv()


def serve_learner(connection: Connection, address: tuple[str, int], nbytes: int) -> None:
    """Sends all and receives all at once, at each word."""
    plan = make_plan(nbytes)
    source, target = np.empty(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    source.view(np.float32)[:] = 0.01
    cuts = [slice(*plan.fragment_slice(p)) for p in range(FRAGMENTS)]

    def send_all() -> None:
        for p, cut in enumerate(cuts):
            payload_of(plan, p, source[cut])
            link.sendall(source[cut])

    with plain(socket.create_connection(address)) as link:
        while connection.recv():
            sender = threading.Thread(target=send_all)
            sender.start()
            for p, cut in enumerate(cuts):
                receive_into(link, memoryview(target[cut]))
                payload_of(plan, p, target[cut])
            sender.join()
            connection.send("whole")
