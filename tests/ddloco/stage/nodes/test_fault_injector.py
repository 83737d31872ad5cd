"""Chaos applied to processes that only note what happens to them, in virtual time."""

import json
import signal
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import get_args

import pytest
import trio
from msgspec.structs import replace

from ddloco.job.config import job_from, load_job
from ddloco.roles.job_program import program_of
from ddloco.stage.files.faults import Fault, Faults, Kind, Storm
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.fault_injector import FaultInjector, joiners, live_schedule, relayed
from ddloco.stage.process.log import ActorLog

EXAMPLES = Path(__file__).parents[4] / "examples"
STOP, CONT, KILL = signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL


class FakeVictim:
    """A process that dies of SIGKILL at once, and of being asked after ``farewell_s``."""

    def __init__(self, actors, name):
        self.ended = trio.Event()
        self.doomed = False
        self.asked = False
        self._actors = actors
        self._name = name

    def send(self, number):
        if not self.ended.is_set():
            self._actors.note(self._name, number.name)
            if number == KILL:
                self.ended.set()

    def send_worker(self, number):
        if not self.ended.is_set():
            self._actors.note(self._name, f"worker {number.name}")

    def ask_to_leave(self):
        self.asked = True
        self._actors.note(self._name, "asked")


class FakeActors:
    """The processes of a job, and relays of their links, in one list of what happened when."""

    def __init__(self, *names):
        self.awaited = set()
        self.seen = []
        self._newest = {}
        for name in names:
            self._newest[name] = FakeVictim(self, name)

    def note(self, name, what):
        self.seen.append((round(trio.current_time() - self.begun, 3), name, what))

    def newest(self, name):
        return self._newest.get(name)

    async def bring(self, name):
        self.note(name, "brought")
        await trio.sleep(0.01)  # As starting a process takes a moment.
        self._newest[name] = FakeVictim(self, name)
        self.awaited.discard(name)


class FakeRelay:
    """A link that notes its faults."""

    def __init__(self, actors, name):
        self._actors = actors
        self._name = name

    def begin(self, fault):
        self._actors.note(self._name, f"{fault.what} begins")

    def end(self, fault):
        self._actors.note(self._name, f"{fault.what} ends")

    def reset(self):
        self._actors.note(self._name, "reset")


class World:
    """Chaos, its victims, and what it wrote into the log."""

    def __init__(self, chaos, actors, path):
        self.chaos = chaos
        self.actors = actors
        self._path = path

    @property
    def seen(self):
        """What happened, without when."""
        return [(name, what) for _, name, what in self.actors.seen]

    def log(self, event):
        """The log's lines of one event."""
        lines = map(json.loads, self._path.read_text().splitlines())
        return [line for line in lines if line["event"] == event]


@pytest.fixture
def world(tmp_path):
    """Give a context manager in which faults happen to three learners and a syncer."""

    @asynccontextmanager
    async def running(*faults, absent=()):
        names = [f"learner-{index}" for index in range(3) if f"learner-{index}" not in absent]
        actors = FakeActors("syncer", *names)
        links = {name: FakeRelay(actors, name) for name in relayed(faults)}
        path = tmp_path / "log.jsonl"

        async def ready():
            await trio.sleep(7)
            actors.begun = trio.current_time()

        with closing(ActorLog(path, "chaos.1")) as log:
            chaos = FaultInjector(faults, 42, actors, links, log)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(chaos.run, ready)
                await trio.sleep(7.001)
                yield World(chaos, actors, path)
                await trio.sleep(1000)
                chaos.calm()

    return running


async def test_faults_happen_in_order_each_at_its_time(world, autojump_clock):
    """Times count from when all are ready; of one time, what is written first happens first."""
    async with world(
        Fault("reset", "learner-0", at_s=1.0),
        Fault("stall", "learner-2", at_s=1.0, for_s=0.5),
        Fault("reset", "learner-1", at_s=1.0),
        Fault("crash", "learner-0", at_s=3.0),
    ) as there:
        pass
    assert there.actors.seen == [
        (1.0, "learner-0", "reset"),
        (1.0, "learner-2", "SIGSTOP"),
        (1.0, "learner-1", "reset"),
        (1.5, "learner-2", "SIGCONT"),
        (3.0, "learner-0", "SIGKILL"),
    ]


