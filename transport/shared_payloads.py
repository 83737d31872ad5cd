"""Payloads by reference, between endpoints of one user on one host.

Headers go over ZeroMQ as ever. In place of a piece of a payload that lies in memory which its
sender shares, a message names the range: *loan*, file, offset and length. The receiver maps the
sender's files, read-only, and reads the bytes where they are. The sender keeps them as they are
until the loan is returned.

How two endpoints find each other: the listening one has a Unix socket under a random abstract name.
It tells the name over ZeroMQ, encrypted if the job has keys, to a peer that asks before it sends
its first large part. Only a process of the same network namespace can connect to it, so one on
another host, or in a container of its own, goes on over ZeroMQ. Both sides check that the other is
of the same user; the dialling one then says its ZeroMQ identity, which has a secret, so that it
gets the ranges of its own routes only. Descriptors are passed once, in both directions.

Loans are numbered per connection, in the order of the messages that name them. Returned are those
whose bytes nobody reads any more, and those that were skipped: ZeroMQ has lost their message. A
side closes its end once it reads no bytes of the other any more, and the system closes that of a
killed process: then the other lets go of all that it has lent, so nothing leaks.

Linux only: elsewhere, and wherever one of these steps fails, bytes go over ZeroMQ.
"""

import contextlib
import errno
import mmap
import os
import secrets
import socket
import struct
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import trio

from transport.endpoint import Frame, SharedFiles

BY_REFERENCE = b"ddloco@"
"""The third part of a message whose second part is a reference. No message of bytes has three."""

REFERENCE = struct.Struct(">QIQI")
"""Loan, number of the file, offset and length in bytes."""

LOANS_MAX = 16_384
"""Ranges lent to one peer and not returned: four messages of 8 GiB in pieces of 2 MiB, the credit
of a lane. Beyond it bytes are sent."""

FILES_MAX = 4

PEERS_MAX = 1_024
"""Peers that one endpoint shares memory with, as many as a job has learners; each has a descriptor
and mapped files."""

RETURNED_MAX = 512

PACKET_BYTES_MAX = 8 * RETURNED_MAX + 1
"""Bytes in one packet: its kind, and loans of eight bytes each."""

BACKLOG = 64
"""Peers that wait to be accepted; others go on over ZeroMQ."""

ASK_AGAIN_S = 5.0
"""How long a side that wants to share waits before it asks again for the name of the socket."""

HELLO, FILES, READY, RETURNED, LEAVING = b"H", b"F", b"K", b"R", b"L"
"""The kinds of packets: who dials, with its files; the files of the other side; that these are
known; loans; that nothing more may be lent."""

SUPPORTED = sys.platform == "linux"


class SharingError(Exception):
    """What the other side did that is not allowed; the connection to it is closed."""


class Loans:
    def __init__(self) -> None:
        self._lent: dict[int, Frame] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._lent)

    def lend(self, part: Frame) -> int:
        """Keep a part until its loan is returned; returns the loan."""
        loan = self._next
        self._lent[loan] = part
        self._next += 1
        return loan

    def withdraw(self, loan: int) -> None:
        """Forget the newest loan: its message was not sent."""
        assert loan == self._next - 1, "it is the newest"
        del self._lent[loan]
        self._next = loan

    def give_back(self, loans: Sequence[int]) -> None:
        for loan in loans:
            if self._lent.pop(loan, None) is None:
                raise SharingError(f"it returned loan {loan}, which it does not have")

    def clear(self) -> None:
        self._lent.clear()


