"""Requests from outside: Ctrl-C, SIGTERM, a terminal that is closed, and a parent process that asks
for the end or exits. The parent process is told the result in return."""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import trio

Request = Callable[[str], None]

STOP = b"s"
"""The byte that a parent process writes to an actor's standard input to end its job."""

RESULT_BYTES_MAX = 1 << 20
"""Length of a result that a parent process accepts: a few numbers, and the task's own metrics."""


async def stop_on_signal(stop: Request, leave: Request | None = None) -> None:
    """Turn the first SIGINT into a stop request, and the first SIGTERM or SIGHUP into a leave
    request. A second SIGINT is from a user who wants an immediate end. SIGTERM comes from programs,
    which may repeat it; repetitions are ignored. SIGHUP comes from a terminal that is closed, and
    is ignored if it was before, as by ``nohup``."""
    seen: set[int] = set()
    numbers = {signal.SIGINT, signal.SIGTERM}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.add(signal.SIGHUP)
    try:
        with trio.open_signal_receiver(*sorted(numbers)) as received:
            async for number in received:
                again, _ = number in seen, seen.add(number)
                if again and number == signal.SIGINT:
                    raise KeyboardInterrupt
                if again:
                    continue
                request = leave if leave is not None and number != signal.SIGINT else stop
                request(f"asked to stop by {signal.Signals(number).name}")
    finally:
        for number in seen - {signal.SIGINT}:
            # This process is about to exit; a second one must not change its exit code.
            signal.signal(number, signal.SIG_IGN)


async def stop_with_parent(stop: Request, leave: Request) -> None:
    """Pass on the parent process's requests from standard input, and leave when it ends."""
    await trio.lowlevel.wait_readable(0)
    while os.read(0, 1):
        stop("asked to stop by the parent process")
        await trio.lowlevel.wait_readable(0)
    leave("the parent process has ended")


def end_with_parent() -> None:
    """End this process as SIGTERM does once its standard input ends: the process that started it
    has ended, however that came."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def tell_parent(result: dict[str, Any]) -> None:
    """Send the job's result to a parent process that hears it: one whose end of standard input is a
    socket."""
    with suppress(OSError):  # It hears nothing, or has gone.
        os.write(0, msgspec.json.encode(result))


async def result_from(stream: trio.abc.ReceiveStream) -> dict[str, Any] | None:
    """What an actor has told its parent process before it ended; None if it has told nothing, or
    not all of it."""
    told = bytearray()
    with suppress(trio.BrokenResourceError):
        async for piece in stream:
            told += piece
            if len(told) > RESULT_BYTES_MAX:
                return None
    try:
        return msgspec.json.decode(told, type=dict[str, Any])
    except msgspec.DecodeError:
        return None
