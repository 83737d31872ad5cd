"""The job of a learner that has no job file: received from the leading syncer.

What is received decides what is executed on this host: the task's source, its options, and the
environment of its worker. So a learner asks only if the syncer proves with its key who it is, or
if the user trusts whoever answers. The run folder keeps what was received, marked as this user's,
and a learner that is started again finds it there. A task's module that is found on this host
itself is used as it is, and a difference is reported when the learner gets its number.
"""

from dataclasses import dataclass
from pathlib import Path

import trio

from ddloco.job.config import Job, job_from, load_job
from ddloco.stage.actors.effects import Finish
from ddloco.stage.driver.endpoints import new_endpoint
from ddloco.stage.files.addresses import LEASE_PLACE, check_dial, end_at
from ddloco.stage.files.faults import SYNCER
from ddloco.stage.files.keys import load_curve
from ddloco.stage.files.run_folder import JOB_FILE, make_folder
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.files.trust import is_ours
from ddloco.stage.nodes.incarnation_grants import (
    AGAIN_S,
    Describe,
    Described,
    JobOver,
    ask_lead,
    decode_described,
)
from ddloco.stage.nodes.place_mirror import address_in
from ddloco.stage.nodes.serve import Terms, answered, unless_left
from ddloco.stage.nodes.waiting import Wait
from ddloco.workers.task import TaskError, task_digests
from ddloco.workers.task_sources import keep_received
from snapshot import open_place
from transport.zeromq import open_context

LEADS = (SYNCER, f"{SYNCER}-0")
"""The lead of a job without shards, and with them."""


@dataclass(frozen=True)
class Asker:
    """A learner without a job file; ``address`` is where the lead listens, or the place of its
    lease."""

    name: str
    folder: Path
    address: str
    keys: Path | None
    terms: Terms

    def job(self) -> Job | Finish:
        """The job, with its task's source in the run folder; or how this process ends without."""
        kept = self._kept()
        if kept is not None:
            return kept
        if self.keys is None and not self.terms.trust:
            raise ConfigError(
                f"--connect {self.address}: without JOB.toml the syncer there decides what runs "
                "here; add --keys DIR, by which it proves who it is, or --trust if you trust it, "
                "or name a job file"
            )
        found = trio.run(self._ask)
        if isinstance(found, Finish):
            return found
        job = job_from(found.settings, f"the job file of {self.address}")
        try:
            task_digests(job.job.task)
        except TaskError:  # It is not on this host.
            make_folder(self.folder)
            keep_received(self.folder, found.source)
        return job

    def _kept(self) -> Job | None:
        path = self.folder / JOB_FILE
        if not path.exists():
            return None
        job = load_job(path)
        return job if is_ours(self.folder, job.as_plain()) else None

    async def _ask(self) -> Described | Finish:
        curve = load_curve(self.keys, self.name) if self.keys is not None else None
        address = self.address

        async def ask() -> Described:
            return await ask_lead(
                endpoint,
                address,
                (self.name, SYNCER),
                Describe(),
                decode_described,
                patience_s=self.terms.patience_s,
                ended=ended,
            )

        def ended() -> JobOver | None:
            reason = end_at(address)
            return JobOver(reason) if reason else None

        if address.startswith(LEASE_PLACE):
            whom = f"the address of a syncer in {address}"
            wait = Wait(self.name, lambda: whom)
            found = await unless_left(self._found, self.terms, wait)
            if isinstance(found, Finish):
                return found
            address = found
        check_dial("--connect", address)
        async with open_context() as context:
            endpoint = new_endpoint(context, curve)
            wait = Wait(self.name, lambda: f"a job file from {address}")
            return await answered(ask, endpoint, self.terms, f"--connect {address}", wait)

    async def _found(self) -> str | Finish:
        place = open_place(self.address.removeprefix(LEASE_PLACE))
        with trio.move_on_after(self.terms.patience_s):
            while True:
                found = await trio.to_thread.run_sync(address_in, place, LEADS)
                if found:
                    return found
                await trio.sleep(AGAIN_S)
        return Finish("left", f"{self.address} has no address for {self.terms.patience_s:g} s")
