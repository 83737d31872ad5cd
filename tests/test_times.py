"""The table of processor time: a test's own, and that of the processes that it starts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

BURN = """
import time
end = time.process_time() + 0.3
while time.process_time() < end:
    pass
"""

PLANTED = f'''
import subprocess, sys, time
BURN = """{BURN}"""

def test_burns_here():
    exec(BURN)

def test_burns_in_a_process():
    subprocess.run([sys.executable, "-c", BURN], check=True)

def test_burns_in_a_process_that_lives_on():
    global living
    living = subprocess.Popen([sys.executable, "-c", BURN + "time.sleep(9)"])
    time.sleep(2)

def test_waits():
    time.sleep(0.3)
    living.kill()
    living.wait()
'''


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """What is printed of four tests that burn processor time, or none."""
    root = tmp_path_factory.mktemp("burning")
    (root / "pytest.ini").write_text("[pytest]\n")
    (root / "tests" / "clocks").mkdir(parents=True)
    (root / "tests" / "clocks" / "test_planted.py").write_text(PLANTED)
    command = [sys.executable, "-m", "pytest", "-p", "tests.times", "-p", "no:cacheprovider"]
    env = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    return subprocess.run(
        [*command, "--rootdir", str(root), str(root)],
        cwd=ROOT, env=env, text=True, capture_output=True, check=True,
    ).stdout  # fmt: skip


def test_each_test_is_named_with_its_time(table):
    """The three that burn it have it, wherever they do; the one that waits has none."""
    found = re.findall(r"^ +([\d.]+) +([\d.]+) +tests/.*::test_(\w+)$", table, re.MULTILINE)
    cpu = {name: float(each) for each, _, name in found}
    burning = ["burns_here", "burns_in_a_process", "burns_in_a_process_that_lives_on"]
    assert sorted(cpu) == sorted([*burning, "waits"])
    assert min(cpu[name] for name in burning) > 0.2
    assert cpu["waits"] < 0.2


def test_a_folder_has_the_sum(table):
    """And all folders together, which here is one."""
    [cpu] = re.findall(r"^ +([\d.]+) +[\d.]+ +4 +tests/clocks$", table, re.MULTILINE)
    [whole] = re.findall(r"^ +([\d.]+) +[\d.]+ +4 +all$", table, re.MULTILINE)
    assert cpu == whole
    assert float(cpu) > 0.6
