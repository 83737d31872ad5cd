"""Sends invalid messages to a running syncer, with and without a key of the job.

    .venv/bin/python -m tests.hosts.fuzz --messages 100000

starts a job with keys on loopback, two learners that train and a third whose key the fuzzer holds,
throws, and prints figures: merges meanwhile, what was counted, and the syncer's memory.
"""

import argparse
import random
import socket
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zmq

from ddloco.job.config import load_job
from ddloco.job.protocol.fragment_plan import Leaf, wire_layout
from ddloco.job.protocol.messages import (
    Contribution,
    DataPlace,
    DataShards,
    GlobalFragment,
    JobBody,
    Progress,
    Pull,
    Roster,
    Stop,
)
from ddloco.roles.job_program import program_of
from ddloco.stage.files.keys import load_curve, make_keys
from ddloco.stage.nodes.incarnation_grants import LANE as GRANTS
from ddloco.stage.nodes.peer_version import want_of
from ddloco.stage.process.side_protocol import encode
from tests.hosts.cluster import SYNCER, Cluster
from tests.hosts.hosts import Loopback
from transport import PROTOCOL_VERSION, Codec, Header, Payload, describe
from transport.curve_auth import Curve, new_pair
from transport.endpoint import FRAME_BYTES_MAX
from transport.message import Bye, Chunk, Credit, Hello, Refused, Reset, Welcome, encoder
from transport.zeromq import ANSWER

LEAVES = tuple(
    Leaf(name, shape, "float32")
    for name, shape in (
        ("blocks/0/w", (32, 32)),
        ("blocks/1/w", (32, 4)),
        ("embed", (16, 32)),
        ("scale", ()),
    )
)
"""Of `tests.tasks:regression`."""

INSIDER, NAMESAKE = "learner-2", "learner-0.999"
"""The name that is stolen is not in use yet, so that training continues; `test_thief.py` robs a
learner that does."""

SENDERS_MESSAGES = 250
"""After so many the insider comes back as its next incarnation: a Bye is for good."""

SEND_MS = 2_000
"""A lane that takes nothing for so long is dialled again."""


