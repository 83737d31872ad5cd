"""Benchmarks run, in their quick form; what they measure then means nothing."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")
NAMES = sorted(each.stem.removeprefix("bench_") for each in RUN.parent.glob("bench_*.py"))
LONG = {
    "frozen",
    "fuzz",
    "goodput",
    "many_learners",
    "peers",
    "quality",
    "regions",
    "return",
    "snapshot",
    "step",
    "utilisation",
}
"""Those that need more than ten seconds on a quiet machine: nearly all run whole jobs."""


def run(*arguments):
    """What the benchmarks' command says."""
    return subprocess.run(
        [sys.executable, str(RUN), *arguments],
        capture_output=True,
        check=False,
        text=True,
        timeout=400,
    )


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] * (each in LONG)) for each in NAMES]
)
def test_a_benchmark_runs(name):
    """It says something, and ends well."""
    begun = time.perf_counter()
    done = run("--quick", name)
    print(f"{name}: {time.perf_counter() - begun:.1f} s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert any(line.startswith(f"{name}: ") for line in done.stdout.splitlines())


def test_every_benchmark_is_run_when_none_is_named():
    """And two of five, at least, in the normal run of the tests."""
    listed = re.findall(r"\w+", run("--help").stdout)
    assert [] == [name for name in NAMES if name not in listed]
    assert 5 * len(LONG) <= 3 * len(NAMES)
