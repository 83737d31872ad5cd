"""What a job needs of its syncers, said once by the lead when the pace of the learners is known."""

from collections.abc import Callable
from statistics import median

import trio
from msgspec.structs import asdict

from ddloco.job.config import Job
from ddloco.job.needs import SYNCER_BYTES_S, needs_in_words, needs_of, size
from ddloco.machines.syncer.machine import Syncer
from ddloco.stage.nodes.node import HostedActor
from ddloco.stage.process.memory import available

LOOK_S = 1.0
"""Interval, in seconds, at which the lead is asked for the pace."""


async def note_needs(job: Job, hosted: HostedActor, warn: Callable[[str], None]) -> None:
    """Log what the job needs if all of its learners take part, once one has done a second step.

    ``warn`` gets a line if this host or the number of syncers is too small.
    """
    while True:
        await trio.sleep(LOOK_S)
        machine = hosted.driver.actor.machine if hosted.driver is not None else None
        if not isinstance(machine, Syncer) or machine.place is None:
            continue
        reports = (each.progress for each in machine.members.values())
        paces = [each.step_s for each in reports if each is not None and each.step_s]
        if not paces:
            continue
        need = needs_of(job, machine.place.plan, step_s=median(paces))
        hosted.note("needs", {"learners": job.job.learners, **asdict(need)})
        said = needs_in_words(job, need, SYNCER_BYTES_S)
        if need.shards > job.job.syncers:
            warn(f"{said}; this job has {job.job.syncers}, see ddloco doctor")
        free = await trio.to_thread.run_sync(available)
        if free and need.merge_bytes > free:
            warn(f"{said}; {size(free)} of memory are free here, see transport.memory_gb")
        return