async def test_a_crashed_actor_comes_back(world, autojump_clock):
    """SIGKILL, an end that is no failure, and after ``for_s`` a new start."""
    async with world(Fault("crash", "learner-1", at_s=2.0, for_s=5.0)) as there:
        victim = there.actors.newest("learner-1")
        await trio.sleep(4)
        assert victim.doomed
        assert there.actors.awaited == {"learner-1"}
    assert there.actors.seen == [(2.0, "learner-1", "SIGKILL"), (7.0, "learner-1", "brought")]
    assert there.actors.awaited == set()
    assert there.log("fault ended")[0]["reason"] == "it is back"


async def test_a_crash_without_a_duration_is_for_good(world, autojump_clock):
    """No learner comes back, and the job does not wait for it."""
    async with world(Fault("crash", "learner-1", at_s=2.0)) as there:
        await trio.sleep(4)
        assert there.actors.awaited == set()
    assert there.seen == [("learner-1", "SIGKILL")]


async def test_who_leaves_comes_back_when_it_has_left(world, autojump_clock):
    """It is asked, not killed; a goodbye that takes longer than the absence is waited for."""
    async with world(Fault("leave", "learner-1", at_s=2.0, for_s=3.0)) as there:
        victim = there.actors.newest("learner-1")
        await trio.sleep(10)
        assert there.seen == [("learner-1", "asked")]
        victim.ended.set()
    assert there.seen == [("learner-1", "asked"), ("learner-1", "brought")]


async def test_a_second_end_of_one_process_brings_it_back_once(world, autojump_clock):
    """Crashed while it leaves: one new process, not two."""
    async with world(
        Fault("leave", "learner-1", at_s=2.0, for_s=3.0),
        Fault("crash", "learner-1", at_s=2.5, for_s=2.5),
    ) as there:
        pass
    assert [what for _, what in there.seen] == ["asked", "SIGKILL", "brought"]


async def test_who_leaves_is_not_asked_again(world, autojump_clock):
    """A second request would end it at once, and not in good order."""
    async with world(
        Fault("leave", "learner-1", at_s=2.0, for_s=3.0),
        Fault("leave", "learner-1", at_s=2.5, for_s=3.0),
    ) as there:
        pass
    assert there.seen == [("learner-1", "asked")]
    assert there.log("fault skipped")[0]["reason"] == "it is leaving already"


async def test_a_fault_of_an_absent_actor_is_skipped(world, autojump_clock):
    """Who is gone, or was never there, cannot be harmed; the log says why nothing happened."""
    async with world(
        Fault("crash", "learner-1", at_s=1.0, for_s=9.0),
        Fault("stall", "learner-1", at_s=2.0, for_s=1.0),
        Fault("cut", "learner-1", at_s=2.0, for_s=1.0),
        Fault("crash", "learner-2", at_s=3.0),
        Fault("join", "learner-0", at_s=4.0),
        Fault("stall", "learner-1", at_s=20.0, for_s=1.0),
        absent=("learner-2",),
    ) as there:
        pass
    skipped = there.log("fault skipped")
    assert [("stall", "learner-1"), ("cut", "learner-1"), ("crash", "learner-2")] == [
        (line["what"], line["who"]) for line in skipped[:3]
    ]
    assert skipped[3]["reason"] == "it is there already"
    assert there.chaos.applied == {"crash": 1, "stall": 1}
    assert there.chaos.summary() == "chaos: 1 crash, 1 stall (4 skipped)"


async def test_stalls_overlap(world, autojump_clock):
    """Two stalls at once: it continues when the second is over, not before."""
    async with world(
        Fault("stall", "syncer", at_s=1.0, for_s=4.0), Fault("stall", "syncer", at_s=2.0, for_s=1.0)
    ) as there:
        pass
    assert (5.0, "syncer", "SIGCONT") in there.actors.seen
    assert [what for _, what in there.seen] == ["SIGSTOP", "SIGSTOP", "SIGCONT"]


