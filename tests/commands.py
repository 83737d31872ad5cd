"""Commands of ddloco, called in the process of the tests.

What a command imports has been imported then, and its workers are forked from the server that the
commands before it have left: a command costs a tenth of what it costs as a process. Where a process
is what is tested, such as its signals or its end, ``installed`` has the console script.
"""

import io
import signal
import subprocess
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from ddloco.cli.parser import main
from tests.reruns import look_at

CALL_S_MAX = 400
"""How long a command may take, in seconds."""


def here(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Call a command in this process; its exit code, and what it said."""
    out, err = io.StringIO(), io.StringIO()
    with (
        limited(CALL_S_MAX),
        chdir(cwd or Path.cwd()),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        main([str(word) for word in words])
    look_at(out.getvalue())
    return subprocess.CompletedProcess(
        ["ddloco", *words], end.value.code or 0, out.getvalue(), err.getvalue()
    )


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in what takes longer."""

    def over(*_: Any) -> None:
        raise TimeoutError(f"not over within {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
