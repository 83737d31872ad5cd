"""Runs a job whose syncer writes to a small disk that is full for a while; in a mount namespace of
its own: python -m tests.ordinary.full_disk FOLDER."""

import subprocess
import sys
import time
from pathlib import Path

from tests.ordinary.conftest import Engine

DISK = "24m"
FULL_AFTER_S, FREE_AFTER_S = 6.0, 16.0
STEPS = "--set=job.steps=6000"


def fill(disk):
    """Write until there is no room; returns the file."""
    path = disk / "fill"
    try:
        with path.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(65536))
    except OSError:
        return path


def run(folder):
    """Run the job to its end; returns how everyone has ended, and how often one was restarted."""
    engine, disk = Engine(folder), folder / "small"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", disk], check=True)
    common = ("job.toml", "--set=job.learners=1", "--set=sync.quorum=1", STEPS)
    engine.start("syncer", "syncer", *common, "--bind", "tcp://127.0.0.1:*", "--dir", disk / "a")
    at = ("--connect", f"file:{disk}/a/syncer.address", "--dir", "l")
    engine.start("learner-0", "learner", *common, *at, "--name", "learner-0")
    try:
        engine.look_after(FULL_AFTER_S)
        full = fill(disk)
        engine.look_after(FREE_AFTER_S - FULL_AFTER_S)
        full.unlink()
        return engine.run(), engine.restarts
    finally:
        engine.kill()


if __name__ == "__main__":
    begun = time.monotonic()
    ends, restarts = run(Path(sys.argv[1]))
    print(ends, restarts, f"{time.monotonic() - begun:.0f} s")
    sys.exit(ends != {"syncer": 0, "learner-0": 0} or not restarts)
