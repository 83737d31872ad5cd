"""The eleven traps of trio over libzmq, in the order in which we fell into them.

Each test first springs the trap with naive code where that is cheap, so that one sees what the
cure is for and notices when libzmq stops needing it, and then shows that our code holds.
"""

import gc
import select
import subprocess
import sys
import textwrap
from contextlib import asynccontextmanager, contextmanager, suppress

import ml_dtypes
import numpy as np
import pytest
import trio
import trio.lowlevel
import trio.testing
import zmq

import transport.connections
from tests.transport.conformance import Inbox, send_patiently
from tests.transport.memory import MemoryFabric
from transport.endpoint import COPY_BYTES_MAX, Arrival, LaneFull
from transport.zeromq import TrioSocket, ZmqEndpoint, open_context

WAIT_S = 20


@contextmanager
def raw_pair(*, mark=1000, dealers=(b"peer",), address="tcp://127.0.0.1", mandatory=1):
    """Give a plain pyzmq ROUTER and connected DEALERs whose hello the ROUTER has read."""
    with zmq.Context() as context:
        router = context.socket(zmq.ROUTER)
        router.set(zmq.ROUTER_MANDATORY, mandatory)
        router.set_hwm(mark)
        port = "" if address.startswith("inproc") else f":{router.bind_to_random_port(address)}"
        if not port:
            router.bind(address)
        sockets = [router]
        for identity in dealers:
            dealer = context.socket(zmq.DEALER)
            dealer.set(zmq.ROUTING_ID, identity)
            dealer.set_hwm(mark)
            dealer.connect(address + port)
            dealer.send(b"hello")
            assert router.poll(WAIT_S * 1000)
            assert [identity, b"hello"] == router.recv_multipart()
            assert not dealer.get(zmq.EVENTS) & zmq.POLLIN  # from now on it wants to be woken
            sockets.append(dealer)
        try:
            yield sockets
        finally:
            for socket in sockets:
                socket.close(0)


@asynccontextmanager
async def our_pair(address="tcp://127.0.0.1:0", **options):
    """Give two connected endpoints, the dialler known to the listener as "peer"."""
    async with open_context() as context:
        listener, dialler = ZmqEndpoint(context, **options), ZmqEndpoint(context, **options)
        await dialler.dial(await listener.listen(address), route="syncer", identity="peer")
        try:
            yield listener, dialler
        finally:
            await listener.aclose()
            await dialler.aclose()


async def test_trap_01_one_receive_per_wake_up_stalls():
    """A readable descriptor only means "ask EVENTS": we drain what one wake-up announced."""
    with raw_pair() as (router, dealer):
        for number in range(100):
            router.send_multipart([b"peer", b"%d" % number])
        await trio.sleep(0.1)  # now all of them are here
        naive = 0
        with trio.move_on_after(0.2):
            while True:
                await trio.lowlevel.wait_readable(dealer.FD)
                dealer.recv(zmq.NOBLOCK)
                naive += 1
        ours = TrioSocket(dealer)
        with trio.fail_after(WAIT_S):
            rest = [await ours.recv_multipart() for _ in range(100 - naive)]

    assert 0 < naive < 100
    assert [[b"%d" % number] for number in range(naive, 100)] == rest


async def test_trap_02_any_call_may_eat_the_edge():
    """A wake-up consumed by another task's send still reaches the waiting reader."""
    got = []

    async def read(ours):
        for _ in range(20):
            got.append(await ours.recv_multipart())  # noqa: PERF401, as they come

    with raw_pair(address="inproc://trap-02") as (router, dealer):
        router.send_multipart([b"peer", b"x"])
        assert select.select([dealer.FD], [], [], WAIT_S)[0]
        assert dealer.get(zmq.EVENTS) & zmq.POLLIN  # merely asking ...
        assert not select.select([dealer.FD], [], [], 0.05)[0]  # ... ate the edge
        assert dealer.recv() == b"x"

        ours = TrioSocket(dealer)
        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read, ours)
                for number in range(20):
                    await trio.testing.wait_all_tasks_blocked()  # the reader waits
                    router.send_multipart([b"peer", b"%d" % number])
                    ours.send_multipart_nowait([b"eats the edge"])
    assert [[b"%d" % number] for number in range(20)] == got


async def test_trap_03_trio_allows_one_waiter_per_descriptor():
    """So only the reader waits; a writer on the same socket never does."""
    with raw_pair(mark=4, address="inproc://trap-03") as (router, dealer):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.lowlevel.wait_readable, dealer.FD)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await trio.lowlevel.wait_readable(dealer.FD)
            nursery.cancel_scope.cancel()

        ours, got, sent = TrioSocket(dealer), [], 0

        async def read():
            got.append(await ours.recv_multipart())

        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                await trio.testing.wait_all_tasks_blocked(0.01)
                with pytest.raises(trio.BusyResourceError):
                    await ours.recv_multipart()
                with suppress(trio.WouldBlock):
                    while True:
                        ours.send_multipart_nowait([b"x"])
                        sent += 1
                router.send_multipart([b"peer", b"y"])
    assert sent
    assert got == [[b"y"]]


