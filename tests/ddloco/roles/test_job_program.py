"""Learners that are slower on purpose."""

import trio

from ddloco.job.protocol.work import CopyState, RunStep
from ddloco.roles.job_program import slowed


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
