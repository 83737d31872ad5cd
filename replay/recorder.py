"""Records each event before it is handled, and the digest of its effects before they are
performed."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import xxhash

from replay import tape
from replay.tape import TapeError, TapeWriter
from replay.tape_files import follow

OnError = Literal["stop", "drop"]

_encode = msgspec.msgpack.Encoder().encode
"""Dicts keep their order, because the machine that handles an event sees it."""

_encode_sorted = msgspec.msgpack.Encoder(order="deterministic").encode


def digest_effects(effects: Sequence[Any]) -> bytes:
    """The digest of an event's effects, by which live run and replay are compared: xxh3-128."""
    return xxhash.xxh3_128_digest(_encode_sorted(effects))


class Recorder:
    """Writes one incarnation's tape.

    Args:
        writer: an open tape, or None to record nothing.
        on_error: "stop" lets a tape that cannot be written end its actor; "drop" gives up the tape.
    """

    def __init__(self, writer: TapeWriter | None, on_error: OnError = "stop") -> None:
        self._writer = writer
        self._on_error: OnError = on_error
        self.dropped: str | None = None
        """None if recording was not given up."""

    def event(self, n: int, at: float, learned: dict[str, int], event: Any) -> None:
        """Record event ``n`` before it is handled; ``learned`` are the entries that it adds to the
        clock."""
        if self._writer is not None:
            self._append(tape.Event(n, at, msgspec.Raw(_encode(event)), learned))

    def effects(self, n: int, effects: Sequence[Any]) -> None:
        """Record the effects of event ``n`` before any of them is performed."""
        if self._writer is not None:
            self._append(tape.Effects(n, len(effects), digest_effects(effects)))

    def raised(self, n: int, error: Exception) -> None:
        """Record that handling event ``n`` raised an error."""
        if self._writer is not None:
            self._append(tape.Raised(n, f"{type(error).__name__}: {error}"[:1000]))

    def go_on(self, n: int, clock: dict[str, int]) -> None:
        """End the file after event ``n`` and begin the next one of its chain.

        If the next one cannot be created, the present file is continued.
        """
        writer = self._writer
        if writer is None:
            return
        try:
            self._writer = follow(writer, n, clock)
        except TapeError:
            return
        writer.close()

    def close(self, n: int, reason: str | None) -> None:
        """Close the tape after event ``n``; without a reason it simply ends, as after a kill."""
        if reason is not None:
            self._append(tape.Closed(n, reason))
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _append(self, record: tape.Record) -> None:
        writer = self._writer
        if writer is None:
            return
        try:
            writer.append(record)
        except TapeError as error:
            writer.close()
            self._writer = None
            if self._on_error == "stop":
                raise
            self.dropped = str(error)
