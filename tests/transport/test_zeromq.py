"""What only sockets can do wrong: both ways of one TrioSocket, hostile peers, lost connections."""

import random
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio
import trio.testing
import zmq

from tests.seeds import seeds
from tests.transport.conformance import Inbox, send_patiently
from transport.endpoint import FRAME_BYTES_MAX, PARTS_MAX, RECEIVE_QUEUE_MESSAGES_MAX, PeerGone
from transport.zeromq import LOOK_UP_S, PART_BYTES_DISCONNECT, TrioSocket, ZmqEndpoint, open_context

WAIT_S = 20


@contextmanager
def duplex(*, mark=1000, address="inproc://duplex"):
    """Give two TrioSockets, a pair of DEALERs, that have exchanged nothing yet."""
    with zmq.Context() as context:
        raw = [context.socket(zmq.DEALER) for _ in range(2)]
        for socket in raw:
            socket.set_hwm(mark)
            socket.linger = 0
        ours = [TrioSocket(socket) for socket in raw]
        raw[1].connect(ours[0].bind(address))
        try:
            yield ours
        finally:
            for socket in raw:
                socket.close()


@asynccontextmanager
async def listening(**options):
    """Give a running listener, its address, its inbox and a raw DEALER maker."""
    async with open_context() as context, trio.open_nursery() as nursery:
        listener, inbox = ZmqEndpoint(context, **options), Inbox()
        address = await listener.listen("tcp://127.0.0.1:*")
        nursery.start_soon(listener.run, inbox.deliver)
        raw = []

        def dealer(identity, to=address):
            raw.append(context.socket(zmq.DEALER))
            raw[-1].linger = 0
            if identity:
                raw[-1].routing_id = identity
            raw[-1].connect(to)
            return raw[-1]

        try:
            with trio.fail_after(WAIT_S):
                yield listener, address, inbox, dealer
        finally:
            nursery.cancel_scope.cancel()
            for socket in raw:
                socket.close()
            await listener.aclose()


def numbered(count):
    return [[b"%d" % number] for number in range(count)]


async def send_one(socket, message):
    """Send as soon as there is room."""
    while True:
        try:
            socket.send_multipart_nowait(message)
        except trio.WouldBlock:
            await trio.sleep(0.0005)
        else:
            return


async def send_all(socket, messages):
    for message in messages:
        await send_one(socket, message)
        await trio.lowlevel.checkpoint()


async def receive_into(socket, count, received):
    while len(received) < count:
        received.append(await socket.recv_multipart())


@pytest.mark.parametrize("seed", seeds(8, fast=3))
@pytest.mark.parametrize("address", ["inproc://duplex", "tcp://127.0.0.1:0"])
async def test_duplex_with_any_mark_never_stalls(seed, address):
    """Both directions of one pair of sockets flow at once, in order, whatever the mark."""
    mark, got = random.Random(seed).randint(1, 200), ([], [])
    messages = numbered(600)
    with duplex(mark=mark, address=address) as sockets, trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            for socket, received in zip(sockets, got, strict=True):
                nursery.start_soon(send_all, socket, messages)
                nursery.start_soon(receive_into, socket, len(messages), received)
    assert (messages, messages) == got


@pytest.mark.parametrize("seed", range(3))
async def test_cancelling_loses_doubles_and_reorders_nothing(seed):
    """Many cancelled receives and cancelled sends leave every message once, in order."""
    source, sent, got = random.Random(seed), [], []

    async def send_stormily(socket):
        for message in numbered(1_000):
            done = False
            while not done:
                with trio.move_on_after(source.uniform(0, 0.0005)):
                    await send_one(socket, message)
                    done = True
            sent.append(message)

    with duplex(mark=7, address="tcp://127.0.0.1:0") as (near, far), trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_stormily, far)
            while len(got) < 1_000:
                with trio.move_on_after(source.uniform(0, 0.001)):
                    while True:
                        got.append(await near.recv_multipart())
    assert sent == got