async def test_trap_04_a_router_drops_silently_when_a_peer_is_full():
    """A full peer is LaneFull, and every message that was accepted arrives."""
    with raw_pair(mark=10, address="inproc://trap-04", mandatory=0) as (router, dealer):
        for number in range(2000):
            router.send_multipart([b"peer", b"%d" % number], zmq.NOBLOCK)
        naive = 0
        while dealer.poll(50):
            dealer.recv()
            naive += 1
    assert naive < 100

    inbox, accepted = Inbox(), []

    def overfill(listener):
        while True:
            listener.send_nowait("peer", [b"%d" % len(accepted)])
            accepted.append((b"%d" % len(accepted),))

    async with our_pair("inproc://ours-04", queue_messages_max=10) as (listener, dialler):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.run, inbox.deliver)
            dialler.send_nowait("syncer", [b"hello"])
            await inbox.wait_count(1)
            nursery.cancel_scope.cancel()
        with pytest.raises(LaneFull):
            overfill(listener)
        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(dialler.run, inbox.deliver)
                await inbox.wait_count(1 + len(accepted))
                nursery.cancel_scope.cancel()
    assert accepted == inbox.messages["syncer"]


async def test_trap_05_a_routers_events_cannot_say_which_peer_has_room():
    """A send to a full peer fails at once, and keeps no other from being reached."""
    peers = (b"full", b"free")

    def overfill(router):
        while True:
            router.send_multipart([b"full", b"x"], zmq.NOBLOCK)

    with raw_pair(mark=4, dealers=peers, address="inproc://trap-05") as (router, full, free):
        with pytest.raises(zmq.Again):
            overfill(router)
        assert router.get(zmq.EVENTS) & zmq.POLLOUT  # says writable, and would say so for ever

        ours = TrioSocket(router)
        with pytest.raises(trio.WouldBlock):
            ours.send_multipart_nowait([b"full", b"no room"])
        ours.send_multipart_nowait([b"free", b"meanwhile"])
        assert free.recv() == b"meanwhile"
        assert full.recv() == b"x"


async def test_trap_06_a_zero_copy_send_needs_its_array_unchanged():
    """Libzmq sees writes after a zero-copy send; what it holds it keeps alive until sent."""
    with raw_pair(address="inproc://trap-06") as (router, dealer):
        data = bytearray(1_000_000)
        dealer.send(data, copy=False)
        data[:5] = b"later"
        assert router.recv_multipart()[1][:5] == b"later"

    inbox = Inbox()
    async with our_pair() as (listener, dialler), trio.open_nursery() as nursery:
        for number in range(30):
            dialler.send_nowait("syncer", [np.full(300_000, number, np.uint8)])
        gc.collect()  # only libzmq refers to the arrays now
        nursery.start_soon(listener.run, inbox.deliver)
        with trio.fail_after(WAIT_S):
            await inbox.wait_count(30)
        nursery.cancel_scope.cancel()
    assert [(bytes([number]) * 300_000,) for number in range(30)] == inbox.messages["peer"]


NAIVE_EXIT = """
    import numpy as np, zmq
    dealer = zmq.Context().socket(zmq.DEALER)
    dealer.connect("{address}")
    for number in range(60):
        dealer.send(np.full(2_000_000, number, np.uint8), copy=False)
"""

OUR_EXIT = """
    import numpy as np, trio, zmq
    from transport.zeromq import ZmqEndpoint, open_context

    async def main():
        async with open_context() as context:
            endpoint = ZmqEndpoint(context)
            await endpoint.dial("{address}", route="syncer", identity="peer")
            for number in range(60):
                endpoint.send_nowait("syncer", [np.full(2_000_000, number, np.uint8)])
            await endpoint.aclose()

    trio.run(main)
"""


async def run_script(script, address):
    script = textwrap.dedent(script).format(address=address)
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    done = await trio.run_process([sys.executable, "-c", script], check=False, **silent)
    return done.returncode


