"""The interface of everything that carries frames between actors.

The link machine above decides *what* is sent; an endpoint only carries it. `transport.zeromq` is
the implementation for real sockets; another one must pass the suite of `tests/transport`, as the
one without sockets does that tests use.

A *route* names one lane of one link as seen from this side. On the listening side it is the
identity that the peer dialled with (`"learner-1.1/bulk"`); on the dialling side it is the name
given to `dial` (`"syncer/bulk"`). Each dial is a connection of its own, FIFO in each direction;
there is no order across routes. Delivery is guaranteed only while a connection lives: the link
above recovers from what is lost when one breaks.

All limits are named here, each with its reason. A local violation raises `ValueError` before
anything is queued. A remote violation is dropped and counted, so that a misbehaving peer never
stops an endpoint.

Tried and rejected: a `receive()` method. A cancelled receiver must not lose the message that it
holds, and every caller got that wrong at least once; `run(deliver)` solves it in one place.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
Frame: TypeAlias = bytes | memoryview

PARTS_MAX = 2
"""Parts in one message: a header and its payload. libzmq limits the size of each part but not
their number: 2,000 parts of 900 B passed a limit of 1,000 B."""

PARTS_FORGIVEN = 4096
"""A peer that sends a message of more parts than this is disconnected: that is no mistake."""

FRAME_BYTES_MAX = 2 * 1024 * 1024
"""Bytes in one part. Fragments are cut into smaller parts, so that a marker or a heartbeat never
waits long behind one, and the memory of an unread queue is bounded."""

COPY_BYTES_MAX = 65_536
"""Parts up to this size are copied when sent: zero-copy was still slower at 70 kB."""

ROUTE_BYTES_MAX = 255
"""Bytes in a route as UTF-8: the limit of ZMTP for a routing identity."""

SEND_QUEUE_MESSAGES_MAX = 256
"""Messages that may be queued on one lane (the high-water mark). A link's credit window must stay
below half of it, because libzmq frees room in batches of half the mark."""

RECEIVE_QUEUE_MESSAGES_MAX = 64
"""Messages per connection that ZeroMQ queues before we read them; the others stay in the sender's
own queue, which is what the mark above and credit rely on. This limit is independent of that mark:
with 65,536 here, we stored everything that a faster sender sent, 32 MiB for 12,000 small messages.
It cannot be much smaller either: if a peer dials again while more messages than this are unread,
libzmq never closes its old connection, so half a minute of reports must fit."""

LINGER_S = 3.0
"""How long a closing endpoint waits for queued frames to leave: enough for a full queue on a LAN,
and short enough that a dead peer does not delay a shutdown."""


class SharedFiles(Protocol):
    """Memory whose bytes may be read by other processes in place of being sent."""

    def filenos(self) -> tuple[int, ...]:
        """The descriptors of its files; -1 for one that does not exist."""
        ...

    def place_of(self, part: Frame) -> tuple[int, int] | None:
        """The number of the file and the offset at which the bytes of a part lie; None if they lie
        elsewhere. They must stay as they are for as long as the part exists."""
        ...


class PeerGone(Exception):  # noqa: N818 - named as the event it becomes
    """No peer is reachable under that route now."""


class LaneFull(Exception):  # noqa: N818 - named as the event it becomes
    """The queue to that peer is full; the credit window should have prevented this."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One complete message, as received from `route`.

    Frames up to `COPY_BYTES_MAX` are bytes; larger ones are views that keep their memory alive
    and must be treated as read-only.

    An arrival without frames says that the line to `route` leads to another address now: what was
    sent before may be lost.
    """

    route: str
    frames: tuple[Frame, ...]


Deliver: TypeAlias = Callable[[Arrival], Awaitable[None]]
"""Takes one arrival. Under cancellation it must be all or nothing, like a trio channel's `send`:
an arrival whose delivery was cancelled is delivered again by the next `run`."""


@dataclass(frozen=True, slots=True)
class EndpointStatistics:
    messages_sent: int = 0
    """Messages accepted by `send_nowait`; they may still be in flight."""
    bytes_sent: int = 0
    messages_received: int = 0
    bytes_received: int = 0
    sends_refused_full: int = 0
    sends_refused_gone: int = 0
    arrivals_refused_parts: int = 0
    """Arrivals dropped because they had no parts or more than `PARTS_MAX`."""
    sent_by_reference: int = 0
    """Bytes of `bytes_sent` that were not sent, but read where they lie, by a peer on this host."""
    arrivals_refused_reference: int = 0
    """Arrivals dropped because they name memory that their sender does not share."""
    arrivals_refused_oversize: int = 0
    """Arrivals dropped because a part exceeded `FRAME_BYTES_MAX`."""
    arrivals_refused_route: int = 0
    """Arrivals dropped because the sender's identity is not a valid route."""
    arrivals_refused_identity: int = 0
    """Arrivals dropped because the sender's key belongs to another actor."""
    arrivals_refused_taken: int = 0
    """Arrivals dropped because another live connection uses the route."""
    handshakes_refused: int = 0
    """Connections refused because they had no key or a wrong one."""
    connections_cut: int = 0
    """Connections shut down because of their unread bytes, or because there were too many."""
    lines_mended: int = 0
    """Dialled connections that were reconnected because they sent and received nothing back."""

    @property
    def arrivals_refused(self) -> int:
        return (
            self.arrivals_refused_parts
            + self.arrivals_refused_reference
            + self.arrivals_refused_oversize
            + self.arrivals_refused_route
            + self.arrivals_refused_identity
            + self.arrivals_refused_taken
        )


