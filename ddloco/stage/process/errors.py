"""Readable forms of exceptions: the first one in a group, where one was raised, and the text of a
system error."""

import errno
import resource
import traceback
from pathlib import Path


def first_of(error: BaseException) -> BaseException:
    """The first plain exception in a group, including nested groups."""
    found = error
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def raised_at(error: BaseException, called: str = "") -> str:
    """The file and line where an exception was raised; if that is in the file ``called``, the line
    that called it."""
    frames = traceback.extract_tb(error.__traceback__)
    callers = [frame for frame in frames if frame.filename != called]
    place = callers[-1]
    return f"{Path(place.filename).name}:{place.lineno}"


def said_of(error: OSError) -> str:
    """A system error and its file, if any, on one line."""
    reason = error.strerror or str(error) or type(error).__name__
    if error.errno == errno.EMFILE:
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        reason = f"{reason}: this process may have {most} (ulimit -n)"
    return f"{error.filename}: {reason}" if error.filename else reason
