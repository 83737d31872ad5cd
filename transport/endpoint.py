"""The one interface for everything that moves frames between actors.

A link machine above this file decides *what* to say; an endpoint only carries it. There are two:
`transport.zeromq` for real sockets and `transport.memory` for virtual time, and both pass the
same suite, `transport.conformance`, so that what is learned in simulation holds on the wire.

A *route* names one lane of one link as seen from this side. On the listening side it is the
identity the peer dialled with (`"learner-1.1/bulk"`); on the dialling side it is the name given
to `dial` (`"syncer/bulk"`). Each dial is a connection of its own and FIFO in each direction;
nothing is promised across routes. Delivery is promised only while a connection lives: what is
lost when one breaks is resent by the link above.

Limits are named here, each with its reason. A local breach raises `ValueError` before anything
is queued. A remote breach is dropped and counted: a rude peer never stops an endpoint.

Tried and rejected: a `receive()` method. A cancelled receiver must not lose the message it was
holding, and every caller got that wrong at least once; `run(deliver)` has one place to be right.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

Buffer: TypeAlias = bytes | bytearray | memoryview
Frame: TypeAlias = bytes | memoryview

PARTS_MAX = 2
"""Parts in one message: a header and its payload. libzmq bounds the size of each part and never
their number: 2 000 parts of 900 B passed a 1 000 B limit."""

PARTS_FORGIVEN = 4096
"""Whoever sends a message of more parts than this loses its connection: it means harm."""

FRAME_BYTES_MAX = 2 * 1024 * 1024
"""Bytes in one part. Fragments are cut smaller than this, so that a marker or a heartbeat never
waits long behind one and a receiver can bound what an unread queue costs."""

COPY_BYTES_MAX = 65_536
"""Up to here a part is copied when sent, above it is not: zero-copy was still slower at 70 kB."""

ROUTE_BYTES_MAX = 255
"""Bytes in a route as UTF-8: what ZMTP allows a routing identity."""

SEND_QUEUE_MESSAGES_MAX = 256
"""Messages that may wait on one lane (the high-water mark). The credit window of a link must stay
under half of it: libzmq gives room back in batches of half the mark."""

RECEIVE_QUEUE_MESSAGES_MAX = 64
"""Messages of one connection that ZeroMQ takes in before they are read here; the rest waits where
it came from, in the sender's own queue, which is what the mark above and credit count on. It has
nothing to do with that mark: with 65,536 here, whoever spoke faster than it was heard had all that
it said stored by us, 32 MiB of 12,000 small messages. Not less, since a connection of which more
than this is unread when its peer dials again is never closed by libzmq: half a minute of reports
must fit."""

LINGER_S = 3.0
"""How long a closing endpoint lets frames already sent leave: enough for a full queue on a LAN,
and short enough that a dead peer never holds up a shutdown."""


class PeerGone(Exception):  # noqa: N818 - named as the event it becomes
    """Nobody is reachable under that route now."""


class LaneFull(Exception):  # noqa: N818 - named as the event it becomes
    """The queue towards that peer is full; the credit window should have prevented it."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One whole message, as it came in from `route`.

    Frames up to `COPY_BYTES_MAX` are bytes; larger ones are views that keep their memory alive
    and must be treated as read-only.
    """

    route: str
    frames: tuple[Frame, ...]


Deliver: TypeAlias = Callable[[Arrival], Awaitable[None]]
"""Takes one arrival. Under cancellation it must be all or nothing, like a trio channel's `send`:
an arrival whose delivery was cancelled is handed out again by the next `run`."""


@dataclass(frozen=True, slots=True)
class EndpointStatistics:
    """What an endpoint has counted since it was made."""

    messages_sent: int = 0
    """Messages accepted by `send_nowait`; they may still be on their way."""
    bytes_sent: int = 0
    """Bytes in the parts of those messages."""
    messages_received: int = 0
    """Messages that came in whole and within the limits."""
    bytes_received: int = 0
    """Bytes in the parts of those messages."""
    sends_refused_full: int = 0
    """Sends that raised `LaneFull`."""
    sends_refused_gone: int = 0
    """Sends that raised `PeerGone`."""
    arrivals_refused_parts: int = 0
    """Arrivals dropped for having no parts or more than `PARTS_MAX`."""
    arrivals_refused_oversize: int = 0
    """Arrivals dropped for a part above `FRAME_BYTES_MAX`."""
    arrivals_refused_route: int = 0
    """Arrivals dropped because their sender's identity is not a route."""
    arrivals_refused_identity: int = 0
    """Arrivals dropped because their sender's key belongs to somebody else."""
    arrivals_refused_taken: int = 0
    """Arrivals dropped because another connection that lives has their route."""
    handshakes_refused: int = 0
    """Connections refused because they came without a key, or with the wrong one."""
    connections_cut: int = 0
    """Connections shut down for what they made us hold, or because there were too many."""
    lines_mended: int = 0
    """Times that a dialled line was connected anew, because it spoke and heard nothing."""

    @property
    def arrivals_refused(self) -> int:
        """Arrivals dropped for any reason."""
        return (
            self.arrivals_refused_parts
            + self.arrivals_refused_oversize
            + self.arrivals_refused_route
            + self.arrivals_refused_identity
            + self.arrivals_refused_taken
        )


