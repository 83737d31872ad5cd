"""Keys at work: who is let in, who is not and is counted, and that names cannot be borrowed."""

import socket
from contextlib import asynccontextmanager

import pytest
import trio
import zmq

from tests.transport.conformance import CHECK_S_MAX, CHECKS, Bench, Inbox, send_patiently
from transport.curve_auth import ZAP_ADDRESS, Curve, check_key, new_pair, public_of
from transport.zeromq import ZmqEndpoint, open_context

WAIT_S = 20
HALF_OPEN = 200

NAMES = ("syncer", "learner-0", "learner-1", "observer")
PAIRS = {name: new_pair() for name in NAMES}
PUBLIC = {name: public for name, (public, _) in PAIRS.items()}
SHARED = frozenset({"syncer", "observer"})


def curve(name, **changes):
    """The keys of one actor; changes replace what it knows of the others'."""
    return Curve(PAIRS[name][1], {**PUBLIC, **changes}, SHARED)


def unknown_peer():
    """A process with a key of its own and the public keys of the job."""
    return Curve(new_pair()[1], PUBLIC, SHARED)


@asynccontextmanager
async def syncer(address="tcp://127.0.0.1:*"):
    """Give a running listener with keys, its inbox, and a function that dials it under a name."""
    async with open_context() as context, trio.open_nursery() as nursery:
        listener = ZmqEndpoint(context, curve=curve("syncer"))
        inbox, dialled = Inbox(), []
        bound = await listener.listen(address)
        nursery.start_soon(listener.run, inbox.deliver)

        async def dial(keys, identity, route="syncer/control"):
            dialled.append(ZmqEndpoint(context, linger_s=0, curve=keys))
            await dialled[-1].dial(bound, route=route, identity=identity)
            return dialled[-1]

        dial.address = bound
        try:
            with trio.fail_after(WAIT_S):
                yield listener, inbox, dial
        finally:
            nursery.cancel_scope.cancel()
            for endpoint in (*dialled, listener):
                await endpoint.aclose()


async def running(endpoint, inbox, task_status):
    """Run an endpoint under a scope of its own."""
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await endpoint.run(inbox.deliver)


async def counted(endpoint, counter, count=1):
    """Wait until an endpoint has counted so many."""
    while getattr(endpoint.statistics(), counter) < count:  # noqa: ASYNC110, counters set no event
        await trio.sleep(0.01)


async def good_peer_is_heard(inbox, dial):
    """A learner with its key says something, and it arrives."""
    learner = await dial(curve("learner-0"), "learner-0.9/control")
    learner.send_nowait("syncer/control", [b"good"])
    while "learner-0.9/control" not in inbox.messages:
        await inbox.changed.wait()
        inbox.changed = trio.Event()
    assert [(b"good",)] == inbox.messages["learner-0.9/control"]


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:*", "ipc://{}/syncer"])
async def test_a_known_key_is_let_in(address, tmp_path):
    """A message arrives under the identity that its key proves, and the answer comes back."""
    async with syncer(address.format(tmp_path)) as (listener, inbox, dial):
        await good_peer_is_heard(inbox, dial)
        counts = listener.statistics()
        assert (counts.messages_received, counts.arrivals_refused) == (1, 0)
        assert counts.handshakes_refused == 0
        assert listener.refusals == {}


@pytest.mark.parametrize(
    ("keys", "reason", "address"),
    [
        pytest.param(unknown_peer(), "the public key", "127.0.0.1", id="unknown"),
        pytest.param(
            curve("learner-0", syncer=new_pair()[0]),
            "it dialled another listener's key",
            "",
            id="wrong-server",
        ),
        pytest.param(None, "it uses no keys", "", id="no-keys"),
    ],
)
async def test_who_has_not_the_right_key_stays_out(keys, reason, address):
    """Nothing is delivered, the refusal is counted and explained, and others are served on."""
    async with syncer() as (listener, inbox, dial):
        intruder = await dial(keys, "learner-0.1/control")
        intruder.send_nowait("syncer/control", [b"let me in"])
        await counted(listener, "handshakes_refused")
        refusal = listener.refusals["handshakes_refused"]
        assert refusal.reason.startswith(reason)
        assert refusal.address == address

        await good_peer_is_heard(inbox, dial)
        assert list(inbox.messages) == ["learner-0.9/control"]
        assert listener.statistics().messages_received == 1


async def test_a_listener_without_keys_hears_no_peer_with_keys():
    """A dialler never sends to a process that cannot prove to be the listener."""
    async with open_context() as context, trio.open_nursery() as nursery:
        impostor, inbox = ZmqEndpoint(context), Inbox()
        address = await impostor.listen("tcp://127.0.0.1:*")
        learner = ZmqEndpoint(context, linger_s=0, curve=curve("learner-0"))
        await learner.dial(address, route="syncer/control", identity="learner-0.1/control")
        nursery.start_soon(impostor.run, inbox.deliver)
        learner.send_nowait("syncer/control", [b"secret"])
        await trio.sleep(0.5)  # nothing announces that nothing will come
        assert inbox.count == 0
        nursery.cancel_scope.cancel()
        await learner.aclose()
        await impostor.aclose()