async def test_closing_wakes_the_task_that_waits():
    """A reader that waits on a socket gets ClosedResourceError when it closes; so do senders."""
    woken = []

    async def read(socket):
        with pytest.raises(trio.ClosedResourceError):
            await socket.recv_multipart()
        woken.append(socket)

    with duplex(mark=1) as (near, _), trio.fail_after(WAIT_S):
        near.send_multipart_nowait([b"fills"])
        near.send_multipart_nowait([b"the queue"])
        with pytest.raises(trio.WouldBlock):
            near.send_multipart_nowait([b"no room"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, near)
            await trio.testing.wait_all_tasks_blocked()
            await near.aclose()
            await near.aclose()
        with pytest.raises(trio.ClosedResourceError):
            near.send_multipart_nowait([b"x"])
    assert woken == [near]


async def test_rude_messages_are_dropped_and_counted():
    """Too many parts, none, or too large a part: counted, dropped, and the next one is heard."""
    async with listening() as (listener, _, inbox, dealer):
        rude = dealer(b"rude")
        rude.send_multipart([b"x"] * (PARTS_MAX + 1))
        rude.send_multipart([b"x"] * 2_000)
        rude.send_multipart([b"header", bytes(FRAME_BYTES_MAX + 1)])
        rude.send_multipart([b"polite"])
        await inbox.wait_count(1)
        counts = listener.statistics()
    assert inbox.messages == {"rude": [(b"polite",)]}
    assert (counts.arrivals_refused_parts, counts.arrivals_refused_oversize) == (2, 1)
    assert (counts.arrivals_refused, counts.messages_received) == (3, 1)


async def test_a_part_beyond_reading_ends_only_its_own_connection():
    """Libzmq hangs up on a part too large to read; the others and the next dial are heard."""
    async with listening() as (listener, _, inbox, dealer):
        other, rude = dealer(b"other"), dealer(b"rude")
        rude.send(bytes(PART_BYTES_DISCONNECT + 1), copy=False)
        other.send(b"still here")
        await inbox.wait_count(1)
        dealer(b"rude-again").send(b"hello")
        await inbox.wait_count(2)
        assert listener.statistics().arrivals_refused == 0
    assert inbox.messages == {"other": [(b"still here",)], "rude-again": [(b"hello",)]}


async def test_what_is_not_read_waits_with_its_sender():
    """A listener that does not come to reading takes in a few messages of a connection, whatever
    its own sends may queue; the system's buffers hold some more of them, and that is all."""
    part = bytes(512 * 1024)
    of_the_system = 128  # 64 MiB; a fifth of that would do on most.
    most = RECEIVE_QUEUE_MESSAGES_MAX + of_the_system
    async with open_context() as context:
        listener = ZmqEndpoint(context, queue_messages_max=65_536)
        dealer, taken = context.socket(zmq.DEALER), 0
        dealer.linger, dealer.sndhwm = 0, 1
        dealer.connect(await listener.listen("tcp://127.0.0.1:*"))
        while taken <= most and dealer.poll(500, zmq.POLLOUT):
            dealer.send(part, zmq.NOBLOCK, copy=False)
            taken += 1
        dealer.close()
        await listener.aclose()
    assert RECEIVE_QUEUE_MESSAGES_MAX <= taken <= most


async def test_a_nameless_peer_is_not_heard():
    """A peer whose identity is not a route is dropped and counted: it could not be answered."""
    async with listening() as (listener, _, inbox, dealer):
        for identity in (b"", b"bell\a", b"\xff\xfe"):
            dealer(identity).send(b"x")
        dealer(b"named").send(b"x")
        while listener.statistics().arrivals_refused_route < 3 or inbox.count < 1:  # noqa: ASYNC110
            await trio.sleep(0.005)
    assert inbox.messages == {"named": [(b"x",)]}


async def test_a_peer_that_left_is_gone():
    """Once a dialler has closed, sending to it raises PeerGone, counted."""

    async def send_for_ever(listener):
        while True:
            listener.send_nowait("peer", [b"anybody?"])
            await trio.sleep(0.005)

    async with listening() as (listener, address, inbox, _), open_context() as context:
        dialler = ZmqEndpoint(context)
        await dialler.dial(address, route="syncer", identity="peer")
        dialler.send_nowait("syncer", [b"hello"])
        await inbox.wait_count(1)
        listener.send_nowait("peer", [b"welcome"])
        await dialler.aclose()
        with pytest.raises(PeerGone):
            await send_for_ever(listener)
        assert listener.statistics().sends_refused_gone == 1


async def test_a_dead_peer_holds_up_an_exit_only_for_the_linger():
    """Closing with frames for an absent peer ends within the linger, while the loop runs."""
    with trio.fail_after(WAIT_S):
        async with open_context() as context:
            endpoint = ZmqEndpoint(context, linger_s=0.2)
            await endpoint.dial("tcp://127.0.0.1:1", route="syncer", identity="peer")
            endpoint.send_nowait("syncer", [bytes(1_000_000)])
            await endpoint.aclose()
            before_s = trio.current_time()
    assert trio.current_time() - before_s < 2


async def test_impossible_addresses_are_os_errors():
    """An address in use or not understood raises OSError and leaves the endpoint working."""
    async with listening() as (listener, address, inbox, dealer):
        for bad in (address, "tcp://127.0.0.1:notaport", "smoke://signals"):
            with pytest.raises(OSError, match="cannot listen"):
                await listener.listen(bad)
        with pytest.raises(OSError, match="cannot dial"):
            await listener.dial("smoke://signals", route="a", identity="b")
        dealer(b"peer").send(b"x")
        await inbox.wait_count(1)


async def test_one_endpoint_listens_and_dials_as_much_as_it_likes():
    """Addresses and dials added while running are served by that run."""
    async with listening() as (listener, address, inbox, dealer):
        second = await listener.listen("tcp://127.0.0.1:0")
        dealer(b"by-second", second).send(b"x")
        await listener.dial(address, route="myself", identity="me")
        await send_patiently(listener, "myself", [b"y"])
        await inbox.wait_count(2)
        await send_patiently(listener, "me", [b"z"])
        await inbox.wait_count(3)
    assert inbox.messages == {"by-second": [(b"x",)], "me": [(b"y",)], "myself": [(b"z",)]}


@asynccontextmanager
async def relay(address):
    """Give a port that leads to `address`, and a way to cut all connections through it."""
    host, port = address.removeprefix("tcp://").split(":")
    cuts = []

    async def copy(source, sink):
        async for data in source:
            await sink.send_all(data)

    async def serve(near):
        far = await trio.open_tcp_stream(host, int(port))
        with trio.CancelScope() as cut:
            cuts.append(cut)
            async with near, far, trio.open_nursery() as nursery:
                nursery.start_soon(copy, near, far)
                nursery.start_soon(copy, far, near)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        through = listeners[0].socket.getsockname()[1]
        yield f"tcp://127.0.0.1:{through}", cuts
        nursery.cancel_scope.cancel()


async def test_redial_after_a_break_with_messages_unread():
    """A peer is heard again after its connection broke.

    The old connection keeps the identity while its messages wait unread. Without a handover libzmq
    would ignore a newer one under the same name, for good.
    """
    inbox = Inbox()
    async with open_context() as context, trio.open_nursery() as nursery:
        listener, dialler = ZmqEndpoint(context), ZmqEndpoint(context)
        async with relay(await listener.listen("tcp://127.0.0.1:0")) as (through, cuts):
            await dialler.dial(through, route="syncer", identity="peer")
            dialler.send_nowait("syncer", [b"before"])
            await trio.sleep(0.05)
            cuts[0].cancel()
            while len(cuts) < 2:  # noqa: ASYNC110 - the redial is libzmq's
                await trio.sleep(0.01)
            await trio.sleep(0.05)
            nursery.start_soon(listener.run, inbox.deliver)
            dialler.send_nowait("syncer", [b"after"])
            with trio.fail_after(WAIT_S):
                while (b"after",) not in inbox.messages.get("peer", []):  # noqa: ASYNC110
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
            await dialler.aclose()
            await listener.aclose()


async def test_a_line_whose_address_changes_in_its_file_says_so(tmp_path):
    """What was sent before may be lost, and nothing else would show it."""
    file, inbox = tmp_path / "syncer.address", Inbox()
    async with open_context() as context, trio.open_nursery() as nursery:
        one, other, dialler = (ZmqEndpoint(context) for _ in range(3))
        file.write_text(await one.listen("tcp://127.0.0.1:0"))
        await dialler.dial(f"file:{file}", route="syncer", identity="peer")
        nursery.start_soon(dialler.run, inbox.deliver)
        await trio.sleep(3 * LOOK_UP_S)
        assert {} == inbox.messages
        file.write_text(await other.listen("tcp://127.0.0.1:0"))
        with trio.fail_after(10 * LOOK_UP_S):
            while not inbox.messages:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert {"syncer": [()]} == inbox.messages
        nursery.cancel_scope.cancel()
        for each in (one, other, dialler):
            await each.aclose()
