"""Two places on this machine that a link joins: network namespaces.

A link of a given rate is the kernel's own token bucket (tbf); one that delays and loses packets is
a switch in user space, whose rate is small (``tests.hosts``). Packets go through the kernel's own
TCP, as on a real line. Needs root, ``ip`` and ``tc``; `can_shape` says whether they work here.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.hosts.hosts import Hosts

CLONE_NEWNET = 0x40000000
NETWORK = "10.77.2"

BURST_BYTES = 256 * 1024
"""A full bucket: two milliseconds of a gigabit per second. With less, the kernel's timers bound the
rate, and not the bucket."""

QUEUE_MS = 50
"""How long a packet may wait for the bucket: the queue of a router at the line."""


class Place(NamedTuple):
    """A network namespace, empty for that of this process, and an address in it."""

    namespace: str
    address: str


def enter(place: Place) -> None:
    """Move this process to a place, before it starts any thread."""
    if not place.namespace:
        return
    with Path(f"/run/netns/{place.namespace}").open("rb") as space:
        if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter namespace {place.namespace}")


@contextmanager
def shaped_link(bits_s: float) -> Iterator[tuple[Place, Place]]:
    """Two places that are joined by a link of ``bits_s`` bits per second in each direction.

    Raises:
        OSError: ``ip`` or ``tc`` is missing.
        subprocess.CalledProcessError: they are not allowed, or the kernel has no tbf.
    """
    places = [Place(f"ddloco-{os.getpid()}-{n}", f"{NETWORK}.{n}") for n in (1, 2)]
    shape = f"tbf rate {bits_s:.0f}bit burst {BURST_BYTES} latency {QUEUE_MS}ms"
    with ExitStack() as stack:
        for place in places:
            _call(f"ip netns add {place.namespace}")
            stack.callback(_call, f"ip netns delete {place.namespace}")
        one, other = (place.namespace for place in places)
        _call(f"ip -n {one} link add e0 type veth peer name e0 netns {other}")
        for name, address in places:
            _call(f"ip -n {name} address add {address}/24 dev e0")
            _call(f"ip -n {name} link set e0 up")
            _call(f"tc -n {name} qdisc add dev e0 root {shape}")
        yield places[0], places[1]


@contextmanager
def bad_link(bits_s: float, delay_s: float, loss: float) -> Iterator[tuple[Place, Place]]:
    """Two places that are joined by a link of ``bits_s`` bits per second in each direction, which
    delays each packet by ``delay_s`` and loses a share ``loss`` of them.

    Raises:
        OSError: ``ip`` or /dev/net/tun is missing, or not allowed.
    """
    with Hosts(("hub", "learners")) as hosts:
        hosts.line("hub", "both", mbit=bits_s / 1e6, delay_s=delay_s, loss=loss)
        hub, learners = (Place(hosts.namespace(name), at) for name, at in hosts.addresses.items())
        yield hub, learners


def control_congestion(places: Iterable[Place], name: str) -> bool:
    """Have TCP in these places use an algorithm of congestion control, if the system allows it."""
    setting = f"sysctl -qw net.ipv4.tcp_congestion_control={name}"
    try:
        for place in places:
            _call(f"ip netns exec {place.namespace} {setting}")
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def can_shape() -> str:
    """Why no link can be shaped here; empty if one can."""
    with suppress(OSError, subprocess.CalledProcessError), shaped_link(1e9):
        return ""
    return "a shaped link needs root, ip and tc"


def _call(line: str) -> None:
    subprocess.run(line.split(), check=True, capture_output=True, text=True)
