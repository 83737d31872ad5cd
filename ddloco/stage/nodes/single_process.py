"""All actors of a program in one process: each is a trio task, and they communicate over ZeroMQ.
One that has failed and may come back does so here as its next incarnation, as engines start a
process again."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import trio

from clocks import actor_of, number_of
from ddloco.stage.actors.effects import Finish
from ddloco.stage.actors.observations import RESULT
from ddloco.stage.driver.endpoints import dial, new_endpoint
from ddloco.stage.driver.resume import StartPoint
from ddloco.stage.files.toml import refused
from ddloco.stage.nodes.node import HostedActor
from ddloco.stage.nodes.repeated_failures import LASTING
from ddloco.stage.nodes.runnable import Runnable
from ddloco.stage.process.malloc import give_back_spare, keep_freed_memory
from transport.zeromq import ZmqEndpoint, open_context

ANY_PORT = "tcp://127.0.0.1:*"

COMES_BACK = "comes back"
"""Log event of an actor that begins its next incarnation, with why the one before has ended."""

RETURN_S = 1.0
"""Seconds until an actor that has failed begins its next incarnation."""

P = TypeVar("P", bound=Runnable)


@dataclass
class Outcome:
    """How a program ended: each actor's finish, by incarnation."""

    finishes: dict[str, Finish] = field(default_factory=dict[str, Finish])

    @property
    def bad_input(self) -> str | None:
        for finish in self.finishes.values():
            if finish.status == "bad-input":
                return finish.reason
        return None

    @property
    def failures(self) -> dict[str, str]:
        return {name: f.reason for name, f in self.finishes.items() if f.status == "failed"}


