"""The run folder: plain files; the folders of several hosts can be merged by copying."""

import os
import re
import secrets
import shutil
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import tomli_w

from clocks import is_in_use, read_regular, replace_file
from ddloco.stage.files.toml import ConfigError, refused
from ddloco.stage.files.trust import MARK_FILE, leave_mark

KEPT = "kept"
"""The subfolder of a run folder in which syncers store their fragments, by actor."""


LEASE = "lease"
"""The subfolder of a run folder that says which process acts as which syncer."""


LOG_FILE = "log.jsonl"


SNAPSHOTS = "snapshots"
"""The subfolder of a run folder for snapshots, unless the job names another place."""


TAPES = "tapes"


LOSS_FILE = "loss.svg"


SOURCE = "source"
"""The subfolder of a run folder for source files of the task."""

TRACEBACKS = "tracebacks"
"""The subfolder for what user code has raised, a file for each actor."""

JOB_FILE = "job.toml"
RUN_FILE = "run"
RUN_CHARS = 12
"""Characters of a run's name; a collision needs millions of runs in one place."""

CONTENTS = (
    *(
        JOB_FILE,
        LOG_FILE,
        "tapes",
        "model",
        SOURCE,
        KEPT,
        LEASE,
        SNAPSHOTS,
        TRACEBACKS,
        LOSS_FILE,
        MARK_FILE,
    ),
)
"""Everything that a run writes, and so everything that overwriting a run may delete. Another place
for snapshots may be shared with other runs, so it is not deleted."""


class Plain(Protocol):
    def as_plain(self) -> dict[str, Any]:
        """Return plain data, for ``job.toml`` and tapes."""
        ...


def open_folder(folder: Path, job: Plain, *, overwrite: bool = False, join: bool = False) -> Path:
    """Prepare a run folder for a job, with the resolved job file in it. ``overwrite`` deletes the
    run that is there; ``join`` allows a folder that other actors of the same job use, and keeps its
    job file. ``ConfigError`` if it cannot be created, or contains a run that may not be deleted."""
    make_folder(folder)
    try:
        if overwrite:
            if is_in_use(folder / LOG_FILE):
                raise ConfigError(
                    f"{folder}: a run is under way there; stop it, or choose another --dir"
                )
            for path in (*folder.glob("*.address*"), *(folder / name for name in CONTENTS)):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if (folder / "tapes").exists() and not join:
            raise ConfigError(f"{folder}: holds a run already; choose another --dir or --overwrite")
        if not (join and (folder / JOB_FILE).exists()):
            # Atomically, because the job's other actors read it while they start.
            text = tomli_w.dumps(job.as_plain())
            replace_file(folder / JOB_FILE, [text.encode()])
        leave_mark(folder, job.as_plain())
    except OSError as error:
        raise refused(str(folder), error) from None
    return folder


def is_for_all(folder: Path) -> bool:
    """Whether everybody on this machine may write to a folder, such as /tmp."""
    return bool(folder.stat().st_mode & stat.S_IWOTH)


def check_owner(folder: Path) -> None:
    """Refuse, with ``ConfigError``, a folder that somebody else may have made in a place where
    everybody may write: it could have links in it, to files of this user. Elsewhere the owner of
    the place decides."""
    path = folder.resolve()
    within = [path, *path.parents]
    shared = [n for n, each in enumerate(within[1:], 1) if is_for_all(each)]
    for each in within[: max(shared, default=0)]:
        found = each.stat()
        if found.st_uid not in {os.geteuid(), 0}:
            raise ConfigError(
                f"{each}: belongs to another user, in {each.parent} where everybody may write; "
                "choose a folder of your own"
            )


def make_folder(folder: Path) -> None:
    """Make a folder, and those that it is in; ``ConfigError`` says why it cannot be made."""
    place = folder.absolute()
    try:
        for each in reversed(folders_to_make(place)):
            with suppress(FileExistsError):
                each.mkdir(mode=0o700 if is_for_all(each.parent) else 0o777)
        place.mkdir(exist_ok=True)
        check_owner(place)
    except FileExistsError:
        raise ConfigError(f"{folder}: is a file, want a folder") from None
    except OSError as error:
        raise refused(f"{folder}: this folder cannot be made", error) from None


def folders_to_make(folder: Path) -> list[Path]:
    """The folders that ``make_folder`` would make, the inner ones first."""
    return [each for each in (folder, *folder.parents) if not os.path.lexists(each)]


def remove_unused(made: Sequence[Path]) -> None:
    """Remove a run folder that was made for a run that could not begin, with the folders that were
    made for it. Nothing is removed if it has anything but what ``open_folder`` and the lease wrote,
    and source that was received."""
    with suppress(OSError):  # What cannot be removed stays.
        for folder in made[:1]:
            inside = list(folder.iterdir())
            if {path.name for path in inside} <= {JOB_FILE, MARK_FILE, LEASE, SOURCE}:
                for path in inside:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        for folder in made:
            folder.rmdir()


def address_file(folder: Path, syncer: str) -> Path:
    return folder / f"{syncer}.address"


def next_folder(parent: Path, name: str) -> Path:
    """``parent/name-1``, or the next number that is free."""
    number = 1
    while (parent / f"{name}-{number}").exists():
        number += 1
    return parent / f"{name}-{number}"


def run_of(folder: Path, *, make: bool = False) -> str:
    """Return the name of the run in a syncer's folder; empty if it has none, unless ``make`` starts
    one."""
    path = folder / KEPT / RUN_FILE
    try:
        found = read_regular(path, RUN_CHARS + 1).decode("ascii", "replace").strip()
        if re.fullmatch(f"[0-9a-f]{{{RUN_CHARS}}}", found):
            return found
        if make:
            path.unlink()  # A crash interrupted its writing.
    except FileNotFoundError:
        pass
    if not make:
        return ""
    run = secrets.token_hex(RUN_CHARS // 2)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x") as file:
            file.write(run)
    except FileExistsError:  # Another syncer created it first.
        return run_of(folder)
    return run
