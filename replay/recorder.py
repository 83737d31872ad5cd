"""The pen at the door: each event before it is handled, each effect's digest before it is done."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import xxhash

from replay import tape
from replay.tape import TapeError, TapeWriter
from replay.tape_files import follow

OnError = Literal["stop", "drop"]

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def digest_effects(effects: Sequence[Any]) -> bytes:
    """The digest by which two handlings of an event are compared: xxh3-128 of the encoding."""
    return xxhash.xxh3_128_digest(_encode(effects))


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
        """Why recording was given up, if it was."""

    def event(self, n: int, at: float, learned: dict[str, int], event: Any) -> None:
        """Event ``n``, before it is handled; ``learned`` is what it adds to the clock."""
        if self._writer is not None:
            self._append(tape.Event(n, at, msgspec.Raw(_encode(event)), learned))

    def effects(self, n: int, effects: Sequence[Any]) -> None:
        """What handling event ``n`` asked for, before any of it is done."""
        if self._writer is not None:
            self._append(tape.Effects(n, len(effects), digest_effects(effects)))

    def raised(self, n: int, error: Exception) -> None:
        """Handling event ``n`` failed."""
        if self._writer is not None:
            self._append(tape.Raised(n, f"{type(error).__name__}: {error}"[:1000]))

    def go_on(self, n: int, clock: dict[str, int]) -> None:
        """End the file behind event ``n`` and begin the next one of its chain.

        Where that cannot be made, the old one goes on: it is as good, and only longer.
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
        """The end after event ``n``; without a reason the tape simply ends, as after a kill."""
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
