"""What was raised, for people: the one in a group, and what the system said."""

import errno
import resource


def first_of(error: BaseException) -> BaseException:
    """The first plain exception in a group, groups within it included."""
    found = error
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def said_of(error: OSError) -> str:
    """What the system said of which file, in one line; also of errors that name neither."""
    reason = error.strerror or str(error) or type(error).__name__
    if error.errno == errno.EMFILE:
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        reason = f"{reason}: this process may have {most} (ulimit -n)"
    return f"{error.filename}: {reason}" if error.filename else reason
