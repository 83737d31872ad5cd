"""A chain: the files of one incarnation, each of which begins where the one before it ends.

Most tapes are one file, ``NAME.tape``. One that is bounded by snapshots continues in another file,
``NAME@EVENT.tape``, after each of its cuts, so that what is before a cut can be dropped without
a byte being written again. A reader sees one tape.

A process that is killed while it begins a file leaves one that ends within its header. The file
before it is whole then, so the chain is, too, and ends there; so does one whose disk was full at
that moment, which went on in the old file.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import msgspec

from replay.tape import (
    SUFFIX,
    Closed,
    Effects,
    Event,
    NoTapesError,
    Raised,
    Tape,
    TapeError,
    TapeWriter,
    UnbegunError,
)

EVENT_SEPARATOR = "@"
"""Stands in a file's name before the event that it begins after; in no actor's name."""

RUNS_NAMED = 2
"""Run folders that are named when a folder of runs is given for one of them."""


def follow(writer: TapeWriter, after: int, clock: dict[str, int]) -> TapeWriter:
    """The next file of a chain; if it cannot be made, the old file is as it was."""
    old = writer.header
    header = msgspec.structs.replace(old, after=after, clock=clock, part=old.part + 1)
    path = writer.path.with_name(f"{old.incarnation}{EVENT_SEPARATOR}{after}{SUFFIX}")
    return TapeWriter(path, header)


def files_of(folder: Path, incarnation: str) -> list[tuple[int, Path]]:
    """The files of an incarnation in order, each with the event that it begins after; that is 0
    for the first one, whatever it continues from."""
    first = folder / f"{incarnation}{SUFFIX}"
    found = [(0, first)] if first.exists() else []
    for path in folder.glob(f"{incarnation}{EVENT_SEPARATOR}*{SUFFIX}"):
        who, after = whose(path)
        if who == incarnation and after:
            found.append((after, path))
    return sorted(found)


def bytes_of(folder: Path, incarnation: str) -> int | None:
    """How long an incarnation's tape is, in all its files; None if there is none."""
    sizes: list[int] = []
    for _, path in files_of(folder, incarnation):
        with suppress(FileNotFoundError):  # Dropped just now.
            sizes.append(path.stat().st_size)
    return sum(sizes) if sizes else None


def whose(path: Path) -> tuple[str, int]:
    """Which incarnation a file's name speaks of, and after which event it begins; 0 for a first
    one, or where it does not say."""
    name, separator, number = path.name.removesuffix(SUFFIX).rpartition(EVENT_SEPARATOR)
    if not separator:
        return number, 0
    return name, int(number) if number.isdecimal() and number.isascii() else 0


class Chain(Tape):
    def __init__(self, files: Sequence[Tape]) -> None:
        first = files[0]
        self.path, self.header, self.events = first.path, first.header, first.header.after
        self.heard: dict[str, int] = {}
        self.truncated_at: int | None = None
        self.closed: str | None = None
        self.damage = ""
        self.files = tuple(files)

    def records(self, after: int = 0) -> Iterator[Event | Effects | Raised | Closed]:
        """Read the records of every event after number ``after``; raises TapeError if a file is
        damaged, or does not begin where the one before it ends."""
        entered = max(sum(file.header.after <= after for file in self.files), 1) - 1
        last = self.files[entered].header.after
        before: Tape | None = None
        for file in self.files[entered:]:
            _check_joint(before, last, file)
            for record in file.records(after):
                last = record.n
                yield record
            before = file
            if file.damage:
                self.damage = f"{file.path.name}: {file.damage}"
                break
        assert before is not None, "a chain has files"
        self.truncated_at, self.closed = before.truncated_at, before.closed


def _check_joint(before: Tape | None, last: int, file: Tape) -> None:
    if before is None:
        return
    if before.truncated_at is not None:
        problem = f"ends within a record, though {file.path.name} continues after it"
        raise TapeError(before.path, before.truncated_at, problem)
    after = file.header.after
    if after > last:
        problem = f"events {last + 1} to {after} are missing: {before.path.name} ends before them"
        raise TapeError(file.path, 16, problem)
    if after < last:
        problem = f"begins after event {after}, but {before.path.name} ends after {last}"
        raise TapeError(file.path, 16, problem)


