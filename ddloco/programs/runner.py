"""Runs a program's actors in this process, each with its own driver, tape and log."""

import platform
import traceback
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import trio

from clocks import MonotonicTime, actor_of
from ddloco.actors.actor import ACTOR_SEMANTICS, Actor
from ddloco.actors.effects import Finish
from ddloco.actors.events import Begun, Restored
from ddloco.config.run_folder import LOG_FILE
from ddloco.programs.executor import ComputationExecutor
from ddloco.programs.program import LoadedProgram
from ddloco.runtime.array_table import Arrays
from ddloco.runtime.driver import Arrived, Driver
from ddloco.runtime.entry_point import in_one_line
from ddloco.runtime.errors import first_of
from ddloco.runtime.log import ActorLog
from ddloco.runtime.resume import RESTORED, RESTORED_PLACE, Beginning, Start
from ddloco.runtime.snapshot_sink import StoreSink
from replay import Header, Recorder, TapeError, TapeWriter
from snapshot import Store
from transport import Endpoint, Event

SOURCE = "program sha256"
"""The fact in a tape's header with the digest of the program's source file."""

PLACE = "place of snapshots"
"""The fact in a tape's header with the place of the run's own snapshots."""


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
        beginning: the snapshot to resume from, if any.
        finishes: how actors ended, by incarnation.
    """

    loaded: LoadedProgram
    folder: Path
    place: str
    code: str
    beginning: Beginning[Start] | None = None
    finishes: dict[str, Finish] = field(default_factory=dict[str, Finish])
    _drivers: dict[str, Driver] = field(default_factory=dict[str, Driver])
    _stop: str | None = None

    def request_stop(self, reason: str) -> None:
        """Ask every actor to stop cleanly."""
        self._stop = self._stop or reason
        for driver in self._drivers.values():
            driver.request_stop(reason)

    async def run(self, endpoints: Mapping[str, Endpoint]) -> dict[str, Finish]:
        """Run these incarnations to their ends; returns how each ended."""
        async with trio.open_nursery() as nursery:
            for incarnation, endpoint in endpoints.items():
                nursery.start_soon(self._run_actor, incarnation, endpoint)
        return self.finishes

    async def _run_actor(self, incarnation: str, endpoint: Endpoint) -> None:
        with closing(ActorLog(self.folder / LOG_FILE, incarnation)) as log:
            try:
                driver = self._open(incarnation, endpoint, log)
                first, behind = self._first(incarnation)
                finish = await driver.run(first, behind)
            except Exception as error:  # noqa: BLE001, an error ends this actor, not the process
                finish = _failure(first_of(error))
            finally:
                self._drivers.pop(incarnation, None)
                await endpoint.aclose()
        self.finishes[incarnation] = finish
        if finish.status in ("failed", "bad-input"):
            self.request_stop(f"{incarnation} {finish.status}: {finish.reason}")

    def _open(self, incarnation: str, endpoint: Endpoint, log: ActorLog) -> Driver:
        loaded, arrays = self.loaded, Arrays()
        start, role = self._start(incarnation), loaded.program.roles[actor_of(incarnation)]
        if start is not None:
            start.lay_out(arrays)
        facts = {"job": loaded.id, "name": loaded.name}
        driver = self._drivers[incarnation] = Driver(
            start.actor if start is not None else Actor(incarnation, role.machine()),
            said=loaded.bodies,
            job_id=loaded.id,
            actors=loaded.program.roles,
            endpoint=endpoint,
            worker=ComputationExecutor(role.compute, arrays, StoreSink(Store(self.place), facts)),
            arrays=arrays,
            recorder=Recorder(self._tape(incarnation, start)),
            time=MonotonicTime(start.actor.at if start is not None else 0.0),
            log=log,
            admits=loaded.admits,
            facts=lambda: {"name": loaded.name},
        )
        if self._stop is not None:
            driver.request_stop(self._stop)
        return driver

    def _first(self, incarnation: str) -> tuple[Event, list[Arrived]]:
        """The first event, and the arrivals that follow it."""
        start, beginning = self._start(incarnation), self.beginning
        if start is None or beginning is None:
            return Begun(incarnation), []
        missing = beginning.missing(start, list(self.loaded.program.roles))
        restored = Restored(beginning.snapshot, missing)
        return restored, start.arrivals(self.loaded.id)

    def _start(self, incarnation: str) -> Start | None:
        return self.beginning.starts.get(incarnation) if self.beginning is not None else None

    def _tape(self, incarnation: str, start: Start | None) -> TapeWriter:
        facts = {"platform": platform.platform(), SOURCE: self.loaded.source}
        facts[PLACE] = self.place
        if start is not None and self.beginning is not None:
            facts |= {RESTORED: self.beginning.snapshot, RESTORED_PLACE: self.beginning.place}
        header = Header(
            incarnation=incarnation,
            job_id=self.loaded.id,
            job=self.loaded.as_plain(),
            code=self.code,
            fingerprint=fingerprint(),
            semantics=ACTOR_SEMANTICS,
            facts=facts,
            after=start.part.number if start is not None else 0,
            clock=dict(start.part.clock) if start is not None else {},
        )
        return TapeWriter(self.folder / "tapes" / f"{incarnation}.tape", header)


def _failure(error: BaseException) -> Finish:
    if isinstance(error, TapeError):
        return Finish("failed", str(error))
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}:{place.lineno}"
    return Finish("failed", f"{in_one_line(error)} ({where}); the tape ends with that event")
