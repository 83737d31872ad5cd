"""The conformance suite that every endpoint must pass, including your own.

    await check_endpoint(make)

`make` returns an async context manager that yields a fresh `Bench`: two endpoints, and an address
that one can listen on and the other dial. Each check is a plain async function whose docstring
states the guarantee that it checks; run them one by one (`for check in CHECKS`) to see which fails.

The in-memory fabric of tests and the ZeroMQ sockets pass the same suite, so that results of tests
hold for real runs. Faults, and peers that break the protocol below this interface, are
covered by the tests of each endpoint.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import trio

from transport.endpoint import (
    COPY_BYTES_MAX,
    FRAME_BYTES_MAX,
    PARTS_MAX,
    ROUTE_BYTES_MAX,
    Arrival,
    Buffer,
    Endpoint,
    LaneFull,
    PeerGone,
)

CHECK_S_MAX = 30.0
"""Time limit of one check; each needs well under a second, so a timeout means a stall."""

RETRY_S = 0.001
"""Wait before sending again on a full lane; a link would wait for credit instead."""

CONTROL, BULK = "syncer/control", "syncer/bulk"
"""The routes that the dialler uses."""

LANES = {CONTROL: "learner-1.1/control", BULK: "learner-1.1/bulk"}
"""The identity that the dialler uses for each route: the name of the route at the listener."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Two fresh endpoints, and the address that `listener` binds and `dialler` dials."""

    listener: Endpoint
    dialler: Endpoint
    address: str


Make: TypeAlias = Callable[[], AbstractAsyncContextManager[Bench]]
Check: TypeAlias = Callable[[Make], Awaitable[None]]


async def check_endpoint(make: Make) -> None:
    """Run every check in order; raises the error of the first failure, mostly `AssertionError`."""
    for check in CHECKS:
        with trio.fail_after(CHECK_S_MAX):
            await check(make)


@dataclass(slots=True)
class Inbox:
    """Collects the delivered messages by route, and can wait for a number of them."""

    messages: dict[str, list[tuple[bytes, ...]]] = field(default_factory=dict)
    count: int = 0
    changed: trio.Event = field(default_factory=trio.Event)

    async def deliver(self, arrival: Arrival) -> None:
        """Store a copy of the arrival."""
        frames = tuple(bytes(frame) for frame in arrival.frames)
        self.messages.setdefault(arrival.route, []).append(frames)
        self.count += 1
        self.changed.set()

    async def wait_count(self, count: int) -> None:
        """Wait until `count` messages have arrived in total."""
        while self.count < count:
            self.changed = trio.Event()
            await self.changed.wait()


@contextmanager
def expected(error: type[Exception]) -> Iterator[None]:
    """Require that the block raises `error`."""
    try:
        yield
    except error:
        return
    raise AssertionError(f"{error.__name__} was not raised")


async def send_patiently(endpoint: Endpoint, route: str, frames: Sequence[Buffer]) -> None:
    """Send, and retry while the lane is full or the peer is not connected."""
    while True:
        try:
            endpoint.send_nowait(route, frames)
        except (LaneFull, PeerGone):
            await trio.sleep(RETRY_S)
        else:
            return


async def connect(bench: Bench) -> str:
    """Listen, and dial both lanes; returns the address that was bound."""
    address = await bench.listener.listen(bench.address)
    for route, identity in LANES.items():
        await bench.dialler.dial(address, route=route, identity=identity)
    return address


@asynccontextmanager
async def _meeting(make: Make) -> AsyncIterator[tuple[Bench, Inbox, Inbox]]:
    """Yield a connected bench with both sides running, and the inboxes of listener and dialler."""
    async with make() as bench, trio.open_nursery() as nursery:
        at_listener, at_dialler = Inbox(), Inbox()
        await connect(bench)
        nursery.start_soon(bench.listener.run, at_listener.deliver)
        nursery.start_soon(bench.dialler.run, at_dialler.deliver)
        yield bench, at_listener, at_dialler
        nursery.cancel_scope.cancel()


