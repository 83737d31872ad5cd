"""Processes that compute something for a command, and do not outlive it."""

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

INTERRUPT = frozenset({signal.SIGINT})


class ProcessLostError(Exception):
    """A process ended before it had computed its part."""


class ProcessPool:
    def __init__(self, executor: ProcessPoolExecutor) -> None:
        self._executor = executor

    def submit(
        self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs
    ) -> "Future[T]":
        """Have a process compute a part; ``function`` must be importable by name."""
        with _interrupt_later():
            return self._executor.submit(function, *arguments, **named)


@contextmanager
def process_pool(processes: int) -> Iterator[ProcessPool]:
    """Start processes that end with the block; if it is left early, what waits is not computed any
    more. Ctrl-C, which a terminal sends to all processes, ends them at once, unless this process
    ignores it. ``ProcessLostError`` if one of them was killed."""
    _start_server()
    context = multiprocessing.get_context("forkserver")
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    with ProcessPoolExecutor(processes, context, None if ignored else _end_at_interrupt) as pool:
        try:
            yield ProcessPool(pool)
        except BrokenProcessPool:
            reason = "a process that computed a part was killed, perhaps because memory ran out"
            raise ProcessLostError(reason) from None
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupt_later() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block. In the middle of a submission, KeyboardInterrupt would
    leave a lock of the executor held, and its shutdown would wait for that lock forever."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_server() -> None:
    """Start the server that forks the processes, with Ctrl-C blocked, which they inherit: a process
    that it interrupts before ``_end_at_interrupt`` would print a traceback."""
    multiprocessing.resource_tracker.ensure_running()  # It would unblock Ctrl-C when it starts.
    with _interrupt_later():
        multiprocessing.forkserver.ensure_running()


def _end_at_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPT)
