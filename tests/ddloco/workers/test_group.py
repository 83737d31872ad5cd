"""A learner of several processes: it computes what one would, and ends as one."""

import os
import signal
import socket
import time
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import trio

from ddloco.job.config import Inner, Worker
from ddloco.job.protocol.fragment_plan import make_plan
from ddloco.stage.arrays.shared_memory import SharedMemory
from ddloco.workers import group, rpc
from ddloco.workers.fork_protocol import Rank
from ddloco.workers.process import WorkerDiedError, WorkerRequestError, open_worker

DIVIDED = "tests.ddloco.workers.test_placement:divided"
SLOW = pytest.mark.slow
SHARED = {"fsdp": 2, "model": 2}


class Learner:
    """A worker of several processes, and a learner's requests."""

    def __init__(self, process, arena):
        self.process = process
        self.arena = arena

    async def prepare(self, task=DIVIDED, mesh=None, **options):
        """Have all ranks load a task, and lay out its parameters."""
        inner = Inner(lr=1e-2)
        request = rpc.Prepare(task, options, inner, 1, 0, 1, mesh=mesh or {})
        self.prepared = await self.process.expect(request, rpc.Prepared)
        self.plan = make_plan(self.prepared.leaves, fragments=3, interval=3, strategy="balanced")
        laid = await self.process.expect(rpc.Lay(self.plan), rpc.Laid)
        self.state_bytes = laid.state_bytes

    async def first(self):
        """The bytes of the first parameters."""
        out = self.arena.allocate(self.plan.total_bytes)
        await self.process.expect(rpc.Fill(rpc.span_of(out)), rpc.Ready)
        return out.data.copy()

    async def step(self, source=None):
        """One step; with ``source`` all fragments are overwritten first."""
        spans = []
        if source is not None:
            for p in range(len(self.plan.fragments)):
                start, stop = self.plan.fragment_slice(p)
                region = self.arena.allocate(stop - start)
                region.data[:] = source[start:stop]
                spans.append(rpc.NewFragment(p, rpc.span_of(region)))
        out = self.arena.allocate(self.plan.total_bytes)
        request = rpc.Train(1, tuple(spans), rpc.span_of(out), 0)
        return await self.process.expect(request, rpc.Trained), out.data.copy()

    async def steps(self, source=None):
        """Steps without end."""
        while True:
            await self.step(source)

    async def state(self):
        """The whole state."""
        out = self.arena.allocate(self.state_bytes)
        await self.process.expect(rpc.CopyOut(rpc.span_of(out)), rpc.Copied)
        return out

    async def pids(self):
        """The process of each rank."""
        return [await each.pid() for each in (self.process._process, *self.process._others)]


@asynccontextmanager
async def opened(processes, *, devices=1, stall_s=20.0):
    """A learner with so many processes of so many devices each."""
    arena = SharedMemory()
    env = {"JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu"}
    worker = Worker(env=env, processes=processes, stall_s=stall_s)
    with trio.fail_after(90):
        async with open_worker("learner-0.1", arena, worker) as process:
            yield Learner(process, arena)
    arena.close()


async def losses(processes, devices, mesh, steps=3):
    """The losses of some steps, all parameters after them, and the whole state."""
    async with opened(processes, devices=devices) as learner:
        await learner.prepare(mesh=mesh)
        first = await learner.first()
        done = [await learner.step(first), *[await learner.step() for _ in range(steps - 1)]]
        state = (await learner.state()).data.copy()
        return [each.loss for each, _ in done], done[-1][1], state, first, learner.prepared


@pytest.mark.parametrize(
    ("processes", "devices", "mesh"),
    [(2, 1, {}), *(pytest.param(*each, SHARED, marks=SLOW) for each in ((2, 2), (4, 1)))],
    ids=str,
)
async def test_it_computes_what_one_process_would(processes, devices, mesh):
    """With as many devices in one process: the same bits, in parameters, moments and losses."""
    size = processes * devices
    one = await losses(1, size, mesh or {"data": size})
    several = await losses(processes, devices, mesh)
    assert several[0] == pytest.approx(one[0], rel=1e-5)
    for found, wanted in zip(several[1:4], one[1:4], strict=True):
        assert np.allclose(found.view(np.float32), wanted.view(np.float32), rtol=1e-4, atol=1e-6)
    again = await losses(processes, devices, mesh)
    assert several[0] == again[0]
    assert all((a == b).all() for a, b in zip(several[1:4], again[1:4], strict=True))
    said = several[4].fingerprint["mesh"]
    assert said.endswith(f"{size} devices of {processes} processes")


@SLOW
async def test_a_state_is_installed_shard_by_shard():
    """In another number of processes; what is copied out again is equal."""
    _, _, state, _, _ = await losses(1, 4, SHARED)
    async with opened(2, devices=2) as learner:
        await learner.prepare(mesh=SHARED)
        region = learner.arena.allocate(len(state))
        region.data[:] = state
        request = rpc.Install((rpc.span_of(region),))
        assert (await learner.process.expect(request, rpc.Installed)).sound
        assert ((await learner.state()).data == state).all()