async def test_a_stolen_identity_is_not_heard():
    """What comes under another's name is dropped and counted, though the key is a good one."""
    async with syncer() as (listener, inbox, dial):
        thief = await dial(curve("learner-1"), "learner-0.1/control")
        thief.send_nowait("syncer/control", [b"I am learner-0"])
        await counted(listener, "arrivals_refused_identity")
        refusal = listener.refusals["arrivals_refused_identity"]
        assert refusal.reason == "the key of learner-1 was used for learner-0.1/control"
        assert inbox.count == 0
        await good_peer_is_heard(inbox, dial)


async def test_a_key_of_the_job_detaches_no_other_peer():
    """A peer that dials under another's route with a key of its own, again and again, is not heard;
    the owner is answered all the while, and its connection never has to be mended."""
    async with syncer() as (listener, inbox, dial), trio.open_nursery() as nursery:
        owner = await dial(curve("learner-0"), "learner-0.1/control")
        told = Inbox()
        await nursery.start(running, owner, told)
        await send_patiently(owner, "syncer/control", [b"mine"])
        await inbox.wait_count(1)
        for number in range(1, 6):
            thief = await dial(curve("learner-1"), "learner-0.1/control")
            await send_patiently(thief, "syncer/control", [b"stolen"])
            await counted(listener, "arrivals_refused_identity", number)
            listener.send_nowait("learner-0.1/control", [b"%d" % number])
            await told.wait_count(number)
        assert owner.statistics().lines_mended == 0
        nursery.cancel_scope.cancel()
    assert inbox.messages == {"learner-0.1/control": [(b"mine",)]}


@pytest.mark.parametrize("fallback", [False, True])
async def test_without_a_handler_no_peer_is_admitted(monkeypatch, fallback):
    """Without a ZAP handler a peer is refused; where libzmq lets it in, it has no name."""
    if fallback:
        real = zmq.Socket.setsockopt

        def forgetful(self, option, value):
            if option != zmq.ZAP_ENFORCE_DOMAIN:
                real(self, option, value)

        monkeypatch.setattr(zmq.Socket, "setsockopt", forgetful)
    async with open_context() as context, trio.open_nursery() as nursery:
        listener, inbox = ZmqEndpoint(context, curve=curve("syncer")), Inbox()
        address = await listener.listen("tcp://127.0.0.1:*")
        gate = listener._listening.gate
        await gate._zap_handler.dismiss(gate._domain)
        learner = ZmqEndpoint(context, linger_s=0, curve=unknown_peer())
        await learner.dial(address, route="syncer/control", identity="learner-0.1/control")
        nursery.start_soon(listener._receive, listener._listening, inbox.deliver)
        learner.send_nowait("syncer/control", [b"let me in"])
        if fallback:  # It is connected, without an identity: the second check refuses it.
            with trio.fail_after(WAIT_S):
                await counted(listener, "arrivals_refused_identity")
        else:
            await trio.sleep(0.5)  # nothing announces that nothing will come
            assert listener.statistics().arrivals_refused == 0
        assert inbox.count == 0
        nursery.cancel_scope.cancel()
        await learner.aclose()
        await listener.aclose()


async def test_half_open_connections_stop_no_other():
    """Connections that never say a word, or say nonsense, keep no good peer out."""
    async with syncer() as (_, inbox, dial):
        host, port = dial.address.removeprefix("tcp://").split(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(HALF_OPEN)]
        try:
            for each in silent[::2]:
                each.sendall(b"\xff\0\0\0\0\0\0\0\1\x7f")  # the first half of a greeting
            await good_peer_is_heard(inbox, dial)
        finally:
            for each in silent:
                each.close()
        assert inbox.count == 1


async def test_keys_that_several_share():
    """One key of observers serves each of them, under a name of its own."""
    async with syncer() as (listener, inbox, dial):
        for name in ("observer", "observer-7", "observer-x.2"):
            watcher = await dial(curve("observer"), f"{name}/control")
            watcher.send_nowait("syncer/control", [b"what is up?"])
        while inbox.count < 3:
            await inbox.changed.wait()
            inbox.changed = trio.Event()
        assert listener.statistics().arrivals_refused == 0


