"""The commands ``ddloco syncer``, ``relay`` and ``learner``: one actor of a job on this host."""

import argparse
import math
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import trio

from ddloco.api.launch import RUNS
from ddloco.cli.ask import complain, with_source
from ddloco.cli.run_job import say_result
from ddloco.job.config import Job, load_job
from ddloco.job.job_folder import check_place, holds_job
from ddloco.job.keys import with_keys
from ddloco.monitoring.live_display import OF_NUMBERS, Board, follow_log, show_live
from ddloco.roles.job_program import program_of
from ddloco.roles.loss_log import LossLog
from ddloco.roles.needs_note import note_needs
from ddloco.roles.other_rank import follow_rank
from ddloco.roles.past_job import past_end
from ddloco.roles.received_job import Asker
from ddloco.stage.actors.effects import Finish
from ddloco.stage.actors.observations import RESULT
from ddloco.stage.files.addresses import LEASE_PLACE, check_advertise, check_dial
from ddloco.stage.files.run_folder import (
    LEASE,
    address_file,
    folders_to_make,
    open_folder,
    remove_unused,
)
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.exit_codes import FOUND, end_code
from ddloco.stage.nodes.node import HostedActor
from ddloco.stage.nodes.place_mirror import follow_addresses
from ddloco.stage.nodes.serve import Terms, check_bind, serve_role
from ddloco.stage.process.console import SafeConsole
from ddloco.stage.process.errors import first_of
from ddloco.stage.process.log_tail import LogTail
from ddloco.stage.process.malloc import keep_freed_memory
from ddloco.stage.process.terminal import quoted
from ddloco.workers.fork_protocol import Rank
from ddloco.workers.ranks import rank_of
from ddloco.workers.task import TaskError, check_task_name, task_digests
from snapshot import SnapshotError, StorageError, open_place

PATIENCE_S_MAX = 366 * 86_400
"""Longer is a mistake, or means for ever, for which there is 0."""


def syncer(given: argparse.Namespace) -> int:
    """``ddloco syncer``: run a syncer or a shard."""
    leads: list[HostedActor] = []

    async def serve(job: Job) -> Finish:
        check_bind(program_of(job), "--bind", given.bind)
        if given.advertise:
            check_advertise("--advertise", given.advertise)
        name = _checked_shard(job, given.name, given.connect)
        lead = name == job.syncer_names()[0]
        terms = replace(
            _terms(given),
            advertise=given.advertise,
            lease=given.lease,
            standby=given.standby,
            over=partial(past_end, job, given.folder, name) if lead else str,
        )
        losses = LossLog(job, given.folder)
        if lead and not given.with_parent:
            needs = partial(note_needs, job, warn=_warn)
            beside = partial(_show_job, job, leads), losses.run, needs
            terms = replace(terms, beside=beside)
        fresh = given.fresh_learners or given.with_parent
        program = replace(program_of(job), fresh_learners=fresh)
        addresses = {name: given.bind, **({} if lead else {job.syncer_names()[0]: given.connect})}
        finish = await serve_role(program, name, given.folder, addresses, terms)
        if lead and not given.with_parent and not terms.over():
            losses.draw()
        return finish

    return _serve(given, serve, leads)


def relay(given: argparse.Namespace) -> int:
    given.folder = given.folder or RUNS / given.name

    async def serve(job: Job) -> Finish:
        check_bind(program_of(job), "--bind", given.bind)
        if given.advertise:
            check_advertise("--advertise", given.advertise)
        if given.name not in job.relay:
            known = f"has {', '.join(job.relay_names())}" if job.relay else "has no [relay.NAME]"
            raise ConfigError(f"--name {given.name}: no relay of this job, which {known}")
        terms = replace(_terms(given), advertise=given.advertise)

        def run(connect: Sequence[str]) -> Awaitable[Finish]:
            addresses = {given.name: given.bind, **_checked_dials(job, given.name, connect)}
            return serve_role(program_of(job), given.name, given.folder, addresses, terms)

        return await _leased(given, job, run)

    return _serve(given, serve)