class Throws:
    """Messages of every kind, drawn from a seed.

    Args:
        job: the resolved job.
        seed: of the draws.
    """

    def __init__(self, job: Any, seed: int) -> None:
        self.rng = random.Random(seed)
        self.incarnation = 0
        self.job = self._job = job
        self._plan = job.plan(LEAVES)
        self._codec: Codec[Any] = Codec(JobBody, job.id)
        self._old: list[tuple[str, list[bytes]]] = []
        self._session = self._seq = 0

    @property
    def sender(self) -> str:
        """Who the insider says that it is."""
        return f"{INSIDER}.{self.incarnation}"

    def greet(self) -> list[tuple[str, list[bytes]]]:
        """A good handshake, on both lanes: what follows then reaches further."""
        self._session, self._seq = self._session + 1, 0
        hello = Hello(self._job.agreement(self._plan))
        return [(lane, self._frames(hello, seq=0)) for lane in ("control", "bulk")]

    def draw(self) -> tuple[str, str, list[bytes]]:
        """A kind, a lane and the parts of one message."""
        kinds = ("noise", "valid", "flipped", "truncated", "parts", "chunk", "replayed", "in order")
        kind = self.rng.choice(kinds) if self.rng.random() > 0.005 else "oversized"
        lane = self.rng.choice(("control", "bulk"))
        if kind == "replayed" and self._old:
            return kind, *self.rng.choice(self._old)
        parts = self._parts(kind)
        self._old.append((lane, parts))
        del self._old[:-500]
        return kind, lane, parts

    def _parts(self, kind: str) -> list[bytes]:
        rng = self.rng
        if kind == "noise":
            return [rng.randbytes(rng.randrange(300)) for _ in range(rng.randrange(1, 4))]
        if kind == "oversized":
            return [rng.choice((bytes(FRAME_BYTES_MAX + 1), bytes(2 * FRAME_BYTES_MAX + 1)))]
        if kind == "chunk":
            chunk = Chunk(self._session, self._any(), self._any())
            return [encoder().encode(chunk), rng.randbytes(rng.randrange(2000))]
        if kind == "in order":
            self._seq += 1
            return self._frames(self._progress(), seq=self._seq)
        parts = self._frames(self._body(), seq=self._any(), session=self._any())
        which = rng.randrange(len(parts))
        if kind == "flipped":
            changed = bytearray(parts[which] or b"-")
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            parts[which] = bytes(changed)
        elif kind == "truncated":
            parts[which] = parts[which][: rng.randrange(len(parts[which]) + 1)]
        elif kind == "parts":
            parts += [b"more"] * rng.randrange(1, 2000)
        return parts

    def _any(self) -> int:
        """A number that could be a session, a sequence number, a step, or none of them."""
        rng = self.rng
        near = (0, 1, self._session, self._seq, self._seq + 1, rng.randrange(100))
        return rng.choice((*near, 2**31, 2**63 - 1))

    def _progress(self) -> Progress:
        size = self.rng.choice((4, 4, 4, 0, 3, 5))
        return Progress(
            self._any(),
            self.rng.choice((0.0, 0.05, 1e300)),
            tuple(self.rng.choice((-1, self._any())) for _ in range(size)),
            tuple(self._any() for _ in range(size)),
            tuple(self._any() for _ in range(size)),
            follows=self._any(),
            drawing=self._places(),
            returned=self._places(),
        )

    def _places(self) -> tuple[DataPlace, ...]:
        """Where it says it is in data shards, its own or others'."""
        n = self._any
        count = self.rng.choice((0, 0, 1, 3))
        return tuple(DataPlace(n(), n(), n(), self.rng.randbytes(9)) for _ in range(count))

    def _body(self) -> Any:
        n, rng = self._any, self.rng
        fragment = rng.randrange(5)
        bodies = (
            Hello(self._job.agreement(self._plan)),
            Hello({"job": "another"}),
            Welcome(),
            Refused("no"),
            Reset("again"),
            Credit(rng.choice(("control", "bulk")), n()),
            self._progress(),
            Pull(n(), fragment),
            Contribution(n(), fragment, n(), n(), n(), n()),
            GlobalFragment(fragment, n()),
            Roster(n(), {INSIDER: n()}),
            DataShards(n(), self._places(), n()),
            Stop(n(), "enough"),
            *((Bye("gone"),) if rng.random() < 0.1 else ()),
        )
        return rng.choice(bodies)

    def _frames(self, body: Any, *, seq: int, session: int | None = None) -> list[bytes]:
        payload = None
        if isinstance(body, Contribution | GlobalFragment):
            layout = wire_layout(self._plan, body.fragment % len(self._plan.fragments))
            start, stop = self._plan.fragment_slice(body.fragment % len(self._plan.fragments))
            value = self.rng.choice((0.0, 1e-3, np.nan, np.inf, 1e38))
            data = np.full((stop - start) // 4, value, np.float32).view(np.uint8)
            payload = Payload(describe(data, layout), data)
        header = Header(
            version=PROTOCOL_VERSION,
            job=self._job.id,
            sender=self.sender,
            session=self._session if session is None else session,
            seq=seq,
            clock={self.sender: self.rng.randrange(1, 2**31)},
            body=body,
            tensors=payload.tensors if payload else (),
        )
        (frames,) = self._codec.encode(header, payload)
        return [bytes(part) for part in frames]


class Fuzzer:
    """Throws messages at one syncer.

    Args:
        address: where it listens.
        throws: what to say.
        inside: the insider's keys.
    """

    def __init__(self, address: str, throws: Throws, inside: Curve) -> None:
        self.thrown: Counter[str] = Counter()
        self._address, self._throws, self._inside = address, throws, inside
        self._context = zmq.Context()
        self._lanes: dict[str, zmq.Socket[bytes]] = {}
        self._raw: list[socket.socket] = []

    def throw(self, count: int, until: float = float("inf")) -> int:
        """So many messages with a key of the job, and now and then a foreign connection; how many
        before ``until`` on the monotonic clock."""
        for number in range(count):
            if time.monotonic() > until:
                return number
            if number % SENDERS_MESSAGES == 0:
                self._return()
            if number % 25 == 0:
                for lane, parts in self._throws.greet():
                    self._send(lane, parts)
                self.thrown["handshake"] += 1
            if number % 50 == 0:
                self._unknown_peer()
            kind, lane, parts = self._throws.draw()
            self._send(lane, parts)
            self.thrown[kind] += 1
        return count

    def close(self) -> None:
        """Leave, with nothing more to say."""
        for each in self._raw:
            each.close()
        self._context.destroy(0)

    def _return(self) -> None:
        for each in self._lanes.values():
            each.close(1000)
        self._throws.incarnation = self._granted(self._throws.incarnation)
        sender = self._throws.sender
        lanes = ("control", "bulk")
        self._lanes = {lane: self._dial(f"{sender}/{lane}", self._inside) for lane in lanes}

    def _granted(self, known: int) -> int:
        """The number of its next incarnation, as the lead gives it; the old one where it gives none
        (so many at once, then one every ten seconds)."""
        dealer = self._dial(f"{INSIDER}.{known + 1}/{GRANTS}", self._inside)
        dealer.setsockopt(zmq.RCVTIMEO, SEND_MS)
        try:
            dealer.send(encode(want_of(program_of(self._throws.job), known)))
            while True:
                answer = dealer.recv_multipart()
                if len(answer[0]) > len(ANSWER):  # Else a sign of life of the endpoint.
                    said = msgspec.msgpack.decode(answer[0])
                    return max(int(said.get("number", known)), 1)
        except zmq.Again:
            return max(known, 1)
        finally:
            dealer.close(0)

    def _dial(self, identity: str, curve: Curve | None, mark: int = 1000) -> "zmq.Socket[bytes]":
        dealer: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.ROUTING_ID, identity.encode())
        dealer.setsockopt(zmq.SNDTIMEO, SEND_MS)
        if curve is not None:
            curve.seal(dealer, SYNCER)
        dealer.connect(self._address)
        return dealer

    def _send(self, lane: str, parts: list[bytes]) -> None:
        dealer = self._lanes[lane]
        try:
            dealer.send_multipart(parts)
        except zmq.Again:
            # After some of what is said here our own libzmq has given a connection up for good.
            self.thrown["dialled again"] += 1
            dealer.close(0)
            identity = f"{self._throws.sender}/{lane}"
            dealer = self._lanes[lane] = self._dial(identity, self._inside)
        with suppress(zmq.Again):
            while True:
                dealer.recv_multipart(zmq.NOBLOCK)

    def _unknown_peer(self) -> None:
        """A connection without a key, with a wrong key, under another name, or with another
        protocol."""
        kind = self._throws.rng.choice(("no key", "wrong key", "stolen name", "raw", "half-open"))
        self.thrown[kind] += 1
        if kind in {"raw", "half-open"}:
            self._connect_raw(b"" if kind == "half-open" else self._throws.rng.randbytes(500))
            return
        public, secret = new_pair()
        wrong = Curve(secret, {**self._inside.public, INSIDER: public}, self._inside.shared)
        curve = {"no key": None, "wrong key": wrong, "stolen name": self._inside}[kind]
        name = NAMESAKE if kind == "stolen name" else f"{INSIDER}.999"
        dealer = self._dial(f"{name}/control", curve)
        with suppress(zmq.Again):  # Refused already, and with nowhere to put what it says.
            dealer.send_multipart(self._throws.draw()[2], zmq.NOBLOCK)
        dealer.close(200)

    def _connect_raw(self, data: bytes) -> None:
        host, _, port = self._address.removeprefix("tcp://").partition(":")
        connection = socket.create_connection((host, int(port)), timeout=10)
        with suppress(OSError):
            connection.sendall(data)
        self._raw.append(connection)
        for old in self._raw[:-200]:
            old.close()
        del self._raw[:-200]


