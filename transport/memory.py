"""An endpoint without sockets, for virtual time and for faults on demand.

`MemoryFabric` is a network in one process. Its endpoints pass the same conformance suite as
ZeroMQ, use no threads and no background task, and read only trio's clock, so that a simulated day
runs in seconds under `MockClock`, which must never meet a real socket. With no faults it is
lossless and FIFO like a ZeroMQ connection.

Every fault comes from one `random.Random(seed)` that the fabric owns. Each message draws the same
count of numbers whatever the faults are, so that turning one fault on does not reshuffle the
others. The same sends in the same order meet the same fate.

Frames are handed over, not copied, above `COPY_BYTES_MAX`, as ZeroMQ's zero-copy does: the sender
promises not to write to them again. A fabric that copied would hide a broken promise until the
first run on real sockets.
"""

import errno
import heapq
import itertools
import math
import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from transport.endpoint import (
    COPY_BYTES_MAX,
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
)


@dataclass(frozen=True, slots=True)
class Faults:
    """What a lane does to the messages on it. The default does nothing."""

    delay_s: tuple[float, float] = (0.0, 0.0)
    """Least and greatest one-way delay; drawn evenly, and order is kept."""
    loss: float = 0.0
    """Probability that a message vanishes."""
    duplication: float = 0.0
    """Probability that a message arrives twice; the copy may come late, as a reordered one."""
    reorder: float = 0.0
    """Probability that a message is held back, so that later ones overtake it."""
    reorder_s: float = 0.05
    """The longest it is held back."""
    bandwidth_bytes_s: float | None = None
    """Bytes a second that pass one by one; None is no bound."""

    def __post_init__(self) -> None:
        least, greatest = self.delay_s
        if not 0 <= least <= greatest or self.reorder_s < 0:
            raise ValueError("delays are not negative, and the least is not above the greatest")
        if not all(0 <= p <= 1 for p in (self.loss, self.duplication, self.reorder)):
            raise ValueError("a probability lies between 0 and 1")
        if self.bandwidth_bytes_s is not None and self.bandwidth_bytes_s <= 0:
            raise ValueError("bandwidth is positive: to stop a link, partition it")


NO_FAULTS = Faults()


@dataclass(frozen=True, slots=True)
class FabricStatistics:
    """What the fabric did to messages since it was made."""

    lost: int = 0
    """Messages dropped by `Faults.loss`."""
    duplicated: int = 0
    """Messages that were sent on twice."""
    reordered: int = 0
    """Messages that were held back."""
    partitioned: int = 0
    """Messages dropped because a partition lay in between."""


@dataclass(slots=True, eq=False)
class _Lane:
    """One direction of one dial. `route` is the name its messages arrive under."""

    route: str
    names: frozenset[str]  # what either side calls this link, for per-route faults
    source: "MemoryEndpoint | None" = None
    target: "MemoryEndpoint | None" = None
    waiting: deque[tuple[Frame, ...]] = field(default_factory=deque)
    queued: int = 0  # messages waiting, on the way or unread: what the mark bounds
    free_at_s: float = 0.0  # when the wire has carried all earlier bytes
    due_s: float = 0.0  # when the latest message in order arrives


@dataclass(slots=True, eq=False)
class _Dial:
    """One dial: a lane each way, attached while somebody listens on the address."""

    address: str
    there: _Lane
    back: _Lane


@dataclass(frozen=True, slots=True)
class _Rule:
    faults: Faults
    source: str | None
    target: str | None
    route: str | None

    def fits(self, lane: _Lane, source: str, target: str) -> bool:
        return (
            self.source in {None, source}
            and self.target in {None, target}
            and (self.route is None or self.route in lane.names)
        )


