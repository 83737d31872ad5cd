"""The processes of one learner, usually one on each of its hosts. It needs jax. Rank 0 answers the
actor's requests, sends each to the others, which follow it in the same order, and alone sees the
actor's memory. A learner is one failure domain: if a rank ends, or gives no sign of life, all end
at once."""

import mmap
import os
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import jax
import msgspec
import numpy as np
from jax.experimental import multihost_utils

from ddloco.workers import rpc
from ddloco.workers.devices import open_devices
from ddloco.workers.fork_protocol import Rank
from transport import Bytes

BEAT_S = 0.5
"""Interval, in seconds, of signs of life."""

MEET_S_MAX = 300
"""How long, in seconds, a rank waits for the others at the beginning; JAX's own default."""

LEAVE_S_MAX = 5.0
"""How long, in seconds, rank 0 waits for the others to end when they are dismissed."""

TRY_S = 2.0
"""How long, in seconds, one attempt to reach rank 0 may take."""

LOOK_S = 0.05
"""Interval, in seconds, at which is looked for what another thread does."""

HELLO_S_MAX = 10.0
"""How long, in seconds, who connects to rank 0 may take to say who it is."""

TOKEN_BYTES = 16
PLACE_BYTES = 512
"""Room for where rank 0 listens: a host name, a port and a token."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class RankOutcome(msgspec.Struct, frozen=True):
    """What a rank tells rank 0 about a request: the digest of the batch, if it was a step, or why
    it failed."""

    number: int
    batch: bytes = b""
    failed: str = ""


class RankProcess(Protocol):
    def die(self, said: str) -> NoReturn:
        """End at once, and say why."""
        ...

    def alive(self) -> None:
        """Tell the actor that the process works. Called twice a second."""
        ...


@dataclass(frozen=True)
class RankLinks:
    """Connected sockets, by the other end's rank: for requests and arrays, and for signs of
    life."""

    requests: dict[int, socket.socket] = field(default_factory=dict[int, socket.socket])
    beats: dict[int, socket.socket] = field(default_factory=dict[int, socket.socket])
    hosts: dict[int, str] = field(default_factory=dict[int, str])

    def add(self, hello: "RankHello", link: socket.socket) -> None:
        link.settimeout(None)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        (self.beats if hello.beats else self.requests)[hello.number] = link
        self.hosts[hello.number] = hello.host


class Group:
    """The links of one rank to the others."""

    def __init__(self, rank: Rank, links: "RankLinks", process: "RankProcess") -> None:
        self.rank = rank
        self._links = links.requests
        self._requests = rpc.RequestReader(links.requests[0]) if rank.number else None
        self._number = 0
        self._watch = _Watch(rank, links, process)

    def tell(self, request: rpc.Request) -> None:
        self._number += 1
        framed = rpc.framed(request)
        for link in self._links.values():
            self._send(link, framed)

    def next(self) -> rpc.Request:
        assert self._requests is not None, "rank 0 has the actor's"
        self._number += 1
        found = self._requests.next()
        return found if found is not None else self._ended()

    def send(self, rank: int, array: Any) -> None:
        self._send(self._links[rank], _bytes_of(np.ascontiguousarray(array)))

    def receive(self, rank: int, shape: tuple[int, ...], dtype: Any) -> Any:
        array = np.empty(shape, dtype)
        room = memoryview(_bytes_of(array))
        if self._requests is not None:
            whole = self._requests.receive_into(room)
        else:
            whole = rpc.receive_into(self._links[rank], room)
        return array if whole else self._ended()

    def done(self, answer: rpc.Answer) -> None:
        failed = answer.reason if isinstance(answer, rpc.Failed) else ""
        batch = answer.batch if isinstance(answer, rpc.Trained) else b""
        self._watch.tell(RankOutcome(self._number, batch, failed))

    def settle(self) -> None:
        """Wait until it is clear whether a request failed on every rank, or because one was lost:
        then this does not return."""
        self._watch.wait_for_all(self._number)

    def dismiss(self) -> None:
        self._watch.wait_for_ends()

    def _send(self, link: socket.socket, data: Any) -> None:
        try:
            link.sendall(data)
        except OSError:
            self._ended()

    def _ended(self) -> NoReturn:
        """A link is closed: the thread that watches finds out whose, and ends this process."""
        time.sleep(self.rank.stall_s)
        self._watch.die("another process of this learner ended")
        raise AssertionError("it ended this process")


class _Watch:
    def __init__(self, rank: Rank, links: "RankLinks", process: "RankProcess") -> None:
        self.die = process.die
        self._rank = rank
        self._beats = beats = dict(links.beats)
        self._hosts = links.hosts
        self._alive = process.alive
        self._selector = selectors.DefaultSelector()
        for number, link in beats.items():
            self._selector.register(link, selectors.EVENT_READ, number)
        self._received = {number: bytearray() for number in beats}
        self._heard_at = dict.fromkeys(beats, time.monotonic())
        self._heard = dict.fromkeys(beats, 0)
        """By rank, the number of the newest request of which it has told the outcome."""
        self._own: dict[int, RankOutcome] = {}
        """Rank 0's outcomes that not all others have told, by number."""
        self._open: list[tuple[float, int, RankOutcome]] = []
        """When, and by which rank, an outcome was told that rank 0 has not compared yet."""
        self._ending = False
        self._lock = threading.Lock()
        threading.Thread(target=self._run, daemon=True).start()

    # For the main thread.

    def tell(self, outcome: RankOutcome) -> None:
        with self._lock:
            if self._rank.number:
                self._send(self._beats[0], outcome)
            else:
                self._own[outcome.number] = outcome

    def wait_for_all(self, number: int) -> None:
        """Wait until the other ranks have told their outcome, but not for one that cannot."""
        # Long enough to notice one that is lost, which may be why the request failed.
        self._wait(lambda: min(self._heard.values()) >= number, self._rank.stall_s)

    def wait_for_ends(self) -> None:
        self._ending = True
        self._wait(lambda: not self._beats, LEAVE_S_MAX)

    def _wait(self, over: Callable[[], bool], most_s: float) -> None:
        until = time.monotonic() + most_s
        while not over() and time.monotonic() < until:
            time.sleep(LOOK_S)

    # In the thread.

    def _run(self) -> None:
        beat_at, looked_at = 0.0, time.monotonic()
        rest_s = min(BEAT_S, self._rank.stall_s / 4)
        while True:
            for key, _ in self._selector.select(LOOK_S if self._open else rest_s):
                self._read(key.data)
            now = time.monotonic()
            if now - looked_at > self._rank.stall_s / 2:
                # This process was stopped, and perhaps the others with it.
                self._heard_at = dict.fromkeys(self._heard_at, now)
            looked_at = now
            for number in self._beats:
                silent_s = now - self._heard_at[number]
                if silent_s > self._rank.stall_s and not self._ending:
                    self.die(f"{self._name(number)} gave no sign of life for {silent_s:.0f} s")
            self._compare(now)
            if now >= beat_at + BEAT_S:
                beat_at = now
                self._alive()
                with self._lock:
                    for link in self._beats.values():
                        self._send(link, None)

    def _read(self, number: int) -> None:
        link, received = self._beats[number], self._received[number]
        try:
            found = link.recv(rpc.READ_BYTES)
        except OSError:
            found = b""
        if not found:
            if not self._ending:
                self.die(f"{self._name(number)} ended")
            self._selector.unregister(link)
            del self._beats[number]
            return
        self._heard_at[number] = time.monotonic()
        received += found
        start = rpc.LENGTH_BYTES
        while len(received) >= start:
            stop = start + int.from_bytes(received[:start], "little")
            if len(received) < stop:
                break
            outcome = decode_outcome(received[start:stop])
            del received[:stop]
            if outcome is not None:
                self._heard[number] = outcome.number
                self._open.append((time.monotonic(), number, outcome))

    def _compare(self, now: float) -> None:
        """Compare the outcomes of the others with rank 0's own, once it has one: all draw the same
        batches, of which each trains on a part; and what one refuses all refuse, sooner or later.
        """
        still: list[tuple[float, int, RankOutcome]] = []
        for at, number, outcome in self._open:
            with self._lock:
                own = self._own.get(outcome.number)
            if own is None and (not outcome.failed or now - at < self._rank.stall_s):
                still.append((at, number, outcome))
            elif outcome.failed and not (own is not None and own.failed):
                self.die(f"{self._name(number)}: {outcome.failed}")
            elif own is not None and own.batch != outcome.batch and not own.failed:
                said = "drew another batch than rank 0: its data or its task's source differ"
                self.die(f"{self._name(number)} {said}")
        self._open = still
        with self._lock:
            for each in [n for n in self._own if n < min(self._heard.values())]:
                del self._own[each]

    def _name(self, number: int) -> str:
        return f"rank {number} of {self._rank.of} on {self._hosts[number]}"

    def _send(self, link: socket.socket, outcome: RankOutcome | None) -> None:
        """Send an outcome or a sign of life. Whoever reads none of it for long is lost anyway."""
        body = msgspec.msgpack.encode(outcome)
        with suppress(OSError):
            link.sendall(len(body).to_bytes(rpc.LENGTH_BYTES, "little") + body)