def start(folder: Path, settings: tuple[str, ...] = ()) -> tuple[Loopback, Cluster]:
    """A job with keys on loopback: two learners that train, the third is the fuzzer."""
    keys = folder / "keys"
    make_keys(keys, (SYNCER, "learner-0", "learner-1", INSIDER, "owner", "observer"))
    hosts = Loopback([SYNCER, "learner-0", "learner-1", INSIDER])
    settings = (f"transport.keys={keys}", "transport.insecure=false", *settings)
    return hosts, Cluster(hosts, folder, settings)


class Size:
    """How large a job's syncer is, and was when this was made."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._before = cluster.resident(SYNCER)

    def now(self) -> list[tuple[str, float]]:
        """In MiB: what is resident, what of it was not before, and the most that ever was."""
        resident = self._cluster.resident(SYNCER)
        found = {
            "resident_mib": resident,
            "grown_mib": resident - self._before,
            "peak_mib": self._cluster.peak(SYNCER),
        }
        return [(name, round(nbytes / 2**20, 1)) for name, nbytes in found.items()]


def told(cluster: Cluster) -> list[str]:
    """What the syncer's log says was refused so far."""
    events = {line["event"] for line in cluster.logs[SYNCER].read()}
    return sorted(each for each in events if each.endswith("refused"))


