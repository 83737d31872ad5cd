"""A command that asks running syncers: how long it waits, and with which line and code it ends."""

import argparse
import math
import sys
from collections.abc import Awaitable, Callable

import trio

from ddloco.config.toml import ConfigError
from ddloco.monitoring.client import UnansweredError
from ddloco.nodes.exit_codes import BAD_INPUT, FOUND, HELD
from ddloco.runtime.errors import first_of
from ddloco.workers.executor import ChoreError
from ddloco.workers.process import WorkerDiedError


def look(what: Callable[[], Awaitable[None]]) -> int:
    """Look at a job; whatever is wrong comes out of trio's groups as its one line."""
    try:
        trio.run(what)
    except BaseException as error:
        match first_of(error):
            case ConfigError() | ChoreError() as found:
                return complain(found, BAD_INPUT)
            case UnansweredError() | WorkerDiedError() as found:
                return complain(found, FOUND)
            case KeyboardInterrupt():
                return FOUND
            case _:
                raise
    return HELD


def complain(problem: object, code: int = BAD_INPUT) -> int:
    """One line on standard error for what is wrong; the exit code."""
    sys.stderr.write(f"ddloco: {problem}\n")
    return code


def timeout_of(given: argparse.Namespace) -> float:
    """How long an answer may take.

    Raises:
        ConfigError: no such time.
    """
    if not 0 < given.timeout < math.inf:
        raise ConfigError(f"--timeout {given.timeout}: want seconds, more than 0")
    return given.timeout
