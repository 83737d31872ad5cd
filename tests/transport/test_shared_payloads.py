"""Payloads by reference: what arrives, what is lent and returned, and what is refused."""

import gc
import os
import random
import socket
import struct
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from functools import partial

import numpy as np
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddloco.stage.arrays.shared_memory import SharedMemory
from transport import shared_payloads, zeromq
from transport.shared_payloads import (
    BY_REFERENCE,
    FILES,
    HELLO,
    LEAVING,
    LOANS_MAX,
    READY,
    REFERENCE,
    RETURNED,
    RETURNED_MAX,
    Loans,
    SharedPayloads,
    SharingError,
    SharingPeer,
)
from transport.zeromq import ZmqEndpoint, open_context

pytestmark = pytest.mark.skipif(not shared_payloads.SUPPORTED, reason="Linux only")

NBYTES = 1 << 20
HUB, LEARNER = "syncer/bulk", "learner-1.1/bulk"
WAIT_S = 20.0


async def until(check):
    """Wait until something is true."""
    with trio.fail_after(WAIT_S):
        while not check():  # noqa: ASYNC110, there is no event
            await trio.sleep(0.001)


class Side:
    """An endpoint that shares memory, and what has arrived at it."""

    def __init__(self, endpoint, memory):
        self.endpoint, self.memory = endpoint, memory
        self.got = []

    async def deliver(self, arrival):
        """Take an arrival."""
        await trio.lowlevel.checkpoint()
        self.got.append(arrival)

    def send(self, route, value, nbytes=NBYTES):
        """Send a part of equal bytes from shared memory."""
        data = self.memory.array(nbytes)
        data[:] = value
        self.endpoint.send_nowait(route, [b"head", data.data])

    async def take(self):
        """Wait for the next arrival; returns its bytes."""
        await until(lambda: self.got)
        _, part = self.got.pop(0).frames
        return part

    @property
    def in_place(self):
        """Bytes that were sent by reference."""
        return self.endpoint.statistics().sent_by_reference

    def lent(self, route):
        """How many ranges are lent to the only peer."""
        peer = self.endpoint._shared._peers.get(route)
        return len(peer._loans) if peer is not None else None


@asynccontextmanager
async def star(share=(True, True)):
    """A hub that listens, and a learner that has dialled it; both run."""
    async with open_context() as one, open_context() as two, AsyncExitStack() as stack:
        hub, learner = (
            Side(ZmqEndpoint(each, linger_s=0.0), stack.enter_context(closing(SharedMemory())))
            for each in (one, two)
        )
        for side, shares in zip((hub, learner), share, strict=True):
            if shares:
                side.endpoint.share(side.memory)
        address = await hub.endpoint.listen("tcp://127.0.0.1:0")
        await learner.endpoint.dial(address, route=HUB, identity=LEARNER)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hub.endpoint.run, hub.deliver)
            nursery.start_soon(learner.endpoint.run, learner.deliver)
            yield hub, learner
            nursery.cancel_scope.cancel()
        await hub.endpoint.aclose()
        await learner.endpoint.aclose()


async def until_shared(hub, learner):
    """Send until both sides send by reference."""
    with trio.fail_after(WAIT_S):
        while not (hub.in_place and learner.in_place):
            learner.send(HUB, 1)
            await hub.take()
            hub.send(LEARNER, 2)
            await learner.take()
            await trio.sleep(0.01)


async def until_lent(side, route, count):
    """Wait until so many ranges are lent; others than the newest come back with any traffic."""
    with trio.fail_after(WAIT_S):
        while side.lent(route) != count:
            gc.collect()
            for each in (side.endpoint, side.other.endpoint):
                each._shared.give_back()
            await trio.sleep(0.001)


async def test_parts_are_read_where_they_lie():
    """In both directions, once the dialling side has asked; what arrives looks the same."""
    async with star() as (hub, learner):
        await until_shared(hub, learner)
        before = learner.in_place
        learner.send(HUB, 7)
        part = await hub.take()
        assert learner.in_place == before + NBYTES
        assert bytes(part) == bytes([7]) * NBYTES
        assert part.readonly
        assert np.frombuffer(part, np.uint8).ctypes.data % 8 == 0
        sent = learner.endpoint.statistics()
        assert sent.bytes_sent == hub.endpoint.statistics().bytes_received


