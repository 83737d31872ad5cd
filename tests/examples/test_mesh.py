"""The mesh example: each layout has the losses of one device, in less memory on each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAIN = "from examples.mesh import main; main(steps=3, size='tiny')"


@pytest.mark.slow
def test_layouts_are_compared():
    """In a process of its own, which has eight devices."""
    done = subprocess.run(
        [sys.executable, "-c", MAIN],
        cwd=ROOT,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "8"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    _, alone, *layouts = (line.split() for line in done.stdout.splitlines())
    assert len(layouts) == 3
    for *_, loss, difference, megabytes in layouts:
        assert loss == alone[-2]
        assert float(difference) < 1e-5
        assert float(megabytes) < float(alone[-1])