def open_tapes(
    folder: Path, *, salvage: bool = False, wanted: Callable[[str], bool] | None = None
) -> list[Tape]:
    """Open the tapes of a run folder (or one tape, given its file), scanned, in order of names.

    Args:
        folder: the run folder, the folder of tapes, or one file.
        salvage: whether to read damaged tapes up to the damage; ``damage`` of each names it.
        wanted: whether an incarnation's tape is opened; by default every tape is.

    Raises:
        TapeError: there is none, two are of one incarnation, a chain has a hole, or one cannot be
            read.
    """
    folder = Path(folder)
    if folder.is_file():
        return [_named(folder, salvage=salvage).scan()]
    inner = folder / "tapes" if (folder / "tapes").is_dir() else folder
    paths = sorted(inner.glob(f"*{SUFFIX}"), key=lambda path: path.name.encode())
    if not paths:
        raise NoTapesError(folder, _without_tapes(folder))
    if wanted is not None:
        paths = [path for path in paths if wanted(whose(path)[0])] or paths
    files: dict[str, list[Tape]] = {}
    unbegun: list[UnbegunError] = []
    for path in paths:
        try:
            opened = _named(path, salvage=salvage)
        except UnbegunError as error:
            unbegun.append(error)
            continue
        files.setdefault(opened.incarnation, []).append(opened)
    tapes = {name: _joined(each) for name, each in files.items()}
    for error in unbegun:
        _forgive(error, tapes)
    _check_job(list(tapes.values()))
    return list(tapes.values())


def _without_tapes(folder: Path) -> str:
    """What is wrong with a folder that has no tapes, and the newest run folders in it."""
    if not folder.is_dir():
        return "no such folder"
    tapes = {path: path.stat().st_mtime for path in folder.glob("*/tapes") if path.is_dir()}
    newest = sorted(tapes, key=lambda path: tapes[path], reverse=True)[:RUNS_NAMED]
    runs = " or ".join(str(path.parent) for path in newest if any(path.glob(f"*{SUFFIX}")))
    return f"no tapes here; want a run folder{', such as ' if runs else ''}{runs}"


def _named(path: Path, *, salvage: bool) -> Tape:
    """A tape whose header says what its file's name says."""
    opened = Tape(path, salvage=salvage)
    name, after = whose(path)
    if name != opened.incarnation:
        raise TapeError(path, 16, f"a tape of {opened.incarnation}; its file is named for {name}")
    if after and after != opened.header.after:
        said = f"begins after event {opened.header.after}; its file's name says {after}"
        raise TapeError(path, 16, said)
    return opened


def _joined(files: list[Tape]) -> Tape:
    files = sorted(files, key=lambda each: (each.header.part, each.header.after))
    for one, other in pairwise(files):
        if one.header.part == other.header.part:
            raise TapeError(other.path, 16, f"of {other.incarnation}, as is {one.path.name}")
    return files[0].scan() if len(files) == 1 else Chain(files).scan()


def _forgive(error: UnbegunError, tapes: dict[str, Tape]) -> None:
    """Ignore an empty last file if all files before it are there."""
    name, after = whose(error.path)
    if not after or name not in tapes:
        raise error
    last = tapes[name].events
    if last < after:
        problem = f"events {last + 1} to {after}, which came before it, are missing"
        raise TapeError(error.path, error.byte, problem)


def _check_job(tapes: Sequence[Tape]) -> None:
    jobs = {tape.header.job_id: tape for tape in tapes}
    if len(jobs) > 1:
        one, other = list(jobs.values())[:2]
        problem = f"of job {other.header.job_id}, while {one.path.name} is of {one.header.job_id}"
        raise TapeError(other.path, 16, problem)
