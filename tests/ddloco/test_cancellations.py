"""Cancelled at every await: a driver, a job and an endpoint leave nothing behind, wherever it is.

A cancellation is aimed: the scope of what is under test is cancelled just before its n-th
checkpoint, for every n until it gets through without having reached one so far.
"""

import gc
import itertools
import os
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.lowlevel
import trio.testing
from trio.abc import Instrument

from ddloco.job.protocol.events import Happened
from ddloco.machines.registry import machine_for
from ddloco.stage.actors.actor import new_actor
from replay import Player, Tape, tape
from tests.ddloco.stage.driver.test_driver import SYNCER, Cluster
from tests.transport.memory import Faults, MemoryFabric
from transport.zeromq import ZmqEndpoint, open_context

pytestmark = pytest.mark.usefixtures("little_to_collect")

OPEN = Path("/proc/self/fd")
CLOSED_WITHIN_S = 3.0
STEPS_MAX = 100_000
"""No world here has as many checkpoints: a loop that continues for ever is a failure."""


class Aim(Instrument):
    """Cancels a scope when the tasks below it have been scheduled so many times.

    A task runs from one checkpoint to the next, so the cancellation is delivered at the checkpoint
    that the task about to run will reach, and at all those where the others wait.
    """

    def __init__(self, at):
        self.scope = trio.CancelScope()
        self.reached = False
        self._left = at
        self._below = None

    def watch(self, nursery):
        """Count the tasks of this nursery and of nurseries below it."""
        self._below = nursery

    def before_task_step(self, task):
        """A task is about to run."""
        if self._below is None or self.reached or not self._is_below(task):
            return
        self._left -= 1
        if self._left < 0:
            self.reached = True
            self.scope.cancel()

    def _is_below(self, task):
        while (nursery := task.parent_nursery) is not None:
            if nursery is self._below:
                return True
            task = nursery.parent_task
        return False


async def aimed(at, main):
    """Run something with a cancellation at its ``at``-th step; whether it came that far."""
    aim = Aim(at)
    trio.lowlevel.add_instrument(aim)
    before = unowned_tasks()
    try:
        with trio.fail_after(3600), aim.scope:
            async with trio.open_nursery() as nursery:
                aim.watch(nursery)
                nursery.start_soon(main)
    finally:
        trio.lowlevel.remove_instrument(aim)
    assert unowned_tasks() == before, "a task was left behind"
    return aim.reached


def unowned_tasks():
    """Tasks that no nursery of ours waits for: a nursery cannot leave one behind, they can."""
    root = trio.lowlevel.current_root_task()
    return {task for nursery in root.child_nurseries for task in nursery.child_tasks}


def every(run, stride=1):
    """Call ``run`` with 0, ``stride``, ... until it says that it got through; how many were hit."""
    for tried, at in enumerate(itertools.count(0, stride)):
        assert at < STEPS_MAX
        if not run(at):
            return tried
    raise AssertionError("never")


def open_files():
    """What every descriptor leads to, by number; a listing's own, closed by then, is left out."""
    gc.collect()
    return {each.name: str(each.readlink()) for each in OPEN.iterdir() if each.is_symlink()}


@contextmanager
def no_file_left():
    """No descriptor is open afterwards that was not before; arrays of memory are none."""
    before = open_files()
    yield
    until = time.monotonic() + CLOSED_WITHIN_S
    while (left := open_files().items() - before.items()) and time.monotonic() < until:
        time.sleep(0.05)  # A thread of an earlier test may hold it: it closes, a leak does not.
    assert not left, "a descriptor was left open"


def check_tapes(job):
    """Every tape is readable to its last whole record, and a machine does it all again."""
    events = 0
    for path in sorted((job.folder / "tapes").glob("*.tape")):
        recording = Tape(path).scan()
        assert recording.truncated_at is None
        incarnation = path.stem
        player = Player(
            recording, Happened, new_actor(incarnation, machine_for(job.job, incarnation))
        )
        for record, event, outcome in player.moments():
            player.play(record, event, outcome)
        records = list(Tape(path).records())
        decided = len(job.decisions[incarnation])
        taped = sum(isinstance(each, tape.Event) for each in records)
        assert decided <= taped <= decided + 1, "handled and not on the tape"
        events += taped
    return events


