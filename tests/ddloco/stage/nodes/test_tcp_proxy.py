"""The relay between a learner and the syncer, over real loopback sockets."""

import random
import socket
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
import trio

from ddloco.stage.files.faults import Fault
from ddloco.stage.nodes.tcp_proxy import CONNECTIONS_MAX, Proxy

MIB = 2**20
CUT = Fault("cut", "learner-0")
NOTHING_S = 0.3
"""How long nothing must arrive to count as held back; on loopback it would take a thousandth."""

PATIENCE_S = 30.0


class Ends:
    """A proxy, and connections through it."""

    def __init__(self, proxy, address, accepted):
        self.proxy = proxy
        self._there = urlsplit(address)
        self._accepted = accepted
        self._dialled = []

    async def dial(self):
        """The learner's end of a new connection."""
        self._dialled.append(await trio.open_tcp_stream(self._there.hostname, self._there.port))
        return self._dialled[-1]

    async def aclose(self):
        """Close what was dialled."""
        for stream in self._dialled:
            await trio.aclose_forcefully(stream)

    async def connect(self):
        """Both ends of a new connection."""
        before = len(self.proxy.connections)
        learner = await self.dial()
        syncer = await self._accepted.receive()
        await until(lambda: len(self.proxy.connections) > before)
        return learner, syncer


async def until(condition):
    """Wait for what the other side of a socket does."""
    while not condition():  # noqa: ASYNC110, sockets set no event
        await trio.sleep(0.01)


@asynccontextmanager
async def relayed(**options):
    """A proxy before a syncer that hands its connections out."""
    send, accepted = trio.open_memory_channel(100)

    async def hand_out(stream):
        await send.send(stream)
        await trio.sleep_forever()

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            port = listeners[0].socket.getsockname()[1]
            nursery.start_soon(trio.serve_listeners, hand_out, listeners)
            proxy = Proxy(f"tcp://127.0.0.1:{port}", **options)
            address = await proxy.listen()
            nursery.start_soon(proxy.run)
            ends = Ends(proxy, address, accepted)
            try:
                yield ends
            finally:
                await ends.aclose()
            nursery.cancel_scope.cancel()


async def receive(stream, count):
    """Exactly so many bytes."""
    data = bytearray()
    while len(data) < count:
        piece = await stream.receive_some(count - len(data))
        assert piece, f"the stream ended after {len(data)} of {count} bytes"
        data += piece
    return bytes(data)


async def silent(stream):
    """Whether nothing arrives for a while."""
    with trio.move_on_after(NOTHING_S):
        await stream.receive_some(1)
        return False
    return True


def numbered(count):
    """So many bytes, the same every time, that no other order of them equals."""
    return random.Random(count).randbytes(count)


async def test_bytes_pass_both_ways_whole():
    """What goes in comes out, in order, and the end of a stream comes after it."""
    async with relayed() as ends:
        learner, syncer = await ends.connect()
        async with trio.open_nursery() as nursery:
            for one, other in ((learner, syncer), (syncer, learner)):
                nursery.start_soon(one.send_all, numbered(4 * MIB))
                nursery.start_soon(receives, other, numbered(4 * MIB))
        await learner.send_eof()
        assert b"" == await syncer.receive_some(1)
        await syncer.send_all(b"half closed")
        assert b"half closed" == await receive(learner, 11)


async def receives(stream, data):
    """What arrives is this."""
    assert data == await receive(stream, len(data))


async def test_a_cut_holds_and_delivers_everything_in_order():
    """Nothing passes either way during a cut; afterwards all of it does."""
    async with relayed() as ends:
        learner, syncer = await ends.connect()
        ends.proxy.begin(CUT)
        await learner.send_all(numbered(MIB))
        await syncer.send_all(b"down")
        assert await silent(syncer)
        assert await silent(learner)
        ends.proxy.end(CUT)
        assert numbered(MIB) == await receive(syncer, MIB)
        assert b"down" == await receive(learner, 4)