def test_trap_07_naive_exit_with_frames_in_flight():
    """Without a close, a process that ends while sending dies, or loses frames at the least."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.rcvhwm = 1
        port = router.bind_to_random_port("tcp://127.0.0.1")
        status = trio.run(run_script, NAIVE_EXIT, f"tcp://127.0.0.1:{port}")
        arrived = 0
        while router.poll(300):
            router.recv_multipart(copy=False)
            arrived += 1
    assert (status, arrived) != (0, 60)


async def test_trap_07_exit_with_frames_in_flight():
    """A process that ends right after sending 120 MB ends cleanly, and all of it arrives."""
    inbox, expected = Inbox(), [(bytes([n, n]),) for n in range(60)]

    async def deliver(arrival):
        (frame,) = arrival.frames
        assert len(frame) == 2_000_000
        await inbox.deliver(Arrival(arrival.route, (bytes([frame[0], frame[-1]]),)))

    async with open_context() as context, trio.open_nursery() as nursery:
        listener = ZmqEndpoint(context)
        address = await listener.listen("tcp://127.0.0.1:0")
        nursery.start_soon(listener.run, deliver)
        with trio.fail_after(WAIT_S):
            assert await run_script(OUR_EXIT, address) == 0
            await inbox.wait_count(60)
        nursery.cancel_scope.cancel()
        await listener.aclose()
    assert expected == inbox.messages["peer"]


async def test_trap_08_a_failed_later_frame_corrupts_the_next_message():
    """Every part is judged before the first is queued, so that the next message is intact."""
    scattered = memoryview(bytes(200))[::2]
    with raw_pair() as (router, dealer):
        with pytest.raises(BufferError):
            dealer.send_multipart([b"header", scattered])
        dealer.send(b"next")
        assert router.recv_multipart() == [b"peer", b"header", b"next"]  # glued

        ours = TrioSocket(dealer)
        for bad in (scattered, np.zeros((4, 4)).T, np.zeros(3, ml_dtypes.bfloat16)):
            with pytest.raises(ValueError, match=r"contiguous|dtype"):
                ours.send_multipart_nowait([b"header", bad])
        with pytest.raises(TypeError):
            ours.send_multipart_nowait([b"header", "text"])
        ours.send_multipart_nowait([b"next"])
        assert router.recv_multipart() == [b"peer", b"next"]


async def test_trap_09_bfloat16_has_no_buffer_format():
    """bfloat16 is refused as it is, and travels as uint8; other shapes and formats travel."""
    weights = np.arange(12, dtype=ml_dtypes.bfloat16)
    with pytest.raises(ValueError, match="dtype"):
        memoryview(weights)

    others = [np.ones((2, 3), np.float16), np.zeros((0, 3)), np.array(7, np.int32)]
    with raw_pair() as (router, dealer):
        TrioSocket(dealer).send_multipart_nowait([weights.view(np.uint8), *others])
        _, first, *rest = router.recv_multipart()
    assert weights.tobytes() == first
    assert [other.tobytes() for other in others] == rest


@pytest.mark.parametrize("size", [COPY_BYTES_MAX, COPY_BYTES_MAX + 1])
async def test_trap_10_copying_is_cheaper_up_to_64_kib(size):
    """A part up to the threshold is copied when sent, a larger one is not, on every endpoint."""
    seen = {}
    fabric = MemoryFabric(1)
    memory = fabric.endpoint(), fabric.endpoint()
    await memory[1].dial(await memory[0].listen("here"), route="syncer", identity="peer")
    async with our_pair("inproc://trap-10") as zeromq:
        for name, (listener, dialler) in {"memory": memory, "zeromq": zeromq}.items():
            inbox, data = Inbox(), bytearray(size)
            dialler.send_nowait("syncer", [data])
            data[:5] = b"later"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listener.run, inbox.deliver)
                with trio.fail_after(WAIT_S):
                    await inbox.wait_count(1)
                nursery.cancel_scope.cancel()
            seen[name] = inbox.messages["peer"][0][0][:5]
    expected = bytes(5) if size <= COPY_BYTES_MAX else b"later"
    assert {"memory": expected, "zeromq": expected} == seen


def test_trap_11_virtual_time_never_meets_a_real_socket(monkeypatch):
    """An autojump clock times real sockets out falsely, and never the memory endpoint."""

    async def count_timeouts(listener, dialler):
        timeouts = 0
        async with trio.open_nursery() as nursery:
            inbox = Inbox()
            nursery.start_soon(listener.run, inbox.deliver)
            for number in range(20):
                await send_patiently(dialler, "syncer", [bytes(2_000_000)])
                with trio.move_on_after(5) as scope:
                    await inbox.wait_count(number + 1)
                timeouts += scope.cancelled_caught
            nursery.cancel_scope.cancel()
        return timeouts

    async def over_sockets():
        context = zmq.Context()
        listener, dialler = ZmqEndpoint(context, linger_s=0), ZmqEndpoint(context, linger_s=0)
        address = await listener.listen("tcp://127.0.0.1:0")
        await dialler.dial(address, route="syncer", identity="peer")
        timeouts = await count_timeouts(listener, dialler)
        await listener.aclose()
        await dialler.aclose()
        context.term()
        return timeouts

    async def over_memory():
        fabric = MemoryFabric(1)
        listener, dialler = fabric.endpoint(), fabric.endpoint()
        await dialler.dial(await listener.listen("here"), route="syncer", identity="peer")
        return await count_timeouts(listener, dialler)

    # Time that jumps from look to look would give the kernel time to bring something.
    monkeypatch.setattr(transport.connections, "LOOK_S", 1e6)
    clocks = [trio.testing.MockClock(autojump_threshold=0) for _ in range(6)]
    # The kernel may be in time for all of them once, on a machine that does nothing else.
    assert any(trio.run(over_sockets, clock=each) > 0 for each in clocks[1:])
    assert trio.run(over_memory, clock=clocks[0]) == 0
