"""Common parts of the commands that ask running syncers: timeouts, error lines and exit codes."""

import argparse
import math
import sys
from collections.abc import Awaitable, Callable

import trio

from ddloco.monitoring.client import UnansweredError
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.exit_codes import BAD_INPUT, FOUND, HELD, error_code
from ddloco.stage.process.entry_point import in_one_line
from ddloco.stage.process.errors import first_of
from ddloco.stage.process.terminal import one_line
from replay import DamagedTapeError


def look(what: Callable[[], Awaitable[None]]) -> int:
    """Run a command that asks a job; an error, even in trio's groups, is printed as one line."""
    try:
        trio.run(what)
    except BaseException as error:
        match first_of(error):
            case ConfigError() as found:
                return complain(found)
            case UnansweredError() as found:
                return complain(found, FOUND)
            case KeyboardInterrupt():
                return FOUND
            case OSError() as found:  # A server, a disk, or a file that cannot be used.
                return complain(in_one_line(found), error_code(found))
            case found:
                code = _worker_code(found)
                if code is None:
                    raise
                return complain(found, code)
    return HELD


def _worker_code(error: BaseException) -> int | None:
    """The exit code for what went wrong with a worker; None for any other error."""
    # Only the evaluation of models has workers: their modules take longer to import than a syncer
    # takes to answer.
    from ddloco.workers.process import WorkerDiedError, WorkerRequestError  # noqa: PLC0415

    match error:
        case WorkerRequestError():
            return BAD_INPUT
        case WorkerDiedError():
            return FOUND
        case _:
            return None


def complain_of_tape(given: argparse.Namespace, error: Exception) -> int:
    """``complain``, with the option that reads a damaged tape, if the command was not given it."""
    if isinstance(error, DamagedTapeError) and not given.salvage:
        return complain(f"{error}; --salvage reads what is before that", error_code(error))
    return complain(error)


def complain(problem: object, code: int | None = None) -> int:
    """Print one line about a problem to standard error; returns the exit code, by default that of
    an error or of bad input."""
    sys.stderr.write(f"ddloco: {one_line(problem)}\n")
    if code is not None:
        return code
    return error_code(problem) if isinstance(problem, BaseException) else BAD_INPUT


def with_source(given: argparse.Namespace, problem: str) -> str:
    """A problem that begins with a key of the job, after what has set the key: an override on the
    command line, or else the job file. Any other problem is left as it is."""
    from ddloco.job.config import Job  # noqa: PLC0415, it imports numpy, and status needs none

    table, dot, _ = problem.partition(":")[0].partition(".")
    if not dot or table not in Job.__struct_fields__:
        return problem
    key = problem.partition(":")[0]
    for said in reversed(given.overrides):
        if f"{key}.".startswith(f"{said.partition('=')[0].strip()}."):
            return f"--set {said}: {problem}"
    return f"{given.job}: {problem}" if given.job is not None else problem


def timeout_of(given: argparse.Namespace) -> float:
    """The timeout for an answer, in seconds."""
    if not 0 < given.timeout < math.inf:
        raise ConfigError(f"--timeout {given.timeout}: want seconds, more than 0")
    return given.timeout
