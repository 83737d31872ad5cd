"""The lease of an actor that others dial: at most one process acts as it at any time.

An engine that cannot reach a process starts it again somewhere else, though it may still live: it
is stopped, its host is cut off, or it only answers late. Both would then write to one run. So
whoever acts as a syncer holds a lease, in a folder that all who may act as it can reach:

    NAME/00000007.json   a claim: who acts as NAME from now on; created if absent, never changed
    NAME/beat.json       written by the holder of the newest claim every BEAT_S seconds
    NAME.signs/7-00000031  created beside the beat of that count; the last SIGNS_KEPT stay

and beside its run folder, for what can be known of processes of the same host at once:

    RUN/lease/NAME/NONCE.lock   locked by the holder's process while it lives
    RUN/lease/id                what tells this run folder from others

The holder may act for HOLD_S seconds after the beginning of its last renewal, by its own clock. A
successor claims the next number once nothing has changed for SILENT_S seconds by *its* clock; no
two clocks are compared. Whoever could not renew in time, because it was stopped, acts again only
if it can claim the next number itself; if another one has claimed it, it writes nothing more.
The number of the newest claim is the epoch of the actor.

The place must create exclusively, which each claim shows, and must find a name that nobody has
looked for before. It need not read what is new: network file systems serve attributes and contents
from a cache for a minute. So a successor that sees no change looks for signs after the last one
that it knows, under names that no cache of its host has; if there is one, the holder lives.
"""

import errno
import fcntl
import os
import platform
import re
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeVar

import msgspec
import trio

from clocks import SuspendAwareTime, number_of, open_regular, open_to_append
from ddloco.stage.actors.effects import Finish, Status
from snapshot import Place, StorageError
from snapshot.local_storage import LocalStorage

BEAT_S = 2.0
"""Interval, in seconds, at which the holder renews its lease."""

HOLD_S = 6.0
"""How long, in seconds, the holder may act after a renewal: two of them may fail or come late."""

SILENT_S = 8.0
"""How long, in seconds, a successor waits for a sign of life. It is longer than HOLD_S by the time
that a write needs until others see it."""

SIGNS_KEPT = 64
"""Signs that stay, two minutes of them: all those after a beat that is a minute old are there."""

LOOK_S = 0.25
"""Interval, in seconds, at which a successor looks for a sign of life."""

CLAIMS_MAX = 10**8
"""The first number that has no name; a claim every second reaches it in three years."""

CLAIM_FILE = re.compile(r"(?:.*/)?([0-9]+)\.json")
"""The file of a claim, by its number."""

ID_FILE = "id"

REASON_CHARS_MAX = 1000
"""The longest reason of an end in a beat."""

INTERRUPTED = Finish("left", "interrupted")
"""How a process has ended that did not come to say how."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a full disk. Where the holder cannot write a beat, nobody can write a claim."""


class LeaseLostError(OSError):
    """Another process acts as this actor now; the text says which."""

    def __init__(self, said: str) -> None:
        super().__init__(errno.ESTALE, said)

    def __str__(self) -> str:
        return self.strerror or ""


class LeaseTakenError(Exception):
    """Another process acts as this actor, and lives; the text says which."""


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who acts as an actor.

    Attributes:
        boot: what tells the host's kernel from others, and from itself before it was started again.
        nonce: unique for each process that has claimed.
        folder: what tells the run folder from others.
    """

    incarnation: str
    host: str
    boot: str
    process: int
    nonce: str
    folder: str

    @property
    def said(self) -> str:
        return f"{self.incarnation} on {self.host}, process {self.process}"


class Beat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sign of life.

    Attributes:
        count: different from that of the beat before.
        ended: how the holder has ended, which will not write again; None while it acts.
    """

    claim: int
    count: int
    ended: Status | None = None
    reason: str = ""


T = TypeVar("T")

_claim_of = msgspec.json.Decoder(Claim).decode
_beat_of = msgspec.json.Decoder(Beat).decode


def this_kernel() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # Not Linux.
        return platform.node()


def folder_id(folder: Path) -> str:
    """What tells a folder from all others; it is written there the first time."""
    here = LocalStorage(folder)
    here.create(ID_FILE, secrets.token_hex(8).encode(), exclusive=True)
    with here.open(ID_FILE) as file:
        data = bytearray(64)
        return bytes(data[: file.readinto(memoryview(data)) or 0]).decode("ascii", "replace")