RANKS = [
    (2, 0),
    pytest.param(2, 1, marks=SLOW),
    *(pytest.param(4, rank, marks=SLOW) for rank in range(4)),
]


@pytest.mark.parametrize(("of", "rank"), RANKS)
async def test_the_death_of_any_rank_is_the_death_of_all(of, rank):
    """Within seconds, by whatever they wait for each other."""
    async with opened(of) as learner:
        await learner.prepare()
        await learner.step(await learner.first())
        pids = await learner.pids()
        os.kill(pids[rank], signal.SIGKILL)
        begun = time.monotonic()
        said = rf"rank [1-3] of {of} on .* ended" if rank else "killed by signal 9"
        with pytest.raises(WorkerDiedError, match=said):
            await learner.steps()
        assert time.monotonic() - begun < 10
    assert not any(map(alive, pids))


@pytest.mark.slow
@pytest.mark.parametrize(("of", "rank"), RANKS)
async def test_a_rank_that_is_stuck_is_the_death_of_all(of, rank):
    """It is alive and gives no sign of life."""
    async with opened(of, stall_s=2.0) as learner:
        await learner.prepare()
        await learner.step(await learner.first())
        pids = await learner.pids()
        os.kill(pids[rank], signal.SIGSTOP)
        begun = time.monotonic()
        said = rf"no sign of life for [23]|rank [1-3] of {of} on .* ended"
        with pytest.raises(WorkerDiedError, match=said):
            await learner.steps()
        assert time.monotonic() - begun < 15
    assert not any(map(alive, pids))


async def test_what_every_rank_refuses_is_the_tasks_fault():
    """The actor is told so, and the processes go on."""
    async with opened(2) as learner:
        with pytest.raises(WorkerRequestError, match="needs 3 devices, here are 2"):
            await learner.prepare(mesh={"data": 3})
        await learner.prepare()
        await learner.step(await learner.first())


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("raises", "rank 1 of 2 on .*: .*only here"),
        ("draws", "rank 1 of 2 on .* drew another batch than rank 0"),
    ],
)
async def test_what_only_one_rank_does_is_named(what, said):
    """It has other files than the others, for example."""
    async with opened(2, stall_s=3.0) as learner:
        await learner.prepare("tests.ddloco.workers.test_group:differing", what=what)
        with pytest.raises(WorkerDiedError, match=said):
            await learner.steps(await learner.first())


def alive(pid):
    """Whether there is such a process."""
    return Path(f"/proc/{pid}/stat").exists()


def differing(what):
    """A task that is another one on rank 1."""
    import jax

    from tests.tasks import Regression, Stream

    class Differing(Stream):
        def next(self):
            if jax.process_index() == 1 and what == "raises":
                raise ValueError("only here")
            found = super().next()
            return (found[0] + 1, found[1]) if jax.process_index() == 1 else found

    class Task(Regression):
        def batches(self, *, shard, shards, seed):
            del shards
            return Differing(shard, seed)

    return Task()


def test_strangers_are_turned_away():
    """Rank 0 listens while the ranks meet, for those who know its token and are a rank."""
    token, place = bytes(range(16)), Rank(0, 2, "127.0.0.1:1", 20.0)
    said = [
        b"GET / HTTP/1.1".ljust(group.PLACE_BYTES, b"\0"),
        hello(bytes(16), 1, beats=False),
        hello(token, 0, beats=False),
        hello(token, 2, beats=True),
        hello(token, 1, beats=False),
        hello(token, 1, beats=True),
    ]
    with group._listener("127.0.0.1") as listener:
        made = [socket.create_connection(listener.getsockname()) for _ in said]
        for link, each in zip(made, said, strict=True):
            link.sendall(each)
        links = group._accepted(listener, place, token)
    assert (links.requests.keys(), links.beats.keys(), links.hosts) == ({1}, {1}, {1: "host-b"})
    for link in made[:4]:
        link.settimeout(5)
        assert link.recv(1) == b"", "its connection was closed"
    for link in (*made, *links.requests.values(), *links.beats.values()):
        link.close()


def test_silent_strangers_do_not_hold_a_rank_for_ever(monkeypatch):
    """However many connect and say nothing, the ranks meet within their time or not at all."""
    monkeypatch.setattr(group, "MEET_S_MAX", 0.4)
    monkeypatch.setattr(group, "HELLO_S_MAX", 0.15)
    with group._listener("127.0.0.1") as listener:
        silent = [socket.create_connection(listener.getsockname()) for _ in range(20)]
        with pytest.raises(TimeoutError):
            group._accepted(listener, Rank(0, 2, "127.0.0.1:1", 20.0), bytes(16))
    for link in silent:
        link.close()


def hello(token, number, *, beats):
    """The beginning of a rank's link."""
    said = msgspec.msgpack.encode(group.RankHello(token, number, beats, "host-b"))
    return said.ljust(group.PLACE_BYTES, b"\0")
