"""Hosting one actor: everything that it needs, opened in order, closed in reverse.

The same for an actor that shares its process with others and for one that has its own. A worker
process is started and describes the task; its fingerprint goes into the tape's header; then the
actor starts.
"""

import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import trio

from clocks import MonotonicTime
from ddloco import chores
from ddloco.actor import Actor, Machine
from ddloco.arena import Arena
from ddloco.arrays import Arrays
from ddloco.config import Job
from ddloco.driver import Driver
from ddloco.driver import Worker as Doer
from ddloco.effects import Finish, RunStep, Work
from ddloco.events import Started, WorkResult
from ddloco.fragments import FragmentPlan
from ddloco.learner import SYNCER, Learner
from ddloco.logs import LOG_FILE, ActorLog
from ddloco.messages import Contribution, GlobalFragment
from ddloco.process import WorkerDiedError, open_worker
from ddloco.syncer import Syncer
from ddloco.task import task_digest
from ddloco.workers import ChoreError, Workers, wire_layout
from replay import Header, Recorder, TapeError, TapeWriter
from transport import Bytes, Endpoint, RemoteProtocolError, actor_of

TAPES = "tapes"

SEMANTICS: tuple[str, ...] = ("fresh-report", "launch-floor", "median-step")
"""Behaviours that a later version may change; an old tape replays with those that it names."""


def machine_for(job: Job, incarnation: str) -> Machine:
    """The machine behind an actor's name, live as in a replay."""
    return Syncer(job) if actor_of(incarnation) == SYNCER else Learner(job)


@dataclass
class Hosted:
    """An actor on this host: what the outside needs to reach it.

    ``say`` tells people how far its start has come; ``ready`` is set when it takes events.
    """

    job: Job
    incarnation: str
    folder: Path
    endpoint: Endpoint
    driver: Driver | None = None
    stop_reason: str | None = None
    finish: Finish | None = None
    ready: trio.Event = field(default_factory=trio.Event)

    def request_stop(self, reason: str) -> None:
        """Ask it to end in good order, also before it has begun."""
        self.stop_reason = self.stop_reason or reason
        if self.driver is not None:
            self.driver.request_stop(reason)

    async def run(self) -> Finish:
        """Open, run to the end, close; how it finished. Never raises for what users can cause."""
        try:
            self.finish = await self._run()
        except ChoreError as error:
            self.finish = Finish("bad-input", str(error))
        except (TapeError, WorkerDiedError) as error:
            self.finish = Finish("failed", str(error))
        return self.finish

    async def _run(self) -> Finish:
        job, name = self.job, actor_of(self.incarnation)
        arena = Arena()
        arrays = Arrays(arena)
        async with open_worker(arena, job.worker_of(name)) as process:
            workers = Workers(job, self.incarnation, arrays, process, self.folder)
            prepared = await workers.prepare()
            log = ActorLog(self.folder / LOG_FILE, self.incarnation)
            self.driver = Driver(
                Actor(self.incarnation, machine_for(job, self.incarnation)),
                job_id=job.id,
                endpoint=self.endpoint,
                worker=slowed(workers, job.learner_table(name).factor),
                arrays=arrays,
                recorder=self._recorder(prepared),
                time=MonotonicTime(),
                log=log,
                expected=expected_tensors(workers.plan),
                allocate=_allocator(arena) if name != SYNCER else None,
            )
            if self.stop_reason is not None:
                self.driver.request_stop(self.stop_reason)
            self.ready.set()
            try:
                return await self.driver.run(Started(self.incarnation, prepared.leaves))
            finally:
                log.close()

    def _recorder(self, prepared: chores.Prepared) -> Recorder:
        job = self.job
        if job.tape.level == "off":
            return Recorder(None)
        header = Header(
            incarnation=self.incarnation,
            job_id=job.id,
            job=job.as_plain(),
            code=f"ddloco {version('ddloco')}",
            fingerprint=prepared.fingerprint,
            semantics=SEMANTICS,
            facts={
                "python": platform.python_version(),
                "numpy": np.__version__,
                "platform": platform.platform(),
                "task sha256": task_digest(job.job.task),
            },
        )
        writer = TapeWriter(self.folder / TAPES / f"{self.incarnation}.tape", header)
        return Recorder(writer, job.tape.on_error)


def slowed(workers: Workers, factor: float) -> Doer:
    """The same work, its steps ``factor`` times slower; what comes out is the same."""
    return workers if factor == 1.0 else _Slowed(workers, factor)


@dataclass(frozen=True)
class _Slowed:
    workers: Workers
    factor: float

    async def do(self, work: Work) -> WorkResult:
        begun = trio.current_time()
        result = await self.workers.do(work)
        if isinstance(work, RunStep):
            await trio.sleep((self.factor - 1.0) * (trio.current_time() - begun))
        return result


def expected_tensors(
    plan: FragmentPlan,
) -> Callable[[Any], tuple[tuple[str, tuple[int, ...], str], ...] | None]:
    """What tensors a message must carry, by its body; None for one that carries none."""
    layout = cache(lambda fragment: wire_layout(plan, fragment))

    def expected(body: Any) -> tuple[tuple[str, tuple[int, ...], str], ...] | None:
        if not isinstance(body, GlobalFragment | Contribution):
            return None
        if body.fragment >= len(plan.fragments):
            raise RemoteProtocolError(
                f"$.body.fragment: {body.fragment}, the plan has {len(plan.fragments)} fragments"
            )
        return layout(body.fragment)

    return expected


def _allocator(arena: Arena) -> Callable[[int], Bytes]:
    """Arriving fragments go where the worker process can see them, without another copy."""
    return lambda nbytes: arena.allocate(nbytes).data
