"""Where shipped tapes arrive: beside the syncer's own, under their own names.

A tape that is here already, and was not shipped, is in its learner's own folder: then both share
this one, and nothing is shipped. Which ones were shipped stands in a folder of marks, made before
the first byte, so that a syncer that starts again goes on. Whoever speaks can write to the one file
that its route names, at its end, and only a tape of that incarnation and of this job.

Files are written in a thread and answered one after the other; what comes meanwhile waits, and
beyond a bound is dropped: its sender says it again.
"""

import errno
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio
import xxhash

from clocks import actor_of
from ddloco.config.trust import content_of
from ddloco.tapes.sender import digest_prefix
from ddloco.tapes.shipping_protocol import (
    LANE,
    TAPE_BYTES_MAX,
    VERSION,
    Ask,
    Has,
    Segment,
    ShippingError,
    Sorry,
    Whole,
    decode_said,
    digest_of,
    encode,
)
from replay import Tape, TapeError
from transport import Allowance, Arrival, Endpoint, LaneFull, PeerGone
from transport.endpoint import Buffer

MARKS = ".shipped"
"""Beside the tapes: a file for each one that came from elsewhere."""

TAPES_MAX = 16384
"""Tapes that are taken in by one run: four incarnations of as many learners as a job may have."""

WAITING_MAX = 64
"""Words that wait to be written: 64 MiB of segments at most."""

ACTOR_BYTES_AT_ONCE = 64 * 2**20
ACTOR_BYTES_PER_S = 4 * 2**20
"""What may arrive of one actor, whichever of its incarnations it says it is: what a learner wrote
while its syncer was away, and then a hundred times what events take. More is not answered, so it
is said again later; nobody fills a disk in a minute."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What may pass by itself; whatever else the system says will be said again."""

QUIET_S = 3.0
"""When the syncer has ended, a sender that is silent for so long is not waited for any more."""

FINISH_S = 30.0
"""How long a syncer that has ended stays for the rest of the tapes to arrive."""

REFUSALS_LOGGED_MAX = 20

Note = Callable[[str, dict[str, Any]], None]
Said = Ask | Segment | Whole


class RefusedError(Exception):
    """What they said is not done; with ``end`` they need not say any more."""

    def __init__(self, reason: str, answer: Sorry | Has | None = None) -> None:
        super().__init__(reason)
        self.answer = answer


@dataclass
class Cargo:
    """A tape that arrives: the digest of what is here of it, and when more was heard."""

    path: Path
    length: int
    digest: xxhash.xxh3_128
    heard_at: float = 0.0
    whole: bool = False


