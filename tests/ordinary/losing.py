"""Runs ddloco, and kills this process at a call, once, or has calls fail each time: python -m
tests.ordinary.losing MARK WHERE[,WHERE...] before|after|fail ARGUMENT..."""

import errno
import importlib
import inspect
import os
import signal
import sys
from functools import wraps
from pathlib import Path

from ddloco.cli.parser import main


def lost_at(mark, where, when):
    """Replace a call by one that ends the process before or after it, or that fails."""
    module, _, name = where.partition(":")
    owner = importlib.import_module(module)
    *path, last = name.split(".")
    for each in path:
        owner = getattr(owner, each)
    sound = getattr(owner, last)

    def die(now):
        if when == "fail":
            mark.with_suffix(f".{last}").touch()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if now == when and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    @wraps(sound)
    def call(*arguments, **more):
        die("before")
        result = sound(*arguments, **more)
        if inspect.isawaitable(result):
            return awaited(result)
        die("after")
        return result

    async def awaited(result):
        done = await result
        die("after")
        return done

    setattr(owner, last, call)


if __name__ == "__main__":
    _, said, called, before_or_after, *rest = sys.argv
    for each in called.split(","):
        lost_at(Path(said), each, before_or_after)
    main(rest)
