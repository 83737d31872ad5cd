"""A switch in user space: packets of every host pass through here, and links go bad as asked.

Each host has one TUN device; what it sends is read here, delayed, dropped, doubled or damaged as
its link says, and written to the device of the host that it is addressed to. That is honest to TCP
and to what runs above it: a lost packet is sent again by the kernel, a partition is silence, and
no sender is told. One thread, no packages, no kernel module but TUN.
"""

import heapq
import itertools
import os
import random
import selectors
import socket
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace

PACKET_BYTES_MAX = 65536
TCP, RST, ACK = 6, 0x04, 0x10
IP_BYTES = 20
"""Headers without options: the kernel sends no others unless asked."""

MESSAGE_BYTES = 200
"""Packets with as many bytes or more have messages: the greeting of ZMTP is shorter."""

QUEUE_S_MAX = 0.5
"""A link of limited rate drops what would wait longer than this, as a router's queue does."""


@dataclass(frozen=True)
class Line:
    """How one direction of one host's link is; the default is a good one.

    ``corrupt`` and ``reset`` are chances for each packet with data: one bit of its data flips and
    the checksum is made right again, so that TCP believes it; or its receiver gets a reset. Bits
    flip in the middle of packets with messages, in headers and tensors alike. In the greeting of
    ZMTP, which has no checksum, one would give a connection another name for good.
    """

    cut: bool = False
    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    double: float = 0.0
    reorder: float = 0.0
    mbit: float | None = None
    corrupt: float = 0.0
    reset: float = 0.0


@dataclass
class Port:
    """A host's device, and its line in each direction."""

    fd: int
    out: Line = field(default_factory=Line)
    back: Line = field(default_factory=Line)
    free_at: dict[str, float] = field(default_factory=lambda: {"out": 0.0, "back": 0.0})