class Endpoint(Protocol):
    """Moves messages to and from peers: any number of addresses listened on, any number dialled.

    Every method but `statistics` and `aclose` raises `trio.ClosedResourceError` once the endpoint
    is closed, and a `run` in progress then ends with it.
    """

    async def listen(self, address: str) -> str:
        """Accept dials on `address` and return the address actually bound.

        A tcp port of 0 or * comes back as the port the system chose. Raises `OSError` when the
        address cannot be had.
        """
        ...

    async def dial(self, address: str, *, route: str, identity: str) -> None:
        """Open a connection to `address`, called `route` here and `identity` over there.

        Returns at once: nobody needs to listen there yet. Two live dials to one listener must
        differ in identity; a second under the same one is not heard. Raises `ValueError` for a
        name that is not a route or already dialled, `OSError` for an impossible address.
        """
        ...

    async def run(self, deliver: Deliver) -> None:
        """Receive for ever, awaiting `deliver` for each arrival: a full inbox is back-pressure.

        Cancel it to stop; nothing is lost by that, the next `run` goes on where this one stopped.
        What `deliver` raises ends it, perhaps inside an exception group. Raises
        `trio.BusyResourceError` when already running.
        """
        ...

    def send_nowait(self, route: str, frames: Sequence[Buffer]) -> None:
        """Queue one message, all of it or nothing, and never block.

        Parts above `COPY_BYTES_MAX` are not copied: the sender promises never to write to them
        again. Raises `PeerGone` or `LaneFull`, and `ValueError` or `TypeError` for a message
        beyond the limits or a part that is not one contiguous buffer. A dialler whose peer is
        away queues up to the mark, so there `LaneFull` may come instead of `PeerGone`.
        """
        ...

    def reaches(self, route: str) -> bool:
        """Whether somebody is there under that route: of one's own dials always, of those who dial
        from when they are connected. Whoever goes on with a link that he has not shaken hands on
        must know. Raises what `send_nowait` does, `PeerGone` apart."""
        ...

    def statistics(self) -> EndpointStatistics:
        """Return what has been counted so far."""
        ...

    async def aclose(self) -> None:
        """Let frames already sent leave (up to `LINGER_S`), free everything; twice is fine."""
        ...


def check_route(route: str) -> bytes:
    """Return the wire form of a route; raise `ValueError` when it cannot be one."""
    wire = route.encode()
    if not 0 < len(wire) <= ROUTE_BYTES_MAX:
        raise ValueError(f"a route has 1 to {ROUTE_BYTES_MAX} bytes, this one {len(wire)}")
    if not route.isprintable():
        raise ValueError(f"a route is printable text: {route!r}")
    return wire


def check_frames(frames: Sequence[Buffer]) -> tuple[Frame, ...]:
    """Return the parts as flat byte buffers, before the first one is queued.

    One bad part found after another was queued would glue the next message to this one, so the
    whole message is judged first. Raises `ValueError` for a part that is not contiguous, too
    large, or of a kind without a buffer format (send bfloat16 as `.view(uint8)`), and for too
    few or too many parts; `TypeError` for a part that is no buffer at all.
    """
    if not 0 < len(frames) <= PARTS_MAX:
        raise ValueError(f"a message has 1 to {PARTS_MAX} parts, this one {len(frames)}")
    flat = flat_frames(frames)
    for part in flat:
        if len(part) > FRAME_BYTES_MAX:
            raise ValueError(f"a part has at most {FRAME_BYTES_MAX} bytes, this one {len(part)}")
    return flat


def flat_frames(frames: Sequence[Buffer]) -> tuple[Frame, ...]:
    """Return the parts as flat byte buffers; raises as `check_frames` does, limits apart."""
    return tuple(part if type(part) is bytes else _flat(part) for part in frames)


def _flat(part: Buffer) -> Frame:
    view = memoryview(part)
    if not view.c_contiguous:
        raise ValueError("a part must be contiguous: copy it before sending")
    if view.nbytes == 0:
        return b""
    # numpy takes every format and shape; memoryview.cast refuses some of both.
    return np.frombuffer(view, np.uint8).data
