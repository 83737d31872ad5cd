"""Reads the log of a run while processes append to it."""

import json
import os
from collections.abc import Callable, Container
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from clocks import open_regular
from ddloco.stage.files.run_folder import LOG_FILE


class LogTail:
    """Reads what other processes append to the log. The file stays open for as long as this object
    is used: when strangers hold all of this process's descriptors for a moment, it reads on."""

    def __init__(self, folder: Path, *, from_end: bool = False) -> None:
        self._path = folder / LOG_FILE
        self._file: FileIO | None = None
        self._offset = self._size() if from_end else 0
        self.unread = 0
        """Lines that were left out, since they do not say what their event says."""

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def new_lines(self, until: Container[str] = ()) -> list[dict[str, Any]]:
        """The complete lines since the last call, up to the first event in ``until``; lines torn by
        a full disk are skipped."""
        more = self._size() - self._offset
        if self._file is None or more <= 0:
            return []
        data = os.pread(self._file.fileno(), more, self._offset)
        found: list[dict[str, Any]] = []
        for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
            self._offset += len(line)
            said = _line_of(line)
            if said is not None:
                found.append(said)
                if said["event"] in until:
                    break
        return found

    def give(self, take: Callable[[dict[str, Any]], object]) -> None:
        """Give each new line to ``take``; one that it cannot read, of another hand or version, is
        left out and counted: no display and no tracker ends of it."""
        for line in self.new_lines():
            try:
                take(line)
            except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
                self.unread += 1

    def _size(self) -> int:
        if self._file is None:
            with suppress(OSError):  # It is not there yet, or no descriptor is free.
                self._file = open_regular(self._path)
        return os.fstat(self._file.fileno()).st_size if self._file is not None else 0


def _line_of(line: bytes) -> dict[str, Any] | None:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    whole = isinstance(said.get("event"), str) and isinstance(said.get("actor"), str)
    return said if whole else None