async def test_a_part_stays_as_it_is_until_nobody_reads_it():
    """Its memory is used again after that, and not before."""
    async with star() as (hub, learner):
        learner.other, hub.other = hub, learner
        await until_shared(hub, learner)
        learner.send(HUB, 7)
        part = await hub.take()
        await until_lent(learner, HUB, 1)
        for value in (8, 9):
            learner.send(HUB, value)
            assert {value} == set(await hub.take())
        assert {7} == set(part)
        await until_lent(learner, HUB, 1)
        del part
        await until_lent(learner, HUB, 0)
        regions = len(learner.memory._by_address)
        held = [learner.memory.array(NBYTES) for _ in range(regions)]
        assert len(learner.memory._by_address) == regions, "all of them are used again"
        held.append(learner.memory.array(NBYTES))
        assert len(learner.memory._by_address) == regions + 1


async def test_small_parts_and_memory_of_the_process_are_sent():
    """Only what lies in shared memory is named by reference."""
    async with star() as (hub, learner):
        await until_shared(hub, learner)
        before = learner.in_place
        learner.send(HUB, 3, nbytes=4096)
        learner.endpoint.send_nowait(HUB, [b"head", bytes([4]) * NBYTES])
        assert [{3}, {4}] == [set(await hub.take()) for _ in range(2)]
        assert learner.in_place == before


@pytest.mark.parametrize("share", [(True, False), (False, True), (False, False)])
async def test_with_one_that_does_not_share_bytes_are_sent(share):
    """Everything arrives."""
    async with star(share) as (hub, learner):
        for value in range(5):
            learner.send(HUB, value)
            assert {value} == set(await hub.take())
            hub.send(LEARNER, value)
            assert {value} == set(await learner.take())
            await trio.sleep(0.05)
        assert (hub.in_place, learner.in_place) == (0, 0)


@pytest.mark.parametrize("fault", ["another user", "another host", "no files"])
async def test_across_users_and_hosts_bytes_are_sent(fault, monkeypatch):
    """Everything arrives, whatever step fails."""
    connect = SharedPayloads.connect

    async def counted(self, route, identity, name):
        known = b"ddloco-elsewhere" if fault == "another host" else name
        await connect(self, route, identity, known)

    monkeypatch.setattr(SharedPayloads, "connect", counted)
    if fault == "another user":
        monkeypatch.setattr(shared_payloads, "_same_user", lambda _: False)
    if fault == "no files":
        monkeypatch.setattr(SharedMemory, "filenos", lambda _: (-1, -1))
    async with star() as (hub, learner):
        for value in range(5):
            learner.send(HUB, value)
            assert {value} == set(await hub.take())
            await trio.sleep(0.05)
        assert learner.in_place == 0


def reference(loan=0, number=0, offset=0, nbytes=NBYTES):
    """A reference to send by hand."""
    return REFERENCE.pack(loan, number, offset, nbytes)


def refused(side, count):
    """Whether so many messages were refused."""
    return side.endpoint.statistics().arrivals_refused_reference >= count


async def test_ranges_that_are_not_the_senders_are_refused():
    """They are dropped and counted with the reason, and what follows arrives."""
    async with star() as (hub, learner):
        await until_shared(hub, learner)
        due = hub.endpoint._shared._peers[LEARNER]._theirs._due
        size = os.fstat(hub.endpoint._shared._peers[LEARNER]._theirs._files[0]).st_size
        wrong = {
            reference(due, nbytes=0): "0 bytes of file 0",
            reference(due, number=9): "of file 9",
            reference(due, offset=size): "of a file of",
            reference(due, offset=2**63): "of a file of",
            reference(due + LOANS_MAX): "was due",
            reference(due - 1): "was due",
            b"short": "a reference of 5 bytes",
        }
        socket_ = learner.endpoint._dialled[HUB].socket
        for number, (parts, why) in enumerate(wrong.items(), 1):
            socket_.send_multipart_nowait([b"head", parts, BY_REFERENCE])
            await until(partial(refused, hub, number))
            assert why in hub.endpoint.refusals["arrivals_refused_reference"].reason
        large = reference(due, nbytes=zeromq.FRAME_BYTES_MAX + 1)
        if size > zeromq.FRAME_BYTES_MAX:
            socket_.send_multipart_nowait([b"head", large, BY_REFERENCE])
        learner.send(HUB, 5)
        assert {5} == set(await hub.take())


async def test_a_reference_without_shared_memory_is_refused():
    """Of a peer that has not passed its files."""
    async with star((True, False)) as (hub, learner):
        await trio.sleep(0.05)
        line = learner.endpoint._dialled[HUB].socket
        line.send_multipart_nowait([b"head", reference(), BY_REFERENCE])
        await until(partial(refused, hub, 1))
        learner.send(HUB, 5)
        assert {5} == set(await hub.take())