@pytest.mark.parametrize("direction", ["to-syncer", "from-syncer"])
async def test_a_cut_of_one_way_leaves_the_other(direction):
    """The direction is counted from the learner."""
    async with relayed() as ends:
        learner, syncer = await ends.connect()
        ends.proxy.begin(Fault("cut", "learner-0", direction=direction))
        await learner.send_all(b"up")
        await syncer.send_all(b"down")
        if direction == "to-syncer":
            assert b"down" == await receive(learner, 4)
            assert await silent(syncer)
        else:
            assert b"up" == await receive(syncer, 2)
            assert await silent(learner)


async def test_cuts_overlap():
    """With two cuts the link is open again when the second is over."""
    async with relayed() as ends:
        learner, syncer = await ends.connect()
        for _ in range(2):
            ends.proxy.begin(CUT)
        await learner.send_all(b"up")
        ends.proxy.end(CUT)
        assert await silent(syncer)
        ends.proxy.end(CUT)
        assert b"up" == await receive(syncer, 2)


@pytest.mark.parametrize("words", [b"last words", b""])
async def test_a_cut_hides_that_a_side_is_gone(words):
    """Who died behind a cut is missed when the cut is over, after its last words."""
    async with relayed() as ends:
        learner, syncer = await ends.connect()
        ends.proxy.begin(CUT)
        await learner.send_all(words)
        await learner.aclose()
        assert await silent(syncer)
        ends.proxy.end(CUT)
        assert words == await receive(syncer, len(words))
        assert b"" == await syncer.receive_some(1)


async def test_a_cut_hides_new_connections_too():
    """A connection made during a cut carries nothing either."""
    async with relayed() as ends:
        ends.proxy.begin(CUT)
        learner, syncer = await ends.connect()
        await learner.send_all(b"hello")
        assert await silent(syncer)
        ends.proxy.end(CUT)
        assert b"hello" == await receive(syncer, 5)


async def test_a_full_buffer_pushes_back():
    """Beyond its limit the relay reads no more, so the sender waits; then all of it arrives."""
    limit, much = MIB // 4, 32 * MIB
    async with relayed(buffer_bytes_max=limit) as ends:
        learner, syncer = await ends.connect()
        ends.proxy.begin(CUT)
        data, sent = numbered(much), trio.Event()

        async def send():
            await learner.send_all(data)
            sent.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            pipe = ends.proxy.connections[0].pipes[0]
            await until(lambda: pipe.waiting_bytes >= limit)
            await trio.sleep(NOTHING_S)
            assert not sent.is_set()
            assert pipe.waiting_bytes < limit + 65536
            ends.proxy.end(CUT)
            assert data == await receive(syncer, much)
            await sent.wait()


async def test_a_delay_is_latency_and_not_a_limit():
    """Every byte is late by the delay, and many are late together, not one after the other."""
    delay_s, pieces = 0.5, 40
    async with relayed() as ends:
        learner, syncer = await ends.connect()
        ends.proxy.begin(Fault("delay", "learner-0", delay_s=delay_s, direction="to-syncer"))
        begun = trio.current_time()
        for _ in range(pieces):
            await learner.send_all(b"x" * 1000)
            await trio.sleep(0.005)  # So that the relay reads them one by one.
        first = await receive(syncer, 1000)
        first_s = trio.current_time() - begun
        await receive(syncer, 1000 * (pieces - 1))
        all_s = trio.current_time() - begun
        await syncer.send_all(b"down")
        back = trio.current_time()
        await receive(learner, 4)

        assert first == b"x" * 1000
        assert delay_s <= first_s
        assert all_s < pieces * delay_s / 4
        assert trio.current_time() - back < delay_s


async def test_delays_add_up():
    """Two delays at once are as late as both."""
    async with relayed() as ends:
        learner, syncer = await ends.connect()
        for _ in range(2):
            ends.proxy.begin(Fault("delay", "learner-0", delay_s=0.2))
        begun = trio.current_time()
        await learner.send_all(b"late")
        await receive(syncer, 4)

        assert trio.current_time() - begun >= 0.4


