"""What a connection may make a listener hold, and how many there may be; over real sockets."""

import errno
import random
import socket
import time
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path

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
    """A plain TCP connection that says nothing; an unconnected socket if it was cut at once."""
    host, port = address.removeprefix("tcp://").split(":")
    try:
        return socket.create_connection((host, int(port)), timeout=20)
    except ConnectionResetError:
        return socket.socket()


def all_told(address, said=b""):
    """Say something over a new connection; what is told until the listener closes it."""
    told = b""
    with suppress(OSError), tcp_connection(address) as raw:
        raw.sendall(said)
        while more := raw.recv(4096):
            told += more
    return told


def descriptors():
    """How many this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


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
    endpoint = ZmqEndpoint(context)
    address = await endpoint.listen("tcp://127.0.0.1:0")
    listening = Listener(endpoint)
    nursery.start_soon(listening.run)
    yield listening, address
    await endpoint.aclose()


async def good_peer(context, address, said=1):
    """A dialler that sends what it is given."""
    endpoint = ZmqEndpoint(context)
    # From another address than rude peers, which are not admitted for a while.
    address = address.replace("tcp://", "tcp://127.0.0.2:0;")
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


OLD = {
    "ZMTP 1": b"\x0a\x00learner-1" + b"\x02\x00x" * 50,
    "ZMTP 1 with a version": b"\xff" + bytes(8) + b"\x7f\x00\x05" + b"\x00\x05hello" * 50,
    "ZMTP 2": b"\xff" + bytes(8) + b"\x7f\x01\x05" + b"\x00\x05hello" + b"\x00\x01x" * 50,
    "noise": random.Random(1).randbytes(5000),
}


@pytest.mark.parametrize("greeting", OLD.values(), ids=OLD)
async def test_only_zmtp_3_is_spoken(context, listener, greeting):
    """Others need no handshake, and libzmq aborts when a pipe of theirs closes too early."""
    listening, address = listener
    await trio.to_thread.run_sync(all_told, address, greeting)
    async with aclosing(await good_peer(context, address)):
        await until(lambda: listening.heard == [("good.1/bulk", 2)])
    assert listening.endpoint.statistics().arrivals_refused == 0


async def test_connections_that_speak_are_bounded(context, listener, monkeypatch):
    """One that is cut counts until libzmq has closed it, which waits until its messages are
    read; so others are refused until then, and the limit holds."""
    listening, address = listener
    connections = listening.endpoint._listening.connections
    monkeypatch.setattr(connections, "limit", 8)
    listening.open = trio.Event()

    def say():
        raws = [connected(address, f"rude-{number}.1/bulk".encode()) for number in range(5)]
        for raw in raws:
            raw.setblocking(False)
            with suppress(OSError):
                raw.sendall(b"\x00\x01x" * 20_000)
        return raws + [tcp_connection(address) for _ in range(24)]

    before = descriptors()
    raws = await trio.to_thread.run_sync(say)
    await until(lambda: listening.cut >= 16)
    await trio.sleep(2 * LOOK_S)
    ours = descriptors() - before - len(raws)
    assert max(ours, len(connections)) <= 10, "8, and what is open for a moment"
    listening.open.set()
    for each in raws:
        each.close()
    await until(lambda: len(connections) == 0)


TOO_MANY = b"\x01\x01x" * (PARTS_FORGIVEN + 10) + b"\x00\x01x"


async def test_who_was_cut_is_admitted_again_later(listener, monkeypatch):
    """The time grows with each cut: dialling again at once gains nothing."""
    monkeypatch.setattr(transport.connections, "READMITTED_S", 1.5)
    listening, address = listener
    offenders = listening.endpoint._listening.connections._offenders
    for times in (1, 2):
        raw = await trio.to_thread.run_sync(connected, address)
        raw.sendall(TOO_MANY)
        await until(lambda: offenders.wait_s("127.0.0.1", time.monotonic()) > 0)
        assert offenders._known["127.0.0.1"].delay_s == pytest.approx(1.5 * times)
        cut = listening.cut
        assert len(await trio.to_thread.run_sync(all_told, address)) < 64, "no whole greeting"
        await until(lambda cut=cut: listening.cut > cut)
        assert "it may dial in" in listening.endpoint.refusals["connections_cut"].reason
        await until(lambda: offenders.wait_s("127.0.0.1", time.monotonic()) <= 0)
        raw.close()


async def test_with_keys_an_actor_is_kept_away_and_not_its_address(context, nursery, monkeypatch):
    """All its connections are cut, and another actor of the same address is heard."""
    monkeypatch.setattr(transport.connections, "READMITTED_S", 60.0)
    pairs = {name: new_pair() for name in ("hub", "rude", "good")}
    public = {name: pair[0] for name, pair in pairs.items()}
    endpoint = ZmqEndpoint(context, curve=Curve(pairs["hub"][1], public))
    address = await endpoint.listen("tcp://127.0.0.1:0")
    listening = Listener(endpoint)
    nursery.start_soon(listening.run)

    def dialled(name, route):
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.ROUTING_ID, route.encode())
        Curve(pairs[name][1], public).seal(dealer, "hub")
        dealer.connect(address)
        return dealer

    rude, other, good = (
        dialled(*each)
        for each in (("rude", "rude.1/bulk"), ("rude", "rude.1/control"), ("good", "good.1/bulk"))
    )
    other.send(b"so far")
    await until(lambda: ("rude.1/control", 1) in listening.heard)
    rude.send_multipart([b"x"] * (2 * PARTS_FORGIVEN))
    await until(lambda: listening.cut >= 2)
    other.send(b"again")
    await until(lambda: listening.cut >= 3)
    good.send(b"heard")
    await until(lambda: ("good.1/bulk", 1) in listening.heard)
    assert listening.heard.count(("rude.1/control", 1)) == 1
    for each in (rude, other, good):
        each.close(0)
    await endpoint.aclose()


async def test_a_message_ahead_of_its_connection_counts(context, nursery, monkeypatch):
    """The thread that counts connections may come second: the sender is known all the same."""
    monkeypatch.setattr(transport.connections.Connections, "_watch", lambda self: None)
    endpoint = ZmqEndpoint(context)
    address = await endpoint.listen("tcp://127.0.0.1:0")
    listening = Listener(endpoint)
    nursery.start_soon(listening.run)
    with context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.ROUTING_ID, b"rude.1/bulk")
        dealer.connect(address)
        dealer.send_multipart([b"x"] * (2 * PARTS_FORGIVEN))
        await until(lambda: listening.cut == 1)
    await endpoint.aclose()


async def test_a_descriptor_may_be_closed_at_any_time(listener, monkeypatch):
    """Between two looks of the thread libzmq may close what is to be cut; the thread goes on."""
    listening, address = listener
    connections = listening.endpoint._listening.connections
    monkeypatch.setattr(connections, "limit", 0)

    @contextmanager
    def closed(descriptor):
        raise OSError(errno.EBADF, "closed")
        yield

    monkeypatch.setattr(transport.connections, "_borrowed", closed)
    raws = [await trio.to_thread.run_sync(tcp_connection, address) for _ in range(3)]
    await until(lambda: listening.cut == 3)
    assert connections._thread.is_alive()
    for raw in raws:
        raw.close()
    await until(lambda: len(connections) == 0)


def test_delays_grow_and_are_forgotten():
    """Each cut doubles the time, up to half a minute; a second connection that is cut at the same
    time does not; after ten minutes of quiet it begins again."""
    offenders, now, delays = transport.connections.Offenders(), 0.0, []
    for _ in range(9):
        offenders.add("peer", now)
        offenders.add("peer", now)
        delays.append(offenders.wait_s("peer", now))
        now += delays[-1]
        assert offenders.wait_s("peer", now) <= 0.0
    assert delays == [1, 2, 4, 8, 16, 30, 30, 30, 30]
    assert offenders.wait_s("another", now) == 0.0
    offenders.add("peer", now + transport.connections.FORGIVEN_S)
    assert offenders._known["peer"].delay_s == 1.0
    for number in range(2 * transport.connections.OFFENDERS_MAX):
        offenders.add(f"{number}", now)
    assert len(offenders._known) == transport.connections.OFFENDERS_MAX


def test_half_of_the_descriptors_are_peers(monkeypatch):
    """The rest is for tapes, logs and workers; a few peers are always let in."""
    monkeypatch.setattr(transport.connections.resource, "getrlimit", lambda _: (1024, 4096))
    assert transport.connections.connections_max() == 512
    monkeypatch.setattr(transport.connections.resource, "getrlimit", lambda _: (32, 4096))
    assert transport.connections.connections_max() == 64
