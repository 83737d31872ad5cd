"""What a connection may make a listener hold, and how many there may be; over real sockets."""

import socket
import time
from contextlib import aclosing, suppress

import pytest
import trio
import zmq

import transport.connections
from transport.connections import LOOK_S, MESSAGE_BYTES_MAX
from transport.curve_auth import Curve, new_pair
from transport.endpoint import FRAME_BYTES_MAX, PARTS_FORGIVEN
from transport.zeromq import ZmqEndpoint, open_context

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
PIECE = 64 * 1024


def ready(identity):
    """The command that ends a handshake of ZMTP without keys."""
    facts = {b"Socket-Type": b"DEALER", b"Identity": identity}
    body = b"\x05READY" + b"".join(
        bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value
        for name, value in facts.items()
    )
    return b"\x04" + bytes([len(body)]) + body


def connected(address, identity=b"rude.1/bulk"):
    """A plain TCP connection that has shaken hands."""
    raw = tcp_connection(address)
    raw.sendall(GREETING + ready(identity))
    told = b""
    while b"READY" not in told:
        told += raw.recv(4096)
    # What comes in one piece with the handshake makes libzmq stop reading, which is no attack.
    time.sleep(3 * LOOK_S)
    return raw


def tcp_connection(address):
    """A plain TCP connection that says nothing."""
    host, port = address.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def endless(raw, piece, total):
    """Say one message that never ends; how many bytes of it went out."""
    frame = b"\x03" + len(piece).to_bytes(8, "big") + piece
    many = frame * max(1, PIECE // len(frame))
    sent = 0
    with suppress(OSError):
        while sent < total:
            raw.sendall(many)
            sent += len(many)
    return sent


class Listener:
    """An endpoint that listens, and what it has heard."""

    def __init__(self, endpoint):
        self.endpoint, self.heard = endpoint, []
        self.open = trio.Event()
        self.open.set()

    async def deliver(self, arrival):
        """Take it, unless the door is shut."""
        await self.open.wait()
        self.heard.append((arrival.route, len(arrival.frames)))

    async def run(self):
        """Until the endpoint is closed."""
        with suppress(trio.ClosedResourceError):
            await self.endpoint.run(self.deliver)

    @property
    def cut(self):
        """How many connections were."""
        return self.endpoint.statistics().connections_cut


async def until(holds):
    """Wait until something holds."""
    with trio.fail_after(30):
        while not holds():  # noqa: ASYNC110, there is no event to wait for
            await trio.sleep(LOOK_S / 4)


@pytest.fixture
async def context():
    """One for each test."""
    async with open_context() as opened:
        yield opened


@pytest.fixture
async def listener(context, nursery):
    """It listens on a port of its own, and its address."""
    endpoint = ZmqEndpoint(context, handover=True)
    address = await endpoint.listen("tcp://127.0.0.1:0")
    listening = Listener(endpoint)
    nursery.start_soon(listening.run)
    yield listening, address
    await endpoint.aclose()


async def good_peer(context, address, said=1):
    """A dialler that sends what it is given."""
    endpoint = ZmqEndpoint(context)
    await endpoint.dial(address, route="hub/bulk", identity="good.1/bulk")
    for _ in range(said):
        endpoint.send_nowait("hub/bulk", [b"head", bytes(2**20)])
    return endpoint


@pytest.mark.parametrize("piece", [bytes(PIECE), b"x"], ids=["large parts", "small parts"])
async def test_a_message_without_end_is_cut_off(context, listener, piece):
    """Else libzmq would keep all of it; the connection is broken after some ten megabytes."""
    listening, address = listener
    raw = await trio.to_thread.run_sync(connected, address)
    sent = await trio.to_thread.run_sync(endless, raw, piece, 2**28)
    assert sent < 2**28, "the connection broke before all was said"
    await until(lambda: listening.cut == 1)
    reason = listening.endpoint.refusals["connections_cut"].reason
    assert "and no message among them" in reason
    async with aclosing(await good_peer(context, address)):
        await until(lambda: ("good.1/bulk", 2) in listening.heard)
    raw.close()


async def test_with_keys_a_message_without_end_is_cut_off_as_well(context, nursery):
    """A peer with a key has no more room than one without."""
    pairs = {name: new_pair() for name in ("hub", "rude")}
    public = {name: pair[0] for name, pair in pairs.items()}
    endpoint = ZmqEndpoint(context, curve=Curve(pairs["hub"][1], public))
    address = await endpoint.listen("tcp://127.0.0.1:0")
    listening = Listener(endpoint)
    nursery.start_soon(listening.run)
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.ROUTING_ID, b"rude.1/bulk")
    Curve(pairs["rude"][1], public).seal(dealer, "hub")
    dealer.connect(address)
    parts = 4 * MESSAGE_BYTES_MAX // FRAME_BYTES_MAX

    def say():
        for _ in range(20 * parts):
            dealer.send(bytes(FRAME_BYTES_MAX), zmq.SNDMORE)
        dealer.send(b"")

    await trio.to_thread.run_sync(say)
    await until(lambda: listening.cut or listening.endpoint.statistics().arrivals_refused_parts)
    assert listening.cut
    dealer.close(0)
    await endpoint.aclose()


async def test_who_is_not_read_is_not_cut(context, listener):
    """Much that waits because this process does not read: all of it arrives, over the same
    connection."""
    listening, address = listener
    listening.open = trio.Event()
    async with aclosing(await good_peer(context, address, said=150)):
        await trio.sleep(10 * LOOK_S)
        listening.open.set()
        await until(lambda: len(listening.heard) == 150)
    assert listening.cut == 0


async def test_a_message_of_very_many_parts_delays_no_other(context, listener):
    """It is let go a few parts at a time, others are heard meanwhile; its sender is cut off."""
    listening, address = listener
    raw = await trio.to_thread.run_sync(connected, address)
    await until(lambda: len(listening.endpoint._listening.connections) == 1)
    raw.sendall(b"\x01\x01x" * (4 * PARTS_FORGIVEN) + b"\x00\x01x")
    async with aclosing(await good_peer(context, address, said=3)):
        await until(lambda: len(listening.heard) == 3 and listening.cut == 1)
    assert listening.endpoint.statistics().arrivals_refused_parts == 1
    assert "parts" in listening.endpoint.refusals["connections_cut"].reason
    raw.close()


async def test_idle_connections_leave_room(context, listener, monkeypatch):
    """Beyond the limit silent connections are closed, and those that send stay."""
    listening, address = listener
    connections = listening.endpoint._listening.connections
    monkeypatch.setattr(connections, "limit", 20)
    async with aclosing(await good_peer(context, address)) as good:
        await until(lambda: len(listening.heard) == 1)
        idle = [tcp_connection(address) for _ in range(60)]
        await until(lambda: listening.cut >= 40)
        good.send_nowait("hub/bulk", [b"still"])
        await until(lambda: ("good.1/bulk", 1) in listening.heard)
    assert len(connections) <= 20
    for each in idle:
        each.close()


def test_half_of_the_descriptors_are_peers(monkeypatch):
    """The rest is for tapes, logs and workers; a few peers are always let in."""
    monkeypatch.setattr(transport.connections.resource, "getrlimit", lambda _: (1024, 4096))
    assert transport.connections.connections_max() == 512
    monkeypatch.setattr(transport.connections.resource, "getrlimit", lambda _: (32, 4096))
    assert transport.connections.connections_max() == 64
