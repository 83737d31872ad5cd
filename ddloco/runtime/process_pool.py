"""Processes that compute something for a command, and do not outlive it."""

import multiprocessing
import multiprocessing.forkserver
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

INTERRUPT = frozenset({signal.SIGINT})


class ProcessLostError(Exception):
    """A process ended before it had computed its part."""


@contextmanager
def process_pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Start processes that end with the block.

    If the block is left early, what waits is not computed any more. Ctrl-C, which a terminal sends
    to all processes, ends them at once, unless this process ignores it: otherwise each would go on
    with what it was given next.

    Raises:
        ProcessLostError: one of them was killed.
    """
    _start_server()
    context = multiprocessing.get_context("forkserver")
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    with ProcessPoolExecutor(processes, context, None if ignored else _end_at_interrupt) as pool:
        try:
            yield pool
        except BrokenProcessPool:
            reason = "a process that computed a part was killed, perhaps because memory ran out"
            raise ProcessLostError(reason) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _start_server() -> None:
    """Start the server that forks the processes, which inherit that Ctrl-C is blocked: at first
    they would print where it has met them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPT)
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_at_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPT)