async def check_round_trip(make: Make) -> None:
    """A message arrives complete and under the right route, in both directions on both lanes."""
    async with _meeting(make) as (bench, at_listener, at_dialler):
        for route, identity in LANES.items():
            await send_patiently(bench.dialler, route, [b"to " + identity.encode(), b""])
        await at_listener.wait_count(2)
        for route, identity in LANES.items():
            await send_patiently(bench.listener, identity, [b"back " + route.encode(), b""])
        await at_dialler.wait_count(2)
    assert {i: [(b"to " + i.encode(), b"")] for i in LANES.values()} == at_listener.messages
    assert {r: [(b"back " + r.encode(), b"")] for r in LANES} == at_dialler.messages


async def check_order(make: Make) -> None:
    """Each route is FIFO and lossless over thousands of messages, in all directions at once."""
    count = 1_500
    sent = [(n.to_bytes(4, "big"),) for n in range(count)]

    async def send_all(endpoint: Endpoint, route: str) -> None:
        for frames in sent:
            await send_patiently(endpoint, route, frames)

    async with _meeting(make) as (bench, at_listener, at_dialler), trio.open_nursery() as nursery:
        for route, identity in LANES.items():
            nursery.start_soon(send_all, bench.dialler, route)
            nursery.start_soon(send_all, bench.listener, identity)
        await at_listener.wait_count(2 * count)
        await at_dialler.wait_count(2 * count)
    assert dict.fromkeys(LANES.values(), sent) == at_listener.messages
    assert dict.fromkeys(LANES, sent) == at_dialler.messages


async def check_big_frames(make: Make) -> None:
    """Frames around the copying threshold and up to the largest arrive byte for byte."""
    sizes = (0, 1, COPY_BYTES_MAX - 1, COPY_BYTES_MAX, COPY_BYTES_MAX + 1, FRAME_BYTES_MAX)
    source = random.Random(1)
    sent = [(size.to_bytes(4, "big"), source.randbytes(size)) for size in (*sizes, *sizes)]
    async with _meeting(make) as (bench, at_listener, at_dialler):
        for frames in sent:
            await send_patiently(bench.dialler, BULK, [frames[0], bytearray(frames[1])])
            await send_patiently(bench.listener, LANES[BULK], [frames[0], memoryview(frames[1])])
        await at_listener.wait_count(len(sent))
        await at_dialler.wait_count(len(sent))
    assert sent == at_listener.messages[LANES[BULK]]
    assert sent == at_dialler.messages[BULK]


async def check_unknown_route(make: Make) -> None:
    """Sending to a route without a peer raises PeerGone, before and after others connect."""
    async with make() as bench:
        for endpoint in (bench.listener, bench.dialler):
            with expected(PeerGone):
                endpoint.send_nowait("unknown/bulk", [b"x"])
        assert not bench.listener.reaches(LANES[BULK])
        await connect(bench)
        assert bench.dialler.reaches(BULK)
        await wait_until_reached(bench.listener, LANES[BULK])
        for endpoint in (bench.listener, bench.dialler):
            assert not endpoint.reaches("unknown/bulk")
            with expected(PeerGone):
                endpoint.send_nowait("unknown/bulk", [b"x"])
            assert endpoint.statistics().sends_refused_gone == 2


