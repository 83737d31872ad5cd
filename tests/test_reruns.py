"""A test of real processes runs twice when it failed; one in which a replay differed does not."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PLANTED = """
from pathlib import Path

from tests.reruns import look_at

BEFORE = Path(__file__).with_name("before")


def test_planted():
    first = not BEFORE.exists()
    BEFORE.touch()
    {how}
"""

LATE = "assert not first, 'not so within 60 s'"
EVER = "raise AssertionError('never so')"
SAID = "look_at('events...\\nDIVERGENCE at learner-0.1:7 (result)'); assert not first"
SHOWN = "assert not first, 'identical, or DIVERGENCE at learner-0.1:7 (result)'"
JSON = """look_at('{"identical": false, "divergence": {"actor": "x"}}'); assert not first"""
EQUAL = """look_at('{"identical": true, "divergence": null}'); assert not first"""
RAISED = (
    "from replay import Divergence\n    if first: raise ExceptionGroup('', "
    "[Divergence('learner-0.1', 7, 'result', 'a', 'b', {})])"
)


@pytest.mark.parametrize(
    ("folder", "how", "counts"),
    [
        ("processes", LATE, "1 passed, 1 rerun"),
        ("examples", LATE, "1 passed, 1 rerun"),
        ("hosts", EVER, "1 failed, 1 rerun"),
        ("clocks", LATE, "1 failed"),
        ("processes", SAID, "1 failed"),
        ("processes", SHOWN, "1 failed"),
        ("processes", JSON, "1 failed"),
        ("processes", EQUAL, "1 passed, 1 rerun"),
        ("processes", RAISED, "1 failed"),
    ],
)
def test_what_runs_twice(tmp_path, folder, how, counts):
    """Late once is run again and printed; a difference, however it was found, stands at once."""
    planted = tmp_path / folder / "test_planted.py"
    planted.parent.mkdir()
    planted.write_text(PLANTED.format(how=how))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.reruns", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, "--rootdir", str(tmp_path), "-rfER", str(planted)],
        cwd=ROOT, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert f"= {counts} in " in ran.stdout, ran.stdout + ran.stderr
    assert ("RERUN" in ran.stdout) == ("rerun" in counts)