async def test_a_stall_ends_with_its_process(world, autojump_clock):
    """A new incarnation is not stopped for what its predecessor suffered."""
    async with world(
        Fault("stall", "learner-0", at_s=1.0, for_s=50.0),
        Fault("crash", "learner-0", at_s=2.0, for_s=1.0),
    ) as there:
        pass
    assert [what for _, what in there.seen] == ["SIGSTOP", "SIGKILL", "brought"]
    assert there.log("fault ended")[0]["reason"] == "the actor is gone"


def stopped_share(seen, since, until):
    """The share of a time in which a worker was stopped."""
    stopped, stopped_at = 0.0, None
    for at, _, what in seen:
        if what == "worker SIGSTOP" and stopped_at is None:
            stopped_at = at
        elif what == "worker SIGCONT" and stopped_at is not None:
            stopped += min(at, until) - max(stopped_at, since) if at > since else 0.0
            stopped_at = None
    return stopped / (until - since)


async def test_a_slow_worker_runs_a_share_of_the_time(world, autojump_clock):
    """Four times slower: stopped three quarters of the time; its actor never is."""
    async with world(Fault("slow", "learner-0", at_s=1.0, for_s=10.0, factor=4.0)) as there:
        pass
    assert 0.7 < stopped_share(there.actors.seen, 1.0, 11.0) < 0.8
    assert {"worker SIGSTOP", "worker SIGCONT"} == {what for _, what in there.seen}
    assert there.seen[-1] == ("learner-0", "worker SIGCONT")
    assert there.actors.seen[-1][0] < 11.2


async def test_factors_multiply(world, autojump_clock):
    """Twice slower and five times slower at once: stopped nine tenths of the time."""
    async with world(
        Fault("slow", "learner-0", at_s=1.0, for_s=10.0, factor=2.0),
        Fault("slow", "learner-0", at_s=1.0, for_s=10.0, factor=5.0),
    ) as there:
        pass
    assert 0.85 < stopped_share(there.actors.seen, 1.0, 11.0) < 0.95


async def test_a_slow_worker_is_not_woken_during_a_stall(world, autojump_clock):
    """The turns of a slow worker wait while all of it is stopped."""
    async with world(
        Fault("slow", "learner-0", at_s=1.0, for_s=9.0),
        Fault("stall", "learner-0", at_s=3.0, for_s=2.0),
    ) as there:
        pass
    during = [what for at, _, what in there.actors.seen if 3.0 < at < 5.0]
    assert during == []
    assert "worker SIGSTOP" in [what for at, _, what in there.actors.seen if at > 5.0]


async def test_faults_of_a_link_outlive_its_learner(world, autojump_clock):
    """The next incarnation dials through the same cut."""
    async with world(
        Fault("cut", "learner-0", at_s=1.0, for_s=5.0),
        Fault("delay", "learner-1", at_s=1.5, for_s=1.0),
        Fault("crash", "learner-0", at_s=2.0, for_s=1.0),
    ) as there:
        pass
    assert there.actors.seen == [
        (1.0, "learner-0", "cut begins"),
        (1.5, "learner-1", "delay begins"),
        (2.0, "learner-0", "SIGKILL"),
        (2.5, "learner-1", "delay ends"),
        (3.0, "learner-0", "brought"),
        (6.0, "learner-0", "cut ends"),
    ]


async def test_a_joining_learner_is_started_at_its_time(world, autojump_clock):
    """It is not there before, and can be harmed afterwards."""
    async with world(
        Fault("join", "learner-2", at_s=5.0),
        Fault("stall", "learner-2", at_s=6.0, for_s=1.0),
        absent=("learner-2",),
    ) as there:
        pass
    assert there.actors.seen[0] == (5.0, "learner-2", "brought")
    assert [what for _, what in there.seen] == ["brought", "SIGSTOP", "SIGCONT"]