class MemoryFabric:
    """A network in this process, whose faults are drawn from `seed`.

    Endpoints have names, by which faults and partitions find them.
    """

    def __init__(
        self,
        seed: int,
        faults: Faults = NO_FAULTS,
        *,
        queue_messages_max: int = SEND_QUEUE_MESSAGES_MAX,
    ) -> None:
        self.queue_messages_max = queue_messages_max
        self._random = random.Random(seed)
        self._rules = [_Rule(faults, None, None, None)]
        self._cuts: dict[tuple[str, str], bool] = {}  # (source, target) -> hold
        self._listeners: dict[str, MemoryEndpoint] = {}
        self._dials: list[_Dial] = []
        self._numbers = itertools.count(1)
        self._counts: Counter[str] = Counter()

    def endpoint(self, name: str | None = None) -> "MemoryEndpoint":
        """Make an endpoint; unnamed ones are called endpoint-1, endpoint-2, ..."""
        return MemoryEndpoint(self, name or f"endpoint-{next(self._numbers)}")

    def set_faults(
        self,
        faults: Faults,
        *,
        source: str | None = None,
        target: str | None = None,
        route: str | None = None,
    ) -> None:
        """Use `faults` for messages sent from now on, from `source` to `target` on `route`.

        None means any. A route is either side's name for it. The latest rule that fits wins.
        """
        self._rules.append(_Rule(faults, source, target, route))

    def partition(self, a: str, b: str, *, one_way: bool = False, hold: bool = False) -> None:
        """Cut the endpoint named `a` off from `b`, in both directions or only from `a` to `b`.

        What is sent across is dropped, or with `hold` kept until `heal`, as TCP's resending does
        in a short outage. Messages already on their way arrive.
        """
        self._cuts[a, b] = hold
        if not one_way:
            self._cuts[b, a] = hold

    def heal(self) -> None:
        """End every partition and send what was held on its way."""
        self._cuts.clear()
        for dial in self._dials:
            self._flush(dial.there)
            self._flush(dial.back)

    def statistics(self) -> FabricStatistics:
        """Return what was done to messages so far."""
        return FabricStatistics(**self._counts)

    # What follows is for the endpoints of this file.

    def listen(self, address: str, endpoint: "MemoryEndpoint") -> None:
        """Attach the dials to `address`, those waiting and those to come."""
        if address in self._listeners:
            raise OSError(errno.EADDRINUSE, f"cannot listen on {address}: in use")
        self._listeners[address] = endpoint
        self._attach()

    def dial(self, dial: _Dial) -> None:
        """Add a dial, attached at once if somebody listens."""
        self._dials.append(dial)
        self._attach()

    def remove(self, endpoint: "MemoryEndpoint") -> None:
        """Detach a closed endpoint: its dials end, those to it wait for the next listener."""
        self._listeners = {a: e for a, e in self._listeners.items() if e is not endpoint}
        for dial in self._dials:
            if dial.there.target is endpoint:
                dial.there.target = dial.back.source = None
            elif dial.there.source is endpoint and dial.there.target is not None:
                dial.there.target.forget(dial.there.route)
        self._dials = [dial for dial in self._dials if dial.there.source is not endpoint]
        self._attach()

    def send(self, lane: _Lane, frames: tuple[Frame, ...]) -> None:
        """Put a message on a lane."""
        lane.queued += 1
        lane.waiting.append(frames)
        self._flush(lane)

    def _attach(self) -> None:
        for dial in self._dials:
            there, listener = dial.there, self._listeners.get(dial.address)
            if there.target is None and listener and listener.accept(there.route, dial.back):
                there.target = dial.back.source = listener
                self._flush(there)

    def _flush(self, lane: _Lane) -> None:
        while lane.waiting and lane.source and lane.target:
            hold = self._cuts.get((lane.source.name, lane.target.name))
            if hold:
                return
            frames = lane.waiting.popleft()
            if hold is None:
                self._launch(lane, lane.source.name, lane.target, frames)
            else:
                self._drop(lane, "partitioned")

    def _launch(
        self, lane: _Lane, source: str, target: "MemoryEndpoint", frames: tuple[Frame, ...]
    ) -> None:
        faults = next(r.faults for r in reversed(self._rules) if r.fits(lane, source, target.name))
        lost, late, twice, delay, late_by, twice_by = (self._random.random() for _ in range(6))
        sent_s = max(trio.current_time(), lane.free_at_s)
        if faults.bandwidth_bytes_s is not None:
            sent_s += sum(map(len, frames)) / faults.bandwidth_bytes_s
            lane.free_at_s = sent_s
        if lost < faults.loss:
            self._drop(lane, "lost")
            return
        least_s, greatest_s = faults.delay_s
        due_s = max(lane.due_s, sent_s + least_s + delay * (greatest_s - least_s))
        if twice < faults.duplication:
            self._counts["duplicated"] += 1
            target.expect(due_s + twice_by * faults.reorder_s, lane, frames, queued=0)
        if late < faults.reorder:
            self._counts["reordered"] += 1
            target.expect(due_s + late_by * faults.reorder_s, lane, frames)
        else:
            lane.due_s = due_s
            target.expect(due_s, lane, frames)

    def _drop(self, lane: _Lane, reason: str) -> None:
        lane.queued -= 1
        self._counts[reason] += 1