async def test_what_was_lost_on_the_way_is_returned():
    """With the next message that arrives: its loan says which are missing."""
    async with star() as (hub, learner):
        learner.other, hub.other = hub, learner
        await until_shared(hub, learner)
        peer = learner.endpoint._shared._peers[HUB]
        for _ in range(3):
            assert peer.reference(learner.memory.array(NBYTES).data) is not None
        assert learner.lent(HUB) >= 3
        learner.send(HUB, 5)
        assert {5} == set(await hub.take())
        await until_lent(learner, HUB, 0)


async def test_a_message_that_is_not_sent_lends_nothing():
    """The lane is full, or the peer is gone: the next message has the next loan."""
    async with star() as (hub, learner):
        learner.other, hub.other = hub, learner
        await until_shared(hub, learner)
        await until_lent(learner, HUB, 0)
        due = learner.endpoint._shared._peers[HUB]._loans._next
        socket_ = learner.endpoint._dialled[HUB].socket
        with pytest.MonkeyPatch.context() as patched:

            def full(parts):
                raise trio.WouldBlock

            patched.setattr(socket_, "send_multipart_nowait", full)
            with pytest.raises(zeromq.LaneFull):
                learner.send(HUB, 5)
        assert (learner.lent(HUB), learner.endpoint._shared._peers[HUB]._loans._next) == (0, due)
        learner.send(HUB, 6)
        assert {6} == set(await hub.take())


LENDER = """
import sys, time, trio
from ddloco.stage.arrays.shared_memory import SharedMemory
from transport.zeromq import ZmqEndpoint, open_context

async def main():
    async with open_context() as context:
        endpoint, memory = ZmqEndpoint(context), SharedMemory()
        endpoint.share(memory)
        await endpoint.dial(sys.argv[1], route="syncer/bulk", identity="learner-1.1/bulk")
        async with trio.open_nursery() as nursery:
            async def deliver(arrival):
                kept.append(arrival)
            kept = []
            nursery.start_soon(endpoint.run, deliver)
            while True:
                data = memory.array(1 << 20)
                data[:] = 7
                endpoint.send_nowait("syncer/bulk", [b"head", data.data])
                await trio.sleep(0.05)

trio.run(main)
"""


async def test_a_killed_peer_leaks_nothing():
    """What was lent to it is let go of; what it lent may be read on."""
    async with open_context() as context, AsyncExitStack() as stack:
        memory = stack.enter_context(closing(SharedMemory()))
        hub = Side(ZmqEndpoint(context, linger_s=0.0), memory)
        hub.endpoint.share(hub.memory)
        address = await hub.endpoint.listen("tcp://127.0.0.1:0")
        command = [sys.executable, "-c", LENDER, address]
        with subprocess.Popen(command) as process:  # noqa: ASYNC220, it begins at once
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hub.endpoint.run, hub.deliver)
                try:
                    with trio.fail_after(3 * WAIT_S):
                        while not hub.lent(LEARNER):
                            if LEARNER in hub.endpoint._holders:
                                hub.send(LEARNER, 1)  # It keeps all that it receives.
                            await trio.sleep(0.05)
                    part = hub.got[-1].frames[1]
                finally:
                    process.kill()
                await until(lambda: hub.lent(LEARNER) is None)
                assert {7} == set(part)
                used = len(hub.memory._by_address)
                hub.memory.array(NBYTES)
                assert len(hub.memory._by_address) == used, "what it was lent is used again"
                nursery.cancel_scope.cancel()
        await hub.endpoint.aclose()


def test_leases_are_counted_per_peer():
    """In order, each returned once."""
    loans = Loans()
    assert [loans.lend(b"x") for _ in range(3)] == [0, 1, 2]
    loans.withdraw(2)
    assert loans.lend(b"y") == 2
    loans.give_back([1, 0])
    with pytest.raises(SharingError, match="loan 1"):
        loans.give_back([1])
    loans.clear()
    assert len(loans) == 0