async def test_calm_undoes_what_is_under_way(world, autojump_clock):
    """Stopped processes continue, cuts end, no learner comes back; the log says that the run was
    over."""
    async with world(
        Fault("stall", "learner-0", at_s=1.0),
        Fault("slow", "learner-2", at_s=1.0, factor=50.0),
        Fault("cut", "learner-0", at_s=1.0),
        Fault("crash", "learner-1", at_s=1.0, for_s=60.0),
        Fault("reset", "learner-2", at_s=50.0),
    ) as there:
        await trio.sleep(10.05)  # In the middle of a slow worker's stop.
        before = len(there.seen)
        there.chaos.calm()
        await trio.lowlevel.checkpoint()
    undone = {("learner-0", "SIGCONT"), ("learner-0", "cut ends"), ("learner-2", "worker SIGCONT")}
    assert undone == set(there.seen[before:])
    assert ("learner-1", "brought") not in there.seen
    assert ["the run is over"] * 4 == [line["reason"] for line in there.log("fault ended")]


async def test_every_fault_is_in_the_log(world, autojump_clock):
    """Who, what, when it was planned, how long, how much, and the seed that drew it."""
    async with world(
        Fault("bandwidth", "learner-0", at_s=1.5, for_s=2.0, mbit=3.0, direction="to-syncer"),
        Fault("slow", "learner-1", at_s=2.0, for_s=2.0, factor=3.0),
        Fault("delay", "learner-1", at_s=3.0, for_s=2.0, delay_s=0.2),
    ) as there:
        pass
    bandwidth, slow, delay = there.log("fault")
    assert {
        "event": "fault",
        "actor": "chaos",
        "ref": "chaos.1:1",
        "what": "bandwidth",
        "who": "learner-0",
        "at_s": 1.5,
        "seed": 42,
        "for_s": 2.0,
        "direction": "to-syncer",
        "mbit": 3.0,
    } == {key: value for key, value in bandwidth.items() if key not in {"at", "date"}}
    assert slow["factor"] == 3.0
    assert delay["delay_s"] == 0.2
    assert ["bandwidth", "slow", "delay"] == [line["what"] for line in there.log("fault ended")]


def job_with(**chaos):
    """A job of three learners with faults."""
    job = job_from({"job": {"task": "x:y"}}, "test")
    return type(job)(job=job.job, chaos=Faults(**chaos))


def test_only_an_averager_cannot_crash():
    """It keeps nothing: refused by the place in the file, in a fault and in a storm."""
    single = (Fault("stall", "syncer"), Fault("crash", "syncer"))
    storm = (Storm(("stall", "crash"), 9.0, who=("syncer",)),)
    for chaos, where in (({"fault": single}, r"fault\[1\]"), ({"storm": storm}, r"storm\[0\]")):
        job = job_with(**chaos)
        assert live_schedule(program_of(job))
        parallel = replace(job, job=replace(job.job, method="data-parallel"))
        with pytest.raises(ConfigError, match=rf"^{where}: crash of syncer: data-parallel"):
            live_schedule(program_of(parallel))


def test_the_example_shows_everything():
    """The example's faults can happen to the quickstart, and every kind is among them."""
    job = load_job(EXAMPLES / "quickstart.toml", (), EXAMPLES / "chaos.toml")
    shown = {each.what for each in job.chaos.fault}

    assert set(get_args(Kind)) == shown.union(*(each.what for each in job.chaos.storm))
    assert live_schedule(program_of(job))


def test_a_fault_beyond_a_day_is_refused():
    """Chaos ends after a day; a fault that would never happen is named."""
    with pytest.raises(ConfigError, match=r"^fault\[0\]\.at_s: 100000\.0 is over"):
        live_schedule(program_of(job_with(fault=(Fault("stall", "syncer", at_s=1e5),))))


def test_who_joins_and_whose_link_is_relayed():
    """Only links with faults have a relay; who joins is not there from the beginning."""
    faults = (
        Fault("join", "learner-2"),
        Fault("crash", "learner-0"),
        Fault("cut", "learner-1"),
        Fault("reset", "learner-2"),
    )
    assert joiners(faults) == {"learner-2"}
    assert relayed(faults) == {"learner-1", "learner-2"}