class MemoryEndpoint:
    """`Endpoint` on a `MemoryFabric`; see there for what differs from sockets."""

    def __init__(self, fabric: MemoryFabric, name: str) -> None:
        self.name = name
        self._fabric = fabric
        self._lanes: dict[str, _Lane] = {}
        self._expected: list[tuple[float, int, _Lane, int, tuple[Frame, ...]]] = []
        self._numbers = itertools.count()
        self._held: Arrival | None = None
        self._woken = trio.Event()
        self._running = self._closed = False
        self._counts: Counter[str] = Counter()

    async def listen(self, address: str) -> str:
        """Accept dials on `address`, any string; see `Endpoint.listen`."""
        await trio.lowlevel.checkpoint()
        self._check_open()
        self._fabric.listen(address, self)
        return address

    async def dial(self, address: str, *, route: str, identity: str) -> None:
        """Open a lane each way; see `Endpoint.dial`."""
        await trio.lowlevel.checkpoint()
        self._check_open()
        check_route(route)
        check_route(identity)
        if route in self._lanes:
            raise ValueError(f"already dialled: {route}")
        names = frozenset({route, identity})
        there, back = _Lane(identity, names, source=self), _Lane(route, names, target=self)
        self._lanes[route] = there
        self._fabric.dial(_Dial(address, there, back))

    async def run(self, deliver: Deliver) -> None:
        """Sleep until the next arrival is due or a new one comes; see `Endpoint.run`."""
        await trio.lowlevel.checkpoint()
        self._check_open()
        if self._running:
            raise trio.BusyResourceError("this endpoint is running already")
        self._running = True
        try:
            while True:
                await trio.lowlevel.checkpoint()
                self._check_open()
                self._held = self._held or self._next_due()
                if self._held is None:
                    await self._wait_expected()
                else:
                    # Held until delivered: a cancelled delivery is handed out by the next run.
                    await deliver(self._held)
                    self._held = None
        finally:
            self._running = False

    def send_nowait(self, route: str, frames: Sequence[Buffer]) -> None:
        """Put one message on the lane called `route`; see `Endpoint.send_nowait`."""
        self._check_open()
        flat = check_frames(frames)
        lane = self._lanes.get(route)
        if lane is None:
            self._counts["sends_refused_gone"] += 1
            raise PeerGone(route)
        if lane.queued >= self._fabric.queue_messages_max:
            self._counts["sends_refused_full"] += 1
            raise LaneFull(route)
        self._counts["messages_sent"] += 1
        self._counts["bytes_sent"] += sum(map(len, flat))
        self._fabric.send(lane, tuple(map(_handed_over, flat)))

    def reaches(self, route: str) -> bool:
        """See `Endpoint.reaches`."""
        self._check_open()
        return route in self._lanes

    def statistics(self) -> EndpointStatistics:
        """Return what has been counted so far."""
        return EndpointStatistics(**self._counts)

    async def aclose(self) -> None:
        """Leave the fabric. What was sent still arrives; what was unread here is lost."""
        if not self._closed:
            self._closed = True
            self._woken.set()
            self._fabric.remove(self)
            for _, _, lane, queued, _ in self._expected:
                lane.queued -= queued
            self._expected.clear()
            self._lanes.clear()
        await trio.lowlevel.cancel_shielded_checkpoint()

    # What follows is for the fabric.

    def accept(self, identity: str, back: _Lane) -> bool:
        """Take on a dialler, unless another one has that identity."""
        return self._lanes.setdefault(identity, back) is back

    def forget(self, identity: str) -> None:
        """Let go of a dialler that has closed."""
        del self._lanes[identity]

    def expect(
        self, due_s: float, lane: _Lane, frames: tuple[Frame, ...], *, queued: int = 1
    ) -> None:
        """Let a message arrive at `due_s` on trio's clock; a copy counts 0 towards the mark."""
        heapq.heappush(self._expected, (due_s, next(self._numbers), lane, queued, frames))
        self._woken.set()

    def _next_due(self) -> Arrival | None:
        if not self._expected or self._expected[0][0] > trio.current_time():
            return None
        _, _, lane, queued, frames = heapq.heappop(self._expected)
        lane.queued -= queued
        self._counts["messages_received"] += 1
        self._counts["bytes_received"] += sum(map(len, frames))
        return Arrival(lane.route, frames)

    async def _wait_expected(self) -> None:
        self._woken = trio.Event()
        with trio.move_on_at(self._expected[0][0] if self._expected else math.inf):
            await self._woken.wait()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this endpoint was closed")


def _handed_over(frame: Frame) -> Frame:
    """Copy what ZeroMQ copies, share what it shares."""
    return bytes(frame) if len(frame) <= COPY_BYTES_MAX else memoryview(frame).toreadonly()
