"""The log: one JSON object a line in ``log.jsonl``, made with structlog, timed by the door.

Several processes may append to the same file: each line is one write.
"""

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import msgspec
import structlog

from clocks import actor_of

LOG_FILE = "log.jsonl"

FIRST = ("event", "actor", "at", "ref")
"""They lead every line, so that people can read it."""

_encode = msgspec.json.Encoder().encode


class ActorLog:
    """Where one actor's observations go; with ``path`` None they are dropped."""

    def __init__(self, path: Path | None, incarnation: str) -> None:
        self._file = path.open("ab", buffering=0) if path is not None else None
        self._log: Any = None
        if self._file is not None:
            self._log = structlog.wrap_logger(
                structlog.BytesLogger(self._file), processors=[_first_things_first, _json]
            ).bind(actor=actor_of(incarnation))
        self._incarnation = incarnation

    def observe(self, event: str, at: float, number: int, fields: dict[str, Any]) -> None:
        """One line; ``ref`` names the event on the tape that it belongs to."""
        if self._log is not None:
            ref = f"{self._incarnation}:{number}"
            # What an actor calls as the line calls its own gets another name, and is there.
            said = {f"{name}_" if name in FIRST else name: value for name, value in fields.items()}
            self._log.info(event, at=round(at, 6), ref=ref, **said)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()


def _first_things_first(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    first = {key: event.pop(key) for key in FIRST if key in event}
    return {**first, **event}


def _json(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> bytes:
    return _encode(event)
