"""Connections on whose way bits flip, in the frames of ZMTP too: they are made again."""

import random
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import xxhash

from tests.flipping_proxy import FlippingProxy
from tests.transport.conformance import Inbox
from transport.endpoint import LaneFull, PeerGone
from transport.zeromq import ZmqEndpoint, open_context

ROUTE, IDENTITY = "syncer/control", "learner-0.1/control"
DEAF_S = 0.3


async def attend(endpoint, inbox):
    """Receive until the endpoint is closed."""
    with suppress(trio.ClosedResourceError):
        await endpoint.run(inbox.deliver)


def sealed(body):
    """A message with its digest, as headers and tensors have one."""
    return body + xxhash.xxh3_64_digest(body)


def came(inbox, message):
    """Whether a message has arrived, under any name."""
    return any((message,) in said for said in inbox.messages.values())


@asynccontextmanager
async def through_a_proxy(seed, every_bytes):
    """A listener, the proxy before it, and who dials that; what the two receive."""
    async with open_context() as context, trio.open_nursery() as tasks:
        listener = ZmqEndpoint(context, linger_s=0.0)
        dialling = ZmqEndpoint(context, linger_s=0.0, deaf_s=DEAF_S)
        bound = await listener.listen("tcp://127.0.0.1:*")
        proxy = FlippingProxy(int(bound.rpartition(":")[2]), seed, every_bytes)
        heard, told = Inbox(), Inbox()
        tasks.start_soon(attend, listener, heard)
        tasks.start_soon(attend, dialling, told)
        await dialling.dial(f"tcp://127.0.0.1:{proxy.port}", route=ROUTE, identity=IDENTITY)
        with trio.fail_after(60):
            yield listener, proxy, dialling, heard, told
        await dialling.aclose()
        await listener.aclose()
        proxy.close()
        tasks.cancel_scope.cancel()


async def say(endpoint, route, message):
    """Send if that is possible now; a lost message is nobody's."""
    with suppress(LaneFull, PeerGone):
        endpoint.send_nowait(route, [message])


@pytest.mark.parametrize("seed", range(6))
async def test_a_line_recovers_from_flipped_frames(seed):
    """However many bits flip: once none does, messages of both directions arrive again."""
    rng = random.Random(seed)
    async with through_a_proxy(seed, 300.0) as (listener, proxy, dialling, heard, told):
        with trio.move_on_after(1.0):
            while True:
                await say(dialling, ROUTE, sealed(rng.randbytes(40)))
                await say(listener, IDENTITY, sealed(rng.randbytes(40)))
                await trio.sleep(0.005)
        assert proxy.flipped > 0
        proxy.heal()
        last = sealed(b"the last one")
        while not (came(heard, last) and came(told, last)):
            await say(dialling, ROUTE, last)
            if came(heard, last):  # As a link, that says nothing to whom it does not hear.
                await say(listener, IDENTITY, last)
            await trio.sleep(0.05)


async def test_a_connection_under_a_changed_name_is_made_again():
    """A bit of the greeting's identity flips: whoever speaks under that name is not answered."""
    async with through_a_proxy(0, 1e12) as (_, proxy, dialling, heard, _):
        proxy.spoil_next(b"learner-0", b"learner-1")
        while "learner-1.1/control" not in heard.messages:
            await say(dialling, ROUTE, sealed(b"hello"))
            await trio.sleep(0.02)
        while IDENTITY not in heard.messages:
            await say(dialling, ROUTE, sealed(b"hello"))
            await trio.sleep(0.02)
