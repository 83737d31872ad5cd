"""A run in one file, to be replayed on another machine.

A bundle is a compressed tar file with the run's ``job.toml``, tapes, source and log, the snapshots
that its tapes begin with, and ``bundle.json``, which says what a replay wants. A bundle that comes
from elsewhere is hostile input: only regular files with known names are unpacked, into a new
folder, up to a limit; and a replay of it asks before it calls the task (``--trust``).
"""

import gzip
import io
import platform
import re
import tarfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from msgspec import Struct

from ddloco.config.run_folder import JOB_FILE, LOG_FILE, SNAPSHOTS, TAPES
from ddloco.config.toml import ConfigError
from ddloco.protocol.tape_facts import is_simulated
from ddloco.replayer.recording import open_recording, run_folder_of
from ddloco.tapes.code_version import code_version
from ddloco.workers.task_sources import SOURCE

SUFFIX = ".ddloco.tar.gz"
"""How the name of a bundle ends."""

ABOUT = "bundle.json"
FORMAT = 1

FILES_MAX = 200_000
BYTES_MAX = 64 * 2**30
"""Limits of what is unpacked."""

ABOUT_BYTES_MAX = 2**20

KNOWN = re.compile(
    rf"{re.escape(ABOUT)}|{re.escape(JOB_FILE)}|{re.escape(LOG_FILE)}"
    rf"|{TAPES}/[\w.@-]{{1,200}}\.tape"
    rf"|{SOURCE}/(?:[\w-]{{1,100}}/){{0,20}}[\w-]{{1,100}}\.py"
    rf"|{SNAPSHOTS}/(?:\w[\w.:-]{{0,150}}/){{0,6}}\w[\w.:-]{{0,150}}",
    re.ASCII,
)
"""Names of files that a bundle may hold."""


class About(Struct, frozen=True):
    """What a bundle says of itself.

    Attributes:
        job: the job's id.
        code: the ddloco that recorded it.
        fingerprint: versions, device and variables of the first tape.
        task: what the tapes name; empty for a simulated run.
        redacted: whether log and source were left out.
        format: of bundles.
    """

    job: str
    code: str
    fingerprint: dict[str, str]
    task: str
    redacted: bool = False
    format: int = FORMAT

    def differences(self, here: Mapping[str, str]) -> list[str]:
        """Return, in words, what a replay wants and what is here instead."""
        found = [
            f"{key}: recorded with {then}, here is {here[key]}"
            for key, then in sorted(self.fingerprint.items())
            if key in here and here[key] != then
        ]
        if self.code != code_version():
            found.insert(0, f"ddloco: recorded with {self.code}, here is {code_version()}")
        return found


def versions_here() -> dict[str, str]:
    """Return this machine's Python and the packages that can change arithmetic."""
    found = {"python": platform.python_version()}
    for package in ("jax", "jaxlib", "numpy", "optax"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def write_bundle(run: Path, to: Path, *, redact: bool = False) -> About:
    """Write a run to a bundle.

    Args:
        run: the run folder.
        to: a new file.
        redact: whether to leave out the log and the source, which may name paths and people.

    Raises:
        TapeError: the run's tapes cannot be read.
        ConfigError: the file exists, or cannot be written.
    """
    tapes = open_recording(run)
    header = tapes[0].header
    table = header.job.get("job")
    task = str(table.get("task", "")) if isinstance(table, dict) else ""
    about = About(
        job=header.job_id,
        code=header.code,
        fingerprint=dict(header.fingerprint),
        task="" if is_simulated(header) else task,
        redacted=redact,
    )
    folder = run_folder_of(run)
    begins_late = any(each.header.after for each in tapes)
    try:
        with (
            to.open("xb") as raw,
            gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w|") as bundle,
        ):
            _add_bytes(bundle, ABOUT, msgspec.json.encode(about))
            for path in _contents(folder, redact=redact, snapshots=begins_late):
                entry = bundle.gettarinfo(path, path.relative_to(folder).as_posix())
                with path.open("rb") as file:
                    bundle.addfile(_anonymous(entry), file)
    except OSError as error:
        raise ConfigError(f"{to}: {error.strerror}") from None
    return about


def _contents(folder: Path, *, redact: bool, snapshots: bool) -> Iterator[Path]:
    """Yield the files of a run that belong into a bundle."""
    wanted = [JOB_FILE, TAPES] + ([] if redact else [LOG_FILE, SOURCE])
    for name in [*wanted, *([SNAPSHOTS] if snapshots else [])]:
        path = folder / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and KNOWN.fullmatch(file.relative_to(folder).as_posix()):
                yield file


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out whose file it was, and when."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime, entry.mode = 0, 0o644
    return entry


def _add_bytes(bundle: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    bundle.addfile(_anonymous(entry), io.BytesIO(data))


def open_bundle(bundle: Path, folder: Path) -> About:
    """Unpack a bundle into a new folder.

    Raises:
        ConfigError: it is no bundle, holds what no bundle may hold, is too large, or the folder
            exists.
    """
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}; want a new folder") from None
    try:
        with tarfile.open(bundle, mode="r:gz") as packed:
            about = _unpack(packed, bundle, folder)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile) as error:
        raise ConfigError(f"{bundle}: is no bundle, or damaged: {error}") from None
    except OSError as error:
        raise ConfigError(f"{bundle}: {error.strerror or error}") from None
    return about


def _unpack(packed: tarfile.TarFile, bundle: Path, folder: Path) -> About:
    about: About | None = None
    total = 0
    for count, entry in enumerate(packed):
        name = entry.name[:200]
        if not entry.isreg() or not KNOWN.fullmatch(entry.name):
            raise ConfigError(f"{bundle}: {name!r} is nothing that belongs into a bundle")
        total += entry.size
        if count >= FILES_MAX or total > BYTES_MAX:
            raise ConfigError(f"{bundle}: more than {FILES_MAX} files or {BYTES_MAX} bytes")
        file = packed.extractfile(entry)
        assert file is not None, "it is a regular file"
        if entry.name == ABOUT:
            about = _about(bundle, file.read(ABOUT_BYTES_MAX))
            continue
        path = folder / PurePosixPath(entry.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as written:
            while block := file.read(2**20):
                written.write(block)
    if about is None:
        raise ConfigError(f"{bundle}: has no {ABOUT}, so it is no bundle")
    return about


def _about(bundle: Path, data: bytes) -> About:
    try:
        found: Any = msgspec.json.decode(data, type=About)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{bundle}: {ABOUT}: {error}") from None
    if found.format != FORMAT:
        said = f"has format {found.format}, this program reads format {FORMAT}"
        raise ConfigError(f"{bundle}: {ABOUT}: {said}")
    return found
