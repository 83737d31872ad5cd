"""Hosts actors in this process: opens what drives an actor, runs it, and closes it again.

This is the same for every actor: for a learner or a syncer and for an actor of a user's program,
for one that shares its process with others and for one that has its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import trio

from clocks import MonotonicTime
from ddloco.stage.actors.actor import Actor
from ddloco.stage.actors.effects import Finish
from ddloco.stage.arrays.array_table import Arrays
from ddloco.stage.driver.driver import Arrived, Driver, Executor
from ddloco.stage.driver.resume import RESTORED, RESTORED_PLACE, StartPoint
from ddloco.stage.process.errors import first_of
from ddloco.stage.process.log import ActorLog
from replay import Header as TapeHeader
from replay import Recorder
from transport import Bytes, Endpoint, Event, Header

EARLY_NOTES_MAX = 64
"""How many log lines are kept while an actor is being prepared, which takes a few seconds."""


@dataclass(frozen=True)
class OpenedActor:
    """What an actor is driven with. All but ``first`` and ``pending``, which are the arguments of
    ``Driver.run``, are those of ``Driver``."""

    actor: Actor
    first: Event
    pending: Sequence[Arrived | Event]
    said: Any
    job_id: str
    names: Collection[str]
    executor: Executor
    arrays: Arrays
    recorder: Recorder
    log: ActorLog
    admits: Callable[[Header[Any]], None]
    facts: Callable[[], dict[str, Any]]
    allocate: Callable[[int], Bytes] | None = None


class Notes:
    """What is logged about an actor and is not on its tape; kept until its driver exists."""

    def __init__(self) -> None:
        self._early: list[tuple[str, dict[str, Any]]] = []
        self._driver: Driver | None = None

    def write(self, event: str, fields: dict[str, Any]) -> None:
        """Log one event."""
        if self._driver is not None:
            self._driver.note(event, fields)
        elif len(self._early) < EARLY_NOTES_MAX:
            self._early.append((event, fields))

    def pass_to(self, driver: Driver) -> None:
        """Log all events, the early ones first, through the actor's driver."""
        self._driver = driver
        for event, fields in self._early:
            driver.note(event, fields)


class HostedActor(ABC):
    """An actor on this host, with the means to control it from outside.

    Args:
        incarnation: the actor's incarnation.
        endpoint: carries its messages; the caller closes it.
        notes: what is logged about it; by default an empty one.

    Attributes:
        driver: drives the actor; None until it is opened.
        finish: how the actor ended; None until then.
        leave_reason: why it was asked to leave, if it was before it had started.
        opening: the scope of the preparation before the actor starts; cancelling it loses nothing.
    """

    def __init__(self, incarnation: str, endpoint: Endpoint, notes: Notes | None = None) -> None:
        self.incarnation = incarnation
        self.endpoint = endpoint
        self.driver: Driver | None = None
        self.finish: Finish | None = None
        self.leave_reason: str | None = None
        self.opening = trio.CancelScope()
        self._stop_reason: str | None = None
        self._notes = notes if notes is not None else Notes()

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[OpenedActor | None]:
        """Open everything that the actor needs, and close it in reverse; None if the actor was
        asked to leave meanwhile."""

    @abstractmethod
    def failure(self, error: BaseException) -> Finish:
        """Return how an actor ended that an exception ended."""

    def request_leave(self, reason: str) -> None:
        """Ask the actor to leave: its process must end, and will be started again."""
        if self.driver is not None:
            self.driver.request_leave(reason)
        else:
            self.leave_reason = self.leave_reason or reason
            self.opening.cancel()

    def request_stop(self, reason: str) -> None:
        """Ask the actor to end in good order, also before it has started."""
        self._stop_reason = self._stop_reason or reason
        if self.driver is not None:
            self.driver.request_stop(reason)

    def note(self, event: str, fields: dict[str, Any]) -> None:
        """Log something that is not on the tape; before the driver exists, keep it until then."""
        self._notes.write(event, fields)

    async def run(self) -> Finish:
        """Open everything, run the actor to its end, and close; returns how it finished."""
        try:
            async with self.open() as opened:
                if opened is None:
                    self.finish = Finish("left", self.leave_reason or "")
                else:
                    self.driver = self._new_driver(opened)
                    self.finish = await self.driver.run(opened.first, opened.pending)
        except Exception as error:  # noqa: BLE001, whatever ends one actor ends one actor
            self.finish = self.failure(first_of(error))
        assert self.finish is not None, "it has ended, one way or the other"
        return self.finish

    def _new_driver(self, opened: OpenedActor) -> Driver:
        driver = Driver(
            opened.actor,
            said=opened.said,
            job_id=opened.job_id,
            actors=opened.names,
            endpoint=self.endpoint,
            executor=opened.executor,
            arrays=opened.arrays,
            recorder=opened.recorder,
            time=MonotonicTime(opened.actor.at),
            log=opened.log,
            admits=opened.admits,
            allocate=opened.allocate,
            facts=opened.facts,
        )
        self._notes.pass_to(driver)
        if self._stop_reason is not None:
            driver.request_stop(self._stop_reason)
        if self.leave_reason is not None:  # It came after the preparation.
            driver.request_leave(self.leave_reason)
        return driver


async def run_together(
    actors: Collection[HostedActor],
    finishes: dict[str, Finish],
    ended: Callable[[HostedActor, Finish], None],
) -> None:
    """Run actors of this process until all have ended, and close their endpoints.

    Args:
        actors: the actors.
        finishes: how each ended is stored here, by incarnation.
        ended: called when one has ended, to ask others to stop.
    """

    async def run(actor: HostedActor) -> None:
        try:
            finish = await actor.run()
        finally:
            await actor.endpoint.aclose()
        finishes[actor.incarnation] = finish
        ended(actor, finish)

    async with trio.open_nursery() as nursery:
        for actor in actors:
            nursery.start_soon(run, actor)


def tape_header(
    incarnation: str,
    start_point: StartPoint[Any] | None,
    *,
    job_id: str,
    job: dict[str, Any],
    code: str,
    fingerprint: dict[str, str],
    semantics: tuple[str, ...],
    facts: Mapping[str, str],
) -> TapeHeader:
    """Return the header of an actor's tape, whose fields ``replay.Header`` describes. If the run
    continues from a snapshot, ``start_point``, and the actor is in it, the facts name it."""
    start = start_point.start(incarnation) if start_point is not None else None
    resumed: dict[str, str] = {}
    if start is not None and start_point is not None:
        resumed = {RESTORED: start_point.snapshot, RESTORED_PLACE: start_point.place}
    return TapeHeader(
        incarnation=incarnation,
        job_id=job_id,
        job=job,
        code=code,
        fingerprint=fingerprint,
        semantics=semantics,
        facts={**facts, **resumed},
        after=start.part.number if start is not None else 0,
        clock=dict(start.part.clock) if start is not None else {},
    )
