"""What the protocols beside the links have in common: numbers, tapes and observers. Their messages
are msgpack structs below the door: no machine, clock or tape has them. What is refused is counted,
and the first refusals are logged."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec
import trio

from transport import Endpoint, LaneFull, PeerGone
from transport.endpoint import Buffer

REFUSALS_LOGGED_MAX = 20
"""Refusals that are logged; later ones are only counted, so that they do not fill the disk."""

M = TypeVar("M")

encode = msgspec.msgpack.Encoder().encode


class SideProtocolError(ValueError):
    """The other side sent something that is not in this protocol; one line names the field."""


class SideDecoder(Generic[M]):
    """Decodes the messages of a protocol, of at most ``bytes_max`` without the bytes that may
    follow."""

    def __init__(self, kinds: Any, bytes_max: int) -> None:
        self.kinds = kinds
        self._decode: Callable[[Any], M] = msgspec.msgpack.Decoder(kinds).decode
        self._bytes_max = bytes_max

    def __call__(self, frames: Sequence[Buffer], parts: int = 1) -> M:
        """Decode the first of up to ``parts`` frames; ``SideProtocolError`` if it is invalid or too
        long."""
        if not 1 <= len(frames) <= parts:
            raise SideProtocolError(f"a message of {len(frames)} parts, 1 to {parts} expected")
        if len(frames[0]) > self._bytes_max:
            raise SideProtocolError(f"{len(frames[0])} bytes, at most {self._bytes_max}")
        try:
            return self._decode(frames[0])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SideProtocolError(str(error)) from None


def tell(endpoint: Endpoint, route: str, message: Any, *data: Buffer) -> bool:
    """Send a message and the bytes that follow it; returns whether that could be done. Whoever
    waits for one that could not asks again."""
    try:
        endpoint.send_nowait(route, [encode(message), *data])
    except (LaneFull, PeerGone):
        return False
    return True


class Inbox(Generic[M]):
    """What has come and waits, in order: at most ``most``. More is dropped, and sent again."""

    def __init__(self, most: int) -> None:
        self._came, self.waiting = trio.open_memory_channel[M](most)

    def put(self, each: M) -> None:
        with suppress(trio.WouldBlock):
            self._came.send_nowait(each)


class Refusals:
    def __init__(self, event: str, note: Callable[[str, dict[str, Any]], None]) -> None:
        self.count = 0
        self._event, self._note = event, note

    def add(self, peer: str, reason: str) -> None:
        self.count += 1
        if self.count <= REFUSALS_LOGGED_MAX:
            self._note(self._event, {"peer": peer[:64], "reason": reason, "count": self.count})
