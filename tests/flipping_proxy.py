"""A proxy for TCP connections that flips bits on their way, wherever they fall: in the greeting and
the frames of ZMTP, in headers and in tensors. TCP's checksums say that all is well."""

import random
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

PIECE_BYTES = 65_536


class FlippingProxy:
    """Listens on loopback, and forwards every connection to ``port``.

    Attributes:
        port: where it listens.
        flipped: how many bits were flipped.
    """

    def __init__(self, port: int, seed: int, every_bytes: float) -> None:
        self._to, self._every = port, every_bytes
        self._rng, self._lock = random.Random(seed), threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.flipped = 0
        self._left = self._rng.expovariate(1 / every_bytes)
        self._wanted = b"", b""
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._serve)

    def heal(self) -> None:
        """Flip nothing more."""
        with self._lock:
            self._left = float("inf")

    def spoil_next(self, old: bytes, new: bytes) -> None:
        """Change these bytes once, when they come next."""
        with self._lock:
            self._wanted = old, new

    def close(self) -> None:
        """Close every connection, and accept no more."""
        for each in (self._listening, *self._open):
            _shut(each)
        for thread in self._threads:
            thread.join()
        self._listening.close()
        for each in self._open:
            each.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                self._open.append(near)
                with suppress(OSError):
                    far = socket.create_connection(("127.0.0.1", self._to))
                    self._open.append(far)
                    self._start(self._pump, near, far)
                    self._start(self._pump, far, near)
                    continue
                _shut(near)

    def _start(self, what: Callable[..., None], *given: socket.socket) -> None:
        thread = threading.Thread(target=what, args=given, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                sink.sendall(self._spoiled(piece))
        _shut(source)
        _shut(sink)

    def _spoiled(self, piece: bytes) -> bytes:
        with self._lock:
            if self._wanted[0] and self._wanted[0] in piece:
                piece, self._wanted = piece.replace(*self._wanted, 1), (b"", b"")
                self.flipped += 1
            changed = bytearray(piece)
            while self._left < len(changed):
                changed[int(self._left)] ^= 1 << self._rng.randrange(8)
                self.flipped += 1
                self._left += self._rng.expovariate(1 / self._every)
            self._left -= len(changed)
        return bytes(changed)


def _shut(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
