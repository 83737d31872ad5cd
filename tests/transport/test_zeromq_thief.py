"""A second connection under a name that is taken, with ``handover``: what becomes of the first."""

from contextlib import asynccontextmanager, suppress

import trio
import zmq

from tests.transport.conformance import Inbox, send_patiently
from transport.endpoint import LaneFull
from transport.zeromq import PROBE, ZmqEndpoint, open_context

ROUTE, IDENTITY = "syncer/control", "learner-0.1/control"
DEAF_S = 0.4
TRIES = 200


async def attend(endpoint, inbox):
    """Receive until the endpoint is closed."""
    with suppress(trio.ClosedResourceError):
        await endpoint.run(inbox.deliver)


@asynccontextmanager
async def one_line(address="tcp://127.0.0.1:*", deaf_s=DEAF_S):
    """A listener that takes identities over, what it received, and a peer that dialled it."""
    async with open_context() as context, trio.open_nursery() as tasks:
        listener = ZmqEndpoint(context, linger_s=0.0)
        owner = ZmqEndpoint(context, linger_s=0.0, deaf_s=deaf_s)
        heard, told = Inbox(), Inbox()
        bound = await listener.listen(address)
        await owner.dial(bound, route=ROUTE, identity=IDENTITY)
        tasks.start_soon(attend, listener, heard)
        tasks.start_soon(attend, owner, told)
        with trio.fail_after(60):
            await send_patiently(owner, ROUTE, [b"mine"])
            await heard.wait_count(1)
            yield bound, listener, owner, heard, told
        await owner.aclose()
        await listener.aclose()
        tasks.cancel_scope.cancel()


async def steal(address, identity=b"learner-0.1/control"):
    """Say something under an identity, and leave."""
    async with open_context() as elsewhere:
        thief = elsewhere.socket(zmq.DEALER)
        thief.setsockopt(zmq.ROUTING_ID, identity)
        thief.setsockopt(zmq.LINGER, 1000)
        thief.connect(address)
        thief.send(b"stolen")
        await trio.sleep(0.2)
        thief.close()


async def test_no_peer_takes_a_route_from_a_connection_that_lives():
    """Another process names the owner's route again and again: none of it is heard, and the owner
    is answered at once."""
    async with one_line() as (address, listener, owner, heard, told):
        for _ in range(5):
            await steal(address)
        while listener.statistics().arrivals_refused_taken < 5:  # noqa: ASYNC110, no event to wait for
            await trio.sleep(0.01)
        listener.send_nowait(IDENTITY, [b"still there?"])
        await told.wait_count(1)
        owner.send_nowait(ROUTE, [b"yes"])
        await heard.wait_count(2)
        assert owner.statistics().lines_mended == 0
    assert heard.messages[IDENTITY] == [(b"mine",), (b"yes",)]
    assert told.messages == {ROUTE: [(b"still there?",)]}


async def test_a_route_is_free_once_its_connection_has_gone():
    """A peer that comes under the name of one that has left is heard."""
    async with one_line() as (address, _, owner, heard, _):
        await owner.aclose()
        while heard.count < 2:
            await steal(address)
    assert heard.messages[IDENTITY] == [(b"mine",), (b"stolen",)]


async def test_a_peer_whose_identity_was_taken_is_heard_again():
    """A connection of the very same identity comes and goes, as after a break that only one side
    has noticed; the owner, who continues sending, is heard afterwards, and answered."""
    async with one_line() as (address, listener, owner, heard, told):
        await steal(address, listener._identity_of(IDENTITY))
        await heard.wait_count(2)
        for _ in range(TRIES):
            owner.send_nowait(ROUTE, [b"again"])
            await trio.sleep(0.05)
            if heard.messages[IDENTITY][-1] == (b"again",):
                break
        await send_patiently(listener, IDENTITY, [b"welcome back"])
        await told.wait_count(1)
        mended = owner.statistics().lines_mended
    said = [frames[0] for frames in heard.messages[IDENTITY]]
    assert said[:2] == [b"mine", b"stolen"]
    assert said[-1] == b"again"
    assert told.messages[ROUTE] == [(b"welcome back",)]
    assert mended >= 1


async def test_a_connection_that_needs_no_answer_is_left_alone():
    """A peer that sends and gets no message keeps its connection: the listener answers a probe,
    below everything else; nothing is lost, and nothing else arrives on either side."""
    async with one_line() as (_, listener, owner, heard, told):
        for number in range(30):
            owner.send_nowait(ROUTE, [b"%d" % number])
            await trio.sleep(DEAF_S / 8)
        await heard.wait_count(31)
        assert owner.statistics().lines_mended == 0
        assert listener.statistics().arrivals_refused == 0
    assert [frames[0] for frames in heard.messages[IDENTITY]][1:] == [b"%d" % n for n in range(30)]
    assert not told.messages


async def test_a_line_that_says_nothing_is_not_even_probed():
    """After its one message was answered an idle line sends nothing by itself, and stays."""
    async with one_line() as (_, listener, owner, _, told):
        await send_patiently(listener, IDENTITY, [b"yes"])
        await told.wait_count(1)
        before = owner.statistics()
        await trio.sleep(4 * DEAF_S)
        assert owner.statistics() == before


async def test_a_listener_that_is_away_is_dialled_ever_more_seldom():
    """The wait doubles each time; once it listens again, it hears."""
    async with one_line(deaf_s=0.1) as (address, listener, owner, _, _):
        await listener.aclose()
        begun = trio.current_time()
        while trio.current_time() < begun + 3.0:
            with suppress(LaneFull):
                owner.send_nowait(ROUTE, [b"anybody?"])
            await trio.sleep(0.05)
        assert 2 <= owner.statistics().lines_mended <= 5  # After 0.1, 0.2, 0.4, 0.8, 1.6 s.
        async with open_context() as context, trio.open_nursery() as tasks:
            successor, heard = ZmqEndpoint(context, linger_s=0.0), Inbox()
            await successor.listen(address)
            tasks.start_soon(attend, successor, heard)
            while not heard.count:  # What waited for the one before may be lost.
                with suppress(LaneFull):
                    owner.send_nowait(ROUTE, [b"hello"])
                await trio.sleep(0.05)
            await successor.aclose()
            tasks.cancel_scope.cancel()


async def test_a_probe_of_an_endpoint_that_was_closed_meanwhile_is_not_answered():
    """Its socket may be closed between taking the probe off it and answering."""
    async with open_context() as context:
        listener = ZmqEndpoint(context, linger_s=0.0)
        await listener.listen("tcp://127.0.0.1:*")
        line = listener._listening
        await listener.aclose()
        assert listener._admitted(line, [IDENTITY.encode(), PROBE + IDENTITY.encode()]) is None


async def test_what_is_large_may_take_its_time():
    """Bytes on their way are no silence: the more there are, the later a line counts as deaf."""
    async with one_line(deaf_s=0.1) as (_, listener, owner, _, _):
        await listener.aclose()
        owner.send_nowait(ROUTE, [bytes(1 << 20)])
        await trio.sleep(1.0)
        assert owner.statistics().lines_mended == 0
