"""A test of real processes runs twice when it failed; one in which a replay differed does not."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reruns import FOLDERS

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
SAID = "look_at('events...\\nDIFFERENT DATA: the batch of inner step 2'); assert not first"
SHOWN = "assert not first, 'identical, or DIVERGENCE at learner-0.1:7 (result)'"
JSON = """look_at('{"identical": false, "divergence": {"actor": "x"}}'); assert not first"""
EQUAL = """look_at('{"identical": true, "divergence": null}'); assert not first"""
RAISED = (
    "from replay import Divergence\n    if first: raise ExceptionGroup('', "
    "[Divergence('learner-0.1', 7, 'result', 'a', 'b', {})])"
)


CASES = (
    ("processes", LATE, {"rerun", "passed"}),
    ("examples", LATE, {"rerun", "passed"}),
    ("hosts", EVER, {"rerun", "failed"}),
    ("clocks", LATE, {"failed"}),
    ("processes", SAID, {"failed"}),
    ("processes", SHOWN, {"failed"}),
    ("processes", JSON, {"failed"}),
    ("processes", EQUAL, {"rerun", "passed"}),
    ("processes", RAISED, {"failed"}),
)


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """All cases, played in one run of pytest: what it printed."""
    root = tmp_path_factory.mktemp("planted")
    (root / "pytest.ini").write_text("[pytest]\n")
    for at, (folder, how, _) in enumerate(CASES):
        planted = root / folder / str(at) / f"test_planted_{at}.py"
        planted.parent.mkdir(parents=True)
        planted.write_text(PLANTED.format(how=how))
    command = [sys.executable, "-m", "pytest", "-p", "tests.reruns", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, "--rootdir", str(root), "-rfpER", str(root)],
        cwd=ROOT, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert "passed" in ran.stdout, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def outcomes(printed):
    """What became of each case."""
    found = re.findall(r"^(RERUN|PASSED|FAILED) .*test_planted_(\d+)\.py", printed, re.MULTILINE)
    return [{word.lower() for word, n in found if int(n) == at} for at in range(len(CASES))]


@pytest.mark.parametrize("at", range(len(CASES)))
def test_what_runs_twice(outcomes, at):
    """Late once is run again and printed; a difference, however it was found, stands at once."""
    _, how, wanted = CASES[at]
    assert wanted == outcomes[at], how


def test_who_ran_twice_is_named_with_the_reason(printed):
    """A line for each, once."""
    named = re.findall(r"^ran twice: .*test_planted_(\d+)\.py\S*: (.+)$", printed, re.MULTILINE)
    assert sorted(int(at) for at, _ in named) == [
        at for at, (*_, wanted) in enumerate(CASES) if "rerun" in wanted
    ]
    assert {reason for _, reason in named} == set(FOLDERS.values())