def learner(given: argparse.Namespace) -> int:
    given.folder = given.folder or RUNS / given.name
    try:
        other = _other_rank(given)
    except (ConfigError, TaskError) as error:
        return complain(error)
    if other is not None:
        job, rank = other
        say = partial(print, flush=True)
        return _concluded(given, trio.run(follow_rank, job, given.name, rank, say))

    async def serve(job: Job) -> Finish:
        terms = replace(_terms(given), alone=given.alone)
        program = replace(program_of(job), rank=_rank(given, job))

        def run(connect: Sequence[str]) -> Awaitable[Finish]:
            addresses = _checked_learner(job, given.name, connect)
            return serve_role(program, given.name, given.folder, addresses, terms)

        return await _leased(given, job, run)

    return _serve(given, serve)


async def _leased(
    given: argparse.Namespace, job: Job, run: Callable[[Sequence[str]], Awaitable[Finish]]
) -> Finish:
    """Run an actor with the addresses that it dials; those of syncers with ``lease:PLACE`` are
    followed there, as files."""
    first, *more = given.connect
    if not first.startswith(LEASE_PLACE):
        return await run(given.connect)
    if more and not job.relay_of(given.name):
        raise ConfigError(f"--connect {first}: has the addresses of all syncers; want no more")
    here, syncers = given.folder / LEASE, job.syncer_names()
    files = [f"file:{address_file(here, each)}" for each in syncers]
    place = open_place(first.removeprefix(LEASE_PLACE))
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow_addresses, place, here, syncers)
            finish = await run([*files, *more])
            nursery.cancel_scope.cancel()
    except ExceptionGroup as group:
        raise first_of(group) from None
    return finish


def _other_rank(given: argparse.Namespace) -> tuple[Job, Rank] | None:
    """The job and the rank of a process that follows its learner's actor."""
    if given.job is None:
        if given.rank:
            raise ConfigError(f"--rank {given.rank}: want JOB.toml; only rank 0 can do without")
        return None
    job = load_job(given.job, given.overrides)
    rank = _rank(given, job)
    if rank is None or rank.number == 0:
        return None
    check_task_name(job.job.task)
    return job, rank


def _rank(given: argparse.Namespace, job: Job) -> Rank | None:
    """Which of the learner's processes this is, unless a parent has started it."""
    if given.with_parent:
        return None
    worker = job.worker_of(given.name)
    return rank_of(given.name, worker, given.rank, given.coordinator, os.environ)


async def _show_job(job: Job, leads: list[HostedActor], hosted: HostedActor) -> None:
    """Show a job on the host of the syncer that leads it, as ``ddloco run`` does."""
    leads.append(hosted)
    tail = LogTail(hosted.folder, from_end=True)
    await show_live(tail, Board(job, tells_who_comes=True), SafeConsole(), trio.Event())


def _say_where(given: argparse.Namespace, address: str) -> None:
    look = ["ddloco", "status", address, *(["--keys", given.keys] if given.keys else [])]
    more = f"; look with: {quoted(look)}" if given.run == "syncer" else ""
    SafeConsole().print(f"listens on {address}{more}", soft_wrap=True, highlight=False)


def _warn(said: str) -> None:
    SafeConsole(stderr=True).print(f"warning: {said}", soft_wrap=True)


def _terms(given: argparse.Namespace) -> Terms:
    async def show(hosted: HostedActor) -> None:
        await follow_log(hosted.folder, hosted.name, SafeConsole(), OF_NUMBERS)

    terms = Terms(
        with_parent=given.with_parent,
        snapshot=given.snapshot,
        patience_s=_patience(given),
        trust=given.trust,
    )
    if given.with_parent:  # Which shows all of it.
        return terms
    return replace(terms, beside=(show,), listening=partial(_say_where, given))


