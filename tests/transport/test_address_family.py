"""Hosts that have IPv6 only, and names that have both kinds of address."""

import socket

import pytest
import trio

from tests.transport.conformance import Inbox, send_patiently
from transport import address_family
from transport.address_family import dials_ipv6, is_ipv6, listens_on_ipv6
from transport.zeromq import ZmqEndpoint, open_context

WAIT_S = 20.0


def has_ipv6_loopback():
    """Whether this machine can listen there."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True


def no_ipv4(monkeypatch):
    """As on a machine that is in no network of IPv4."""
    monkeypatch.setattr(address_family, "_has_ipv4", lambda: False)


def resolving(monkeypatch, **names):
    """Have names resolve to these families; others are not known."""

    async def found(host, *_, **__):
        if host not in names:
            raise socket.gaierror(socket.EAI_AGAIN, "not now")
        return [(family, socket.SOCK_STREAM, 6, "", ()) for family in names[host]]

    monkeypatch.setattr(trio.socket, "getaddrinfo", found)


@pytest.mark.skipif(not has_ipv6_loopback(), reason="no IPv6 here")
@pytest.mark.parametrize("bind", ["tcp://[::1]:*", "tcp://*:*"])
async def test_messages_go_over_ipv6(bind, monkeypatch):
    """Where the address is written so, and on all interfaces where there is no IPv4."""
    no_ipv4(monkeypatch)
    async with open_context() as context, trio.open_nursery() as nursery:
        listener, dialler = ZmqEndpoint(context), ZmqEndpoint(context)
        heard = Inbox()
        port = (await listener.listen(bind)).rpartition(":")[2]
        nursery.start_soon(listener.run, heard.deliver)
        nursery.start_soon(dialler.run, Inbox().deliver)
        await dialler.dial(f"tcp://[::1]:{port}", route="there", identity="here")
        with trio.fail_after(WAIT_S):
            await send_patiently(dialler, "there", (b"hello",))
            await heard.wait_count(1)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("address", "ipv6"),
    [
        ("tcp://[::1]:5555", True),
        ("tcp://127.0.0.1:5555", False),
        ("tcp://both:5555", False),
        ("tcp://six:5555", True),
        ("tcp://unknown:5555", False),
        ("ipc:///tmp/x", False),
        ("", False),
    ],
)
async def test_a_name_is_dialled_by_ipv4_if_it_has_such_an_address(monkeypatch, address, ipv6):
    """For a listener of IPv4 is not at the other one."""
    resolving(monkeypatch, both=(socket.AF_INET6, socket.AF_INET), six=(socket.AF_INET6,))
    assert await dials_ipv6(address) is ipv6


def test_all_interfaces_are_those_of_ipv4_where_there_is_any(monkeypatch):
    """A peer's address is then written as it always was."""
    monkeypatch.setattr(address_family, "_has_ipv4", lambda: True)
    assert not listens_on_ipv6("tcp://*:5555")
    assert listens_on_ipv6("tcp://[::]:5555")
    assert not is_ipv6("tcp://0.0.0.0:5555")
    no_ipv4(monkeypatch)
    assert listens_on_ipv6("tcp://*:5555")
    assert not listens_on_ipv6("tcp://0.0.0.0:5555")
