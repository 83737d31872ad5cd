"""A user's own task in the current folder: trained by the installed command, and replayed."""

import shutil

import pytest

from tests.installed import CHECKOUT, DDLOCO
from tests.processes.conftest import call

OWN = """
import clocks
import replay.helper
from snapshot import WHERE
from tests.tasks import regression

assert clocks.MINE and replay.helper.MINE and WHERE == "here"


def task():
    import transport  # Later, when the first step may be under way.

    assert transport.MINE
    return regression()
"""

JOB = """
[job]
task = "replay:task"
steps = 8
learners = 1

[sync]
fragments = 2
interval = 4
"""


@pytest.fixture
def folder(tmp_path):
    """A user's folder, whose modules have the names of our packages."""
    shutil.copytree(CHECKOUT / "tests", tmp_path / "tests", ignore=lambda _, names: set(names))
    shutil.copy(CHECKOUT / "tests" / "tasks.py", tmp_path / "tests")
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "clocks.py").write_text("MINE = True\n")
    (tmp_path / "transport.py").write_text("MINE = True\n")
    (tmp_path / "snapshot.py").write_text("WHERE = 'here'\n")
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay" / "__init__.py").write_text(OWN)
    (tmp_path / "replay" / "helper.py").write_text("MINE = True\n")
    return tmp_path


@pytest.mark.parametrize("form", [(), pytest.param(("--processes",), marks=pytest.mark.slow)])
def test_it_trains_and_replays_whatever_its_modules_are_called(folder, form):
    """Their `replay`, `clocks`, `snapshot` and `transport` are theirs, and ours stay ours."""
    ran = call([*DDLOCO, "run", "job.toml", "--dir", "run", *form], cwd=folder)
    replayed = call([*DDLOCO, "replay", "run"], cwd=folder)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "identical" in replayed.stdout


def test_a_task_that_is_nowhere_is_named(folder):
    """A wrong name is bad input, live and in a replay from a folder that lacks the task."""
    wrong = call([*DDLOCO, "run", "job.toml", "--dir", "r", "--set=job.task=none:task"], cwd=folder)

    assert wrong.returncode == 2, wrong.stdout + wrong.stderr
    assert "there is no module none, here or installed" in wrong.stderr
    assert len(wrong.stderr.strip().splitlines()) == 1
    assert not (folder / "r").exists()