async def test_bandwidth_is_shared_by_all_connections():
    """Two connections together are as fast as the link: 200 kB at 4 Mbit/s take 0.4 s."""
    async with relayed() as ends:
        pairs = [await ends.connect() for _ in range(2)]
        ends.proxy.begin(Fault("bandwidth", "learner-0", mbit=4.0, direction="to-syncer"))
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            for learner, syncer in pairs:
                nursery.start_soon(learner.send_all, numbered(100_000))
                nursery.start_soon(receives, syncer, numbered(100_000))
        took_s = trio.current_time() - begun

        assert 0.4 <= took_s < 8.0


async def test_a_narrow_link_is_wide_again_at_once():
    """What waited for a slow link does not continue waiting when it is slow no more."""
    async with relayed() as ends:
        learner, syncer = await ends.connect()
        narrow = Fault("bandwidth", "learner-0", mbit=1e-9)
        ends.proxy.begin(narrow)
        await learner.send_all(numbered(1000))
        assert await silent(syncer)
        ends.proxy.end(narrow)
        assert numbered(1000) == await receive(syncer, 1000)


async def test_the_lowest_bandwidth_counts():
    """A wide limit beside a narrow one changes nothing."""
    async with relayed() as ends:
        learner, syncer = await ends.connect()
        for mbit in (1000.0, 1e-6, 1000.0):
            ends.proxy.begin(Fault("bandwidth", "learner-0", mbit=mbit))
        await learner.send_all(b"held")
        assert await silent(syncer)


async def test_a_reset_is_seen_as_one_by_both_sides():
    """Both ends get ECONNRESET, no orderly end; what is on the way is lost; then they continue."""
    async with relayed() as ends:
        learner, syncer = await ends.connect()
        ends.proxy.begin(CUT)
        await learner.send_all(b"lost")
        pipe = ends.proxy.connections[0].pipes[0]
        await until(lambda: pipe.waiting_bytes == 4)
        ends.proxy.reset()
        for stream in (learner, syncer):
            with pytest.raises(trio.BrokenResourceError) as raised:
                await receive(stream, 100)
            assert isinstance(raised.value.__cause__, ConnectionResetError)
        ends.proxy.end(CUT)
        learner, syncer = await ends.connect()
        await learner.send_all(b"again")
        assert b"again" == await receive(syncer, 5)
        assert len(ends.proxy.connections) == 1


@pytest.mark.parametrize("breaks", ["learner", "syncer"])
async def test_a_break_of_one_side_reaches_the_other(breaks):
    """A process that is killed resets its connections, and the other side hears of it."""
    async with relayed() as ends:
        learner, syncer = await ends.connect()
        one, other = (learner, syncer) if breaks == "learner" else (syncer, learner)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        one.socket.close()
        with pytest.raises(trio.BrokenResourceError):
            await receive(other, 1)
        await until(lambda: not ends.proxy.connections)


async def test_a_target_that_is_away_looks_away():
    """When the syncer is gone, a new connection is broken at once."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    async with trio.open_nursery() as nursery:
        proxy = Proxy(f"tcp://127.0.0.1:{port}")
        there = urlsplit(await proxy.listen())
        nursery.start_soon(proxy.run)
        learner = await trio.open_tcp_stream(there.hostname, there.port)
        with trio.fail_after(PATIENCE_S), pytest.raises(trio.BrokenResourceError):
            await learner.receive_some(1)
        await learner.aclose()
        nursery.cancel_scope.cancel()


async def test_no_more_connections_than_needed():
    """One too many is broken at once; when another is gone there is room again."""
    async with relayed() as ends:
        pairs = [await ends.connect() for _ in range(CONNECTIONS_MAX)]
        extra = await ends.dial()
        with pytest.raises(trio.BrokenResourceError):
            await extra.receive_some(1)
        for stream in pairs[0]:
            await stream.aclose()
        await until(lambda: len(ends.proxy.connections) < CONNECTIONS_MAX)
        learner, syncer = await ends.connect()
        await learner.send_all(b"room")
        assert b"room" == await receive(syncer, 4)
