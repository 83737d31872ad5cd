"""Work of low priority, in a thread that uses otherwise idle CPU time."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

NICE = 5
"""Added to the thread's nice value: it gets about a quarter of a busy core, or all of a free one.
The priority is not lower, because the thread sometimes holds the GIL, and a snapshot must complete
within minutes."""

NICE_MAX = 19


def in_background(work: Callable[[], T]) -> T:
    """Run ``work`` in a thread of low priority and return its result; blocks the calling thread."""
    with ThreadPoolExecutor(1, "background", _step_back) as pool:
        return pool.submit(work).result()


def _step_back() -> None:
    if sys.platform == "linux":  # Elsewhere a thread has no priority of its own.
        thread = threading.get_native_id()
        before = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, min(before + NICE, NICE_MAX))
