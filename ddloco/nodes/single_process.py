"""A whole job in one process: each actor is a trio task, and they communicate over ZeroMQ."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from clocks import actor_of
from ddloco.job.config import Job
from ddloco.job.keys import keys_of
from ddloco.nodes.node import Hosted
from ddloco.nodes.resume import JobStartPoint
from ddloco.stage.actors.effects import Finish
from ddloco.stage.driver.endpoints import dial, new_endpoint
from ddloco.stage.driver.hosting import HostedActor, run_together
from ddloco.stage.process.malloc import give_back_spare, keep_freed_memory
from transport.zeromq import ZmqEndpoint, open_context


@dataclass
class Outcome:
    """How a job ended: each actor's finish, by incarnation."""

    finishes: dict[str, Finish] = field(default_factory=dict[str, Finish])

    @property
    def bad_input(self) -> str | None:
        """The reason why the job could not be run with this input; None if it could."""
        for finish in self.finishes.values():
            if finish.status == "bad-input":
                return finish.reason
        return None

    @property
    def failures(self) -> dict[str, str]:
        """Actors that failed, and why."""
        return {name: f.reason for name, f in self.finishes.items() if f.status == "failed"}


class Cluster:
    """The actors of a job, which are started and ended together.

    Args:
        job: the resolved job.
        folder: its run folder.
        start_point: the snapshot to continue from, if any.

    Raises:
        ConfigError: the job's keys cannot be used.
    """

    def __init__(self, job: Job, folder: Path, start_point: JobStartPoint | None = None) -> None:
        self.job = job
        self._start_point = start_point
        self.folder = folder
        self.outcome = Outcome()
        self.asked = False
        """Whether the user asked the job to end."""
        self._keys = keys_of(job, job.transport.kind)
        self._lead = self._incarnation(job.syncer_names()[0])
        self._hosted: dict[str, Hosted] = {}

    def request_stop(self, reason: str) -> None:
        """Ask the leading syncer to end the job in good order; it tells the other actors."""
        self.asked = True
        if self._lead in self._hosted:
            self._hosted[self._lead].request_stop(reason)

    def request_snapshot(self) -> None:
        """Ask the leading syncer, if it runs, for a snapshot; the result is in the log."""
        lead = self._hosted.get(self._lead)
        if lead is not None and lead.driver is not None:
            lead.driver.request_snapshot()

    async def run(self) -> Outcome:
        """Run the job to its end."""
        keep_freed_memory()
        with _addresses(self.job) as wanted:
            async with open_context() as context:
                endpoints = await self._connected(context, wanted)
                for incarnation, endpoint in endpoints.items():
                    self._hosted[incarnation] = Hosted(
                        self.job, incarnation, self.folder, endpoint, start_point=self._start_point
                    )
                if self.asked:  # Before there was an actor to ask.
                    self._hosted[self._lead].request_stop("asked to stop before it began")
                async with trio.open_nursery() as beside:
                    beside.start_soon(give_back_spare)
                    actors = self._hosted.values()
                    await run_together(actors, self.outcome.finishes, self._ended)
                    beside.cancel_scope.cancel()
        return self.outcome

    async def _connected(self, context: object, wanted: dict[str, str]) -> dict[str, ZmqEndpoint]:
        """Every actor's endpoint, by incarnation; syncers listen, and the others dialled them."""
        syncers = self.job.syncer_names()
        endpoints: dict[str, ZmqEndpoint] = {}
        addresses: dict[str, str] = {}
        for name in self.job.names():
            incarnation = self._incarnation(name)
            endpoint = endpoints[incarnation] = new_endpoint(context, self._keys.get(name))
            dialled = syncers
            if name in syncers:
                addresses[name] = await endpoint.listen(wanted[name])
                dialled = syncers[:1] if name != syncers[0] else ()
            for syncer in dialled:
                await dial(endpoint, syncer, addresses[syncer], incarnation)
        return endpoints

    def _incarnation(self, name: str) -> str:
        return self._start_point.incarnation(name) if self._start_point is not None else f"{name}.1"

    def _ended(self, hosted: HostedActor, finish: Finish) -> None:
        """When an actor has ended for a reason that ends the job, end the others."""
        running = [name for name in self._hosted if name not in self.outcome.finishes]
        if finish.status == "bad-input" or hosted.incarnation == self._lead:
            for name in running:
                self._hosted[name].request_stop(finish.reason)
        elif self._lead in running and not {actor_of(each) for each in running} - {
            *self.job.syncer_names()
        }:
            self._hosted[self._lead].request_stop("no learner is left")


@contextmanager
def _addresses(job: Job) -> Iterator[dict[str, str]]:
    """The addresses on which the syncers of a job in one process listen, by name."""
    names = job.syncer_names()
    match job.transport.kind:
        case "inproc":
            yield {name: f"inproc://{name}" for name in names}
        case "tcp":
            yield dict.fromkeys(names, "tcp://127.0.0.1:*")
        case "ipc":
            # A socket's path has at most 107 bytes, which a run folder may exceed.
            with tempfile.TemporaryDirectory(prefix="ddloco-") as folder:
                yield {name: f"ipc://{folder}/{name}" for name in names}
