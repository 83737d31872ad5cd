"""Keeping freed memory: large arrays come and go at every merge, and fresh pages cost more than
the arithmetic on them.

glibc gives allocations of over 128 KiB back to the system when they are freed, and takes a page
fault for each 4 KiB of the next one: 21,000 in a round of 4 x 64 MiB. With these settings, and with
arrivals in the arena, the round went from 0.49 to 0.44 s (medians on two cores).

What is kept must then be used by whoever needs memory next. glibc gives each thread a heap of its
own, so that each kept the largest that it had ever held: a syncer under a hail of 4 MiB messages
grew by 8 or 16 MiB now and then, though nothing was in use. One heap serves all threads here; our
allocations are few and large, so nobody waits for it.

What is kept is the most that was ever in use at once, and a burst of messages is that for a moment
only. So once a minute, where more lies free than is in use, it is given back after all; 100 MiB
cost 20 ms then, and 110 ms of page faults when they are used again (on two busy cores).
"""

import ctypes
import sys

import trio

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
KEPT_BYTES = 32 * 2**20
"""glibc's own limit for the size from which it maps memory apart."""

SPARE_BYTES = 8 * 2**20
"""So much may lie free in any heap, and as much as is in use in a larger one: the next merge will
want it."""

LOOK_S = 60.0
"""A minute of bursts is kept at most; a look costs microseconds."""


def keep_freed_memory() -> bool:
    """Ask the allocator of this process to use freed memory again; whether it will.

    To be asked before threads are started: one that has a heap of its own already keeps it.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # Another C library, which has its own way.
    asked = ((M_MMAP_THRESHOLD, KEPT_BYTES), (M_TRIM_THRESHOLD, 2**31 - 1), (M_ARENA_MAX, 1))
    return all(mallopt(*each) == 1 for each in asked)


async def give_back_spare() -> None:
    """Look now and then how much lies free in this process' heap, and give it back; for ever."""
    while True:
        await trio.sleep(LOOK_S)
        await trio.to_thread.run_sync(give_back)


def give_back() -> bool:
    """Give the system what lies free in the heap, if that is much; whether any of it went."""
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
    """What glibc says of its heap, by its names: bytes that lie free (``fordblks``), are in use
    (``uordblks``), and are in use in mappings of their own (``hblkhd``)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )
