"""What the successor of an actor needs, in a place that it can reach if this host is lost.

    PLACE/NAME.address                     where it listens
    PLACE/NAME.address.ended               that its job has ended
    PLACE/kept/..., PLACE/kept/NAME/...    what it keeps, as in its run folder
    PLACE/tapes/INCARNATION.tape/OFFSET    its tapes, in pieces as they were written

The files of the run folder are the originals. They are copied once a second; what the last second
brought is lost with the host. Peers have what was sent to them, so a syncer continues from the
newest of both. Only the holder of the lease copies.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import trio

from clocks import actor_of, open_regular
from ddloco.stage.files.addresses import end_file
from ddloco.stage.files.run_folder import KEPT, TAPES, address_file
from replay.tape import SUFFIX
from replay.tape_files import whose
from snapshot import Place

COPY_S = 1.0
"""Interval, in seconds, between two looks for what is new."""

PIECE_BYTES = 2**23
"""The longest piece of a tape."""

OFFSET_DIGITS = 15
"""Digits of a piece's offset, so that names sort as numbers do."""

READ_BYTES = 2**20


class PlaceMirror:
    """Copies an actor's files to a place, and brings them from there.

    Args:
        place: where to.
        folder: the run folder.
        name: the actor.
        confirm: called in a thread before each write; raises OSError if another process acts as
            this actor.
    """

    def __init__(
        self, place: Place, folder: Path, name: str, confirm: Callable[[], None] = lambda: None
    ) -> None:
        self._place = place
        self._folder = folder
        self._name = name
        self._confirm = confirm
        self._copying = threading.Lock()
        self._copied: dict[str, tuple[int, int]] = {}
        self._lengths: dict[str, int] = {}

    def copy(self) -> None:
        """Copy what is new since the last call.

        Raises:
            StorageError: the place cannot be written; the next call tries again.
            OSError: a file cannot be read, or another process acts as this actor.
        """
        with self._copying:
            for path in self._tapes():
                self._copy_tape(path)
            for path in self._whole():
                self._copy_whole(path)
            end = end_file(address_file(self._folder, self._name))
            if not end.exists() and self._place.stat(end.name) is not None:
                self._confirm()
                self._place.remove(end.name)  # The job has begun again.

    def bring(self) -> list[str]:
        """Replace the files of the run folder by those of the place.

        Returns:
            The names of the files that were brought.

        Raises:
            StorageError: the place cannot be read.
            OSError: a file cannot be written.
        """
        names = [name for name in self._place.files(KEPT) if self._is_kept(Path(name))]
        if self._place.stat(f"{self._name}.address") is not None:
            names.append(f"{self._name}.address")
        for name in names:
            _replace(self._folder / name, self._contents(name))
        for tape, pieces in self._pieces().items():
            here = self._folder / tape
            if not here.is_file() or here.stat().st_size < _length(pieces):
                _replace(here, self._joined(pieces))
                names.append(tape)
        return names

    async def run(self, note: Callable[[str, dict[str, str]], None]) -> None:
        """Copy for ever; what fails is noted once, until it succeeds again."""
        said = ""
        while True:
            try:
                # A process that must end soon does not wait for what is copied.
                await trio.to_thread.run_sync(self.copy, abandon_on_cancel=True)
                said = ""
            except OSError as error:
                if str(error) != said:
                    said = str(error)
                    note("copy to the place failed", {"reason": said})
            await trio.sleep(COPY_S)

    # Internal helpers.

    def _tapes(self) -> list[Path]:
        found = (self._folder / TAPES).glob(f"{self._name}.*{SUFFIX}")
        return sorted(path for path in found if actor_of(whose(path)[0]) == self._name)

    def _whole(self) -> list[Path]:
        kept = self._folder / KEPT
        found = [path for folder in (kept, kept / self._name) for path in folder.glob("[!.]*")]
        address = address_file(self._folder, self._name)
        return [path for path in (*sorted(found), address, end_file(address)) if path.is_file()]

    def _is_kept(self, path: Path) -> bool:
        there = path.parent in (Path(KEPT), Path(KEPT) / self._name)
        return there and not path.name.startswith(".")

    def _pieces(self) -> dict[str, dict[str, int]]:
        """The pieces of each tape in the place without gaps, by name, with their lengths."""
        found: dict[str, dict[str, int]] = {}
        for name, file in sorted(self._place.files(TAPES).items()):
            path = Path(name)
            ours = actor_of(whose(path.parent)[0]) == self._name
            if ours and path.parent.parent == Path(TAPES) and path.name.isdecimal():
                pieces = found.setdefault(path.parent.as_posix(), {})
                if int(path.name) == _length(pieces):
                    pieces[name] = file.size
        return found

    def _copy_whole(self, path: Path) -> None:
        name = path.relative_to(self._folder).as_posix()
        with open_regular(path) as file:  # Files are replaced, so this one does not change.
            looks = os.fstat(file.fileno())
            stamp = looks.st_mtime_ns, looks.st_size
            if self._copied.get(name) == stamp:
                return
            data = file.readall()
        self._confirm()
        self._place.put(name, data)
        self._copied[name] = stamp

    def _copy_tape(self, path: Path) -> None:
        name = path.relative_to(self._folder).as_posix()
        if not self._lengths:  # This process has not looked yet.
            self._lengths = {tape: _length(pieces) for tape, pieces in self._pieces().items()}
        done = self._lengths.setdefault(name, 0)
        with open_regular(path) as file:
            file.seek(done)
            while data := file.read(PIECE_BYTES):
                self._confirm()
                self._place.put(f"{name}/{done:0{OFFSET_DIGITS}}", data)
                done += len(data)
                self._lengths[name] = done

    def _joined(self, pieces: Iterable[str]) -> Iterator[bytes]:
        for name in pieces:
            yield from self._contents(name)

    def _contents(self, name: str) -> Iterator[bytes]:
        buffer = bytearray(READ_BYTES)
        with self._place.open(name) as file:
            while length := file.readinto(memoryview(buffer)):
                yield bytes(buffer[:length])


def _length(pieces: Mapping[str, int]) -> int:
    return sum(pieces.values())


async def follow_addresses(place: Place, folder: Path, names: Iterable[str]) -> None:
    """Copy the addresses of actors from a place to files, for ever and whenever they change; a
    place that cannot be read now is read again."""
    while True:
        for name in names:
            with suppress(OSError):
                await trio.to_thread.run_sync(_follow, place, folder, name, abandon_on_cancel=True)
        await trio.sleep(COPY_S)


def _follow(place: Place, folder: Path, name: str) -> None:
    address = address_file(folder, name)
    for path in (address, end_file(address)):
        try:
            with place.open(path.name) as file:
                data = bytearray(READ_BYTES)
                found = bytes(data[: file.readinto(memoryview(data)) or 0])
        except FileNotFoundError:
            path.unlink(missing_ok=True)
            continue
        if not path.is_file() or path.read_bytes() != found:
            _replace(path, [found])


def _replace(path: Path, contents: Iterable[bytes]) -> None:
    """Write a file atomically, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.writelines(contents)
    partial.replace(path)
