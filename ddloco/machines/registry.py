"""The machine that each actor runs, in a live job and in a replay."""

from typing import Any

from clocks import actor_of
from ddloco.job.config import DATA_PARALLEL, RELAY, Job
from ddloco.job.protocol.messages import JobBody
from ddloco.job.protocol.timers import JobTimer
from ddloco.job.protocol.work import Asked
from ddloco.machines.data_parallel.coordinator import Coordinator
from ddloco.machines.data_parallel.replica import Replica
from ddloco.machines.learner.machine import Learner
from ddloco.machines.relay.machine import Relay
from ddloco.machines.syncer.machine import Syncer
from ddloco.stage.actors.actor import ActorStates, Machine
from ddloco.stage.actors.messages import ActorBody


def machine_for(job: Job, incarnation: str) -> Machine:
    if actor_of(incarnation).startswith(RELAY):  # A snapshot may have those of an earlier run.
        return Relay(job)
    syncs = actor_of(incarnation) in job.syncer_names()
    if job.job.method in DATA_PARALLEL:
        return Coordinator(job) if syncs else Replica(job)
    return Syncer(job) if syncs else Learner(job)


def states_for(job: Job, incarnation: str) -> ActorStates[Any]:
    """Return what reads the states of an actor; it admits no other machine than the actor's own."""
    return ActorStates(machine_for(job, incarnation), JobBody | ActorBody, Asked, JobTimer)