class MappedFiles:
    """The receiver's side: the files of one peer, mapped read-only, and the ranges being read.

    It exists, and keeps the connection open, for as long as a range is read. It closes ``files``
    and ``link``; any thread may call ``tell``, when there are loans to return.
    """

    def __init__(self, files: Sequence[int], link: socket.socket, tell: Callable[[], None]) -> None:
        self._files = files
        self._tell = tell
        self._mapped: dict[int, mmap.mmap] = {}
        self._due = 0
        """The loan that the next message names if none was lost."""
        self._returned: deque[int] = deque()
        """Loans to return, appended by any thread."""
        weakref.finalize(self, _close, files, link).atexit = False

    def part(self, reference: Frame) -> memoryview:
        """The bytes that a reference names; its loan is returned once nothing refers to them."""
        if len(reference) != REFERENCE.size:
            raise SharingError(f"a reference of {len(reference)} bytes, not {REFERENCE.size}")
        loan, number, offset, nbytes = REFERENCE.unpack(reference)
        if not self._due <= loan < self._due + LOANS_MAX:
            raise SharingError(f"loan {loan} where {self._due} was due")
        if number >= len(self._files) or not nbytes:
            raise SharingError(f"{nbytes} bytes of file {number}; it has {len(self._files)}")
        mapped = self._mapping(number, offset + nbytes)
        if loan > self._due:
            self._returned.extend(range(self._due, loan))
            self._tell()
        self._due = loan + 1
        import numpy as np  # noqa: PLC0415, observers receive no arrays, and start without it

        # An array, because views of views keep it alive; those of a memoryview do not.
        part = np.frombuffer(mapped, np.uint8, nbytes, offset)
        weakref.finalize(part, self._read, loan).atexit = False
        return part.data

    def _read(self, loan: int) -> None:
        self._returned.append(loan)
        self._tell()

    def _mapping(self, number: int, stop: int) -> mmap.mmap:
        """A mapping of a file that reaches to ``stop``; a file may have grown."""
        mapped = self._mapped.get(number)
        if mapped is not None and len(mapped) >= stop:
            return mapped
        try:
            size = os.fstat(self._files[number]).st_size
            if stop > size:
                raise SharingError(f"bytes up to {stop} of a file of {size}")
            mapped = mmap.mmap(self._files[number], size, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise SharingError(f"its file {number} cannot be mapped: {error}") from None
        self._mapped[number] = mapped
        return mapped

    def returned(self) -> list[int]:
        count = min(len(self._returned), RETURNED_MAX)
        return [self._returned.popleft() for _ in range(count)]

    def keep(self, loans: Sequence[int]) -> None:
        self._returned.extendleft(reversed(loans))


def _close(files: Sequence[int], link: socket.socket) -> None:
    for each in files:
        os.close(each)
    link.close()


class SharingPeer:
    """A connection over which memory is shared, in both directions; any thread may call ``tell``,
    when there are loans to return."""

    def __init__(
        self,
        link: socket.socket,
        own: SharedFiles,
        identity: bytes = b"",
        tell: Callable[["SharingPeer"], None] = lambda _: None,
    ) -> None:
        self.identity = identity
        self._tell = tell
        self.ready = False
        """Whether the other side has the files of this one."""
        self._link = link
        self._own = own
        filenos = own.filenos()
        self._passed = [n for n, fileno in enumerate(filenos) if fileno >= 0][:FILES_MAX]
        self._loans = Loans()
        self._theirs: MappedFiles | None = None

    def reference(self, part: Frame) -> tuple[int, bytes] | None:
        """Lend a part; returns its loan and its reference, or None if it cannot be lent."""
        if not self.ready or len(self._loans) >= LOANS_MAX:
            return None
        place = self._own.place_of(part)
        if place is None:
            return None
        number, offset = place
        loan = self._loans.lend(part)
        return loan, REFERENCE.pack(loan, self._passed.index(number), offset, len(part))

    def withdraw(self, loan: int) -> None:
        self._loans.withdraw(loan)

    def part(self, reference: Frame) -> memoryview:
        if self._theirs is None:
            raise SharingError("a reference before its files")
        return self._theirs.part(reference)

    def give_back(self) -> None:
        """Return the loans of what is not read any more, as far as there is room now."""
        while self._theirs is not None and (loans := self._theirs.returned()):
            if not self._send(RETURNED + struct.pack(f">{len(loans)}Q", *loans)):
                self._theirs.keep(loans)
                self._tell(self)
                return

    def greet(self) -> None:
        self._send(HELLO + self.identity, self._descriptors())

    def welcome(self) -> None:
        self._send(FILES, self._descriptors())

    def _descriptors(self) -> list[int]:
        """Descriptors of this side's files for reading only, which `_send` closes."""
        filenos, found = self._own.filenos(), list[int]()
        with contextlib.ExitStack() as opened:
            for number in self._passed:
                path = f"/proc/self/fd/{filenos[number]}"
                found.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                opened.callback(os.close, found[-1])
            opened.pop_all()
        return found

    def _send(self, packet: bytes, files: Sequence[int] = ()) -> bool:
        """Send a packet if there is room; a broken connection is seen by who receives."""
        try:
            if files:
                socket.send_fds(self._link, [packet], list(files))
            else:
                self._link.send(packet)
        except OSError as error:
            return error.errno not in (errno.EAGAIN, errno.ENOBUFS)
        finally:
            for each in files:
                os.close(each)
        return True

    async def packet(self) -> bytes:
        """Wait for a packet, and take it in; empty at the end of the connection."""
        while True:
            try:
                packet, files, flags, _ = socket.recv_fds(
                    self._link, PACKET_BYTES_MAX, FILES_MAX + 1, socket.MSG_CMSG_CLOEXEC
                )
                break
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._link)
            except OSError:
                return b""
        self._take(packet, files, cut=bool(flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)))
        return packet

    def _take(self, packet: bytes, files: list[int], *, cut: bool) -> None:
        kind = packet[:1]
        if kind in (HELLO, FILES) and self._theirs is None and 0 < len(files) <= FILES_MAX:
            self._theirs = MappedFiles(files, self._link.dup(), partial(self._tell, self))
        else:
            for each in files:
                os.close(each)
            if kind in (HELLO, FILES) or files:
                raise SharingError(f"a packet {kind!r} with {len(files)} files")
        if cut:
            raise SharingError("a packet that is too long")
        if kind == RETURNED:
            if len(packet) % 8 != 1:
                raise SharingError(f"loans in {len(packet) - 1} bytes")
            self._loans.give_back(struct.unpack(f">{len(packet) // 8}Q", packet[1:]))
        elif kind == FILES:
            self._send(READY)
            self.ready = True
        elif kind in (READY, LEAVING):
            self.ready = kind == READY
        elif kind == HELLO:
            if self.identity:
                raise SharingError("it said twice who it is")
            self.identity = packet[1:]
        elif packet:
            raise SharingError(f"a packet of the unknown kind {kind!r}")

    async def ended(self) -> None:
        """Take in what the other side says until it has closed: then it reads nothing more of this
        side, and what was lent is let go of. After it has broken a rule it is not listened to."""
        try:
            while await self.packet():
                pass
        except SharingError:
            self.leave()
            while await self._heard():
                await trio.lowlevel.checkpoint()
        self._loans.clear()

    async def _heard(self) -> bool:
        """Wait for a packet, and ignore it; False at the end of the connection."""
        while True:
            try:
                return bool(self._link.recv(1))
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._link)
            except OSError:
                return False

    def leave(self) -> None:
        self.ready, self._theirs = False, None
        self._send(LEAVING)

    @property
    def lends(self) -> bool:
        """Whether the other side may still read bytes of this one."""
        return len(self._loans) > 0

    def close(self) -> None:
        """Leave, and close this end; it stays open while bytes of the other side are read."""
        self.leave()
        self._link.close()


