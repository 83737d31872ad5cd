"""Runs a program's actors in this process, each with its own driver, tape and log."""

import platform
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import numpy as np
import trio

from clocks import actor_of
from ddloco.stage.actors.actor import ACTOR_SEMANTICS, new_actor
from ddloco.stage.actors.effects import Finish
from ddloco.stage.actors.events import Begun
from ddloco.stage.arrays.array_table import Arrays
from ddloco.stage.driver.hosting import HostedActor, OpenedActor, run_together, tape_header
from ddloco.stage.driver.resume import Start, StartPoint
from ddloco.stage.driver.snapshot_sink import StoreSink
from ddloco.stage.files.run_folder import LOG_FILE
from ddloco.stage.files.trust import leave_place
from ddloco.stage.process.entry_point import in_one_line
from ddloco.stage.process.errors import raised_at
from ddloco.stage.process.log import ActorLog
from ddloco.stage.programs.executor import ComputationExecutor
from ddloco.stage.programs.program import LoadedProgram
from replay import Recorder, TapeError, TapeWriter
from snapshot import Store
from transport import Endpoint

SOURCE = "program sha256"
"""The fact in a tape's header with the digest of the program's source file."""

PLACE = "place of snapshots"
"""The fact in a tape's header with the place of the run's own snapshots."""


LOOK_S = 1.0
"""Interval, in seconds, at which an actor's links are looked at while it waits for peers."""

WAIT_TOLD_S = 5.0
"""How long, in seconds, an actor waits for peers before this is logged: actors on one host meet
sooner. Then twice as long, each time."""


def fingerprint() -> dict[str, str]:
    """What can change the arithmetic of a program."""
    return {
        "machine": platform.machine(),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


@dataclass
class ProgramRunner:
    """The actors of a program that run in this process.

    Attributes:
        loaded: the program.
        folder: the run folder.
        place: where snapshots are written.
        code: the version of ddloco, for tapes.
        start_point: the snapshot to resume from, if any.
        finishes: how actors ended, by incarnation.
    """

    loaded: LoadedProgram
    folder: Path
    place: str
    code: str
    start_point: StartPoint[Start] | None = None
    finishes: dict[str, Finish] = field(default_factory=dict[str, Finish])
    _actors: list["ProgramActor"] = field(default_factory=list["ProgramActor"])
    _stop: str | None = None

    def request_stop(self, reason: str) -> None:
        """Ask every actor to stop cleanly."""
        self._stop = self._stop or reason
        for actor in self._actors:
            if actor.incarnation not in self.finishes:
                actor.request_stop(reason)

    async def run(
        self, endpoints: Mapping[str, Endpoint], addresses: Mapping[str, str]
    ) -> dict[str, Finish]:
        """Run these incarnations to their ends; returns how each ended.

        Args:
            endpoints: what carries the messages of each.
            addresses: where the actors listen that others dial, by name.
        """
        self._actors = [ProgramActor(self, *each) for each in endpoints.items()]
        if self._stop is not None:
            self.request_stop(self._stop)
        async with trio.open_nursery() as nursery:
            for actor in self._actors:
                peers = self.peers(actor_of(actor.incarnation), addresses)
                nursery.start_soon(tell_waiting, actor, peers)
            await run_together(self._actors, self.finishes, self._ended)
            nursery.cancel_scope.cancel()
        return self.finishes

    def peers(self, name: str, addresses: Mapping[str, str]) -> dict[str, str]:
        """The peers of an actor by name, and how they are reached, for people."""
        roles = self.loaded.program.roles
        dialled = {other: f"{other} at {addresses[other]}" for other in roles[name].dials}
        dialling = {
            other: f"{other}, which dials {addresses[name]}"
            for other, role in roles.items()
            if name in role.dials
        }
        return dialling | dialled

    def _ended(self, actor: HostedActor, finish: Finish) -> None:
        if finish.status in ("failed", "bad-input"):
            self.request_stop(f"{actor.incarnation} {finish.status}: {finish.reason}")


async def tell_waiting(actor: HostedActor, peers: Mapping[str, str]) -> None:
    """Log which peers an actor has not met yet, until it ends or has met all of them.

    The links are read from outside, so that this is no event.

    Args:
        actor: the actor.
        peers: how each peer is reached, by name.
    """
    missing = dict(peers)
    told_at, pause_s = trio.current_time(), WAIT_TOLD_S
    while missing and actor.finish is None:
        await trio.sleep(LOOK_S)
        for peer in actor.driver.actor.links.peers() if actor.driver is not None else ():
            missing.pop(peer, None)
        if missing and trio.current_time() - told_at >= pause_s:
            actor.note("waiting", {"for": "; ".join(missing.values())})
            told_at, pause_s = trio.current_time(), 2 * pause_s


@final
class ProgramActor(HostedActor):
    """One actor of a program.

    Args:
        runner: the program's actors in this process.
        incarnation: the actor's incarnation.
        endpoint: carries its messages.
    """

    def __init__(self, runner: ProgramRunner, incarnation: str, endpoint: Endpoint) -> None:
        super().__init__(incarnation, endpoint)
        self._runner = runner

    @asynccontextmanager
    async def open(self) -> AsyncIterator[OpenedActor]:
        """Open everything that the actor needs."""
        runner, loaded, start_point = self._runner, self._runner.loaded, self._runner.start_point
        role, arrays = loaded.program.roles[actor_of(self.incarnation)], Arrays()
        actor, first = new_actor(self.incarnation, role.machine()), Begun(self.incarnation)
        pending = []
        start = start_point.start(self.incarnation) if start_point is not None else None
        if start is not None and start_point is not None:
            start.lay_out(arrays)
            actor = start.actor
            first, pending = start_point.first(start, loaded.program.roles, loaded.id)
        facts = {"job": loaded.id, "name": loaded.name}
        with closing(ActorLog(runner.folder / LOG_FILE, self.incarnation)) as log:
            yield OpenedActor(
                actor,
                first,
                pending,
                said=loaded.bodies,
                job_id=loaded.id,
                names=loaded.program.roles,
                executor=ComputationExecutor(
                    role.compute, arrays, StoreSink(Store(runner.place), facts)
                ),
                arrays=arrays,
                recorder=Recorder(self._tape()),
                log=log,
                admits=loaded.admits,
                facts=lambda: {"name": loaded.name},
            )

    def _tape(self) -> TapeWriter:
        runner, loaded = self._runner, self._runner.loaded
        start = [runner.start_point.place] if runner.start_point is not None else []
        for place in (runner.place, *start):
            leave_place(runner.folder, place)
        header = tape_header(
            self.incarnation,
            runner.start_point,
            job_id=loaded.id,
            job=loaded.as_plain(),
            code=runner.code,
            fingerprint=fingerprint(),
            semantics=ACTOR_SEMANTICS,
            facts={
                "platform": platform.platform(),
                SOURCE: loaded.source,
                PLACE: runner.place,
            },
        )
        return TapeWriter(runner.folder / "tapes" / f"{self.incarnation}.tape", header)

    def failure(self, error: BaseException) -> Finish:
        """Return how an actor ended that an exception ended: mostly one of user code."""
        if isinstance(error, TapeError):
            return Finish("failed", str(error))
        said = f"{in_one_line(error)} ({raised_at(error)})"
        return Finish("failed", f"{said}; the tape ends with that event")
