"""Settings of the memory allocator that keep freed memory: faulting in new pages costs more than
the arithmetic on them. By default glibc returns allocations of over 128 KiB when they are freed,
and takes a page fault for each 4 KiB of the next one: 21,000 in a round of 4 x 64 MiB, which went
from 0.49 to 0.44 s (medians on two cores).

All threads share one heap: with a heap for each, a syncer that received many messages of 4 MiB grew
by 8 or 16 MiB now and then, though nothing was in use. Once a minute, if more is free than in use,
it is returned. Returning 100 MiB takes 20 ms, and 110 ms of page faults when it is used again (on
two busy cores).
"""

import ctypes
import sys

import trio

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
KEPT_BYTES = 32 * 2**20
"""glibc's upper limit for the size from which it maps memory separately."""

SPARE_BYTES = 8 * 2**20
"""Free memory below this, or below the amount in use, is kept for the next merge."""

LOOK_S = 60.0
"""Interval between checks in seconds: memory of a burst is kept for a minute at most; a check takes
microseconds."""


def keep_freed_memory() -> bool:
    """Make the allocator of this process reuse freed memory; returns whether it accepted. Call this
    before threads are started: a thread that already has a heap of its own keeps it."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # Another C library, with its own interface.
    asked = ((M_MMAP_THRESHOLD, KEPT_BYTES), (M_TRIM_THRESHOLD, 2**31 - 1), (M_ARENA_MAX, 1))
    return all(mallopt(*each) == 1 for each in asked)


async def give_back_spare() -> None:
    while True:
        await trio.sleep(LOOK_S)
        await trio.to_thread.run_sync(give_back)


def give_back() -> bool:
    """Return free memory to the system if there is much of it; returns whether any was returned."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        libc = ctypes.CDLL(None)
        look, trim = libc.mallinfo2, libc.malloc_trim
    except (OSError, AttributeError):
        return False  # Another C library, or an older one.
    look.restype = _Heap
    heap = look()
    much = max(SPARE_BYTES, heap.uordblks + heap.hblkhd)
    return heap.fordblks >= much and trim(ctypes.c_size_t(0)) == 1


class _Heap(ctypes.Structure):
    """glibc's statistics of its heap, in its terms: bytes that are free (``fordblks``), in use
    (``uordblks``), and in use in separate mappings (``hblkhd``)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )
