"""Learners that are slower on purpose, and whom actors wait for."""

import pytest
import trio

from ddloco.job.config import job_from
from ddloco.job.protocol.events import Started
from ddloco.job.protocol.fragment_plan import Leaf
from ddloco.job.protocol.work import CopyState, RunStep
from ddloco.machines.registry import machine_for
from ddloco.machines.syncer.shutdown import JobShutdown
from ddloco.roles.job_program import program_of, slowed
from transport import PeerJoined


class Began:
    """Work of half a second; notes what has begun."""

    def __init__(self):
        self.works = []

    def do(self, work):
        self.works.append(work)
        return self._done()

    async def _done(self):
        await trio.sleep(0.5)


async def test_work_begins_before_it_is_awaited(autojump_clock):
    """A slow learner's copies exist before its next work reads them, as any other learner's do."""
    del autojump_clock
    executor, step, copy = Began(), RunStep(1, 1, (), ""), CopyState(2, "state/1")
    slow = slowed(executor, 3.0)
    coming = slow.do(step), slow.do(copy)
    assert [step, copy] == executor.works
    began = trio.current_time()
    await coming[1]
    assert 0.5 == trio.current_time() - began
    await coming[0]
    assert 2.0 == trio.current_time() - began


def test_a_learner_as_fast_as_it_can_is_left_alone():
    """There is nothing between the driver and its executor."""
    executor = Began()
    assert executor is slowed(executor, 1.0)


def test_actors_wait_for_whom_they_dial_and_a_syncer_for_its_quorum():
    """Learners of whom a sync can do without are not waited for."""
    names = [f"learner-{n}" for n in range(4)]
    program = program_of(
        job_from(
            {
                "job": {
                    "name": "j",
                    "task": "examples.blank:task",
                    "learners": 4,
                    "steps": 8,
                    "syncers": 2,
                },
                "sync": {"quorum": 2},
                "relay": {"relay-a": {"learners": names[:2]}},
            },
            "a test",
        )
    )
    wanted = {
        ("syncer-0", ("syncer-1", "learner-3")): names[:3],
        ("syncer-0", ("learner-1", "learner-3")): [],
        ("syncer-1", ("learner-1", "learner-3")): ["syncer-0"],
        ("relay-a", ("syncer-0", "learner-1")): ["syncer-1"],
        ("relay-a", ("syncer-0", "syncer-1")): names[:2],
        ("learner-0", ("syncer-0",)): ["syncer-1", "relay-a"],
        ("learner-3", ("syncer-0",)): ["syncer-1"],
    }
    machine = machine_for(program.job, "syncer-0.1")
    found = {each: program.awaits(each[0], machine, set(each[1]), set()) for each in wanted}
    assert found == wanted
    machine.shutdown = JobShutdown("done", "global step 8", 8, 4, 1)
    assert program.awaits("syncer-0", machine, set(), set()) == []


@pytest.mark.parametrize("method", ["decoupled-diloco", "data-parallel"])
def test_a_learner_that_has_no_parameters_says_so(method):
    """It has its peers, and stands."""
    job = {"name": "j", "task": "examples.blank:task", "learners": 1, "steps": 8, "method": method}
    program = program_of(job_from({"job": job}, "a test"))
    machine = machine_for(program.job, "learner-0.1")
    leaves = (Leaf("w", (4,), "float32"),)
    machine.handle(0.0, Started("learner-0.1", leaves))
    machine.handle(1.0, PeerJoined("syncer", "syncer.1"))
    assert program.stands(machine, 0.0) == "the syncer's parameters"
    assert program.stands(machine_for(program.job, "syncer.1"), 1000.0) == ""


TWO = ["syncer", "learner-0", "learner-1"]


@pytest.mark.parametrize(
    ("method", "sync", "running", "failed", "over"),
    [
        ("decoupled-diloco", {}, TWO, ["learner-2"], ""),
        ("decoupled-diloco", {"quorum": 3}, TWO, ["learner-2"], "a smaller sync.quorum"),
        ("decoupled-diloco", {}, ["syncer"], ["learner-2"], "no learner is left"),
        ("diloco", {}, TWO, ["learner-2"], "a merge needs 3"),
        ("diloco", {}, TWO, [], ""),
        ("diloco", {}, [*TWO, "learner-2"], ["learner-2"], ""),
        ("data-parallel", {}, TWO, ["learner-2"], '"elastic-data-parallel" goes on'),
        ("elastic-data-parallel", {}, TWO, ["learner-2"], ""),
    ],
)
def test_too_few_learners_are_left(method, sync, running, failed, over):
    """Only those count that have failed for good, and have not come back."""
    table = {"task": "x:y", "learners": 3, "method": method}
    said = program_of(job_from({"job": table, "sync": sync}, "test")).is_over(running, failed)
    assert (over in said) if over else not said
