"""A learner's stream of batches, and how it returns to an earlier position.

A task's stream reports its position as plain data (``Batches.state``). That state is part of the
cursor of a step, which is sent with every report, stored in snapshots, and given to a learner that
returns, whose stream then goes to that position (``Batches.restore``). For a stream without such a
state the used batches are drawn again, which takes as long as it took the first time.
"""

import sys
import time
from collections.abc import Callable
from typing import Any, cast

import msgpack

from ddloco.protocol.messages import CURSOR_BYTES_MAX
from ddloco.workers.task import Batches, TaskError

TOLD_EVERY_S = 10.0
"""Interval of the progress lines, in seconds, while a worker draws batches again."""


class DataStream:
    """The batches of one shard.

    Args:
        task: the task's name, for error messages.
        batches: the task's stream, at its beginning.
    """

    def __init__(self, task: str, batches: Batches) -> None:
        self._task = task
        self._batches = batches
        self.next = batches.next

    def position(self) -> bytes:
        """The stream's position as msgpack; empty if its ``state()`` is None.

        Raises:
            TaskError: its state is not plain data.
        """
        state = self._batches.state()
        if state is None:
            return b""
        try:
            return cast("bytes", msgpack.packb(state))
        except (TypeError, ValueError, OverflowError) as error:
            said = (
                f"batches().state() is not plain data (numbers, text, bytes, lists, dicts): {error}"
            )
            raise TaskError(f"task {self._task}: {said}") from None

    def go_to(self, position: bytes) -> None:
        """Move the stream to ``position``."""
        self._batches.restore(msgpack.unpackb(position, strict_map_key=False))

    def draw_again(self, count: int) -> None:
        """Skip ``count`` batches by drawing them; prints progress every ten seconds."""
        told_at = time.monotonic()
        for drawn in range(count):
            self._batches.next()
            if time.monotonic() - told_at > TOLD_EVERY_S:
                told_at = time.monotonic()
                said = f"task {self._task}: {drawn + 1} of {count} used batches drawn again"
                print(f"ddloco: {said}", file=sys.stderr, flush=True)  # noqa: T201, it is progress

    def check(self, before: bytes, digest: bytes, digest_of: Callable[[Any], bytes]) -> None:
        """Check that the stream, restored to ``before``, yields the batch with this digest again.

        Raises:
            TaskError: it yields another batch; such a job could be neither resumed nor replayed.
        """
        if not before:
            return
        self.go_to(before)
        if digest_of(self._batches.next()) != digest:
            said = "restore(state()) does not bring the same batch again"
            raise TaskError(f"task {self._task}: batches(): {said}")


def pack_cursor(position: bytes, counts: list[int]) -> bytes:
    """The position of a stream and the counts of an optimizer's schedules, as msgpack."""
    return cast("bytes", msgpack.packb((position, counts)))


def unpack_cursor(cursor: bytes) -> tuple[bytes, list[int]]:
    """The stream's position, empty if it cannot be restored, and the counts of the schedules."""
    position, counts = msgpack.unpackb(cursor)
    return position, counts


def travelling(cursor: bytes) -> bytes:
    """The part of a cursor that is sent with every report: all of it, or else only the counts."""
    if len(cursor) <= CURSOR_BYTES_MAX:
        return cursor
    return pack_cursor(b"", unpack_cursor(cursor)[1])