def pair(memory):
    """A peer, and the other end of its connection."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.setblocking(False)
    return SharingPeer(here, memory), there


def descriptors():
    """The open descriptors of this process."""
    gc.collect()
    return sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208, names are enough


KINDS = st.sampled_from([HELLO, FILES, READY, RETURNED, LEAVING, b"", b"X"])
PACKETS = st.lists(
    st.tuples(KINDS, st.binary(max_size=24), st.integers(0, 6)), min_size=1, max_size=8
)


@pytest.mark.usefixtures("little_to_collect")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(packets=PACKETS, references=st.lists(st.binary(max_size=30), max_size=3))
def test_hostile_packets_end_the_connection_at_worst(packets, references):
    """Whatever a process of this user says: no other error, and no descriptor leaks."""
    memory = SharedMemory()
    before = descriptors()
    peer, there = pair(memory)

    async def attend(peer):
        with suppress(SharingError):
            while await peer.packet():
                for each in references:
                    with suppress(SharingError):
                        peer.part(each)
        peer.close()

    with there:
        for kind, rest, files in packets:
            fds = [memory.filenos()[0]] * files
            if kind + rest or fds:
                socket.send_fds(there, [kind + rest or b" "], fds)
        there.shutdown(socket.SHUT_WR)
        trio.run(attend, peer)
    del peer
    # What other tests left open may be closed meanwhile.
    assert len(descriptors()) <= len(before)
    memory.close()


async def test_a_full_connection_returns_leases_later():
    """Nothing is lost, and nothing waits."""
    memory = SharedMemory()
    peer, there = pair(memory)
    with there, closing(memory):
        socket.send_fds(there, [FILES], [memory.filenos()[0]])
        await peer.packet()
        there.setblocking(False)
        assert there.recv(9) == READY
        memory.array(NBYTES)
        count = 0
        for loan in range(4000):
            peer.part(reference(loan, nbytes=64))
            gc.collect(0)
            peer.give_back()
        returned = []
        while len(returned) < 4000:
            try:
                packet = there.recv(8 * RETURNED_MAX + 1)
            except BlockingIOError:
                peer.give_back()
                count += 1
                assert count < 4000, "it gives back what is left"
                continue
            assert packet[:1] == RETURNED
            returned += struct.unpack(f">{len(packet) // 8}Q", packet[1:])
        assert sorted(returned) == list(range(4000))
    peer.close()


async def test_elsewhere_than_on_linux_nothing_is_shared(monkeypatch):
    """`share` does nothing there."""
    monkeypatch.setattr(zeromq, "SUPPORTED", False)
    async with star() as (hub, learner):
        for value in range(3):
            learner.send(HUB, value)
            assert {value} == set(await hub.take())
        assert learner.endpoint._shared is None


@pytest.mark.parametrize("seed", range(3))
async def test_random_traffic_arrives_in_order_and_unchanged(seed):
    """Parts of any size from any memory, read at once or much later, while lines reconnect; what
    is lost with a line is returned, too."""
    rng = random.Random(seed)
    async with star() as (hub, learner):
        learner.other, hub.other = hub, learner
        await until_shared(hub, learner)
        hub.got.clear(), learner.got.clear()
        line, kept = learner.endpoint._dialled[HUB], []
        for number in range(300):
            side, route = rng.choice([(hub, LEARNER), (learner, HUB)])
            nbytes = rng.choice([100, 70_000, 300_000])
            data = side.memory.array(nbytes) if rng.random() < 0.8 else np.empty(nbytes, np.uint8)
            data[:] = number % 251
            with suppress(zeromq.PeerGone):  # A line that reconnects.
                side.endpoint.send_nowait(route, [b"%d" % number, data.data])
            del data
            if rng.random() < 0.02:
                line.socket.reconnect(line.address)
                zeromq._probe(line)
                await trio.sleep(0.05)
            await trio.sleep(rng.choice([0, 0, 0.002]))
            for each in (hub, learner):
                if rng.random() < 0.3:
                    kept += each.got[:5]
                    del each.got[:5]
            if rng.random() < 0.2:
                check_all(kept)
                kept.clear()
        assert min(hub.in_place, learner.in_place) > 10_000_000
        with trio.fail_after(WAIT_S):
            while learner.lent(HUB) or hub.lent(LEARNER):
                check_all(kept + hub.got + learner.got)
                kept.clear(), hub.got.clear(), learner.got.clear()
                gc.collect()
                with suppress(zeromq.PeerGone):
                    learner.send(HUB, 0, nbytes=70_000), hub.send(LEARNER, 0, nbytes=70_000)
                await trio.sleep(0.01)
                hub.got.clear(), learner.got.clear()
                gc.collect()
                hub.endpoint._shared.give_back(), learner.endpoint._shared.give_back()
                await trio.sleep(0.01)


def check_all(arrivals):
    """Each part has the bytes that its head says, and heads of a side ascend."""
    last = {}
    for each in arrivals:
        head, part = each.frames
        if head == b"head":
            continue
        number = int(bytes(head))
        assert {number % 251} == set(bytes(part)), number
        assert number > last.get(each.route, -1)
        last[each.route] = number