class Endpoint(Protocol):
    """Carries messages to and from peers; listens on and dials any number of addresses.

    Every method except `statistics` and `aclose` raises `trio.ClosedResourceError` once the
    endpoint is closed; so does a `run` in progress.
    """

    async def listen(self, address: str) -> str:
        """Accept dials on `address`; returns the address actually bound.

        A tcp port of 0 or * is replaced by the port that the system chose. Raises `OSError` if the
        address cannot be bound.
        """
        ...

    async def dial(self, address: str, *, route: str, identity: str) -> None:
        """Open a connection to `address`, named `route` on this side and `identity` on the other.

        Returns at once, even if no endpoint listens there yet. Two live dials to one listener must
        differ in identity; the listener ignores a second one under the same identity. Raises
        `ValueError` for an invalid or already dialled name, `OSError` for an impossible address.
        """
        ...

    async def disconnect(self, route: str) -> None:
        """Close the connection dialled as `route`; messages already sent still leave.

        The route may be dialled again. Raises `ValueError` if this endpoint did not dial it.
        """
        ...

    async def run(self, deliver: Deliver) -> None:
        """Receive for ever, awaiting `deliver` for each arrival, which gives backpressure.

        Cancel it to stop; no message is lost, and the next `run` continues. An exception from
        `deliver` ends it, possibly inside an exception group. Raises `trio.BusyResourceError` if
        already running.
        """
        ...

    def send_nowait(self, route: str, frames: Sequence[Buffer]) -> None:
        """Queue one message, completely or not at all, without blocking.

        Parts above `COPY_BYTES_MAX` are not copied: the caller must never write to them again.
        Raises `PeerGone` or `LaneFull`; `ValueError` for a message beyond the limits or a part that
        is not contiguous; `TypeError` for a part that is not a buffer. A dialler whose peer is away
        queues up to the mark, so it may get `LaneFull` where one would expect `PeerGone`.
        """
        ...

    def share(self, own: SharedFiles) -> None:
        """From the next `run` on, large parts that lie in this memory may be read there by peers of
        this user on this host, in place of being sent; what arrives looks the same."""
        ...

    def reaches(self, route: str) -> bool:
        """Whether a peer is reachable under that route: always for a route that this endpoint
        dialled, and for other routes while their peer is connected. A link that resumes a session
        without a handshake needs this. Raises as `send_nowait` does, except `PeerGone`."""
        ...

    def statistics(self) -> EndpointStatistics:
        """The counters so far."""
        ...

    async def aclose(self) -> None:
        """Wait up to `LINGER_S` for queued frames to leave, then free everything; idempotent."""
        ...


def check_route(route: str) -> bytes:
    """The wire form of a route; raises `ValueError` if it is not a valid route."""
    wire = route.encode()
    if not 0 < len(wire) <= ROUTE_BYTES_MAX:
        raise ValueError(f"a route has 1 to {ROUTE_BYTES_MAX} bytes, this one {len(wire)}")
    if not route.isprintable():
        raise ValueError(f"a route is printable text: {route!r}")
    return wire


def check_frames(frames: Sequence[Buffer]) -> tuple[Frame, ...]:
    """The parts as flat byte buffers, all checked before the first one is queued.

    If an invalid part were found after another was queued, the next message would be appended to
    this one. Raises `ValueError` for a part that is not contiguous, too large, or of a type without
    a buffer format (send bfloat16 as `.view(uint8)`), and for too few or too many parts;
    `TypeError` for a part that is not a buffer.
    """
    if not 0 < len(frames) <= PARTS_MAX:
        raise ValueError(f"a message has 1 to {PARTS_MAX} parts, this one {len(frames)}")
    flat = flat_frames(frames)
    for part in flat:
        if len(part) > FRAME_BYTES_MAX:
            raise ValueError(f"a part has at most {FRAME_BYTES_MAX} bytes, this one {len(part)}")
    return flat


def flat_frames(frames: Sequence[Buffer]) -> tuple[Frame, ...]:
    """The parts as flat byte buffers; raises as `check_frames` does, except for limits."""
    return tuple(part if type(part) is bytes else _flat(part) for part in frames)


def _flat(part: Buffer) -> Frame:
    view = memoryview(part)
    if not view.c_contiguous:
        raise ValueError("a part must be contiguous: copy it before sending")
    if view.nbytes == 0:
        return b""
    if view.format == "B" and view.ndim == 1:
        return view
    # It accepts every format and shape; memoryview.cast does not.
    import numpy as np  # noqa: PLC0415, most parts are bytes already, and observers need no arrays

    return np.frombuffer(view, np.uint8).data
