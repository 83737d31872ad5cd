"""The door for what is only for people, or for later: displays, logs, trackers, status, figures.
Whatever fails behind it is one line, once, and never ends, holds or judges what it tells of."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from ddloco.stage.process.entry_point import in_one_line

T = TypeVar("T")

REASON_CHARS_MAX = 300

FAILED_ASIDE = "aside failed"
"""Log event of what has failed, and why."""


class BestEffort:
    """Does what may fail; ``say`` is called with what has failed and why, the first time that it
    does."""

    def __init__(self, say: Callable[[str, str], None]) -> None:
        self._say = say
        self._failed: set[str] = set()

    def do(self, name: str, what: Callable[[], T], instead: T) -> T:
        """Return what ``what`` returns, or ``instead`` if it raises."""
        try:
            return what()
        except Exception as error:  # noqa: BLE001, see above
            self._tell(name, error)
            return instead

    async def run(self, name: str, what: Callable[[], Awaitable[object]]) -> None:
        """Run ``what`` to its end, which an exception may be."""
        try:
            await what()
        except Exception as error:  # noqa: BLE001, see above
            self._tell(name, error)

    def _tell(self, name: str, error: Exception) -> None:
        if name in self._failed:
            return
        self._failed.add(name)
        with suppress(Exception):  # Then nobody can be told.
            self._say(name, in_one_line(error)[:REASON_CHARS_MAX])