decode_outcome = msgspec.msgpack.Decoder(RankOutcome | None).decode


class OtherArena:
    """In place of the actor's memory, for a rank that does not see it: pages that are never used,
    for the shapes of what rank 0 has there."""

    def region(self, offset: int, nbytes: int) -> Bytes:
        del offset
        return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)


def _bytes_of(array: Any) -> Any:
    return array.reshape(-1).view(np.uint8).data


def open_group(rank: Rank, saying: int, process: RankProcess) -> Group:
    """Meet the other ranks, and open the devices of all. ``OSError`` if a rank cannot be reached,
    ``RuntimeError`` if the others have not come in time."""
    _keep_gloo_quiet()
    return Group(rank, _meet(rank, saying), process)


def _keep_gloo_quiet() -> None:
    """Gloo writes to the process's standard output whom it has met, each time that a computation
    needs another set of ranks. Python's own ``print`` goes to where it went before."""
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _meet(rank: Rank, saying: int) -> RankLinks:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    known: dict[str, Any] = {"coordinator_address": rank.coordinator} if rank.coordinator else {}
    if rank.coordinator and rank.number:
        _wait_for(rank.coordinator)
    jax.distributed.initialize(
        **known,
        num_processes=rank.of,
        process_id=rank.number,
        # Without them JAX takes one for each task of Slurm or Open MPI, whatever the host has.
        local_device_ids=list(rank.devices),
        initialization_timeout=MEET_S_MAX,
    )
    open_devices(saying)
    host = rank.coordinator.rpartition(":")[0] if rank.coordinator else socket.gethostname()
    if rank.number == 0:
        with _listener(host) as listener:
            token = secrets.token_bytes(TOKEN_BYTES)
            _told_to_all(msgspec.msgpack.encode((host, listener.getsockname()[1], token)))
            return _accepted(listener, rank, token)
    place = _told_to_all(b"")
    host, port, token = msgspec.msgpack.decode(place, type=tuple[str, int, bytes])
    links = RankLinks()
    for beats in (False, True):
        link = socket.create_connection((host, port), MEET_S_MAX)
        hello = RankHello(token, rank.number, beats, socket.gethostname())
        link.sendall(msgspec.msgpack.encode(hello).ljust(PLACE_BYTES, b"\0"))
        links.add(RankHello(token, 0, beats, host), link)
    return links