class Switch:
    """Carries packets between the devices given to it, until closed.

    Args:
        seed: chances are drawn from it. Which packets they hit depends on timing, as in life.
    """

    def __init__(self, seed: int = 0) -> None:
        self.counts: Counter[str] = Counter()
        """What happened to packets: carried, cut, lost, doubled, late, queued, full,
        corrupted, reset."""
        self._random = random.Random(seed)
        self._ports: dict[bytes, Port] = {}
        self._due: list[tuple[float, int, int, bytes]] = []
        self._number = itertools.count()
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = os.pipe()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True, name="switch")
        self._thread.start()

    def attach(self, address: str, fd: int) -> None:
        """Carry what comes from and goes to a TUN device, which is closed with the switch."""
        os.set_blocking(fd, False)
        with self._lock:
            self._ports[socket.inet_aton(address)] = Port(fd)
            self._selector.register(fd, selectors.EVENT_READ)
        os.write(self._wake, b"-")

    def change(self, address: str, way: str, **line: object) -> None:
        """Change how a host's line is: ``out`` from the host, ``back`` to it, or ``both``."""
        with self._lock:
            port = self._ports[socket.inet_aton(address)]
            for each in ("out", "back") if way == "both" else (way,):
                setattr(port, each, replace(getattr(port, each), **line))

    def close(self) -> None:
        """Stop carrying, and close every device: they are gone then."""
        os.write(self._wake, b"x")
        self._thread.join()
        self._selector.close()
        for fd in (self._woken, self._wake, *(port.fd for port in self._ports.values())):
            os.close(fd)

    def _run(self) -> None:
        while True:
            patience = max(self._due[0][0] - time.monotonic(), 0.0) if self._due else None
            ready = self._selector.select(patience)
            with self._lock:
                for key, _ in ready:
                    if key.fd == self._woken:
                        if b"x" in os.read(self._woken, 64):
                            return
                    else:
                        self._read(key.fd)
                while self._due and self._due[0][0] <= time.monotonic():
                    _, _, fd, packet = heapq.heappop(self._due)
                    self._write(fd, packet)

    def _read(self, fd: int) -> None:
        for _ in range(64):  # Fair to the others.
            try:
                packet = os.read(fd, PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            if packet[0] >> 4 != 4:
                continue  # No actor here uses IPv6, but kernels try.
            source, target = (self._ports.get(packet[at : at + 4]) for at in (12, 16))
            if source is not None and target is not None:
                self._pass(source, target, packet)

    def _pass(self, source: Port, target: Port, packet: bytes) -> None:
        """One packet over the sender's line, then over the receiver's."""
        at, copies = time.monotonic(), 1
        for port, way, line in ((source, "out", source.out), (target, "back", target.back)):
            if line.cut:
                self.counts["cut"] += 1
                return
            if self._happens("lost", line.loss):
                return
            copies += self._happens("doubled", line.double)
            if line.mbit is not None:
                port.free_at[way] = max(port.free_at[way], at)
                if port.free_at[way] - at > QUEUE_S_MAX:
                    self.counts["full"] += 1
                    return
                self.counts["queued"] += port.free_at[way] > at
                port.free_at[way] += len(packet) * 8 / (line.mbit * 1e6)
                at = port.free_at[way]
            at += line.delay_s + self._random.uniform(0.0, line.jitter_s)
            if self._happens("late", line.reorder):
                at += 0.02
            size = tcp_data(packet)
            if size >= MESSAGE_BYTES and self._happens("corrupted", line.corrupt):
                packet = damaged(packet, self._random.randrange(8 * size // 3, 16 * size // 3))
            if tcp_data(packet) and self._happens("reset", line.reset):
                packet = reset_of(packet)
        self.counts["carried"] += 1
        for _ in range(copies):
            self._launch(at, target.fd, packet)

    def _happens(self, what: str, chance: float) -> bool:
        happens = chance > 0.0 and self._random.random() < chance
        self.counts[what] += happens
        return happens

    def _launch(self, at: float, fd: int, packet: bytes) -> None:
        if at <= time.monotonic():
            self._write(fd, packet)
        else:
            heapq.heappush(self._due, (at, next(self._number), fd, packet))

    def _write(self, fd: int, packet: bytes) -> None:
        try:
            os.write(fd, packet)
        except OSError:
            self.counts["full"] += 1  # Its queue is full, or the host is about to go.


def tcp_data(packet: bytes) -> int:
    """How many bytes of data a packet brings; 0 for what is no TCP."""
    if packet[9] != TCP or (packet[0] & 15) * 4 != IP_BYTES:
        return 0
    return len(packet) - IP_BYTES - (packet[32] >> 4) * 4


def damaged(packet: bytes, bit: int) -> bytes:
    """The packet with one bit of its data flipped, and checksums that say all is well."""
    changed = bytearray(packet)
    changed[len(packet) - tcp_data(packet) + bit // 8] ^= 1 << bit % 8
    return summed(changed)


def reset_of(packet: bytes) -> bytes:
    """A reset in a packet's place: in sequence, so that its receiver believes it."""
    changed = bytearray(packet[: IP_BYTES + 20])
    struct.pack_into("!H", changed, 2, len(changed))
    changed[32], changed[33] = 5 << 4, RST | ACK
    return summed(changed)


def summed(packet: bytearray) -> bytes:
    """The packet with the checksums of IP and TCP made right."""
    packet[10:12] = bytes(2)
    struct.pack_into("!H", packet, 10, checksum(packet[:IP_BYTES]))
    segment = packet[IP_BYTES:]
    segment[16:18] = bytes(2)
    pseudo = bytes(packet[12:20]) + struct.pack("!BBH", 0, TCP, len(segment))
    struct.pack_into("!H", packet, IP_BYTES + 16, checksum(pseudo + segment))
    return bytes(packet)


def checksum(data: bytes | bytearray) -> int:
    """The internet's checksum."""
    data = bytes(data) + b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
