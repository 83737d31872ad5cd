"""The sender of a tape: reads the file being recorded and ships what the syncer lacks. It never
delays the recorder: it reads from outside, and an error here affects only the copy."""

import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import trio
import xxhash

from clocks import open_regular
from ddloco.stage.files.settings import TapeTable
from ddloco.stage.process.log import Note
from ddloco.stage.process.side_protocol import Inbox, SideProtocolError, tell
from ddloco.stage.tapes.shipping_protocol import (
    SEGMENT_BYTES_MAX,
    AskLength,
    Declined,
    Has,
    Segment,
    Whole,
    Word,
    decode_answer,
    digest_of,
)
from transport import Arrival, Endpoint
from transport.endpoint import Buffer

LOOK_S = 0.2
"""Interval, in seconds, at which the tape is checked for new bytes."""

ANSWER_S = 5.0
"""A message without an answer for this long, in seconds, was lost with its connection or syncer."""

AGAIN_S, AGAIN_S_MAX = 0.5, 8.0
"""First and longest wait, in seconds, before a syncer that does not answer is asked again."""

FINISH_S = 10.0
"""How long, in seconds, a learner that has ended waits for the rest of its tape to be shipped."""

NOT_SHIPPED = "tape not shipped"

ANSWERS_MAX = 16
"""Answers that may be queued; only the answer to the last message counts."""


class TapeSender:
    def __init__(
        self, path: Path, route: str, endpoint: Endpoint, table: TapeTable, note: Note
    ) -> None:
        self.over = False
        """Whether nothing more will be shipped: the syncer declined, or shares the folder."""
        self._path = path
        self._route = route
        self._endpoint = endpoint
        self._table = table
        self._note = note
        self._n = 0
        self._has: int | None = None
        """Bytes that the syncer has; None while unknown."""
        self._shipped_at = 0.0
        self._answers = Inbox[Has | Declined](ANSWERS_MAX)

    def take(self, arrival: Arrival) -> None:
        """Accept an answer of the syncer; invalid or excess answers are ignored."""
        with suppress(SideProtocolError):
            self._answers.put(decode_answer(arrival.frames))

    async def run(self) -> None:
        await self._ship(lambda: True, at_once=False)

    async def complete(self) -> None:
        """Ship the rest of a tape that no longer grows, however long that takes."""
        await self._ship(lambda: self._has != self._size(), at_once=True)
        if not self.over:
            await self._call(Whole(self._next(), self._size()))

    async def finish(self, within_s: float = math.inf) -> None:
        """Ship the rest of the closed tape for a limited time; log how much is missing."""
        with trio.move_on_after(min(FINISH_S, within_s)):
            while not self.over:
                if self._has == self._size():
                    await self._call(Whole(self._next(), self._size()))
                    return
                if not await self._go_on(at_once=True):
                    await trio.sleep(AGAIN_S)
        missing = self._size() - (self._has or 0)
        if not self.over and missing:
            self._note(NOT_SHIPPED, {"missing_bytes": missing, "of_bytes": self._size()})

    async def _ship(self, goes_on: Callable[[], bool], *, at_once: bool) -> None:
        patience_s = AGAIN_S
        while not self.over and goes_on():
            heard = await self._go_on(at_once=at_once)
            if not heard:
                await trio.sleep(patience_s)
            patience_s = AGAIN_S if heard else min(2 * patience_s, AGAIN_S_MAX)

    async def _go_on(self, *, at_once: bool) -> bool:
        """Send one message if there is one to send; returns whether it was answered."""
        if self._has is None:
            return await self._ask()
        data = await self._due(self._has, at_once=at_once)
        if not data:
            await trio.sleep(LOOK_S)
            return True
        self._shipped_at = trio.current_time()
        segment = Segment(self._next(), self._has, digest_of(data))
        answer = await self._call(segment, data)
        if isinstance(answer, Has) and answer.length == self._has + len(data):
            self._has = answer.length
        else:
            self._has = None  # AskLength again: the answer contains the length and the digest.
            self._decline(answer)
        return answer is not None

    async def _ask(self) -> bool:
        """Ask how much the syncer has, and compare its digest with ours."""
        answer = await self._call(AskLength(self._next()))
        if isinstance(answer, Has):
            same = answer.length <= self._size()
            if same and answer.length:
                same = answer.digest == await self._digest(answer.length)
            if same:
                self._has = answer.length
            else:
                self._give_up(f"the receiver has {answer.length} other bytes under its name")
        self._decline(answer)
        return answer is not None

    def _decline(self, answer: Has | Declined | None) -> None:
        if isinstance(answer, Declined) and answer.shared:
            self.over = True
        elif isinstance(answer, Declined):
            self._give_up(answer.reason)

    def _give_up(self, reason: str) -> None:
        self.over = True
        self._note(NOT_SHIPPED, {"reason": reason})

    async def _call(self, word: Word, *data: Buffer) -> Has | Declined | None:
        if not tell(self._endpoint, self._route, word, *data):
            return None
        with trio.move_on_after(ANSWER_S):
            while True:
                answer = await self._answers.waiting.receive()
                if answer.n == word.n:
                    return answer
        return None

    def _next(self) -> int:
        self._n += 1
        return self._n

    def _size(self) -> int:
        return self._path.stat().st_size

    async def _due(self, offset: int, *, at_once: bool) -> bytes:
        """The next segment, once it is full or old enough; the first has the whole header."""
        young = trio.current_time() - self._shipped_at < self._table.segment_s
        if not at_once and young and self._size() - offset < self._table.segment_bytes:
            return b""
        most = self._table.segment_bytes if offset else SEGMENT_BYTES_MAX
        return await trio.to_thread.run_sync(_read, self._path, offset, most)

    async def _digest(self, length: int) -> bytes:
        return (await trio.to_thread.run_sync(digest_prefix, self._path, length)).digest()


def _read(path: Path, offset: int, most: int) -> bytes:
    with open_regular(path) as file:
        file.seek(offset)
        return file.read(most)


def digest_prefix(path: Path, length: int) -> xxhash.xxh3_128:
    digest = xxhash.xxh3_128()
    with open_regular(path) as file:
        while length > 0:
            data = file.read(min(length, SEGMENT_BYTES_MAX))
            if not data:
                break
            digest.update(data)
            length -= len(data)
    return digest
