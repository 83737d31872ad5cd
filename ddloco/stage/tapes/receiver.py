"""Receives shipped tapes in the syncer's tape folder, under their own names. A tape that exists
here and was not shipped means that its learner uses this folder; then nothing is shipped. A mark is
made before the first byte is written, so that a restarted syncer continues. A sender can only
append to the tape of its route's incarnation, of this job. Beyond a limit messages are dropped, and
repeated."""

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
from ddloco.stage.files.trust import content_of
from ddloco.stage.process.log import Note
from ddloco.stage.process.side_protocol import Inbox, Refusals, SideProtocolError, tell
from ddloco.stage.tapes.sender import digest_prefix
from ddloco.stage.tapes.shipping_protocol import (
    LANE,
    TAPE_BYTES_MAX,
    VERSION,
    AskLength,
    Declined,
    Has,
    Segment,
    Whole,
    decode_said,
    digest_of,
)
from replay import Tape, TapeError
from transport import Allowances, Arrival, Endpoint
from transport.endpoint import Buffer

MARKS = ".shipped"
"""A folder beside the tapes, with one file for each tape that was shipped here."""

TAPES_MAX = 16384
"""Tapes that one run accepts: four incarnations of each of the learners that a job may have."""

WAITING_MAX = 64
"""Messages that wait to be written: at most 64 MiB of segments."""

ACTOR_BYTES_AT_ONCE = 64 * 2**20
ACTOR_BYTES_PER_S = 4 * 2**20
"""What one actor may send, over all its incarnations: a burst for what a learner recorded while its
syncer was away, then a rate a hundred times that of its events. Segments beyond that are not
answered, so they are sent again later. So no sender can fill a disk quickly."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors that may be temporary; after any other one the sender is told to stop."""

QUIET_S = 3.0
"""After the end of the syncer, a sender is not waited for once it is silent for this long, in
seconds."""

FINISH_S = 30.0
"""How long, in seconds, a syncer that has ended waits for the rest of the tapes."""

Shipped = AskLength | Segment | Whole


class RefusedError(Exception):
    """A message was rejected; ``answer`` is the reply to its sender, if any."""

    def __init__(self, reason: str, answer: Declined | Has | None = None) -> None:
        super().__init__(reason)
        self.answer = answer


@dataclass
class IncomingTape:
    """A tape being received: the digest of its bytes so far, and when the last ones arrived."""

    path: Path
    length: int
    digest: xxhash.xxh3_128
    heard_at: float = 0.0
    whole: bool = False