class SharedPayloads:
    def __init__(
        self,
        own: SharedFiles,
        owner_of: Callable[[str], bytes],
        route_of: Callable[[bytes], str | None],
    ) -> None:
        self.name: Final = f"ddloco-{secrets.token_hex(16)}".encode()
        self._own = own
        self._owner_of = owner_of
        self._route_of = route_of
        self._peers: dict[str, SharingPeer] = {}
        self._returning: deque[SharingPeer] = deque()
        """Peers to which there are loans to return, appended by any thread."""
        self._left: list[SharingPeer] = []
        """Peers that were left while they were reading: what they read stays as it is."""
        self._open = 0
        self._names: dict[str, bytes] = {}
        """By dialled route, the name of the socket that was tried last."""

    def of(self, route: str, identity: bytes) -> SharingPeer | None:
        """The peer of a route, if memory is shared with the connection of this identity."""
        peer = self._peers.get(route)
        return peer if peer is not None and peer.identity == identity else None

    def give_back(self) -> None:
        """Return the loans of what is not read any more. It is called with each message, so it
        looks only at peers to which there are some."""
        for _ in range(len(self._returning)):
            self._returning.popleft().give_back()

    async def serve(self) -> None:
        with contextlib.suppress(OSError), _new_socket() as listening:
            listening.bind(b"\0" + self.name)
            listening.listen(BACKLOG)
            async with trio.open_nursery() as nursery:
                while True:
                    try:
                        link, _ = listening.accept()
                    except BlockingIOError:
                        await trio.lowlevel.wait_readable(listening)
                        continue
                    except OSError:
                        await trio.sleep(ASK_AGAIN_S)  # No descriptors are left.
                        continue
                    nursery.start_soon(self._accepted, link)

    async def _accepted(self, link: socket.socket) -> None:
        link.setblocking(False)
        peer = SharingPeer(link, self._own, tell=self._returning.append)
        with self._shared_with(peer, link) as allowed:
            if not allowed:
                return
            with trio.move_on_after(ASK_AGAIN_S):
                await peer.packet()
            route = self._route_of(peer.identity)
            if route is not None and self._owner_of(route) == peer.identity:
                self._peers[route] = peer
                peer.welcome()
                await peer.ended()

    async def connect(self, route: str, identity: bytes, name: bytes) -> None:
        """Share memory with the endpoint that a route leads to, if it is on this host; returns at
        the end of that."""
        if self._names.get(route) == name:
            return
        self._names[route] = name
        with contextlib.suppress(OSError), _new_socket() as link:
            link.connect(b"\0" + name)
            peer = SharingPeer(link, self._own, identity, self._returning.append)
            with self._shared_with(peer, link) as allowed:
                if allowed:
                    self._peers[route] = peer
                    peer.greet()
                    await peer.ended()
                    del self._names[route]  # It was there, so it is worth another try.

    @contextlib.contextmanager
    def _shared_with(self, peer: SharingPeer, link: socket.socket) -> Iterator[bool]:
        self._open += 1
        try:
            yield self._open <= PEERS_MAX and _same_user(link)
        except (OSError, SharingError):
            pass  # Bytes are sent.
        finally:
            self._open -= 1
            for route in [each for each, found in self._peers.items() if found is peer]:
                del self._peers[route]
            if peer.lends:
                self._left.append(peer)
            peer.close()


def _new_socket() -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.setblocking(False)
    return link


def _same_user(link: socket.socket) -> bool:
    found = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", found)[1] == os.geteuid()
