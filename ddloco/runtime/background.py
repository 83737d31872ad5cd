"""Work that may wait: in a thread to which the system gives what others leave over."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

NICE = 5
"""A quarter of the time where all cores are wanted, all of it where one is free. No less than that:
such a thread holds Python's lock now and then, and a snapshot must be there within minutes."""

NICE_MAX = 19


def in_background(work: Callable[[], T]) -> T:
    """Do it in a thread of low priority, and wait for that; to be called in a thread."""
    with ThreadPoolExecutor(1, "background", _step_back) as pool:
        return pool.submit(work).result()


def _step_back() -> None:
    if sys.platform == "linux":  # Elsewhere a thread has no priority of its own.
        thread = threading.get_native_id()
        before = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, min(before + NICE, NICE_MAX))