class Harbour:
    """Takes in the tapes of a job's learners.

    Args:
        folder: of the syncer's tapes.
        names: the learners.
        job: the id and the settings of the job that their tapes must be of.
        endpoint: carries the answers.
        note: the log.
    """

    def __init__(
        self,
        folder: Path,
        names: tuple[str, ...],
        job: tuple[str, Mapping[str, Any]],
        endpoint: Endpoint,
        note: Note,
    ) -> None:
        self.refused = 0
        """What was said and not done."""
        self._folder = folder
        self._names = names
        self._job_id, settings = job
        self._settings = content_of(settings)
        self._endpoint = endpoint
        self._note = note
        self._cargoes: dict[str, Cargo] = {}
        self._allowances: dict[str, Allowance] = {}
        """By actor of this job that has shipped anything."""
        self._came, self._waiting = trio.open_memory_channel[Arrival](WAITING_MAX)

    def take(self, arrival: Arrival) -> None:
        """Something came on the lane for tapes."""
        try:
            self._came.send_nowait(arrival)
        except trio.WouldBlock:
            return  # Not answered, so it is said again.

    async def run(self) -> None:
        """Answer whatever comes, for ever."""
        async for arrival in self._waiting:
            await self._handle(arrival)

    async def finish(self, within_s: float = math.inf) -> None:
        """The syncer has ended: wait for those whose tapes are still on their way."""
        with trio.move_on_after(min(FINISH_S, within_s)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.run)
                while self._coming():  # noqa: ASYNC110, it is silence that is waited for
                    await trio.sleep(QUIET_S / 10)
                nursery.cancel_scope.cancel()

    def _coming(self) -> bool:
        oldest = trio.current_time() - QUIET_S
        return any(not each.whole and each.heard_at > oldest for each in self._cargoes.values())

    async def _handle(self, arrival: Arrival) -> None:
        """One word: done, or refused and counted; answered where it can be."""
        name = arrival.route.removesuffix(f"/{LANE}")
        answer: Has | Sorry | None
        try:
            said, data = decode_said(arrival.frames)
            self._check_allowance(name, len(data))
            answer = await trio.to_thread.run_sync(self._answer, name, said, data)
        except ShippingError as error:
            answer = None
            self._count(name, str(error))
        except RefusedError as error:
            answer = error.answer
            self._count(name, str(error))
        if name in self._cargoes:
            self._cargoes[name].heard_at = trio.current_time()
        if answer is not None:
            try:
                self._endpoint.send_nowait(arrival.route, [encode(answer)])
            except (LaneFull, PeerGone):
                return  # It asks again.

    def _check_allowance(self, name: str, nbytes: int) -> None:
        """Raises RefusedError for more than may come of one actor now; it is said again."""
        actor = actor_of(name)
        if not nbytes or actor not in self._names:
            return  # Whoever it is, its words are judged below.
        now = trio.current_time()
        full = Allowance(ACTOR_BYTES_AT_ONCE, ACTOR_BYTES_PER_S, ACTOR_BYTES_AT_ONCE, now)
        if not self._allowances.setdefault(actor, full).take(now, nbytes):
            raise RefusedError(f"more than {ACTOR_BYTES_PER_S} bytes a second of {actor}")

    def _count(self, name: str, reason: str) -> None:
        self.refused += 1
        if self.refused <= REFUSALS_LOGGED_MAX:
            fields = {"peer": name, "reason": reason, "count": self.refused}
            self._note("segment refused", fields)

    # In a thread, one at a time.

    def _answer(self, name: str, said: Said, data: Buffer) -> Has | Sorry:
        """Do what was said.

        Raises:
            RefusedError: it is not to be done.
        """
        if not self._is_learner(name):
            raise _end(said, f"{name[:64]} is no incarnation of a learner of this job")
        if isinstance(said, Ask) and said.version != VERSION:
            raise _end(said, f"tapes are taken in version {VERSION} here, not {said.version}")
        try:
            if self._is_shared(name):
                return Sorry(said.n, "it is in this folder already", shared=True)
            cargo = self._cargoes.get(name) or self._open(name)
            if isinstance(said, Segment):
                self._append(name, cargo, said, data)
            elif isinstance(said, Whole):
                cargo.whole = said.length == cargo.length
            digest = cargo.digest.digest() if isinstance(said, Ask) else b""
            return Has(said.n, cargo.length, digest)
        except OSError as error:
            reason = f"cannot be written here: {error.strerror}"
            if error.errno in NO_ROOM:  # Not answered: it is said again, and then there may be.
                raise RefusedError(reason) from None
            raise _end(said, reason) from None

    def _is_learner(self, name: str) -> bool:
        actor, _, number = name.rpartition(".")
        return actor in self._names and re.fullmatch(r"[1-9][0-9]{0,8}", number) is not None

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.tape"

    def _is_shared(self, name: str) -> bool:
        """Whether a tape is here that nobody shipped: this is its learner's own folder."""
        return self._path(name).exists() and not (self._folder / MARKS / name).exists()

    def _open(self, name: str) -> Cargo:
        """What there is of a tape, from a syncer before this one, if anything."""
        path = self._path(name)
        length = path.stat().st_size if path.exists() else 0
        digest = digest_prefix(path, length) if length else xxhash.xxh3_128()
        cargo = self._cargoes[name] = Cargo(path, length, digest)
        return cargo

    def _append(self, name: str, cargo: Cargo, said: Segment, data: Buffer) -> None:
        """Write a segment at the end of what there is, or nothing."""
        has = Has(said.n, cargo.length)
        if said.offset != cargo.length:
            problem = f"a segment at byte {said.offset}, the next one is byte {cargo.length}"
            raise RefusedError(problem, has)
        if digest_of(data) != said.digest:
            problem = f"the segment at byte {said.offset} does not match its digest"
            raise RefusedError(problem, has)
        if cargo.length + len(data) > TAPE_BYTES_MAX:
            raise _end(said, f"a tape of more than {TAPE_BYTES_MAX} bytes")
        if not cargo.length:
            self._begin(name, said, data)
        else:
            _write(cargo.path, data, cargo.length)
        cargo.length += len(data)
        cargo.digest.update(data)
        cargo.whole = False

    def _begin(self, name: str, said: Segment, data: Buffer) -> None:
        """The first segment has the header, which says whose tape it is."""
        marks = self._folder / MARKS
        marks.mkdir(parents=True, exist_ok=True)
        if len(list(marks.iterdir())) >= TAPES_MAX:
            raise _end(said, f"more than {TAPES_MAX} tapes")
        partial = marks / f"{name}.partial"
        partial.unlink(missing_ok=True)
        partial.touch()
        _write(partial, data, 0)
        try:
            header = Tape(partial).header
        except TapeError as error:
            partial.unlink()
            raise _end(said, f"no tape: {error.problem}") from None
        if (header.incarnation, header.job_id) != (name, self._job_id):
            partial.unlink()
            raise _end(said, f"a tape of {header.incarnation[:64]}, job {header.job_id[:80]}")
        if content_of(header.job) != self._settings:
            # An id is only text: a replay calls what the settings beside it name.
            partial.unlink()
            raise _end(said, f"a tape that says {header.job_id[:80]} of other settings than ours")
        (marks / name).touch()
        partial.replace(self._path(name))


def _end(said: Said, reason: str) -> RefusedError:
    return RefusedError(reason, Sorry(said.n, reason))


def _write(path: Path, data: Buffer, length: int) -> None:
    """Append to a file of ``length`` bytes, all of it or nothing."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        written = os.write(file, data)
        if written != len(data):
            os.ftruncate(file, length)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(file)
