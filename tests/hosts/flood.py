"""Floods a running syncer with connections of strangers, or with messages of very many parts.

    .venv/bin/python -m tests.hosts.flood --connections 100000 [--keys]

starts a job of three learners whose syncer may have 1,024 descriptors, and prints merges a second:
before, while the same bytes are sent to another socket (the control), during the flood, and after.
"""

import argparse
import json
import random
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import zmq

from ddloco.stage.files.keys import OBSERVER, load_curve, make_keys
from tests.hosts.cluster import SYNCER, Cluster
from tests.hosts.hosts import Loopback
from transport.curve_auth import Curve

DESCRIPTORS = 1024
"""What many systems give a process."""

HELD_MAX = 800
"""Connections that the sender holds open at a time: more than a syncer accepts, and less than it
could open itself."""

BLOCK = 500
"""Connections of one kind after another."""

PARTS = 200_000
LEARNERS = ("learner-0", "learner-1", "learner-2")

STRANGER = ("127.0.0.2", 0)
"""The address that strangers dial from; they are not admitted from it for a while."""

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def ready(identity: bytes) -> bytes:
    """The command that ends a handshake of ZMTP 3 without keys."""
    facts = {b"Socket-Type": b"DEALER", b"Identity": identity}
    body = b"\x05READY" + b"".join(
        bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value
        for name, value in facts.items()
    )
    return b"\x04" + bytes([len(body)]) + body


def speech(kind: str, rng: random.Random) -> bytes:
    """What a stranger says at once."""
    match kind:
        case "noise":
            return rng.randbytes(rng.choice((10, 1000, 65_536)))
        case "ZMTP 1":
            return b"\x0a\x00learner-1" + b"\x02\x00x" * rng.randrange(2000)
        case "ZMTP 2":
            hello = b"\xff" + bytes(8) + b"\x7f\x01\x05\x00\x05hello"
            return hello + b"\x00\x01x" * rng.randrange(2000)
        case "half":
            return GREETING[: rng.randrange(len(GREETING))]
        case "ready":
            said = GREETING + ready(b"stranger.1/bulk")
            return said[: rng.randrange(64, len(said))] + rng.randbytes(200)
        case _:
            return GREETING + ready(f"{kind}-{rng.random()}.1/bulk".encode())


KINDS = ("noise", "ZMTP 1", "ZMTP 2", "half", "ready", "speaks")


