"""The run folder: plain files that several hosts' folders can be copied together into."""

import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Any, Protocol

import tomli_w

from clocks import read_regular
from ddloco.config.job import Job, load_job
from ddloco.config.toml import ConfigError
from ddloco.config.trust import MARK_FILE, leave_mark
from snapshot import SnapshotError, Store

KEPT = "kept"
"""The folder of a run folder in which syncers keep their fragments, by actor."""


LOG_FILE = "log.jsonl"


SNAPSHOTS = "snapshots"
"""The folder of a run folder in which snapshots are, unless the job names another place."""


TAPES = "tapes"


JOB_FILE = "job.toml"
RUN_FILE = "run"
RUN_CHARS = 12
"""Of a run's name: a place would have to hold millions of runs for two to have the same."""

CONTENTS = (JOB_FILE, LOG_FILE, "tapes", "model", KEPT, SNAPSHOTS, MARK_FILE)
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
        leave_mark(folder, job.as_plain())
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}") from None
    return folder


def holds_job(folder: Path, job: Job) -> bool:
    """Whether a run folder was made by this very job, so that its actors may go on there."""
    try:
        return load_job(folder / JOB_FILE).id == job.id
    except ConfigError:
        return False


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


def check_place(job: Job) -> None:
    """Refuse a place in which no snapshots can lie, before a job starts.

    Raises:
        ConfigError: it is a file, or a URL that nothing here can open.
    """
    place = job.snapshot.place
    if not place:
        return
    scheme, separator, rest = place.partition("://")
    if separator and not (re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme) and rest):
        raise ConfigError(f"snapshot.place: {place[:200]!r} is no path and no URL")
    try:
        Store(place)
    except SnapshotError as error:
        raise ConfigError(f"snapshot.place: {' '.join(str(error).split())}") from None
    path = Path(place.removeprefix("file://"))
    try:
        is_file = ("://" not in place or "file://" in place) and path.exists() and not path.is_dir()
    except OSError as error:
        raise ConfigError(f"snapshot.place: {place[:200]}: {error.strerror}") from None
    if is_file:
        raise ConfigError(f"snapshot.place: {place} is a file; want a folder, or a URL")


def run_of(folder: Path, *, make: bool = False) -> str:
    """Which run of its job a folder is of; empty where nobody has said so yet.

    Args:
        folder: the run folder of a syncer.
        make: begin a new run where the folder has none.

    Raises:
        OSError: it cannot be read or written.
    """
    path = folder / KEPT / RUN_FILE
    try:
        found = read_regular(path, RUN_CHARS + 1).decode("ascii", "replace").strip()
        if re.fullmatch(f"[0-9a-f]{{{RUN_CHARS}}}", found):
            return found
        if make:
            path.unlink()  # It was cut short when it was written.
    except FileNotFoundError:
        pass
    if not make:
        return ""
    run = secrets.token_hex(RUN_CHARS // 2)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x") as file:
            file.write(run)
    except FileExistsError:  # Another syncer of the folder was first.
        return run_of(folder)
    return run


def run_of_place(job: Job, folder: Path, *, make: bool = False) -> str:
    """Which run a folder is of, in a place of snapshots that several runs share; empty where the
    place is the folder's own. See ``run_of``."""
    return run_of(folder, make=make) if job.snapshot.place else ""