class Lease:
    """The lease of one actor; its methods may be called from any thread. ``now`` counts seconds
    that go on while the process or the host is suspended.

    Attributes:
        predecessor: the number of the last holder's incarnation; 0 if there was none.
        elsewhere: whether the last holder had another run folder.
        finish: how the last holder has ended, if that is known and it is not to be started again.
    """

    def __init__(
        self,
        place: Place,
        name: str,
        locks: Path | None = None,
        *,
        now: Callable[[], float] | None = None,
        boot: str | None = None,
    ) -> None:
        self._place = place
        self._name = name
        self._locks = locks
        self._now = now or SuspendAwareTime().now
        self._boot = this_kernel() if boot is None else boot
        self._nonce = secrets.token_hex(8)
        self._folder = "" if locks is None else folder_id(locks)
        self._mutex = threading.Lock()
        self.predecessor = 0
        self.elsewhere = False
        self.finish: Finish | None = None
        self._seen: tuple[int, Claim | None, Beat | None] | None = None
        self._since = float("inf")
        self._number = 0
        self._claim: Claim | None = None
        self._beats = 0
        self._renewed = float("-inf")
        self._lost = ""
        self._lock: IO[bytes] | None = None
        self._known = 0, 0
        """The claim and the count of the newest sign that was found."""
        self._asked: set[str] = set()
        """The signs that were looked for and were not there."""

    @property
    def place(self) -> str:
        return self._place.path(self._name)

    # To become the holder.

    def look(self, *, standby: bool = False) -> Claim | None:
        """Look whether the last holder acts, to be repeated every LOOK_S; returns its claim, or
        None once it acts no more. A ``standby`` waits for as long as it lives; another caller gets
        ``LeaseTakenError``. ``StorageError`` if the place cannot be read."""
        silent = self._now() - self._since >= SILENT_S  # Before the look, which may take long.
        number, claim = self._newest()
        beat = self._signs(number)
        signs = number, claim, beat
        if silent and signs == self._seen and beat is not None and self._lives(beat):
            self._since, silent = self._now(), False
        if claim is None or self._has_ended(claim, beat) or (silent and signs == self._seen):
            self._number = number
            if claim is not None:
                self.predecessor = number_of(claim.incarnation)
                self.elsewhere = claim.folder != self._folder
            if beat is not None and beat.ended not in (None, "left"):
                self.finish = Finish(beat.ended, beat.reason)
            return None
        if signs != self._seen:
            if self._seen is not None and not standby:
                raise LeaseTakenError(
                    f"{claim.said} acts in {self._place.path(self._name)} now: stop it first, use "
                    "another folder, or start a --standby"
                )
            self._seen, self._since = signs, self._now()
        return claim

    def take(self, incarnation: str) -> None:
        """Claim the number after the predecessor's; ``LeaseTakenError`` if another process has,
        ``StorageError`` if the place cannot be written."""
        self._claim = Claim(
            incarnation, platform.node(), self._boot, os.getpid(), self._nonce, self._folder
        )
        self._hold_lock()
        try:
            self._claim_next()
        except LeaseLostError as error:
            raise LeaseTakenError(f"{error}: stop it first, or use another folder") from None
        self._remove_locks()
        for name in self._place.files(f"{self._name}.signs"):
            if not name.rpartition("/")[2].startswith(f"{self._number}-"):
                self._place.remove(name)

    # While it is held.

    def holds(self) -> bool:
        """Whether the actor may act; reads nothing but the clock."""
        return not self._lost and self._now() - self._renewed <= HOLD_S

    def confirm(self) -> None:
        """Return if the actor may act, or may again. ``LeaseLostError`` if another process has
        taken its place, ``StorageError`` if the claims cannot be reached, so nobody knows."""
        with self._mutex:
            if not self.holds():
                self._claim_next()

    def renew(self) -> None:
        """Say that the holder lives; raises as ``confirm`` does."""
        with self._mutex:
            self._check_lost()
            began = self._now()
            if self._place.stat(self._file(self._number + 1)) is not None:
                self._lose()
            try:
                self._beat()
            except StorageError as error:
                if error.errno not in FULL:
                    raise
            if self.holds():
                self._renewed = began
            else:  # The beat came too late: a successor may have looked just before.
                self._claim_next()

    async def run(self, note: Callable[[str, dict[str, str]], None]) -> None:
        while not self._lost:
            try:
                await trio.to_thread.run_sync(self.renew)
            except OSError as error:
                note("lease not renewed", {"reason": str(error)})
            await trio.sleep(BEAT_S)

    def close(self, finish: Finish = INTERRUPTED) -> None:
        """Say how the holder has ended, so that no successor has to wait."""
        with self._mutex, suppress(OSError):
            if not self._lost and self._claim is not None:
                self._beat(finish.status, finish.reason[:REASON_CHARS_MAX])
        if self._lock is not None:
            Path(self._lock.name).unlink(missing_ok=True)
            self._lock.close()

    # Internal helpers.

    def _claim_next(self) -> None:
        self._check_lost()
        assert self._claim is not None, "it has been taken"
        began, number = self._now(), self._number + 1
        claim = msgspec.json.encode(self._claim)
        made = self._place.create(self._file(number), claim, exclusive=True)
        # A store may refuse a request that is repeated because its first answer was lost.
        if not made and self._read(self._file(number), _claim_of) != self._claim:
            self._lose()
        self._number, self._renewed = number, began
        self._beat()

    def _beat(self, ended: Status | None = None, reason: str = "") -> None:
        self._beats += 1
        beat = Beat(self._number, self._beats, ended, reason)
        self._place.create(self._sign(self._number, self._beats), b"", exclusive=False)
        if self._beats > SIGNS_KEPT:
            self._place.remove(self._sign(self._number, self._beats - SIGNS_KEPT))
        self._place.put(f"{self._name}/beat.json", msgspec.json.encode(beat))

    def _sign(self, claim: int, count: int) -> str:
        return f"{self._name}.signs/{claim}-{count:08}"

    def _lives(self, beat: Beat) -> bool:
        """Whether there is a sign after the newest that is known, of the holder that made this
        beat. No name is asked for again that was not there, which a cache may remember: so the
        holder must have renewed twice since."""
        before = self._known[1] if self._known[0] == beat.claim else 0
        count = newest = max(beat.count, before)
        while True:
            count += 1
            name = self._sign(beat.claim, count)
            if name in self._asked:
                continue
            if self._place.stat(name) is None:
                break
            newest = count
        self._asked.add(name)
        self._known = beat.claim, newest
        return newest > max(beat.count, before)

    def _lose(self) -> None:
        _, claim = self._newest()
        self._lost = f"{claim.said if claim else 'another one'} acts as {self._name} now"
        self._check_lost()

    def _check_lost(self) -> None:
        if self._lost:
            raise LeaseLostError(self._lost)

    def _has_ended(self, claim: Claim, beat: Beat | None) -> bool:
        """Whether a holder is known to have ended: it has said so, or its process, which was of
        this host, has no lock any more."""
        if beat is not None and beat.ended is not None:
            return True
        if claim.boot != self._boot or self._locks is None:
            return False
        return _is_free(self._locks / self._name / f"{claim.nonce}.lock")

    def _hold_lock(self) -> None:
        """Lock this process's file; the kernel takes the lock away with the process."""
        if self._locks is None:
            return
        folder = self._locks / self._name
        with suppress(OSError):  # Some network file systems have no locks.
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = open_to_append(folder / f"{self._nonce}.lock")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _newest(self) -> tuple[int, Claim | None]:
        number = max(self._numbers(), default=0)
        return number, self._read(self._file(number), _claim_of) if number else None

    def _numbers(self) -> list[int]:
        found = (CLAIM_FILE.fullmatch(name) for name in self._place.files(self._name))
        return [int(each[1]) for each in found if each is not None]

    def _signs(self, number: int) -> Beat | None:
        """The newest beat of a claim; None before the first one, or if it is being written."""
        with suppress(StorageError):
            beat = self._read(f"{self._name}/beat.json", _beat_of) if number else None
            return beat if beat is not None and beat.claim == number else None
        return None

    def _read(self, name: str, decode: Callable[[bytes], T]) -> T:
        try:
            with self._place.open(name) as file:
                data = bytearray(4096)
                return decode(bytes(data[: file.readinto(memoryview(data)) or 0]))
        except (FileNotFoundError, msgspec.DecodeError) as error:
            raise StorageError(f"{self._place.path(name)}: no claim of a lease: {error}") from None

    def _file(self, number: int) -> str:
        if number >= CLAIMS_MAX:
            raise StorageError(
                f"{self._place.path(self._name)}: {number} claims; remove the folder"
            )
        return f"{self._name}/{number:08}.json"

    def _remove_locks(self) -> None:
        """Remove the locks of processes that have ended. Claims stay for ever: a process that was
        stopped for long must find the number after its own taken."""
        if self._locks is None:
            return
        for path in (self._locks / self._name).glob("*.lock"):
            if path.stem != self._nonce and _is_free(path):
                path.unlink(missing_ok=True)


def _is_free(path: Path) -> bool:
    """Whether nobody has locked a file; False if it is not there."""
    try:
        with open_regular(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
