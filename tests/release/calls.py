"""Commands of a release, each held to its end."""

import os
import shlex
import subprocess
from pathlib import Path

STEP_S_MAX = 1800.0
"""The longest that one command may take, in seconds."""


class FailedError(Exception):
    """A command did not end well; its text has what it said."""


def call(*words: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command to its end, and return what it said.

    Args:
        words: the command.
        cwd: where; the current folder if None.
        env: variables that differ from this process's.

    Raises:
        FailedError: it ended with another status than 0.
    """
    command = [str(word) for word in words]
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=STEP_S_MAX,
    )
    if done.returncode:
        said = f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}"
        raise FailedError(said)
    return done.stdout
