"""Benchmarks run, in their quick form; what they measure then means nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")


@pytest.mark.parametrize("name", ["handle"])
def test_a_benchmark_runs(name):
    """It says something of each of its sizes, and ends well."""
    done = subprocess.run(
        [sys.executable, str(RUN), "--quick", name],
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    assert (0, 2) == (done.returncode, done.stdout.count(f"{name}: ")), done.stderr
