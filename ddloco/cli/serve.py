"""The commands ``ddloco syncer`` and ``ddloco learner``: one actor of a job on this host."""

import argparse
import math
from collections.abc import Callable
from typing import Any

import trio

from ddloco.cli.ask import complain, with_source
from ddloco.job.config import Job, load_job
from ddloco.job.job_folder import check_place, holds_job
from ddloco.job.keys import with_keys
from ddloco.nodes.exit_codes import AGAIN, FOUND, HELD
from ddloco.nodes.serve import Terms, serve_learner, serve_syncer
from ddloco.stage.actors.effects import Finish
from ddloco.stage.files.run_folder import LOSS_FILE, folders_to_make, open_folder, remove_unused
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.process.malloc import keep_freed_memory
from ddloco.workers.task import TaskError, check_task_name, task_digest
from snapshot import SnapshotError, StorageError

PATIENCE_S_MAX = 366 * 86_400
"""Longer is a mistake, or means for ever, for which there is 0."""


def syncer(given: argparse.Namespace) -> int:
    """``ddloco syncer``: run a syncer or a shard."""

    async def serve(job: Job) -> Finish:
        shard = given.name, given.connect
        terms = Terms(
            with_parent=given.with_parent,
            snapshot=given.snapshot,
            fresh_learners=given.fresh_learners or given.with_parent,
            trust=given.trust,
            patience_s=_patience(given),
            advertise=given.advertise,
        )
        return await serve_syncer(job, given.folder, given.bind, shard, terms)

    return _serve(given, serve)


def learner(given: argparse.Namespace) -> int:
    """``ddloco learner``: run one learner."""

    async def serve(job: Job) -> Finish:
        folder, connect, name = given.folder, given.connect, given.name
        terms = Terms(
            with_parent=given.with_parent,
            snapshot=given.snapshot,
            trust=given.trust,
            patience_s=_patience(given),
            alone=given.alone,
        )
        return await serve_learner(job, folder, connect, name, terms)

    return _serve(given, serve)


def _serve(given: argparse.Namespace, serve: Callable[[Job], Any]) -> int:
    # A folder to join may be used by other actors, which have not recorded anything yet either.
    made = [] if given.join else folders_to_make(given.folder)
    keep_freed_memory()  # Before any thread starts, in particular libzmq's.
    try:
        job = with_keys(load_job(given.job, given.overrides), given.keys)
        task_digest(job.job.task, given.folder)
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
    if finish.status == "bad-input":
        # The command that started this one names the job file that it was given.
        parented = given.with_parent
        return complain(finish.reason if parented else with_source(given, finish.reason))
    if finish.status == "failed":
        return complain(finish.reason, FOUND)
    print(f"{finish.status}: {finish.reason}")
    if given.run == "syncer" and (given.folder / LOSS_FILE).is_file():
        print(f"losses {given.folder / LOSS_FILE}")
    return AGAIN if finish.status == "left" else HELD


def _patience(given: argparse.Namespace) -> float:
    """How long an actor waits for others, in seconds.

    Raises:
        ConfigError: the value is invalid.
    """
    if not 0 <= given.patience <= PATIENCE_S_MAX:
        raise ConfigError(
            f"--patience {given.patience:g}: want seconds, at most {PATIENCE_S_MAX:,} (a year), or "
            "0 for ever"
        )
    return given.patience or math.inf