def connect(host: str, port: int, count: int, until: float, *, seed: int = 0) -> int:
    """Open so many connections of all kinds, and hold the newest; how many there were in time."""
    rng, held = random.Random(seed), deque[socket.socket]()
    for number in range(count):
        if time.monotonic() > until:
            return number
        kind = KINDS[number // BLOCK % len(KINDS)]
        with suppress(OSError):
            raw = socket.create_connection((host, port), 5, STRANGER)
            held.append(raw)
            raw.setblocking(False)
            raw.send(speech(kind, rng))
        while len(held) > HELD_MAX:
            held.popleft().close()
    return count


def say_parts(host: str, port: int, until: float) -> int:
    """Send messages of very many parts, and dial again at once; how many connections it took."""
    message = b"\x01\x01x" * PARTS + b"\x00\x01x"
    dials = 0
    while time.monotonic() < until:
        dials += 1
        with suppress(OSError), socket.create_connection((host, port), 5, STRANGER) as raw:
            raw.sendall(GREETING + ready(b"many.1/bulk"))
            told = b""
            while b"READY" not in told:
                more = raw.recv(4096)
                if not more:
                    break
                told += more
            time.sleep(0.05)
            while time.monotonic() < until:
                raw.sendall(message)
    return dials


def say_parts_inside(address: str, curve: Curve, until: float) -> int:
    """The same with a key; libzmq dials again."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.ROUTING_ID, b"observer-many/control")
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.SNDTIMEO, 500)
        curve.seal(dealer, SYNCER)
        dealer.connect(address)
        while time.monotonic() < until:
            with suppress(zmq.Again):
                dealer.send_multipart([b"x"] * PARTS)
    return 1


class Sink:
    """Another socket that takes what is sent, for the control."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._server.accept()
                threading.Thread(target=self._take, args=(peer,), daemon=True).start()

    def _take(self, peer: socket.socket) -> None:
        with suppress(OSError), peer:
            peer.settimeout(5)
            peer.sendall(GREETING + ready(b""))
            while peer.recv(65_536):
                pass

    def close(self) -> None:
        """Take no more."""
        self._server.close()


class Flood:
    """A process that sends.

    Args:
        address: where to.
        what: ``connections`` or ``parts``.
        count: the most connections.
        seconds: the most time.
        keys: a folder of keys; parts are sent with that of observers.
    """

    def __init__(
        self, address: str, what: str, count: int, seconds: float, keys: Path | None = None
    ) -> None:
        inside = str(keys) if keys is not None and keys.exists() else ""
        told = json.dumps([address, what, count, seconds, inside])
        command = [sys.executable, "-m", "tests.hosts.flood", "--send", told]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def over(self) -> bool:
        """Whether it has sent everything."""
        return self._process.poll() is not None

    def sent(self) -> int:
        """How many connections it has opened, when it is over."""
        return int(self._process.communicate()[0])


def send(address: str, what: str, count: int, seconds: float, keys: str) -> None:
    """What the process does."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    host, _, port = address.removeprefix("tcp://").partition(":")
    until = time.monotonic() + seconds
    if what == "parts" and keys:
        sent = say_parts_inside(address, load_curve(Path(keys), OBSERVER), until)
    elif what == "parts":
        sent = say_parts(host, int(port), until)
    else:
        sent = connect(host, int(port), count, until)
    print(sent)


def start(folder: Path, *, keyed: bool) -> tuple[Loopback, Cluster]:
    """A job of three learners whose syncer has few descriptors."""
    hosts = Loopback([SYNCER, *LEARNERS])
    settings: tuple[str, ...] = ()
    if keyed:
        keys = folder / "keys"
        make_keys(keys, (SYNCER, *LEARNERS, "owner", "observer"))
        settings = (f"transport.keys={keys}", "transport.insecure=false")
    cluster = Cluster(hosts, folder, settings)
    cluster.descriptors_max[SYNCER] = DESCRIPTORS
    return hosts, cluster


def pace(cluster: Cluster, flood: Flood | None, seconds: float) -> float:
    """Merges a second, for so long or until the flood is over."""
    merges, begun = len(cluster.merges()), time.monotonic()
    while time.monotonic() - begun < seconds and not (flood is not None and flood.over()):
        time.sleep(0.1)
    return (len(cluster.merges()) - merges) / (time.monotonic() - begun)


def figures(cluster: Cluster, what: str, count: int, seconds: float) -> dict[str, Any]:
    """Merges a second before, with the control, during and after; and what was sent."""
    found: dict[str, Any] = {"before": pace(cluster, None, seconds / 4)}
    sink = Sink()
    for name, address, lasts in (
        ("control", sink.address, seconds / 4),
        ("during", cluster.address, seconds),
    ):
        flood = Flood(address, what, count, lasts, cluster.folder / "keys")
        found[name] = pace(cluster, flood, 2 * lasts)
        found[f"{name}_connections"] = flood.sent()
    sink.close()
    found["descriptors"] = cluster.sockets(SYNCER)
    found["after"] = pace(cluster, None, seconds / 4)
    return {name: round(each, 2) for name, each in found.items()}


def main() -> None:
    """Flood as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--connections", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--what", choices=("connections", "parts"), default="connections")
    parser.add_argument("--keys", action="store_true")
    parser.add_argument("--send", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.send:
        send(*given.send)
        return
    with tempfile.TemporaryDirectory() as folder:
        hosts, cluster = start(Path(folder), keyed=given.keys)
        with hosts:
            cluster.start(SYNCER, *LEARNERS)
            cluster.wait_for(list(LEARNERS))
            found = figures(cluster, given.what, given.connections, given.seconds)
            for name, value in found.items():
                print(f"{name:20} {value}", flush=True)
            print(f"{'exit codes':20} {cluster.stop()}")


if __name__ == "__main__":
    main()