def fuzz(
    cluster: Cluster,
    count: int,
    seed: int,
    seconds_max: float = float("inf"),
    alone: Cluster | None = None,
) -> dict[str, Any]:
    """Throw so many messages at the job, or as many as there is time for; figures, also of the
    syncer of a job that is left alone meanwhile."""
    now = time.monotonic()
    job = load_job(cluster.job, list(cluster.settings))
    keys = cluster.folder / "keys"
    fuzzer = Fuzzer(cluster.address, Throws(job, seed), load_curve(keys, INSIDER))
    first = max(count // 5, 1)
    try:
        # Whatever is allocated once is allocated now.
        thrown = fuzzer.throw(first, now + seconds_max / 5)
        status = cluster.status(keys)
        merges, begun = len(cluster.merges()), time.monotonic()
        sizes = {"": Size(cluster), **({"alone_": Size(alone)} if alone is not None else {})}
        later = fuzzer.throw(count - thrown, now + seconds_max)
        status = cluster.status(keys)
        seconds = time.monotonic() - begun
        figures = {
            "messages": thrown + later,
            "messages_later": later,
            "messages_per_s": round(later / seconds),
            "merges": len(cluster.merges()) - merges,
            "refused_frames": status["refused_frames"],
            **{f"{whose}{name}": mib for whose, size in sizes.items() for name, mib in size.now()},
            "sockets": cluster.sockets(SYNCER),
        }
    finally:
        fuzzer.close()
    figures["told"] = told(cluster)
    figures["thrown"] = dict(sorted(fuzzer.thrown.items()))
    return figures


def main() -> None:
    """Fuzz as long as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        hosts, cluster = start(Path(folder))
        with hosts:
            cluster.start(SYNCER, "learner-0", "learner-1")
            cluster.wait_for(["learner-0", "learner-1"])
            for name, value in fuzz(cluster, given.messages, given.seed).items():
                print(f"{name:16} {value}", flush=True)
            # Who was just robbed of its name must be back to hear that the job is over.
            cluster.wait_for(["learner-0", "learner-1"], len(cluster.merges()))
            print(f"{'exit codes':16} {cluster.stop()}")


if __name__ == "__main__":
    main()
