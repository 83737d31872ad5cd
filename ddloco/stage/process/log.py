"""The log: one JSON object per line in ``log.jsonl``. Several processes may append to the same
file: each line is a single write. A line that cannot be written, as on a full disk, is lost, and
counted in a later line. No actor ends because of its log."""

from collections.abc import Callable, MutableMapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import msgspec

from clocks import actor_of, mark_in_use, open_to_append

FIRST = ("event", "actor", "at", "date", "ref")
"""Fields at the beginning of every line, for readability."""

Note = Callable[[str, dict[str, Any]], None]

_encode = msgspec.json.Encoder().encode


class ActorLog:
    """Writes one actor's observations; with ``path`` None they are discarded. ``began`` is when the
    actor's clock was 0, in seconds since 1970, for dates; None where time is not the wall clock's,
    as in simulations."""

    def __init__(self, path: Path | None, incarnation: str, began: float | None = None) -> None:
        self.began = began
        self._file = _Lines(path) if path is not None else None
        self._log: Any = None
        if self._file is not None:
            # It imports what draws in colours; commands that only read a run log nothing.
            import structlog  # noqa: PLC0415

            # The logger calls the given function with each line.
            self._log = structlog.wrap_logger(
                _Calls(self._file.add), processors=[_first_things_first, _json]
            ).bind(actor=actor_of(incarnation))
        self._incarnation = incarnation
        self._lost = 0
        """Lines that could not be written and have not been reported yet."""

    def observe(self, event: str, at: float, number: int, fields: dict[str, Any]) -> None:
        """Write one line; ``ref`` is the number of the event on the tape that it belongs to."""
        if self._log is not None:
            ref = f"{self._incarnation}:{number}"
            when: dict[str, Any] = {"at": round(at, 6)}
            if self.began is not None:
                when["date"] = date_of(self.began + at)
            lost = {"count": self._lost}
            if self._lost and self._log.info("log lines lost", ref=ref, **when, **lost):
                self._lost = 0
            # Fields with the name of a standard field are renamed, so that none is lost.
            said = {f"{name}_" if name in FIRST else name: value for name, value in fields.items()}
            if not self._log.info(event, ref=ref, **when, **said):
                self._lost += 1

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def date_of(seconds: float) -> str:
    """A time of the wall clock, in seconds since 1970, in UTC: ``2026-11-22T18:05:12.345Z``."""
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat(timespec='milliseconds')[:-6]}Z"


class _Calls:
    def __init__(self, add: Callable[[bytes], bool]) -> None:
        self.info = add


class _Lines:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        with suppress(Exception):  # It is tried again with each line.
            self._open()
        self._torn = False
        """Whether the last line was written only in part."""

    def _open(self) -> IO[bytes]:
        if self._file is None:
            self._file = open_to_append(self._path)
            mark_in_use(self._file)
        return self._file

    def add(self, line: bytes) -> bool:
        """Append a line with a single write; returns whether all of it was written."""
        whole = (b"\n" if self._torn else b"") + line + b"\n"
        try:
            written = self._open().write(whole)
        except OSError:
            return False
        self._torn = written < len(whole) and (self._torn or written > 0)
        return written == len(whole)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _first_things_first(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    first = {key: event.pop(key) for key in FIRST if key in event}
    return {**first, **event}


def _json(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> bytes:
    return _encode(event)