class Cluster(Generic[P]):
    """The actors of a program, which are started and ended together. Over "inproc" there are no
    keys, as nothing leaves the process. ``at`` has addresses on which actors listen, by name.
    ``ConfigError`` if the keys cannot be used."""

    def __init__(
        self,
        program: P,
        folder: Path,
        start_point: StartPoint[Any] | None = None,
        *,
        kind: Literal["inproc", "ipc", "tcp"] = "tcp",
        at: Mapping[str, str] | None = None,
        listening: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self.program = program
        self.folder = folder
        self.outcome = Outcome()
        self.asked = False
        self.addresses: dict[str, str] = {}
        self._start_point = start_point
        self._kind, self._at, self._listening = kind, at or {}, listening
        self._keys = {} if kind == "inproc" else {n: program.curve(n) for n in program.names}
        self._hosted: dict[str, HostedActor] = {}

    def request_stop(self, reason: str) -> None:
        self.asked = True
        asked = self.program.asked_to_stop()
        for hosted in self._hosted.values():
            if hosted.name in asked and hosted.incarnation not in self.outcome.finishes:
                hosted.request_stop(reason)

    def request_snapshot(self) -> None:
        """Ask the lead, if it runs, for a snapshot; the result is in the log."""
        for hosted in self._hosted.values():
            if hosted.name == self.program.lead:
                hosted.request_snapshot()

    @property
    def result(self) -> dict[str, Any] | None:
        leads = [each.driver for each in self._hosted.values() if each.name == self.program.lead]
        return leads[-1].seen.get(RESULT) if leads and leads[-1] is not None else None

    async def run(self, beside: Callable[[HostedActor], Any] | None = None) -> Outcome:
        """Run all actors to their ends, with ``beside``, an async function, beside each of them."""
        keep_freed_memory()
        with _addresses(self._kind, self.program.listeners) as wanted:
            async with open_context() as context:
                endpoints = await self._connected(context, {**wanted, **self._at})
                for incarnation, endpoint in endpoints.items():
                    self._host(incarnation, endpoint, self._start_point)
                if self.asked:  # Before there was an actor to ask.
                    self.request_stop("asked to stop before it began")
                async with trio.open_nursery() as nursery:
                    first = next(iter(self._hosted.values()))
                    nursery.start_soon(first.aside, give_back_spare)
                    begin = partial(nursery.start_soon, beside) if beside is not None else _nothing
                    async with trio.open_nursery() as actors:
                        for hosted in list(self._hosted.values()):
                            actors.start_soon(self._run, hosted, context, begin)
                    nursery.cancel_scope.cancel()
        return self.outcome

    def _host(
        self, incarnation: str, endpoint: ZmqEndpoint, start_point: StartPoint[Any] | None = None
    ) -> HostedActor:
        hosted = self._hosted[incarnation] = HostedActor(
            self.program, incarnation, self.folder, endpoint, start_point=start_point
        )
        return hosted

    async def _run(
        self, hosted: HostedActor, context: object, begin: Callable[[HostedActor], object]
    ) -> None:
        """Run an actor to its end, through all of its incarnations. One that could not begin at
        first, or a few times in a row later, is not tried again."""
        vain = LASTING - 1
        while True:
            begin(hosted)
            try:
                finish = await hosted.run()
            finally:
                await hosted.endpoint.aclose()
            finishes = self.outcome.finishes
            finishes[hosted.incarnation] = finish
            vain = vain + 1 if hosted.driver is None else 0
            stays = hosted.name in self.program.listeners or self.asked or vain >= LASTING
            coming = None if stays or not finish.again else await self._next(hosted, context)
            if coming is None:
                self._ended(hosted, finish)
                return
            finishes[hosted.incarnation] = Finish("left", finish.reason)
            hosted = coming
            await trio.sleep(RETURN_S)
            if hosted.is_asked:  # Meanwhile the program has ended.
                await hosted.endpoint.aclose()
                finishes[hosted.incarnation] = Finish("stopped", "the program has ended")
                return

    async def _next(self, former: HostedActor, context: object) -> HostedActor | None:
        """An actor's next incarnation; None if the system has no sockets for it."""
        name, incarnation = former.name, f"{former.name}.{number_of(former.incarnation) + 1}"
        endpoint = new_endpoint(context, self._keys.get(name))
        try:
            for other in self.program.dials(name):
                await dial(endpoint, other, self.addresses[other], incarnation)
        except Exception:  # noqa: BLE001, of several libraries; the former end is what is told
            await endpoint.aclose()
            return None
        hosted = self._host(incarnation, endpoint)
        if former.finish is not None:
            hosted.note(COMES_BACK, {"reason": former.finish.reason})
        return hosted

    async def _connected(
        self, context: object, wanted: Mapping[str, str]
    ) -> dict[str, ZmqEndpoint]:
        """Every actor's endpoint, by incarnation: all that listen do so, then each dials others."""
        program, incarnations = self.program, {n: self._incarnation(n) for n in self.program.names}
        endpoints = {n: new_endpoint(context, self._keys.get(n)) for n in program.names}
        for name in program.listeners:
            try:
                self.addresses[name] = await endpoints[name].listen(wanted[name])
            except OSError as error:
                option = program.address_option(name, wanted[name], listens=True)
                raise refused(option, error) from None
            self._listening(name, self.addresses[name])
        for name in program.names:
            for other in program.dials(name):
                await dial(endpoints[name], other, self.addresses[other], incarnations[name])
        return {incarnations[name]: endpoint for name, endpoint in endpoints.items()}

    def _incarnation(self, name: str) -> str:
        return self._start_point.incarnation(name) if self._start_point is not None else f"{name}.1"

    def _ended(self, hosted: HostedActor, finish: Finish) -> None:
        program = self.program
        running = [each for each in self._hosted if each not in self.outcome.finishes]
        if program.ends_all(hosted.name, finish):
            failed = f"{hosted.incarnation} {finish.status}: {finish.reason}"
            reason = failed if finish.status == "failed" else finish.reason
            for other in (self._hosted[name] for name in running):
                # Who is still being prepared, which may hang, has nothing that is to be saved.
                ask = other.request_stop if other.driver is not None else other.request_leave
                ask(reason)
            return
        lead = next((name for name in running if actor_of(name) == program.lead), None)
        failed = {actor_of(name) for name in self.outcome.failures}
        over = program.is_over([actor_of(name) for name in running], failed)
        if lead is not None and over:
            self._hosted[lead].request_stop(over)


def _nothing(_: HostedActor) -> None:
    """Begin nothing beside an actor."""


@contextmanager
def _addresses(kind: str, listeners: tuple[str, ...]) -> Iterator[dict[str, str]]:
    match kind:
        case "inproc":
            yield {name: f"inproc://{name}" for name in listeners}
        case "ipc":
            # A socket's path has at most 107 bytes, which a run folder may exceed.
            with tempfile.TemporaryDirectory(prefix="ddloco-") as folder:
                yield {name: f"ipc://{folder}/{name}" for name in listeners}
        case _:
            yield dict.fromkeys(listeners, ANY_PORT)
