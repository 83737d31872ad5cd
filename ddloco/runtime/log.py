"""The log: one JSON object a line in ``log.jsonl``, made with structlog, timed by the door.

Several processes may append to the same file: each line is one write. One that cannot be written,
as on a full disk, is lost, and the next one that can says so: no actor ends for its log's sake.
"""

from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import msgspec
import structlog

from clocks import actor_of

FIRST = ("event", "actor", "at", "ref")
"""They lead every line, so that people can read it."""

_encode = msgspec.json.Encoder().encode


class ActorLog:
    """Where one actor's observations go; with ``path`` None they are dropped."""

    def __init__(self, path: Path | None, incarnation: str) -> None:
        self._file = _Lines(path) if path is not None else None
        self._log: Any = None
        if self._file is not None:
            # A logger that calls what it is given with each line.
            self._log = structlog.wrap_logger(
                _Calls(self._file.add), processors=[_first_things_first, _json]
            ).bind(actor=actor_of(incarnation))
        self._incarnation = incarnation
        self._lost = 0
        """Lines that could not be written, and of which nothing was said yet."""

    def observe(self, event: str, at: float, number: int, fields: dict[str, Any]) -> None:
        """One line; ``ref`` names the event on the tape that it belongs to."""
        if self._log is not None:
            ref = f"{self._incarnation}:{number}"
            lost = {"count": self._lost}
            if self._lost and self._log.info("log lines lost", at=round(at, 6), ref=ref, **lost):
                self._lost = 0
            # What an actor calls as the line calls its own gets another name, and is there.
            said = {f"{name}_" if name in FIRST else name: value for name, value in fields.items()}
            if not self._log.info(event, at=round(at, 6), ref=ref, **said):
                self._lost += 1

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()


class _Calls:
    """What structlog takes for a logger: hands each line on."""

    def __init__(self, add: Callable[[bytes], bool]) -> None:
        self.info = add


class _Lines:
    """Lines at the end of a file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._torn = False
        """Whether the last line is there in part."""

    def add(self, line: bytes) -> bool:
        """One line, in one write; whether it is there."""
        whole = (b"\n" if self._torn else b"") + line + b"\n"
        try:
            written = self._file.write(whole)
        except OSError:
            return False
        self._torn = written < len(whole) and (self._torn or written > 0)
        return written == len(whole)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def _first_things_first(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    first = {key: event.pop(key) for key in FIRST if key in event}
    return {**first, **event}


def _json(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> bytes:
    return _encode(event)
