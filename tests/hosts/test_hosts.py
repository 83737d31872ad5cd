"""The hosts themselves: what is promised of links, and that nothing is left of them."""

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.hosts.hosts import Hosts, missing
from tests.hosts.switch import MESSAGE_BYTES, checksum, damaged, reset_of, tcp_data

ECHO = """
import socket
server = socket.create_server(("0.0.0.0", 5555))
print("listening", flush=True)
while True:
    connection, _ = server.accept()
    try:
        while data := connection.recv(65536):
            connection.sendall(data)
    except OSError:
        pass
"""
ASK = """
import socket, sys, time
there = socket.create_connection(("10.77.1.1", 5555), timeout=float(sys.argv[1]))
begun = time.monotonic()
sent = bytes(int(sys.argv[2]))
there.sendall(sent)
got = b""
while len(got) < len(sent):
    got += there.recv(65536)
print(time.monotonic() - begun, sum(got))
"""


@pytest.fixture
def pair():
    """A host that echoes, and one that asks."""
    if missing():
        pytest.skip(f"no hosts: {missing()}")
    with Hosts(["echo", "asker"], seed=1) as hosts:
        echo = hosts.start("echo", [sys.executable, "-c", ECHO], stdout=subprocess.PIPE)
        assert echo.stdout.readline() == b"listening\n"
        yield hosts
        echo.stdout.close()


def ask(hosts, nbytes=1, seconds=60.0):
    """How long an echo takes, and the sum of its bytes; None if it does not come."""
    asked = hosts.call("asker", [sys.executable, "-c", ASK, str(seconds), str(nbytes)])
    if asked.returncode:
        return None
    took, total = asked.stdout.split()
    return float(took), int(total)


def test_a_good_line_carries(pair):
    """Without faults an echo comes at once, whole."""
    assert ask(pair, 100_000)[1] == 0
    assert {"carried"} == {what for what, count in pair.switch.counts.items() if count}


def test_a_delay_is_kept_each_way(pair):
    """Twice the delay of a line is between a question and its answer."""
    pair.line("asker", "both", delay_s=0.2)
    assert ask(pair)[0] >= 0.4


def test_a_rate_is_kept(pair):
    """Bytes take the time that they take at so many bits a second."""
    pair.line("asker", "out", mbit=1.0)
    assert ask(pair, 50_000)[0] >= 0.2
    assert pair.switch.counts["queued"]


@pytest.mark.parametrize("way", ["out", "back", "both"])
def test_a_cut_is_silence(pair, way):
    """Nothing comes while a line is cut, in whichever way, and it does afterwards."""
    pair.line("asker", way, cut=True)
    assert ask(pair, seconds=0.3) is None
    assert pair.switch.counts["cut"]
    pair.line("asker", way, cut=False)
    assert ask(pair) is not None


def test_tcp_hides_what_is_lost_doubled_and_late(pair):
    """However bad the line, bytes arrive whole and in order."""
    pair.line("asker", "both", loss=0.05, double=0.1, reorder=0.1)
    assert ask(pair, 200_000)[1] == 0
    assert all(pair.switch.counts[what] for what in ("lost", "doubled", "late"))


def test_a_reset_is_believed(pair):
    """A peer that gets one has lost its connection at once."""
    pair.line("asker", "back", reset=1.0)
    begun = time.monotonic()
    assert ask(pair) is None
    assert time.monotonic() - begun < 59, "refused, and not timed out"
    assert pair.switch.counts["reset"]


def test_a_flipped_bit_is_believed(pair):
    """TCP passes it on: the sum of zeros is none any more."""
    pair.line("asker", "out", corrupt=1.0)
    assert ask(pair, 10_000)[1] > 0


def test_nothing_is_left(pair):
    """Namespaces and processes go, also when what was done with them failed."""
    spaces = [Path("/run/netns") / pair.namespace(name) for name in pair.addresses]
    with suppress(ZeroDivisionError), Hosts(["a", "b"]) as others:
        more = [Path("/run/netns") / others.namespace(name) for name in others.addresses]
        sleeper = others.start("a", ["sleep", "1000"])
        assert all(space.exists() for space in (*spaces, *more)), "two at once do not collide"
        assert 1 / 0, "never said"
    assert sleeper.returncode == -9
    assert not any(space.exists() for space in more)
    assert all(space.exists() for space in spaces)


def test_packets_are_told_apart_and_changed_with_their_checksums():
    """A TCP packet keeps good checksums when damaged, and when a reset takes its place."""
    packet = bytearray(40 + MESSAGE_BYTES)
    packet[0], packet[9], packet[32] = 0x45, 6, 5 << 4
    assert MESSAGE_BYTES == tcp_data(packet)
    for changed in (damaged(packet, 1000), reset_of(packet)):
        assert 0 == checksum(changed[:20])
        pseudo = changed[12:20] + bytes((0, 6)) + (len(changed) - 20).to_bytes(2, "big")
        assert 0 == checksum(pseudo + changed[20:])
    packet[9] = 17
    assert 0 == tcp_data(packet)
