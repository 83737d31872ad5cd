"""A learner's one stream of batches, and going back to where it stood.

A task's stream says where it stands as plain data (``Batches.state``). That state travels as the
cursor of a step: with every report, with snapshots, and back to a learner that returns, which puts
its stream there (``Batches.restore``). Drawing batches again from the beginning is the last resort,
for a stream without such a state: it takes as long as drawing them took the first time.
"""

import sys
import time
from collections.abc import Callable
from typing import Any, cast

import msgpack

from ddloco.protocol.messages import CURSOR_BYTES_MAX
from ddloco.workers.task import Batches, TaskError

TOLD_EVERY_S = 10.0
"""How often a worker that draws batches again says how far it is."""


class DataStream:
    """The batches of one shard.

    Args:
        task: the task's name, for errors.
        batches: the task's stream, where it begins.
    """

    def __init__(self, task: str, batches: Batches) -> None:
        self._task = task
        self._batches = batches
        self.next = batches.next

    def position(self) -> bytes:
        """Where the stream stands, as msgpack; empty for a stream whose ``state()`` is None.

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
        """Put the stream where ``position`` says."""
        self._batches.restore(msgpack.unpackb(position, strict_map_key=False))

    def draw_again(self, count: int) -> None:
        """Leave out ``count`` batches by drawing them; says how far it is every ten seconds."""
        told_at = time.monotonic()
        for drawn in range(count):
            self._batches.next()
            if time.monotonic() - told_at > TOLD_EVERY_S:
                told_at = time.monotonic()
                said = f"task {self._task}: {drawn + 1} of {count} used batches drawn again"
                print(f"ddloco: {said}", file=sys.stderr, flush=True)  # noqa: T201, it is progress

    def check(self, before: bytes, digest: bytes, digest_of: Callable[[Any], bytes]) -> None:
        """See that going back to ``before`` brings the batch of ``digest`` again.

        Raises:
            TaskError: it brings another one; such a job could neither go on nor be replayed.
        """
        if not before:
            return
        self.go_to(before)
        if digest_of(self._batches.next()) != digest:
            said = "restore(state()) does not bring the same batch again"
            raise TaskError(f"task {self._task}: batches(): {said}")


def pack_cursor(position: bytes, counts: list[int]) -> bytes:
    """Where a stream and the schedules of an optimizer stand, as msgpack."""
    return cast("bytes", msgpack.packb((position, counts)))


def unpack_cursor(cursor: bytes) -> tuple[bytes, list[int]]:
    """The stream's position, empty where it cannot be put back; the schedules' counts."""
    position, counts = msgpack.unpackb(cursor)
    return position, counts


def travelling(cursor: bytes) -> bytes:
    """What of a cursor travels with every report: all of it, or the counts alone."""
    if len(cursor) <= CURSOR_BYTES_MAX:
        return cursor
    return pack_cursor(b"", unpack_cursor(cursor)[1])
