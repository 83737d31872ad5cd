"""The product's star of a round: learners send their fragments, a hub merges, all get the result.

Four learners and a hub are processes of their own. Each learner encodes its fragments as in a job
(digests, or a compressed difference, in a thread) and sends them in pieces through codec
and ``ZmqEndpoint``. The hub assembles, checks digests, merges a fragment (RDA and Nesterov, in a
thread, by the product's ``WorkExecutor``) once all parts of it are there, and sends the result to
all; each learner assembles it and checks digests, or adds the difference to the version before.
Links, machines, pacing and tapes are not in it.
"""

from collections import defaultdict
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import trio
from bench_roundtrip import JOB, LISTENER, opened
from shaped_link import Place, enter
from tools import Servant, servant

from ddloco.job.config import Outer, job_from
from ddloco.job.protocol.fragment_plan import FragmentPlan, Leaf
from ddloco.job.protocol.messages import Contribution, GlobalFragment, JobBody
from ddloco.job.protocol.work import (
    DecodeFragment,
    Differences,
    EncodeFragment,
    MergeFragment,
    Share,
)
from ddloco.machines.outer.optimizers.table import zero_state
from ddloco.stage.arrays.array_table import ArrayTable, HostCopy
from ddloco.stage.arrays.shared_memory import SharedMemory
from ddloco.stage.process.malloc import keep_freed_memory
from ddloco.workers.executor import WorkExecutor
from ddloco.workers.fragment_store import FragmentHistory
from transport import BULK, PROTOCOL_VERSION, Assembler, Codec, Header, Payload

LEARNERS = 4
FRAGMENTS = 16
TENSORS = 4  # of each fragment

WHOLE = "float32"
LOOPBACK = Place("", "127.0.0.1")


def start_ours(
    stack: ExitStack,
    nbytes: int,
    form: str = WHOLE,
    places: tuple[Place, Place] = (LOOPBACK, LOOPBACK),
    *,
    share: bool = False,
    learners: int = LEARNERS,
) -> list[Servant]:
    """The processes of learners, whose rounds begin and end at a word.

    Args:
        stack: ends them and the hub.
        nbytes: of the parameters of each.
        form: of what is sent, as in ``[compress]``.
        places: where the hub runs, and the learners.
        share: whether payloads are read in the memory of their sender, as in a job whose actors are
            on one host.
        learners: how many there are.
    """
    hub = stack.enter_context(servant(serve_hub, learners, nbytes, form, places[0], share))
    address = hub.answer()
    return [
        stack.enter_context(
            servant(serve_learner, (address, share), nbytes, form, places[1], f"learner-{m}.1")
        )
        for m in range(learners)
    ]


def make_plan(nbytes: int) -> FragmentPlan:
    """Fragments of equal tensors."""
    elements = nbytes // 4 // FRAGMENTS // TENSORS
    fragments = tuple(
        tuple(Leaf(f"layer/{p:02}/{i}", (elements,), "float32") for i in range(TENSORS))
        for p in range(FRAGMENTS)
    )
    return FragmentPlan(fragments, tuple(range(FRAGMENTS)), FRAGMENTS)


def make_executor(
    incarnation: str, arrays: ArrayTable, plan: FragmentPlan, form: str = WHOLE
) -> WorkExecutor:
    """The product's own, without a JAX process, which these kinds of work don't need."""
    settings = {
        "job": {"task": "none:none", "learners": LEARNERS},
        "compress": {"up": form, "down": form},
    }
    none: Any = None  # Neither a process nor snapshots.
    executor = WorkExecutor(
        job_from(settings, "bench"),
        *(incarnation, arrays, none),
        folder=Path(),
        keep=FragmentHistory(),
        sink=none,
    )
    executor.lay_out(plan)
    return executor


class Sender:
    """Sends one actor's messages, numbered per peer."""

    def __init__(self, endpoint: Any, sender: str) -> None:
        self.codec: Codec[Any] = Codec(JobBody, JOB)
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


