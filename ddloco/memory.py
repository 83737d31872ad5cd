"""Keeping freed memory: large arrays come and go at every merge, and fresh pages cost more than
the arithmetic on them.

glibc gives allocations of over 128 KiB back to the system when they are freed, and takes a page
fault for each 4 KiB of the next one: 21,000 in a round of 4 x 64 MiB. With these settings, and with
arrivals in the arena, the round went from 0.49 to 0.44 s (medians on two cores).

What is kept must then be used by whoever needs memory next. glibc gives each thread a heap of its
own, so that each kept the largest that it had ever held: a syncer under a hail of 4 MiB messages
grew by 8 or 16 MiB now and then, though nothing was in use. One heap serves all threads here; our
allocations are few and large, so nobody waits for it.
"""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
KEPT_BYTES = 32 * 2**20
"""glibc's own limit for the size from which it maps memory apart."""


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
