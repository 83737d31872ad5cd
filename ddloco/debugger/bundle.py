"""A run in one file, to be replayed on another machine: a compressed tar file of what
``bundle.json`` lists. One that comes from elsewhere is hostile input: only what is listed is
unpacked, up to a limit, beside the new folder, which is there once everything has been compared;
and a replay asks before it calls the task (``--trust``)."""

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
from msgspec import Struct

from clocks import open_regular
from ddloco.debugger.archive import (
    PIECE,
    ArchiveError,
    ArchiveReader,
    ArchiveWriter,
    archive_header,
)
from ddloco.job.protocol.tape_facts import is_simulated
from ddloco.replayer.recording import open_recording, run_folder_of
from ddloco.stage.files.run_folder import (
    JOB_FILE,
    LOG_FILE,
    SNAPSHOTS,
    SOURCE,
    TAPES,
    folders_to_make,
    remove_unused,
)
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.process.run_identity import DDLOCO, changes

SUFFIX = ".ddloco.tar.gz"
"""How the name of a bundle ends."""

ABOUT = "bundle.json"
FORMAT = 2

FILES_MAX = 200_000
BYTES_MAX = 64 * 2**30
"""Limits of what is unpacked."""

RATIO_MAX, SMALL_BYTES = 200, 2**26
"""More than so many times its own size, and than 64 MiB, a bundle does not unpack to: tapes and
logs are compressed to a third or a twentieth."""

ABOUT_BYTES_MAX = 2**26
"""Enough for a list of that many files."""

KNOWN = re.compile(
    rf"{re.escape(JOB_FILE)}|{re.escape(LOG_FILE)}"
    rf"|{TAPES}/[\w.@-]{{1,200}}\.tape"
    rf"|{SOURCE}/(?:[\w-]{{1,100}}/){{0,20}}[\w-]{{1,100}}\.py"
    rf"|{SNAPSHOTS}/(?:\w[\w.:-]{{0,150}}/){{0,6}}\w[\w.:-]{{0,150}}",
    re.ASCII,
)
"""Names of files that a bundle may hold."""

TASK = re.compile(r"\w[\w.]{0,300}:\w{1,300}", re.ASCII)
"""The name of a task, which is shown as a part of a command."""


class ListedFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a bundle: its name, its size in bytes, and its SHA-256 in hexadecimal."""

    name: str
    size: int
    sha256: str


class BundleAbout(Struct, frozen=True, forbid_unknown_fields=True):
    """What a bundle says of itself.

    Attributes:
        code: the ddloco that recorded it.
        fingerprint: versions, device and variables of the first tape.
        task: the task or the program that the tapes name; empty for a simulated run.
        files: everything that follows, in this order.
        redacted: whether log and source were left out.
    """

    job: str
    code: str
    fingerprint: dict[str, str]
    task: str
    files: tuple[ListedFile, ...] = ()
    redacted: bool = False
    format: int = FORMAT

    def differences(self, here: Mapping[str, str]) -> list[str]:
        """Return, in words, what a replay wants and what is here instead."""
        then = {DDLOCO: self.code, **self.fingerprint}
        return [str(each) for each in changes(then, here, shared=True)]


def write_bundle(run: Path, to: Path, *, redact: bool = False) -> BundleAbout:
    """Write a run to a bundle, a new file; with ``redact`` without log and source, which may name
    paths and people. ``TapeError`` if the run's tapes cannot be read, ``ConfigError`` if the file
    exists, or cannot be written."""
    tapes = open_recording(run)
    header = tapes[0].header
    table = header.job.get("job")
    named = table.get("task", "") if isinstance(table, dict) else header.job.get("program", "")
    task = str(named)
    folder = run_folder_of(run)
    begins_late = any(each.header.after for each in tapes)
    try:
        with to.open("xb") as raw:
            try:
                files = tuple(_listed(folder, redact=redact, snapshots=begins_late))
                about = BundleAbout(
                    job=header.job_id,
                    code=header.code,
                    fingerprint=dict(header.fingerprint),
                    task="" if is_simulated(header) else task,
                    files=files,
                    redacted=redact,
                )
                _pack(about, folder, raw)
            except BaseException:
                to.unlink()
                raise
    except OSError as error:
        raise ConfigError(f"{error.filename or to}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{to}: {error}") from None
    return about


def _listed(folder: Path, *, redact: bool, snapshots: bool) -> Iterator[ListedFile]:
    for path in _contents(folder, redact=redact, snapshots=snapshots):
        size, digest = 0, hashlib.sha256()
        with open_regular(path, links=False) as file:
            while piece := file.read(PIECE):
                size += len(piece)
                digest.update(piece)
        yield ListedFile(path.relative_to(folder).as_posix(), size, digest.hexdigest())


def _pack(about: BundleAbout, folder: Path, raw: IO[bytes]) -> None:
    data = msgspec.json.encode(about)
    problem = _problem_of(about) or ("" if len(data) <= ABOUT_BYTES_MAX else "too many files")
    if problem:
        raise ValueError(problem)
    archive = ArchiveWriter(raw)
    archive.add(ABOUT, len(data), iter([data]))
    for each in about.files:
        with open_regular(folder / each.name, links=False) as file:
            archive.add(each.name, each.size, _pieces(file, each.size))
    archive.close()


def _pieces(file: IO[bytes], size: int) -> Iterator[bytes]:
    """The first ``size`` bytes of a file: a log may have grown since it was listed."""
    while size and (piece := file.read(min(size, PIECE))):
        size -= len(piece)
        yield piece


def _contents(folder: Path, *, redact: bool, snapshots: bool) -> Iterator[Path]:
    wanted = [JOB_FILE, TAPES] + ([] if redact else [LOG_FILE, SOURCE])
    for name in [*wanted, *([SNAPSHOTS] if snapshots else [])]:
        path = folder / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and KNOWN.fullmatch(file.relative_to(folder).as_posix()):
                yield file


def open_bundle(bundle: Path, folder: Path) -> BundleAbout:
    """Unpack a bundle into a new folder, which is there only if all of it could be unpacked;
    ``ConfigError`` if it is no bundle, is damaged, holds what no bundle may hold, or is too
    large."""
    if os.path.lexists(folder):
        raise ConfigError(f"{folder}: exists; want a new folder")
    made = folders_to_make(folder.parent)
    beside = folder.parent / f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}"
    whole = False
    try:
        with open_regular(bundle) as file:
            archive = ArchiveReader(file)
            about = _about(bundle, archive.first(ABOUT, ABOUT_BYTES_MAX))
            _check_ratio(bundle, about, os.fstat(file.fileno()).st_size)
            beside.mkdir(parents=True)
            for each in about.files:
                _unpack(archive.next(each.name, each.size), each, beside)
            archive.end()
        beside.rename(folder)
        whole = True
    except ArchiveError as error:
        raise ConfigError(f"{bundle}: is no bundle, or damaged: {error}") from None
    except OSError as error:
        raise ConfigError(f"{error.filename or bundle}: {error.strerror or error}") from None
    finally:
        if not whole:
            shutil.rmtree(beside, ignore_errors=True)
            remove_unused(made)
    return about


def _unpack(pieces: Iterator[bytes], listed: ListedFile, folder: Path) -> None:
    path, digest = folder / listed.name, hashlib.sha256()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as written:
        for piece in pieces:
            digest.update(piece)
            written.write(piece)
    if digest.hexdigest() != listed.sha256:
        raise ArchiveError(f"{listed.name} is not as it is listed")


def _about(bundle: Path, data: bytes) -> BundleAbout:
    try:
        found: Any = msgspec.json.decode(data, type=BundleAbout)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{bundle}: {ABOUT}: {' '.join(str(error).split())}") from None
    if found.format != FORMAT:
        said = f"has format {found.format}, this program reads format {FORMAT}"
        raise ConfigError(f"{bundle}: {ABOUT}: {said}")
    problem = _problem_of(found)
    if problem:
        raise ConfigError(f"{bundle}: {ABOUT}: {problem}")
    return found


def _check_ratio(bundle: Path, about: BundleAbout, nbytes: int) -> None:
    total, most = sum(each.size for each in about.files), max(RATIO_MAX * nbytes, SMALL_BYTES)
    if total > most:
        said = f"lists {total} bytes in a file of {nbytes}; want at most {most}"
        raise ConfigError(f"{bundle}: {ABOUT}: {said}")


def _problem_of(about: BundleAbout) -> str:
    if len(about.files) > FILES_MAX:
        return f"lists {len(about.files)} files; want at most {FILES_MAX}"
    for each in about.files:
        if not KNOWN.fullmatch(each.name):
            return f"{each.name[:200]!r} is nothing that belongs into a bundle"
        try:
            archive_header(each.name, each.size)
        except ValueError as error:
            return str(error)
    total = sum(each.size for each in about.files)
    if total > BYTES_MAX:
        return f"lists {total} bytes; want at most {BYTES_MAX}"
    if len({each.name for each in about.files}) < len(about.files):
        return "lists a file twice"
    if about.task and not TASK.fullmatch(about.task):
        return f"the task {about.task[:200]!r} is not of the form module:function"
    return ""
