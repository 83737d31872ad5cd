"""What the successor of an actor needs, in a place that it can reach if this host is lost.

    PLACE/NAME.address                     where it listens
    PLACE/NAME.address.ended               that its job has ended
    PLACE/NAME/kept/...                    what is kept in its run folder: the name of the run, and
                                           below NAME what the actor itself keeps
    PLACE/NAME/tapes/TAPE/OFFSET           its tapes, in pieces as they were written

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

from clocks import actor_of, open_regular, read_regular, replace_file
from ddloco.stage.files.addresses import end_file
from ddloco.stage.files.run_folder import KEPT, TAPES, address_file
from replay.tape import SUFFIX
from replay.tape_files import whose
from snapshot import Place

COPY_S = 1.0
"""Interval, in seconds, between two looks for what is new."""

LAST_COPY_S = 3.0
"""How long, in seconds, a copy may take that the end of a job waits for."""

PIECE_BYTES = 2**23
"""The longest piece of a tape."""

OFFSET_DIGITS = 15
"""Digits of a piece's offset, so that names sort as numbers do."""

READ_BYTES = 2**20


class PlaceMirror:
    """Copies an actor's files to a place, and brings them from there."""

    def __init__(
        self, place: Place, folder: Path, name: str, confirm: Callable[[], None] = lambda: None
    ) -> None:
        self._place = place
        self._folder = folder
        self._name = name
        self._confirm = confirm
        self._kept = (Path(KEPT), Path(KEPT) / name)
        self._copying = threading.Lock()
        self._copied: dict[str, tuple[int, int]] = {}
        self._lengths: dict[str, int] = {}

    def copy(self) -> None:
        with self._copying:
            for path in self._tapes():
                self._copy_tape(path)
            for kept in self._kept:
                for path in sorted((self._folder / kept).glob("[!.]*")):
                    self._copy_whole(path, self._there(path))
            address = address_file(self._folder, self._name)
            for path in (address, end := end_file(address)):
                self._copy_whole(path, path.name)
            if not end.exists() and self._place.stat(end.name) is not None:
                self._confirm()
                self._place.remove(end.name)  # The job has begun again.

    async def copy_soon(self) -> None:
        """Copy what is new, as far as this succeeds in a few seconds: a place that is away does not
        hold up the end of a job."""
        with suppress(OSError), trio.move_on_after(LAST_COPY_S):
            await trio.to_thread.run_sync(self.copy, abandon_on_cancel=True)

    def bring(self) -> list[str]:
        """Replace the files of the run folder by those of the place; returns the names of those
        brought."""
        names = [name for name in self._files(KEPT) if self._is_kept(Path(name))]
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

    def _there(self, path: Path) -> str:
        return f"{self._name}/{path.relative_to(self._folder).as_posix()}"

    def _files(self, folder: str) -> dict[str, int]:
        found = self._place.files(f"{self._name}/{folder}")
        return {name.removeprefix(f"{self._name}/"): each.size for name, each in found.items()}

    def _is_kept(self, path: Path) -> bool:
        return path.parent in self._kept and not path.name.startswith(".")

    def _pieces(self) -> dict[str, dict[str, int]]:
        """The pieces of each tape in the place without gaps, by name, with their lengths."""
        found: dict[str, dict[str, int]] = {}
        for name, size in sorted(self._files(TAPES).items()):
            path = Path(name)
            ours = actor_of(whose(path.parent)[0]) == self._name
            if ours and path.parent.parent == Path(TAPES) and path.name.isdecimal():
                pieces = found.setdefault(path.parent.as_posix(), {})
                if int(path.name) == _length(pieces):
                    pieces[name] = size
        return found

    def _copy_whole(self, path: Path, name: str) -> None:
        if not path.is_file():
            return
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
                self._place.put(f"{self._there(path)}/{done:0{OFFSET_DIGITS}}", data)
                done += len(data)
                self._lengths[name] = done

    def _joined(self, pieces: Iterable[str]) -> Iterator[bytes]:
        for name in pieces:
            yield from self._contents(name)

    def _contents(self, name: str) -> Iterator[bytes]:
        buffer = bytearray(READ_BYTES)
        with self._place.open(f"{self._name}/{name}") as file:
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
        found = _read(place, path.name)
        if found is None:
            path.unlink(missing_ok=True)
        elif not path.is_file() or read_regular(path) != found:
            _replace(path, [found])


def address_in(place: Place, names: Iterable[str]) -> str:
    """Return the address of the first of these actors that has one in a place; empty if none
    has."""
    for name in names:
        found = _read(place, f"{name}.address")
        if found:
            return found.decode("ascii", "replace")
    return ""


def _read(place: Place, name: str) -> bytes | None:
    """A short file; None if it is not there."""
    data = bytearray(READ_BYTES)
    try:
        with place.open(name) as file:
            return bytes(data[: file.readinto(memoryview(data)) or 0])
    except FileNotFoundError:
        return None


def _replace(path: Path, contents: Iterable[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, contents, suffix="partial")
