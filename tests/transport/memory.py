"""An endpoint without sockets, for virtual time and for fault injection.

`MemoryFabric` is a network in one process. Its endpoints pass the same conformance suite as
ZeroMQ, use no threads and no background task, and read only trio's clock, so that tests run under
`MockClock`. Without faults a fabric is lossless and FIFO like a ZeroMQ connection.

All faults come from one `random.Random(seed)` that the fabric owns. Each message draws the same
count of random numbers whatever the faults are, so that enabling one fault does not change the
others. The same sends in the same order meet the same faults.

Frames above `COPY_BYTES_MAX` are passed on without copying, as in ZeroMQ's zero-copy: the sender
must not write to them again. A fabric that copied them would hide violations until the first run on
real sockets.
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
    SharedFiles,
    check_frames,
    check_route,
)


@dataclass(frozen=True, slots=True)
class Faults:
    """What a lane does to its messages. The default does nothing."""

    delay_s: tuple[float, float] = (0.0, 0.0)
    """Minimum and maximum one-way delay, uniformly distributed; order is preserved."""
    loss: float = 0.0
    """Probability that a message is lost."""
    duplication: float = 0.0
    """Probability that a message arrives twice; the copy may be late, like a reordered message."""
    reorder: float = 0.0
    """Probability that a message is delayed, so that later ones overtake it."""
    reorder_s: float = 0.05
    """The longest extra delay of a reordered message."""
    bandwidth_bytes_s: float | None = None
    """Throughput in bytes per second, messages one after the other; None is unlimited."""

    def __post_init__(self) -> None:
        least, greatest = self.delay_s
        if not 0 <= least <= greatest or self.reorder_s < 0:
            raise ValueError("delays are not negative, and the least is not above the greatest")
        if not all(0 <= p <= 1 for p in (self.loss, self.duplication, self.reorder)):
            raise ValueError("a probability is between 0 and 1")
        if self.bandwidth_bytes_s is not None and self.bandwidth_bytes_s <= 0:
            raise ValueError("bandwidth is positive: to stop a link, partition it")


NO_FAULTS = Faults()


@dataclass(frozen=True, slots=True)
class FabricStatistics:
    """What the fabric did to messages since it was created."""

    lost: int = 0
    """Messages dropped by `Faults.loss`."""
    duplicated: int = 0
    """Messages that were delivered twice."""
    reordered: int = 0
    """Messages that were delayed out of order."""
    partitioned: int = 0
    """Messages dropped because of a partition."""


@dataclass(slots=True, eq=False)
class _Lane:
    """One direction of one dial. `route` is the name that its messages arrive under."""

    route: str
    names: frozenset[str]  # both sides' names of this link, for faults per route
    source: "MemoryEndpoint | None" = None
    target: "MemoryEndpoint | None" = None
    waiting: deque[tuple[Frame, ...]] = field(default_factory=deque)
    queued: int = 0  # messages waiting, in flight or unread: limited by the high-water mark
    free_at_s: float = 0.0  # when all earlier bytes have been transmitted
    due_s: float = 0.0  # when the last in-order message arrives


@dataclass(slots=True, eq=False)
class _Dial:
    """One dial: a lane in each direction, connected while an endpoint listens on the address."""

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
    """A network in this process, with faults drawn from `seed`.

    Faults and partitions refer to endpoints by name.
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
        """Create an endpoint; unnamed ones are called endpoint-1, endpoint-2, ..."""
        return MemoryEndpoint(self, name or f"endpoint-{next(self._numbers)}")

    def set_faults(
        self,
        faults: Faults,
        *,
        source: str | None = None,
        target: str | None = None,
        route: str | None = None,
    ) -> None:
        """Apply `faults` to messages sent from now on, from `source` to `target` on `route`.

        None means any. A route may be given by either side's name. The latest matching rule wins.
        """
        self._rules.append(_Rule(faults, source, target, route))

    def partition(self, a: str, b: str, *, one_way: bool = False, hold: bool = False) -> None:
        """Separate the endpoint named `a` from `b`, in both directions or only from `a` to `b`.

        Messages across the partition are dropped, or with `hold` kept until `heal`, like TCP's
        retransmission in a short outage. Messages already in flight arrive.
        """
        self._cuts[a, b] = hold
        if not one_way:
            self._cuts[b, a] = hold

    def heal(self) -> None:
        """End every partition and deliver the messages that were held."""
        self._cuts.clear()
        for dial in self._dials:
            self._flush(dial.there)
            self._flush(dial.back)

    def statistics(self) -> FabricStatistics:
        """The counts so far."""
        return FabricStatistics(**self._counts)

    # The methods below are for the endpoints of this file.

    def listen(self, address: str, endpoint: "MemoryEndpoint") -> None:
        """Connect the dials to `address`, present and future ones, to `endpoint`."""
        if address in self._listeners:
            raise OSError(errno.EADDRINUSE, f"cannot listen on {address}: in use")
        self._listeners[address] = endpoint
        self._attach()

    def dial(self, dial: _Dial) -> None:
        """Add a dial, connected at once if an endpoint listens."""
        self._dials.append(dial)
        self._attach()

    def remove(self, endpoint: "MemoryEndpoint") -> None:
        """Detach a closed endpoint: its dials end, dials to it wait for the next listener."""
        self._listeners = {a: e for a, e in self._listeners.items() if e is not endpoint}
        for dial in self._dials:
            if dial.there.target is endpoint:
                dial.there.target = dial.back.source = None
            elif dial.there.source is endpoint and dial.there.target is not None:
                dial.there.target.forget(dial.there.route)
        self._dials = [dial for dial in self._dials if dial.there.source is not endpoint]
        self._attach()

    def disconnect(self, endpoint: "MemoryEndpoint", there: _Lane | None) -> bool:
        """End the dial that a lane belongs to; returns whether `endpoint` dialled it."""
        dial = next((each for each in self._dials if each.there is there), None)
        if dial is None or dial.there.source is not endpoint:
            return False
        self._dials.remove(dial)
        if dial.there.target is not None:
            dial.there.target.forget(dial.there.route)
        self._attach()
        return True

    def send(self, lane: _Lane, frames: tuple[Frame, ...]) -> None:
        """Send a message on a lane."""
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
    """`Endpoint` on a `MemoryFabric`; see the module's docstring for differences from sockets."""

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
        """Open a lane in each direction; see `Endpoint.dial`."""
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

    async def disconnect(self, route: str) -> None:
        """End the dial named `route`; see `Endpoint.disconnect`."""
        await trio.lowlevel.checkpoint()
        self._check_open()
        if not self._fabric.disconnect(self, self._lanes.get(route)):
            raise ValueError(f"not dialled: {route}")
        del self._lanes[route]

    async def run(self, deliver: Deliver) -> None:
        """Sleep until the next arrival is due or a new one is scheduled; see `Endpoint.run`."""
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
                    # Kept until delivered: the next run delivers it again after a cancellation.
                    await deliver(self._held)
                    self._held = None
        finally:
            self._running = False

    def send_nowait(self, route: str, frames: Sequence[Buffer]) -> None:
        """Send one message on the lane called `route`; see `Endpoint.send_nowait`."""
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

    def share(self, own: SharedFiles) -> None:
        """Nothing is sent, so nothing is shared; see `Endpoint.share`."""

    def reaches(self, route: str) -> bool:
        """See `Endpoint.reaches`."""
        self._check_open()
        return route in self._lanes

    def statistics(self) -> EndpointStatistics:
        """The counters so far."""
        return EndpointStatistics(**self._counts)

    async def aclose(self) -> None:
        """Leave the fabric. Messages already sent still arrive; unread arrivals are lost."""
        if not self._closed:
            self._closed = True
            self._woken.set()
            self._fabric.remove(self)
            for _, _, lane, queued, _ in self._expected:
                lane.queued -= queued
            self._expected.clear()
            self._lanes.clear()
        await trio.lowlevel.cancel_shielded_checkpoint()

    # The methods below are for the fabric.

    def accept(self, identity: str, back: _Lane) -> bool:
        """Accept a dialler, unless another one has that identity."""
        return self._lanes.setdefault(identity, back) is back

    def forget(self, identity: str) -> None:
        """Forget a dialler that has closed."""
        del self._lanes[identity]

    def expect(
        self, due_s: float, lane: _Lane, frames: tuple[Frame, ...], *, queued: int = 1
    ) -> None:
        """Schedule an arrival at `due_s` on trio's clock; a duplicate counts 0 towards the mark."""
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