@pytest.fixture
def new_office(make_job, leaves, tmp_path):
    """Makes a small job over a memory fabric, in a folder of its own."""
    number = itertools.count()

    def made(steps):
        folder = tmp_path / str(next(number))
        folder.mkdir()
        return Cluster(
            make_job(2, steps=steps), leaves, folder, MemoryFabric(1, Faults((0.0, 0.1)))
        )

    return made


def in_virtual_time(main, *arguments):
    """Run it with a clock of its own, which jumps."""
    return trio.run(main, *arguments, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("stride", [29, pytest.param(1, marks=pytest.mark.slow)])
def test_cancelled_anywhere_a_job_leaves_nothing(new_office, stride):
    """A whole job, cancelled at any moment: no task, no file, no hang, and its tapes are good."""
    seen = []

    def cancelled(at):
        job = new_office(steps=3)
        with no_file_left():
            reached = in_virtual_time(aimed, at, job.run)
        seen.append(check_tapes(job))
        return reached

    in_virtual_time(new_office(steps=3).run)  # Opens what stays open for every job.
    assert every(cancelled, stride) > 300 // stride
    assert seen[0] < 3, "the first is hit before anything happens"
    assert seen[-1] > 60, "the last is hit near the end"


@pytest.mark.parametrize("stride", [19, pytest.param(1, marks=pytest.mark.slow)])
def test_cancelled_anywhere_a_driver_leaves_nothing(new_office, stride):
    """One learner, cancelled at any of its awaits: the others end their job, nothing is left."""

    async def world(at, job, told):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job.host, SYNCER)
            nursery.start_soon(job.host, "learner-0.1")
            told.append(await aimed(at, partial(job.host, "learner-1.1")))

    def cancelled(at):
        job, told = new_office(steps=3), []
        with no_file_left():
            in_virtual_time(world, at, job, told)
        check_tapes(job)
        assert job.finishes[SYNCER].status == "done"
        assert job.finishes["learner-0.1"].status == "done"
        assert ("learner-1.1" in job.finishes) or told[0]
        return told[0]

    in_virtual_time(new_office(steps=3).run)  # Opens what stays open for every job.
    assert every(cancelled, stride) > 90 // stride


def test_cancelled_anywhere_an_endpoint_leaves_nothing(tmp_path):
    """ZeroMQ's endpoint, cancelled at any await: sockets closed, context freed, nothing hangs."""

    async def talk(address):
        async with open_context() as context:
            here, there = ZmqEndpoint(context, linger_s=0.0), ZmqEndpoint(context, linger_s=0.0)
            try:
                await listen_and_talk(here, there, address)
            finally:
                await there.aclose()
                await here.aclose()

    async def listen_and_talk(here, there, address):
        bound = await here.listen(address)
        await there.dial(bound, route="syncer/control", identity="learner-0.1/control")
        heard = trio.Event()

        async def deliver(arrival):
            await trio.lowlevel.checkpoint()
            if arrival.route == "syncer/control":
                heard.set()
            else:
                here.send_nowait(arrival.route, arrival.frames)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.run, deliver)
            nursery.start_soon(there.run, deliver)
            there.send_nowait("syncer/control", [b"x" * 100_000])
            await heard.wait()
            nursery.cancel_scope.cancel()

    async def one(at, address):
        return await aimed(at, partial(talk, address))

    def cancelled(at):
        with no_file_left():
            return trio.run(one, at, f"ipc://{tmp_path}/at-{at}")

    trio.run(one, STEPS_MAX, f"ipc://{tmp_path}/warm")  # Opens what stays open, like /dev/urandom.
    assert every(cancelled) > 10


async def test_the_aim_is_true():
    """The harness reaches every await of a task that has three, and sees a task that leaks."""
    reached = []

    async def three():
        for n in range(3):
            reached.append(n)
            await trio.lowlevel.checkpoint()
        reached.append("through")

    outcomes = []
    for at in range(6):
        reached.clear()
        outcomes.append((await aimed(at, three), list(reached)))
    assert [said for said, _ in outcomes] == [True] * 4 + [False] * 2
    assert [len(steps) for _, steps in outcomes] == [1, 1, 2, 3, 4, 4]

    async def leaks():
        trio.lowlevel.spawn_system_task(trio.sleep, 0.01)
        await trio.lowlevel.checkpoint()

    with pytest.raises(AssertionError, match="a task was left behind"):
        await aimed(99, leaks)


def test_a_file_left_open_is_seen():
    """The harness sees a descriptor that leaks."""
    with pytest.raises(AssertionError, match="a descriptor was left open"), no_file_left():
        left = os.dup(0)
    os.close(left)