def test_who_owns_which_name():
    """A key speaks for its actor's incarnations; shared ones for all of that kind without own."""
    more = {name: new_pair()[0] for name in ("observer-9", "backup")}
    keys = Curve(PAIRS["syncer"][1], {**PUBLIC, **more}, SHARED)
    assert keys.owner("learner-0") == keys.owner("learner-0.12") == "learner-0"
    assert keys.owner("syncer-3.1") == keys.owner("syncer.1") == "syncer"
    assert keys.owner("observer-9") == "observer-9"
    assert keys.owner("observer-8") == "observer"
    for stranger in (
        "learner-7",
        "learner",
        "learner-0-x",
        "learner-0/x",
        "observers",
        "backup-1",
        "",
    ):
        assert keys.owner(stranger) is None


async def test_dialling_a_peer_without_a_key_is_an_error():
    """There is no falling back to a connection without keys."""
    async with open_context() as context:
        endpoint = ZmqEndpoint(context, curve=curve("learner-0"))
        with pytest.raises(ValueError, match="no public key is known for learner-7"):
            await endpoint.dial("tcp://127.0.0.1:1", route="learner-7/bulk", identity="x")
        await endpoint.aclose()


async def test_two_listeners_of_one_context_know_their_own():
    """Each gate admits whom it knows, whichever of them answers; and one may leave."""
    async with open_context() as context, trio.open_nursery() as nursery:
        only_one = Curve(PAIRS["learner-0"][1], {"learner-1": PUBLIC["learner-1"]})
        first, second = (ZmqEndpoint(context, curve=k) for k in (curve("syncer"), only_one))
        inboxes = Inbox(), Inbox()
        at = [await each.listen("tcp://127.0.0.1:*") for each in (first, second)]
        answering = await nursery.start(running, second, inboxes[1])  # for the first one too
        known, unknown = (
            ZmqEndpoint(context, linger_s=0, curve=curve(n)) for n in ("learner-1", "observer")
        )
        for dialler, name in ((known, "learner-1.1"), (unknown, "observer")):
            await dialler.dial(at[0], route="syncer/a", identity=f"{name}/a")
            await dialler.dial(at[1], route="learner-0/a", identity=f"{name}/a")
            dialler.send_nowait("syncer/a", [b"x"])
            dialler.send_nowait("learner-0/a", [b"x"])
        with trio.fail_after(WAIT_S):
            await counted(second, "handshakes_refused")
            await counted(second, "messages_received")
            answering.cancel()
            await second.aclose()
            nursery.start_soon(first.run, inboxes[0].deliver)
            await known.dial(at[0], route="syncer/b", identity="learner-1.1/b")
            known.send_nowait("syncer/b", [b"x"])
            await counted(first, "messages_received", 3)
        nursery.cancel_scope.cancel()
        for each in (first, known, unknown):
            await each.aclose()
        assert (inboxes[0].count, inboxes[1].count) == (3, 1)
        with context.socket(zmq.REP) as free_again:
            free_again.bind(ZAP_ADDRESS)


async def test_a_context_ends_with_endpoints_left_open():
    """An open monitor does not hang the end of a context."""
    with trio.fail_after(WAIT_S):
        async with open_context() as context:
            await ZmqEndpoint(context, curve=curve("syncer")).listen("tcp://127.0.0.1:*")


@asynccontextmanager
async def over_curve():
    """A bench of the conformance suite whose two endpoints have keys."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    async with open_context() as context:
        ends = [
            ZmqEndpoint(context, linger_s=0.5, curve=AdmitsAll(PAIRS[name][1], PUBLIC))
            for name in ("syncer", "learner-1")
        ]
        try:
            yield Bench(*ends, address)
        finally:
            for end in ends:
                await end.aclose()


class AdmitsAll(Curve):
    """Names of the suite are made up; the syncer is dialled, all the others are learner-1."""

    def owner(self, peer):
        return "syncer" if peer.startswith("syncer") else "learner-1"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_conformance_with_keys(check):
    """An endpoint with keys keeps every promise of an endpoint."""
    with trio.fail_after(CHECK_S_MAX):
        await check(over_curve)


async def test_a_large_message_is_whole():
    """Parts of two MiB pass encrypted, in order."""
    async with syncer() as (_, inbox, dial):
        learner = await dial(curve("learner-0"), "learner-0.1/bulk", "syncer/bulk")
        sent = [(bytes([n]) * 2**21,) for n in range(8)]
        for message in sent:
            await send_patiently(learner, "syncer/bulk", message)
        while inbox.count < len(sent):
            await inbox.changed.wait()
            inbox.changed = trio.Event()
        assert sent == inbox.messages["learner-0.1/bulk"]


def test_keys_are_checked():
    """A key is 40 characters of Z85; its repr says nothing."""
    public, secret = new_pair()
    assert public_of(secret) == public
    assert secret not in repr(Curve(secret, {}))
    with pytest.raises(ValueError, match="40 characters"):
        check_key(secret[1:])
    with pytest.raises(ValueError, match="Z85"):
        check_key("~" * 40)
