"""What a run folder holds of a job: whether it is the job's, and the place of its snapshots."""

import re
from collections.abc import Sequence
from pathlib import Path

from ddloco.job.config import Job, load_job
from ddloco.stage.files.run_folder import JOB_FILE, SNAPSHOTS, TAPES, run_of
from ddloco.stage.files.toml import ConfigError, refused
from ddloco.stage.files.trust import check_trust
from snapshot import SnapshotError, Store


def holds_job(folder: Path, job: Job) -> bool:
    """Whether a run folder belongs to this very job, so that its actors may continue there."""
    try:
        return load_job(folder / JOB_FILE).id == job.id
    except ConfigError:
        return False


def load_own_job(path: Path, overrides: Sequence[str] = (), *, trust: bool) -> Job:
    """Read a job file whose task will be executed. That of a run folder must be of a run that this
    user has recorded, as for a replay."""
    if not trust and path.name == JOB_FILE and (path.parent / TAPES).is_dir():
        check_trust(path.parent, load_job(path).as_plain())
    return load_job(path, overrides)


def place_of(job: Job, folder: Path) -> str | Path:
    return job.snapshot.place or folder / SNAPSHOTS


def check_place(job: Job) -> None:
    """Check, before a job starts, that its place for snapshots is neither a file nor a URL without
    support."""
    place = job.snapshot.place
    if not place:
        return
    scheme, separator, rest = place.partition("://")
    if separator and not (re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme) and rest):
        raise ConfigError(f"snapshot.place: {place[:200]!r} is neither a path nor a URL")
    try:
        Store(place)
    except SnapshotError as error:
        raise ConfigError(f"snapshot.place: {' '.join(str(error).split())}") from None
    path = Path(place.removeprefix("file://"))
    try:
        is_file = ("://" not in place or "file://" in place) and path.exists() and not path.is_dir()
    except OSError as error:
        raise refused(f"snapshot.place: {place[:200]}", error) from None
    if is_file:
        raise ConfigError(f"snapshot.place: {place} is a file; want a folder, or a URL")


def run_of_place(job: Job, folder: Path, *, make: bool = False) -> str:
    """The name of the run in a folder if its snapshots are in a place shared by several runs; empty
    if the place is the folder's own. See ``run_of``."""
    return run_of(folder, make=make) if job.snapshot.place else ""