class TapeReceiver:
    def __init__(
        self,
        folder: Path,
        names: tuple[str, ...],
        job: tuple[str, Mapping[str, Any]],
        endpoint: Endpoint,
        note: Note,
        *,
        holds: Callable[[], bool] = lambda: True,
    ) -> None:
        self._holds = holds
        self.refusals = Refusals("segment refused", note)
        self._folder = folder
        self._names = names
        self._job_id, settings = job
        self._settings = content_of(settings)
        self._endpoint = endpoint
        self._incoming: dict[str, IncomingTape] = {}
        self._spoke: dict[str, tuple[str, float]] = {}
        """Of each learner, the incarnation that spoke last on another lane, and when."""
        self._shipping: dict[str, str] = {}
        """Of each learner, the incarnation that spoke last of its tape."""
        self._allowances = Allowances(ACTOR_BYTES_AT_ONCE, ACTOR_BYTES_PER_S)
        self._inbox = Inbox[Arrival](WAITING_MAX)

    def take(self, arrival: Arrival) -> None:
        self._inbox.put(arrival)

    def heeds(self, route: str) -> bool:
        """Notice who speaks on another lane; every arrival there is passed on."""
        name = route.partition("/")[0]
        if self._is_learner(name):
            self._spoke[actor_of(name)] = name, trio.current_time()
        return True

    async def run(self) -> None:
        async for arrival in self._inbox.waiting:
            if self._holds():  # Otherwise its sender repeats it.
                await self._handle(arrival)

    async def finish(self, within_s: float = math.inf) -> None:
        """After the syncer has ended, wait for tapes that are still arriving."""
        with trio.move_on_after(min(FINISH_S, within_s)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.run)
                while self._coming():  # noqa: ASYNC110, silence is no event
                    await trio.sleep(QUIET_S / 10)
                nursery.cancel_scope.cancel()

    def _coming(self) -> bool:
        oldest = trio.current_time() - QUIET_S
        if any(not each.whole and each.heard_at > oldest for each in self._incoming.values()):
            return True
        # A learner of a syncer that has just taken over may not have asked it yet.
        silent = (at for who, (name, at) in self._spoke.items() if self._shipping.get(who) != name)
        return any(at > oldest for at in silent)

    async def _handle(self, arrival: Arrival) -> None:
        name = arrival.route.removesuffix(f"/{LANE}")
        answer: Has | Declined | None
        try:
            said, data = decode_said(arrival.frames)
            self._check_allowance(name, len(data))
            answer = await trio.to_thread.run_sync(self._answer, name, said, data)
        except SideProtocolError as error:
            answer = None
            self.refusals.add(name, str(error))
        except RefusedError as error:
            answer = error.answer
            self.refusals.add(name, str(error))
        if self._is_learner(name):
            self._shipping[actor_of(name)] = name
        if name in self._incoming:
            self._incoming[name].heard_at = trio.current_time()
        if answer is not None:
            tell(self._endpoint, arrival.route, answer)

    def _check_allowance(self, name: str, nbytes: int) -> None:
        """Raise RefusedError if an actor exceeds its rate; its sender repeats the message."""
        actor = actor_of(name)
        if not nbytes or actor not in self._names:
            return  # Unknown actors are rejected later.
        if not self._allowances.take(actor, trio.current_time(), nbytes):
            raise RefusedError(f"more than {ACTOR_BYTES_PER_S} bytes a second of {actor}")

    # The methods below run in a thread, one call at a time.

    def _answer(self, name: str, said: Shipped, data: Buffer) -> Has | Declined:
        if not self._is_learner(name):
            raise _end(said, f"{name[:64]} is not an incarnation of a learner of this job")
        if isinstance(said, AskLength) and said.version != VERSION:
            raise _end(said, f"this syncer receives tapes in version {VERSION}, not {said.version}")
        try:
            if self._is_shared(name):
                return Declined(said.n, "it is in this folder as the original", shared=True)
            incoming = self._incoming.get(name) or self._open(name)
            if isinstance(said, Segment):
                self._append(name, incoming, said, data)
            elif isinstance(said, Whole):
                incoming.whole = said.length == incoming.length
            digest = incoming.digest.digest() if isinstance(said, AskLength) else b""
            return Has(said.n, incoming.length, digest)
        except OSError as error:
            reason = f"cannot be written here: {error.strerror}"
            if error.errno in NO_ROOM:  # Not answered: it will be repeated when there may be room.
                raise RefusedError(reason) from None
            raise _end(said, reason) from None

    def _is_learner(self, name: str) -> bool:
        actor, _, number = name.rpartition(".")
        return actor in self._names and re.fullmatch(r"[1-9][0-9]{0,8}", number) is not None

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.tape"

    def _is_shared(self, name: str) -> bool:
        """Whether a tape exists here that was not shipped: its learner uses this folder."""
        return self._path(name).exists() and not (self._folder / MARKS / name).exists()

    def _open(self, name: str) -> IncomingTape:
        """Open the tape that an earlier syncer received in part, or a new one."""
        path = self._path(name)
        length = path.stat().st_size if path.exists() else 0
        digest = digest_prefix(path, length) if length else xxhash.xxh3_128()
        incoming = self._incoming[name] = IncomingTape(path, length, digest)
        return incoming

    def _append(self, name: str, incoming: IncomingTape, said: Segment, data: Buffer) -> None:
        """Append a segment to the tape, completely or not at all."""
        has = Has(said.n, incoming.length)
        if said.offset != incoming.length:
            problem = f"a segment at byte {said.offset}, expected byte {incoming.length}"
            raise RefusedError(problem, has)
        if digest_of(data) != said.digest:
            problem = f"the segment at byte {said.offset} does not match its digest"
            raise RefusedError(problem, has)
        if incoming.length + len(data) > TAPE_BYTES_MAX:
            raise _end(said, f"a tape of more than {TAPE_BYTES_MAX} bytes")
        if not incoming.length:
            self._begin(name, said, data)
        else:
            _write(incoming.path, data, incoming.length)
        incoming.length += len(data)
        incoming.digest.update(data)
        incoming.whole = False

    def _begin(self, name: str, said: Segment, data: Buffer) -> None:
        """Write the first segment; it contains the header, which names the tape's actor and job."""
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
            raise _end(said, f"not a tape: {error.problem}") from None
        if (header.incarnation, header.job_id) != (name, self._job_id):
            partial.unlink()
            raise _end(said, f"a tape of {header.incarnation[:64]}, job {header.job_id[:80]}")
        if content_of(header.job) != self._settings:
            # The id alone proves nothing, and a replay runs the code that the settings name.
            partial.unlink()
            raise _end(said, f"a tape of job {header.job_id[:80]} with other settings")
        (marks / name).touch()
        partial.replace(self._path(name))


def _end(said: Shipped, reason: str) -> RefusedError:
    return RefusedError(reason, Declined(said.n, reason))


def _write(path: Path, data: Buffer, length: int) -> None:
    """Append to a file of ``length`` bytes, completely or not at all. The offset is given, so that
    a process that was stopped here, and is another one's predecessor by now, changes nothing."""
    file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        written = os.pwrite(file, data, length)
        if written != len(data):
            os.ftruncate(file, length)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(file)
