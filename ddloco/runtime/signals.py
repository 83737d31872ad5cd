"""Requests that come from outside: Ctrl-C, SIGTERM, the parent process and its end."""

import os
import signal
from collections.abc import Callable

import trio

Request = Callable[[str], None]

STOP = b"s"
"""What a parent process writes to the standard input of an actor that is to end its job."""


async def stop_on_signal(stop: Request, leave: Request | None = None) -> None:
    """Turn the first SIGINT into a request, and the first SIGTERM into another.

    A second SIGINT is a person's who wants it to end at once. SIGTERM comes from programs, which
    may send it to a process and to its group, or again: once is enough.
    """
    seen: set[int] = set()
    try:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
            async for number in received:
                again, _ = number in seen, seen.add(number)
                if again and number == signal.SIGINT:
                    raise KeyboardInterrupt
                if again:
                    continue
                request = leave if leave is not None and number == signal.SIGTERM else stop
                request(f"asked to stop by {signal.Signals(number).name}")
    finally:
        if signal.SIGTERM in seen:
            # This process is about to exit; a second one must not change its exit code.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


async def stop_with_parent(stop: Request, leave: Request) -> None:
    """Do what the parent process asks on standard input, and leave when it ends."""
    await trio.lowlevel.wait_readable(0)
    while os.read(0, 1):
        stop("asked to stop by the process that started this one")
        await trio.lowlevel.wait_readable(0)
    leave("the process that started this one is gone")