class Versions:
    """The global fragments of a hub, and what makes the next version of one.

    Args:
        nbytes: of the parameters.
        form: of what is sent.
    """

    def __init__(self, nbytes: int, form: str = WHOLE) -> None:
        self.arrays = ArrayTable(SharedMemory())
        self.plan = make_plan(nbytes)
        self.executor = make_executor("syncer.1", self.arrays, self.plan, form)
        self._compresses = form != WHOLE
        self._number = 0
        self._newest: list[tuple[str, ...]] = []
        for p in range(FRAGMENTS):
            start, stop = self.plan.fragment_slice(p)
            zeros = np.zeros((stop - start) // 4, np.float32)
            self._newest.append(self._names(p, 0))
            self.arrays.put(f"theta/{p}/0", zeros)
            self.arrays.put(f"outer/{p}/0", zero_state(Outer(), zeros))
            self.arrays.put(f"wire/{p}/0", self.executor.layouts.sent(p, zeros))
            if self._compresses:
                self.arrays.put(f"held/{p}/0", self.executor.layouts.sent(p, zeros))

    def _names(self, p: int, number: int) -> tuple[str, ...]:
        """The handles of a version."""
        kinds = ("theta", "outer", "wire", *(("held", "difference") * self._compresses))
        return tuple(f"{kind}/{p}/{number}" for kind in kinds)

    def arrived(self, payload: Payload) -> str:
        """The handle of what has arrived."""
        self._number += 1
        handle = f"in/{self._number}"
        self.arrays.put(handle, payload)
        return handle

    def merge(self, p: int, parts: dict[str, str]) -> MergeFragment:
        """The work of the next merge, of what has arrived by learner."""
        self._number += 1
        number = self._number
        before, made = self._newest[p], self._names(p, number)
        shares = tuple(Share(who, parts[who], 1.0, 0) for who in sorted(parts))
        differences = None
        if self._compresses:
            anchors = dict.fromkeys(parts, before[0])
            differences = Differences(anchors, before[3], made[3:])
        return MergeFragment(
            *(number, number, p, before[0], before[1], shares, {}, {}, made[:3]),
            differences=differences,
        )

    def merged(self, work: MergeFragment) -> Payload:
        """Let go of what was merged; returns what is sent of the new version."""
        for handle in (*self._newest[work.fragment][:4], *(each.handle for each in work.shares)):
            self.arrays.free(handle)
        made = self._newest[work.fragment] = self._names(work.fragment, work.work)
        payload = self.arrays.get(made[-1])
        if self._compresses:
            self.arrays.free(made[-1])
        return payload


class Hub:
    """Merges each fragment once all parts are there, and tells all learners."""

    def __init__(
        self, endpoint: Any, learners: int, versions: Versions, nursery: trio.Nursery
    ) -> None:
        self._learners = learners
        self._versions = versions
        self._sender = Sender(endpoint, LISTENER)
        self._assemblers: dict[str, Assembler[Any]] = {}
        self._nursery = nursery
        self._parts: dict[int, dict[str, str]] = defaultdict(dict)

    async def deliver(self, arrival: Any) -> None:
        """Take one ZeroMQ message."""
        if arrival.route not in self._assemblers:
            self._assemblers[arrival.route] = Assembler(self._sender.codec)
        message = self._assemblers[arrival.route].feed(arrival.frames)
        if message is None:
            return
        p, parts = message.header.body.fragment, self._parts[message.header.body.fragment]
        parts[arrival.route] = self._versions.arrived(message.payload)
        if len(parts) == self._learners:
            self._nursery.start_soon(self._merge, p, dict(parts))
            parts.clear()

    async def _merge(self, p: int, parts: dict[str, str]) -> None:
        work = self._versions.merge(p, parts)
        done = await self._versions.executor.do(work)
        assert len(done.accepted) == self._learners, done
        payload = self._versions.merged(work)
        for route in parts:
            self._sender.send(route, GlobalFragment(p, work.work), payload)


def serve_hub(
    connection: Connection, learners: int, nbytes: int, form: str, place: Place, share: bool
) -> None:
    """The syncer's side; says its address, then serves until it is told to end."""
    enter(place)
    keep_freed_memory()

    async def main() -> None:
        async with opened() as endpoint, trio.open_nursery() as nursery:
            connection.send(await endpoint.listen(f"tcp://{place.address}:*"))
            versions = Versions(nbytes, form)
            hub = Hub(endpoint, learners, versions, nursery)
            if share:
                endpoint.share(versions.arrays.shared)
            nursery.start_soon(endpoint.run, hub.deliver)
            await trio.to_thread.run_sync(connection.recv)
            nursery.cancel_scope.cancel()

    trio.run(main)


class BenchLearner:
    """A learner's side of a round: what it sends is the same in every round.

    Args:
        nbytes: of its parameters.
        form: of what is sent.
        incarnation: its name, from which its parameters are drawn.
    """

    def __init__(self, nbytes: int, form: str, incarnation: str) -> None:
        self.arrays = ArrayTable(SharedMemory())
        self._plan = make_plan(nbytes)
        self._compresses = form != WHOLE
        self._executor = make_executor(incarnation, self.arrays, self._plan, form)
        rng = np.random.default_rng(list(incarnation.encode()))
        region = self.arrays.arena.allocate(self._plan.total_bytes)
        region.data.view(np.float32)[:] = 0.01 * rng.standard_normal(nbytes // 4, np.float32)
        self.arrays.put("host", HostCopy(region))
        self._versions = [""] * FRAGMENTS
        self._work = 0
        if self._compresses:
            for p in range(FRAGMENTS):
                self._versions[p] = f"version/{p}"
                zeros = np.zeros(nbytes // 4 // FRAGMENTS, np.float32)
                self.arrays.put(self._versions[p], self._executor.layouts.sent(p, zeros))

    async def encode(self, p: int) -> Any:
        """The payload of a contribution."""
        await self._executor.do(EncodeFragment(p, p, "host", "out", base=self._versions[p]))
        payload = self.arrays.get("out")
        self.arrays.free("out")
        return payload

    async def take(self, p: int, payload: Any) -> None:
        """Take a global fragment."""
        self._work += 1
        arrived = f"in/{self._work}"
        self.arrays.put(arrived, payload)
        if self._compresses:
            before, after = self._versions[p], f"version/{p}/{self._work}"
            await self._executor.do(DecodeFragment(self._work, p, before, arrived, after))
            self._versions[p] = after
            self.arrays.free(before)
        self.arrays.free(arrived)


def serve_learner(
    connection: Connection,
    hub: tuple[str, bool],
    nbytes: int,
    form: str,
    place: Place,
    incarnation: str,
) -> None:
    """A learner's side: at each word one round. ``hub`` has its address, and whether to share."""
    enter(place)
    keep_freed_memory()
    route = f"{LISTENER}/{BULK}"

    async def main() -> None:
        learner = BenchLearner(nbytes, form, incarnation)
        async with opened() as endpoint, trio.open_nursery() as nursery:
            await endpoint.dial(hub[0], route=route, identity=f"{incarnation}/{BULK}")
            if hub[1]:
                endpoint.share(learner.arrays.shared)
            sender = Sender(endpoint, incarnation)
            assembler = Assembler(sender.codec, allocate=learner.arrays.allocate)
            missing, whole = 0, trio.Event()

            async def take(p: int, payload: Any) -> None:
                nonlocal missing
                await learner.take(p, payload)
                missing -= 1
                if not missing:
                    whole.set()

            async def deliver(arrival: Any) -> None:
                message = assembler.feed(arrival.frames)
                if message is not None:
                    nursery.start_soon(take, message.header.body.fragment, message.payload)

            nursery.start_soon(endpoint.run, deliver)
            while await trio.to_thread.run_sync(connection.recv):
                missing, whole = FRAGMENTS, trio.Event()
                for p in range(FRAGMENTS):
                    payload = await learner.encode(p)
                    sender.send(route, Contribution(1, p, 0, 1, 1, 1), payload)
                await whole.wait()
                connection.send("whole")
            nursery.cancel_scope.cancel()

    trio.run(main)
