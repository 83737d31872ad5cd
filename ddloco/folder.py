"""The run folder: plain files that several hosts' folders can be copied together into."""

import os
import shutil
from pathlib import Path
from typing import Any, Protocol

import tomli_w

from ddloco.config import Job
from ddloco.keeping import KEPT
from ddloco.sections import ConfigError
from ddloco.stage.album import SNAPSHOTS, Stored
from ddloco.stage.logs import LOG_FILE
from snapshot import Store

JOB_FILE = "job.toml"
CONTENTS = (JOB_FILE, LOG_FILE, "tapes", "model", KEPT, SNAPSHOTS)
"""All that a run writes, and so all that overwriting one may delete. Another place of snapshots is
shared with other runs, and left alone."""


class Plain(Protocol):
    """What is run: a job, or a user's program."""

    def as_plain(self) -> dict[str, Any]:
        """For people and tapes."""
        ...


def open_folder(folder: Path, job: Plain, *, overwrite: bool = False, join: bool = False) -> Path:
    """Make a run folder ready for a job, its resolved job file inside.

    Args:
        folder: where; made if it is missing.
        job: what will run.
        overwrite: delete the run that is there.
        join: the folder may already be in use by other actors of the same job; the job file that
            stands there is left alone.

    Raises:
        ConfigError: it cannot be made, or holds a run.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if overwrite:
            for path in (*folder.glob("*.address"), *(folder / name for name in CONTENTS)):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if (folder / "tapes").exists() and not join:
            raise ConfigError(f"{folder}: holds a run already; choose another --dir or --overwrite")
        if not (join and (folder / JOB_FILE).exists()):
            # Whole or not at all: the other actors of the job read it while they start.
            partial = folder / f".{JOB_FILE}.{os.getpid()}"
            partial.write_text(tomli_w.dumps(job.as_plain()))
            partial.replace(folder / JOB_FILE)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}") from None
    return folder


def address_file(folder: Path, syncer: str) -> Path:
    """Where a syncer writes down on which address it listens."""
    return folder / f"{syncer}.address"


def next_folder(parent: Path, name: str) -> Path:
    """``parent/name-1`` or the next number that is free."""
    number = 1
    while (parent / f"{name}-{number}").exists():
        number += 1
    return parent / f"{name}-{number}"


def place_of(job: Job, folder: Path) -> str | Path:
    """Where the snapshots of a run are."""
    return job.snapshot.place or folder / SNAPSHOTS


def album_of(job: Job, place: str | Path) -> Stored:
    """Where a job's snapshots go."""
    facts, table = {"job": job.id, "name": job.job.name}, job.snapshot
    return Stored(Store(place), facts, keep=table.keep, keep_every=table.keep_every)
