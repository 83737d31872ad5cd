"""``breakpoint()`` in a task: passed over in a live run, a debugger in turns in a replay."""

import io
import sys
import threading

import pytest

from ddloco.workers import breakpoints
from ddloco.workers.breakpoints import Turn

WAIT_S = 0.2


@pytest.fixture(autouse=True)
def hook(monkeypatch):
    """The hook of this process is what it was afterwards."""
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)


@pytest.fixture
def turns(tmp_path):
    """The file by which workers take turns."""
    path = tmp_path / "turns"
    path.touch()
    return path


def stopping(times=1):
    """A task's code with a breakpoint in it."""
    total = 0
    for number in range(times):
        breakpoint()  # noqa: T100, what is tested
        total += number
    return total


def test_a_live_run_says_it_once_for_each_place(capsys):
    """And continues."""
    breakpoints.install("learner-0.1", "")
    assert 3 == stopping(3)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("learner-0.1: ")
    assert "test_breakpoints.py:" in said
    assert "ddloco replay RUN --pdb" in said


def test_a_replay_stops_in_the_tasks_own_frame(turns, monkeypatch, capsys):
    """Its names are at hand, and the learner is in the prompt."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("p number + 40\nc\np number + 50\nc\n"))
    breakpoints.install("learner-0.1", str(turns))
    assert 1 == stopping(2)
    said = capsys.readouterr().out
    assert "(learner-0.1) 40" in said
    assert "(learner-0.1) 51" in said
    assert turns.read_bytes() == b""


@pytest.mark.parametrize("typed", ["q\n", "exit\n", ""])
def test_a_worker_that_leaves_is_not_asked_again(turns, monkeypatch, capsys, typed):
    """Not in this worker and not in another; without a terminal it continues as well."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    breakpoints.install("learner-0.1", str(turns))
    assert 3 == stopping(3)
    assert capsys.readouterr().out.count("(learner-0.1)") == 1
    breakpoints.install("learner-1.1", str(turns))
    assert 3 == stopping(3)
    assert "(learner-1.1)" not in capsys.readouterr().out


def test_one_at_a_time_is_at_the_prompt(turns, monkeypatch, capsys):
    """Another process that is there is waited for."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("c\n"))
    breakpoints.install("learner-0.1", str(turns))
    other, done = Turn(turns), threading.Event()

    def stop():
        stopping()
        done.set()

    other.take()
    waiting = threading.Thread(target=stop)
    waiting.start()
    assert not done.wait(WAIT_S)
    other.give()
    waiting.join()
    assert "(learner-0.1)" in capsys.readouterr().out
    with other:  # A worker that went on has given its turn back.
        pass
