"""The command ``ddloco simulate`` in a terminal."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

from tests.children import descendants_of

COMMAND = [sys.executable, "-m", "ddloco", "simulate", "goodput", "--jobs", "2"]


def test_ctrl_c_ends_it_at_once():
    """A terminal interrupts all processes; none of them goes on with the worlds that wait."""
    with subprocess.Popen(
        [*COMMAND, "--seeds", "100000"],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            # The two that run worlds, the one that starts them, and Python's resource tracker.
            while running.poll() is None and len(descendants_of(running.pid)) < 4:
                time.sleep(0.1)
            os.killpg(running.pid, signal.SIGINT)
            _, said = running.communicate(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    assert said == "ddloco: interrupted\n"
    assert running.returncode == 1