def _checked_shard(job: Job, name: str, connect: str) -> str:
    if connect:
        check_dial("--connect", connect)
    lead, *others = job.syncer_names()
    name = name or lead
    if name not in (lead, *others):
        names = f"{lead} to {others[-1]}" if others else f"one syncer, {lead}"
        raise ConfigError(f"--name {name}: this job has {names}")
    if (name == lead) == bool(connect):
        said = f"{lead} leads, and dials no actor" if connect else f"missing; {name} dials {lead}"
        raise ConfigError(f"--connect: {said}")
    return name


def _checked_learner(job: Job, name: str, connect: Sequence[str]) -> dict[str, str]:
    """Return where the syncers and the learner's relay listen, by name."""
    if name not in job.learner_names():
        names = job.learner_names()
        raise ConfigError(f"--name {name}: this job has {names[0]} to {names[-1]}")
    return _checked_dials(job, name, connect)


def _checked_dials(job: Job, name: str, connect: Sequence[str]) -> dict[str, str]:
    """Where those listen that an actor dials, by name; raises ConfigError for another number of
    them."""
    for address in connect:
        check_dial("--connect", address)
    dialled = job.dials(name)
    if len(connect) != len(dialled):
        names = ", ".join(dialled)
        raise ConfigError(f"--connect: {len(connect)} addresses for {len(dialled)}: {names}")
    return dict(zip(dialled, connect, strict=True))


def _serve(
    given: argparse.Namespace, serve: Callable[[Job], Any], leads: Sequence[HostedActor] = ()
) -> int:
    # A folder to join may be used by other actors, which have not recorded anything yet either.
    made = [] if given.join else folders_to_make(given.folder)
    keep_freed_memory()  # Before any thread starts, in particular libzmq's.
    try:
        found = _job(given)
        if isinstance(found, Finish):
            return _concluded(given, found)
        job = with_keys(found, given.keys)
        task_digests(job.job.task, given.folder)
        check_task_name(job.job.task)
        check_place(job)
        again = holds_job(given.folder, job)  # The same command was given before.
        open_folder(given.folder, job, join=given.join or again)
        finish: Finish = trio.run(serve, job)
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        return complain("ended at once; the tape holds everything up to here", FOUND)
    except (ConfigError, TaskError, SnapshotError, StorageError) as error:
        remove_unused(made)
        return complain(error)
    code = _concluded(given, finish)
    driver = leads[-1].driver if leads else None
    if driver is not None and (result := driver.seen.get(RESULT)) is not None:
        say_result(given.folder, job, result, partial(print, flush=True))
    return code


def _job(given: argparse.Namespace) -> Job | Finish:
    """The job of the command's job file, or else of the syncer; or how this process ends."""
    if given.job is not None:
        return load_job(given.job, given.overrides)
    if given.overrides:
        raise ConfigError(f"--set {given.overrides[0]}: without JOB.toml the syncer has the job's")

    return Asker(given.name, given.folder, given.connect[0], given.keys, _terms(given)).job()


def _concluded(given: argparse.Namespace, finish: Finish) -> int:
    if finish.status == "bad-input":
        # The command that started this one names the job file that it was given.
        parented = given.with_parent
        return complain(finish.reason if parented else with_source(given, finish.reason))
    if finish.status == "failed":
        return complain(finish.reason, end_code(finish.status, again=finish.again))
    print(f"{finish.status}: {finish.reason}")
    return end_code(finish.status, again=finish.again)


def _patience(given: argparse.Namespace) -> float:
    """How long an actor waits for others, in seconds."""
    if not 0 <= given.patience <= PATIENCE_S_MAX:
        raise ConfigError(
            f"--patience {given.patience:g}: want seconds, at most {PATIENCE_S_MAX:,} (a year), or "
            "0 for ever"
        )
    return given.patience or math.inf