async def wait_until_reached(endpoint: Endpoint, route: str) -> None:
    """Return when the route has a peer; with keys, handshakes are answered only while `run`
    runs."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(endpoint.run, Inbox().deliver)
        while not endpoint.reaches(route):  # noqa: ASYNC110, there is no event to wait for
            await trio.sleep(0.005)
        nursery.cancel_scope.cancel()


async def check_dial_first(make: Make) -> None:
    """A dial succeeds before the listener exists, and messages sent meanwhile arrive in order."""
    async with make() as bench, trio.open_nursery() as nursery:
        inbox = Inbox()
        await bench.dialler.dial(bench.address, route=BULK, identity=LANES[BULK])
        bench.dialler.send_nowait(BULK, [b"first"])
        bench.dialler.send_nowait(BULK, [b"second"])
        await trio.sleep(0.02)
        nursery.start_soon(bench.listener.run, inbox.deliver)
        await bench.listener.listen(bench.address)
        await inbox.wait_count(2)
        nursery.cancel_scope.cancel()
    assert inbox.messages[LANES[BULK]] == [(b"first",), (b"second",)]


async def check_bad_parts(make: Make) -> None:
    """An invalid message raises, and the next valid message arrives intact."""
    scattered = memoryview(bytes(200_000))[::2]
    too_large = bytes(FRAME_BYTES_MAX + 1)
    async with _meeting(make) as (bench, at_listener, _):
        send = bench.dialler.send_nowait
        with expected(ValueError):
            send(BULK, [b"header", scattered])
        with expected(TypeError):
            send(BULK, [b"header", cast("Any", "text")])
        with expected(ValueError):
            send(BULK, [b"header", too_large])
        with expected(ValueError):
            send(BULK, [b"part"] * (PARTS_MAX + 1))
        with expected(ValueError):
            send(BULK, [])
        send(BULK, [b"intact"] * PARTS_MAX)
        await at_listener.wait_count(1)
        assert bench.dialler.statistics().messages_sent == 1
    assert {LANES[BULK]: [(b"intact",) * PARTS_MAX]} == at_listener.messages


async def check_bad_names(make: Make) -> None:
    """A dial with an invalid name, or with a route already in use, raises ValueError."""
    async with make() as bench:
        dial = bench.dialler.dial
        await dial(bench.address, route=BULK, identity=LANES[BULK])
        for bad in ("", "x" * (ROUTE_BYTES_MAX + 1), "bell\a"):
            with expected(ValueError):
                await dial(bench.address, route=bad, identity=LANES[CONTROL])
            with expected(ValueError):
                await dial(bench.address, route=CONTROL, identity=bad)
        with expected(ValueError):
            await dial(bench.address, route=BULK, identity=LANES[CONTROL])


async def check_cancelled_receiving(make: Make) -> None:
    """Cancelling `run` repeatedly, even during delivery, never loses, repeats or reorders."""
    count = 1_000
    source = random.Random(2)
    inbox = Inbox()

    async def deliver(arrival: Arrival) -> None:
        await trio.sleep(source.choice((0, 0, 0, 0.0005)))  # a full inbox; may be cancelled here
        await inbox.deliver(arrival)

    async def send_all() -> None:
        for number in range(count):
            await send_patiently(bench.dialler, BULK, [number.to_bytes(4, "big")])

    async with make() as bench, trio.open_nursery() as nursery:
        await connect(bench)
        nursery.start_soon(send_all)
        while inbox.count < count:
            with trio.move_on_after(source.uniform(0, 0.002)):
                await bench.listener.run(deliver)
    assert [(n.to_bytes(4, "big"),) for n in range(count)] == inbox.messages[LANES[BULK]]


async def check_back_pressure(make: Make) -> None:
    """A receiver that does not run eventually causes LaneFull, on that lane only.

    All messages accepted before arrive in order once it runs.
    """
    frame = bytes(COPY_BYTES_MAX)  # large, so that the kernel's buffers fill as well
    inbox = Inbox()
    async with make() as bench, trio.open_nursery() as nursery:
        await connect(bench)
        accepted = refused = 0
        while refused < 20:  # full for a while, not only until the next flush
            try:
                bench.dialler.send_nowait(BULK, [accepted.to_bytes(4, "big"), frame])
                accepted, refused = accepted + 1, 0
            except LaneFull:
                refused += 1
                await trio.sleep(RETRY_S)
        bench.dialler.send_nowait(CONTROL, [b"still open"])
        nursery.start_soon(bench.listener.run, inbox.deliver)
        await inbox.wait_count(accepted + 1)
        nursery.cancel_scope.cancel()
    arrived = [int.from_bytes(frames[0], "big") for frames in inbox.messages[LANES[BULK]]]
    assert list(range(accepted)) == arrived
    assert inbox.messages[LANES[CONTROL]] == [(b"still open",)]


async def check_closing(make: Make) -> None:
    """Messages sent before a close arrive; closing twice is allowed; later calls raise."""
    ended = trio.Event()

    async def run_until_closed() -> None:
        with expected(trio.ClosedResourceError):
            await bench.dialler.run(inbox.deliver)
        ended.set()

    async with make() as bench, trio.open_nursery() as nursery:
        inbox = Inbox()
        await connect(bench)
        nursery.start_soon(bench.listener.run, inbox.deliver)
        await send_patiently(bench.dialler, BULK, [b"hello"])
        await inbox.wait_count(1)
        bench.dialler.send_nowait(BULK, [b"last words"])
        nursery.start_soon(run_until_closed)
        await trio.sleep(RETRY_S)
        await bench.dialler.aclose()
        await bench.dialler.aclose()
        await inbox.wait_count(2)
        await ended.wait()
        with expected(trio.ClosedResourceError):
            bench.dialler.send_nowait(BULK, [b"x"])
        with expected(trio.ClosedResourceError):
            await bench.dialler.run(inbox.deliver)
        nursery.cancel_scope.cancel()


async def check_disconnect(make: Make) -> None:
    """A disconnected route reaches no peer, others continue, and it may be dialled again."""
    async with make() as bench, trio.open_nursery() as nursery:
        at_listener, at_dialler = Inbox(), Inbox()
        address = await connect(bench)
        nursery.start_soon(bench.listener.run, at_listener.deliver)
        nursery.start_soon(bench.dialler.run, at_dialler.deliver)
        for route in LANES:
            await send_patiently(bench.dialler, route, [b"hello"])
        await at_listener.wait_count(2)
        bench.dialler.send_nowait(BULK, [b"last words"])
        await bench.dialler.disconnect(BULK)
        await at_listener.wait_count(3)
        with expected(PeerGone):
            bench.dialler.send_nowait(BULK, [b"x"])
        with expected(ValueError):
            await bench.dialler.disconnect(BULK)
        while bench.listener.reaches(LANES[BULK]):  # noqa: ASYNC110, there is no event
            await trio.sleep(RETRY_S)
        await bench.dialler.dial(address, route=BULK, identity=LANES[BULK])
        for route in LANES:
            await send_patiently(bench.dialler, route, [b"again"])
        await at_listener.wait_count(5)
        await send_patiently(bench.listener, LANES[BULK], [b"back"])
        await at_dialler.wait_count(1)
        nursery.cancel_scope.cancel()
    assert at_listener.messages[LANES[BULK]] == [(b"hello",), (b"last words",), (b"again",)]
    assert at_listener.messages[LANES[CONTROL]] == [(b"hello",), (b"again",)]


async def check_one_run(make: Make) -> None:
    """A second concurrent `run` raises BusyResourceError, and the first continues."""
    async with _meeting(make) as (bench, at_listener, _):
        await send_patiently(bench.dialler, BULK, [b"x"])
        await at_listener.wait_count(1)
        with expected(trio.BusyResourceError):
            await bench.listener.run(at_listener.deliver)
        await send_patiently(bench.dialler, BULK, [b"y"])
        await at_listener.wait_count(2)


async def check_statistics(make: Make) -> None:
    """One side's sent counters equal the other side's received counters, messages and bytes."""
    async with _meeting(make) as (bench, at_listener, at_dialler):
        for size in range(100):
            await send_patiently(bench.dialler, CONTROL, [b"header", bytes(size)])
        await at_listener.wait_count(100)
        await send_patiently(bench.listener, LANES[CONTROL], [b"four"])
        await at_dialler.wait_count(1)
        dialler, listener = bench.dialler.statistics(), bench.listener.statistics()
    assert (100, 100 * 6 + sum(range(100))) == (dialler.messages_sent, dialler.bytes_sent)
    assert (100, dialler.bytes_sent) == (listener.messages_received, listener.bytes_received)
    assert (listener.messages_sent, listener.bytes_sent) == (1, 4)
    assert (dialler.messages_received, dialler.bytes_received) == (1, 4)
    assert dialler.arrivals_refused == listener.arrivals_refused == 0


CHECKS: tuple[Check, ...] = (
    check_round_trip,
    check_order,
    check_big_frames,
    check_unknown_route,
    check_dial_first,
    check_bad_parts,
    check_bad_names,
    check_cancelled_receiving,
    check_back_pressure,
    check_closing,
    check_disconnect,
    check_one_run,
    check_statistics,
)
"""All checks, in reading order."""
