"""Whether a socket must speak IPv6 for an address.

libzmq resolves names for one family only: with ``ZMQ_IPV6`` a name that has both kinds of address
is dialled at the one of IPv6, where a listener of IPv4 is not. So a socket speaks it only where
IPv4 leads nowhere.
"""

import errno
import re
import socket

import trio

TCP = "tcp://"
NOWHERE = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737); nothing is sent to it."""


def host_of(address: str) -> str:
    """The host of a tcp address, as it is written; empty for other addresses."""
    return address.removeprefix(TCP).rpartition(":")[0] if address.startswith(TCP) else ""


def is_ipv6(address: str) -> bool:
    return host_of(address).startswith("[")


def listens_on_ipv6(address: str) -> bool:
    """Whether a socket that listens there must speak IPv6: on all interfaces it must if this
    machine has no way into a network of IPv4."""
    return is_ipv6(address) or (host_of(address) == "*" and not _has_ipv4())


async def dials_ipv6(address: str) -> bool:
    """Whether a socket that dials there must speak IPv6: a name must that has no address of IPv4.
    What cannot be resolved now is looked up by libzmq, again and again."""
    host = host_of(address)
    if not host or is_ipv6(address) or re.fullmatch(r"[0-9.]+", host):
        return is_ipv6(address)
    try:
        found = await trio.socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(family == socket.AF_INET6 for family, *_ in found)


def _has_ipv4() -> bool:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tried:
            tried.connect(NOWHERE)
    except OSError as error:
        return error.errno not in {errno.ENETUNREACH, errno.EAFNOSUPPORT}
    return True
