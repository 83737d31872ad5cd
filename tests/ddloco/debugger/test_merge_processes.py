"""Merges that other processes compute are those that this one computes."""

import os

import pytest

from ddloco.debugger import merge_processes
from ddloco.debugger.merge_processes import merges_in, processes_for
from ddloco.debugger.run_diff import compare
from replay import Divergence

PROCESSES = 2


@pytest.mark.slow
def test_two_processes_find_what_one_finds(folder, opened):
    """The same merges, and so the same comparison."""
    one, other = opened(folder), opened(folder)
    with merges_in(PROCESSES, [one, other]) as found:
        assert [list(each) for each in found] == [list(one.merges())] * 2
    assert compare(one, other, PROCESSES) == compare(one, other)


@pytest.mark.slow
def test_what_is_wrong_with_a_tape_is_said_as_if_there_were_one_process(
    folder, opened, monkeypatch
):
    """A process that cannot answer leaves the work, and the error, to this one."""
    run = opened(folder)

    def parts(syncer):
        raise Divergence(syncer, 1, "effects", "", "", {})

    monkeypatch.setattr(run, "history", parts)
    run.path = folder / "elsewhere"
    with merges_in(PROCESSES, [run]) as [found], pytest.raises(Divergence):
        list(found)


def test_only_long_tapes_are_worth_processes(run, monkeypatch):
    """As many as there are syncers' tapes, and no more than processors."""
    assert processes_for([run, run]) == 1
    monkeypatch.setattr(merge_processes, "LONG_EVENTS", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert processes_for([run, run]) == 2
    assert processes_for([run] * 9) == 3
