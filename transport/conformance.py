"""One suite that every endpoint must pass, yours included.

    await check_endpoint(make)

`make` returns an async context manager giving a fresh `Bench`: two endpoints and an address one
can listen on and the other dial. Each check is a plain async function whose docstring is the
promise it checks; run them one by one (`for check in CHECKS`) to see which one breaks.

A fake is only worth what it shares with the real thing, so the fabric of the simulator and the
sockets of a cluster are held to the same list. Faults, and peers that break the protocol below
this interface, are the business of each endpoint's own tests.
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
"""One check may take this long; each needs well under a second, so a timeout is a stall."""

RETRY_S = 0.001
"""Wait before sending again to a full lane, where a link would have waited for credit."""

CONTROL, BULK = "syncer/control", "syncer/bulk"
"""The routes that the dialler uses."""

LANES = {CONTROL: "learner-1.1/control", BULK: "learner-1.1/bulk"}
"""For each route of the dialler, the identity it dials with: the route over there."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Two fresh endpoints, and an address on which `listener` can be dialled by `dialler`."""

    listener: Endpoint
    dialler: Endpoint
    address: str


Make: TypeAlias = Callable[[], AbstractAsyncContextManager[Bench]]
Check: TypeAlias = Callable[[Make], Awaitable[None]]


async def check_endpoint(make: Make) -> None:
    """Run every check; raises what the first broken promise raises, `AssertionError` mostly."""
    for check in CHECKS:
        with trio.fail_after(CHECK_S_MAX):
            await check(make)


@dataclass(slots=True)
class Inbox:
    """Collects what an endpoint delivers, by route, and lets one wait for it."""

    messages: dict[str, list[tuple[bytes, ...]]] = field(default_factory=dict)
    count: int = 0
    changed: trio.Event = field(default_factory=trio.Event)

    async def deliver(self, arrival: Arrival) -> None:
        """Keep a copy of what arrived."""
        frames = tuple(bytes(frame) for frame in arrival.frames)
        self.messages.setdefault(arrival.route, []).append(frames)
        self.count += 1
        self.changed.set()

    async def wait_count(self, count: int) -> None:
        """Wait until `count` messages have arrived in all."""
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
    """Send, trying again while the lane is full or the peer not yet there."""
    while True:
        try:
            endpoint.send_nowait(route, frames)
        except (LaneFull, PeerGone):
            await trio.sleep(RETRY_S)
        else:
            return


async def connect(bench: Bench) -> None:
    """Listen, and dial both lanes."""
    address = await bench.listener.listen(bench.address)
    for route, identity in LANES.items():
        await bench.dialler.dial(address, route=route, identity=identity)


@asynccontextmanager
async def _meeting(make: Make) -> AsyncIterator[tuple[Bench, Inbox, Inbox]]:
    """Give a connected bench, both sides running, and the inboxes of listener and dialler."""
    async with make() as bench, trio.open_nursery() as nursery:
        at_listener, at_dialler = Inbox(), Inbox()
        await connect(bench)
        nursery.start_soon(bench.listener.run, at_listener.deliver)
        nursery.start_soon(bench.dialler.run, at_dialler.deliver)
        yield bench, at_listener, at_dialler
        nursery.cancel_scope.cancel()


async def check_round_trip(make: Make) -> None:
    """A message comes out whole, under the right route, both ways on each of two lanes."""
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
    """Each route is FIFO and lossless over thousands of messages, all directions at once."""
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
    """A route that nobody is behind is not reached, before and after others have connected."""
    async with make() as bench:
        for endpoint in (bench.listener, bench.dialler):
            with expected(PeerGone):
                endpoint.send_nowait("nobody/bulk", [b"x"])
        assert not bench.listener.reaches(LANES[BULK])
        await connect(bench)
        assert bench.dialler.reaches(BULK)
        await wait_until_reached(bench.listener, LANES[BULK])
        for endpoint in (bench.listener, bench.dialler):
            assert not endpoint.reaches("nobody/bulk")
            with expected(PeerGone):
                endpoint.send_nowait("nobody/bulk", [b"x"])
            assert endpoint.statistics().sends_refused_gone == 2


async def wait_until_reached(endpoint: Endpoint, route: str) -> None:
    """Return when somebody is there; with keys handshakes are answered while `run` runs."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(endpoint.run, Inbox().deliver)
        while not endpoint.reaches(route):  # noqa: ASYNC110, nobody tells
            await trio.sleep(0.005)
        nursery.cancel_scope.cancel()


async def check_dial_first(make: Make) -> None:
    """A dial before anybody listens succeeds, and what is sent meanwhile arrives in order."""
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
    """A message beyond the limits or not made of buffers raises, and the next one is intact."""
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
    """A name that cannot be a route is refused at the dial, and so is a route dialled already."""
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
    """A receiver cancelled again and again, mid-delivery too, loses, doubles, reorders nothing."""
    count = 1_000
    source = random.Random(2)
    inbox = Inbox()

    async def deliver(arrival: Arrival) -> None:
        await trio.sleep(source.choice((0, 0, 0, 0.0005)))  # a full inbox that may be cancelled
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
    """A receiver that does not run makes LaneFull in the end, on that lane only.

    What was accepted before arrives once it runs: in order, none missing.
    """
    frame = bytes(COPY_BYTES_MAX)  # large, so that the system's buffers fill as well
    inbox = Inbox()
    async with make() as bench, trio.open_nursery() as nursery:
        await connect(bench)
        accepted = refused = 0
        while refused < 20:  # full for a while, not just until the next flush
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
    """What was sent before a close arrives; closing again is fine; a closed endpoint says so."""
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


async def check_one_run(make: Make) -> None:
    """A second `run` at the same time is refused, and the first goes on."""
    async with _meeting(make) as (bench, at_listener, _):
        await send_patiently(bench.dialler, BULK, [b"x"])
        await at_listener.wait_count(1)
        with expected(trio.BusyResourceError):
            await bench.listener.run(at_listener.deliver)
        await send_patiently(bench.dialler, BULK, [b"y"])
        await at_listener.wait_count(2)


async def check_statistics(make: Make) -> None:
    """What one side counts as sent the other counts as received, in messages and in bytes."""
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
    check_one_run,
    check_statistics,
)
"""Every promise, in the order in which to read them."""
