"""Requests to stop that come from outside: Ctrl-C, SIGTERM, the end of the parent process."""

import os
import signal
from collections.abc import Callable

import trio


async def stop_on_signal(request_stop: Callable[[str], None]) -> None:
    """Turn the first SIGINT or SIGTERM into a request; a second one ends the process at once."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        asked = False
        async for number in received:
            if asked:
                raise KeyboardInterrupt
            asked = True
            request_stop(f"asked to stop by {signal.Signals(number).name}")


async def stop_with_parent(request_stop: Callable[[str], None]) -> None:
    """Turn the end of standard input, which the parent process holds open, into a request."""
    await trio.lowlevel.wait_readable(0)
    while os.read(0, 1):
        await trio.lowlevel.wait_readable(0)
    request_stop("the process that started this one is gone")