def _wait_for(coordinator: str) -> None:
    """Wait until rank 0 listens. JAX would wait too, but tries again after minutes only where a
    line was cut for a while. ``OSError`` if it cannot be reached."""
    host, _, port = coordinator.rpartition(":")
    until = time.monotonic() + MEET_S_MAX
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), TRY_S).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(TRY_S / 4)
        else:
            return


class RankHello(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of a link to rank 0, with the ``token`` that it has told to all."""

    token: bytes
    number: int
    beats: bool
    host: str


def _told_to_all(place: bytes) -> bytes:
    room = np.zeros(PLACE_BYTES, np.uint8)
    room[: len(place) + 1] = np.frombuffer(bytes([len(place)]) + place, np.uint8)
    found = np.asarray(multihost_utils.broadcast_one_to_all(room)).astype(np.uint8).tobytes()
    return found[1 : 1 + found[0]]


def _listener(host: str) -> socket.socket:
    """Listen on all interfaces, unless all ranks are on this machine."""
    return socket.create_server(("127.0.0.1" if host in LOOPBACK else "", 0), backlog=1024)


def _accepted(listener: socket.socket, rank: Rank, token: bytes) -> RankLinks:
    links, until = RankLinks(), time.monotonic() + MEET_S_MAX
    while len(links.requests) < rank.of - 1 or len(links.beats) < rank.of - 1:
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"not all ranks have come within {MEET_S_MAX} s")
        listener.settimeout(left_s)
        link, _ = listener.accept()
        link.settimeout(min(HELLO_S_MAX, left_s))
        try:
            said = link.recv(PLACE_BYTES, socket.MSG_WAITALL).rstrip(b"\0")
            hello = msgspec.msgpack.decode(said, type=RankHello)
        except (OSError, msgspec.MsgspecError):
            link.close()
            continue
        if secrets.compare_digest(hello.token, token) and 0 < hello.number < rank.of:
            links.add(hello, link)
        else:
            link.close()
    return links
