"""Which call of a worker has taken long: one that hangs says nothing itself. A thread looks now and
then. It costs nothing while calls are short, and runs while user code sleeps, waits for a socket,
or computes outside of Python."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LOOK_S = 5.0
"""Interval, in seconds, at which the thread looks."""

LONG_S = 60.0
"""How long a call takes, in seconds, when it is told of for the first time; then after twice as
long, again and again."""

WORKER_BUSY = "worker busy"
"""The log event that tells of a long call."""


class CallWatch:
    """Tells of long calls; ``tell`` is called with an event for the actor's log, and its fields."""

    def __init__(self, tell: Callable[[str, dict[str, Any]], None]) -> None:
        self._tell = tell
        self._calls: list[tuple[str, float]] = []
        """The calls that are under way, each within the one before it, with their begin."""
        self._thread: threading.Thread | None = None

    @contextmanager
    def during(self, call: str) -> Iterator[None]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="call watch", daemon=True)
            self._thread.start()
        self._calls.append((call, time.monotonic()))
        try:
            yield
        finally:
            self._calls.pop()

    def _watch(self) -> None:
        told: tuple[str, float] | None = None
        times = 0
        while True:
            time.sleep(LOOK_S)
            newest = self._calls[-1:]  # One operation: the other thread changes the list.
            if newest != [told]:
                told, times = (newest[0], 0) if newest else (None, 0)
            if told is None:
                continue
            call, since = told
            for_s = time.monotonic() - since
            if for_s >= LONG_S * 2**times:
                times += 1
                self._tell(WORKER_BUSY, {"call": call, "for_s": round(for_s, 1)})
