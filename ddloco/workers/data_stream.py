"""The streams of batches that a learner draws from, and how it returns to an earlier position
(``Batches.state``, ``Batches.restore``), which is part of the cursor of a step. A stream without
one draws its used batches again. The next batch is drawn while the device computes; until it is
used, the position remains the one before it."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import msgpack
import msgspec

from ddloco.job.protocol.messages import CURSOR_BYTES_MAX
from ddloco.workers.stream_state import PLAIN, packed_position, unpacked_position
from ddloco.workers.task import Batches, TaskError

RETRY_S = 0.5
RETRY_S_MAX = 30.0
"""Seconds until a batch that could not be drawn is tried again: doubled each time, up to this."""

FINAL = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError),
    *(StopIteration, TypeError, ValueError),
)
"""Exceptions after which a stream is not tried again: no store that is away raises them."""

DATA_FAILED, DATA_AGAIN = "data failed", "data again"

TOLD_EVERY_S = 10.0
"""Interval of the progress lines, in seconds, while a worker draws batches again."""


METHODS = ("next", "state", "restore")


@dataclass(slots=True)
class _Ahead:
    """A batch that was drawn before it is used, or why it could not be; ``before`` is the position
    then."""

    before: bytes
    batch: Any = None
    error: Exception | None = None


class DataStream:
    """The batches of one shard. ``copied`` copies the arrays of a batch: the device may read them
    while the next batch is drawn, by a stream that shuffles its data where they lie. ``TaskError``
    if it is no stream, or its state is not plain data."""

    def __init__(
        self,
        task: str,
        batches: Batches,
        copied: Callable[[Any], Any],
        tell: Callable[[str, dict[str, Any]], None] = lambda *_: None,
    ) -> None:
        missing = [name for name in METHODS if not callable(getattr(batches, name, None))]
        if missing:
            raise TaskError(
                f"task {task}: batches() returned a {type(batches).__name__} without "
                f"{missing[0]}(); want an object with next(), state() and restore(state)"
            )
        self._task = task
        self._batches = batches
        self._copied = copied
        self._tell = tell
        self._ahead: _Ahead | None = None
        self._large = False
        """Whether the last position was larger than ``CURSOR_BYTES_MAX``. No report has such a one:
        it is made for snapshots only, and so no batch is drawn ahead, since what was before that
        would have to be kept."""
        self.position()  # A state that is of no use is refused before anything is trained.

    def next(self, retry_s: float = 0.0) -> Any:
        """Return the next batch, whose arrays the stream does not change later; for ``retry_s``
        seconds the stream is tried again if it raises."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            if not retry_s:
                return self._copied(self._batches.next())
            ahead = self._drawn(self.position_if_small())
        if ahead.error is not None:
            ahead = self._tried_again(ahead, ahead.error, retry_s)
        return ahead.batch

    def draw_ahead(self) -> Any:
        """Draw the next batch before it is used, and return it; an exception waits until it is
        used, too, and then this returns None, as it does for a stream with a large position."""
        if self._ahead is None and not self._large:
            self._ahead = self._drawn(self.position())
        return self._ahead.batch if self._ahead is not None else None

    def _drawn(self, before: bytes) -> _Ahead:
        ahead = _Ahead(before)
        try:
            ahead.batch = self._copied(self._batches.next())
        except Exception as error:  # noqa: BLE001, whatever user code raises; see ``next``
            ahead.error = error
        return ahead

    def _tried_again(self, failed: _Ahead, error: Exception, retry_s: float) -> _Ahead:
        """Draw a batch again with growing pauses, as often as ``retry_s`` seconds allow, from the
        position that a stream may have left. One at its end is not tried again, even if it is there
        because it has raised, nor one whose exception says that the code or the data are wrong."""
        pause_s = RETRY_S
        while not isinstance(error, FINAL) and retry_s > 0.0:
            pause_s = min(pause_s, retry_s)
            reason = f"{type(error).__name__}: {error}"
            self._tell(DATA_FAILED, {"level": "warning", "reason": reason, "again_s": pause_s})
            time.sleep(pause_s)
            retry_s, pause_s = retry_s - pause_s, min(2 * pause_s, RETRY_S_MAX)
            try:
                if failed.before:
                    self._batches.restore(unpacked_position(failed.before))
                batch = self._copied(self._batches.next())
            except StopIteration:
                break
            except Exception as again:  # noqa: BLE001, whatever user code raises
                error = again
            else:
                self._tell(DATA_AGAIN, {"reason": reason})
                return _Ahead(failed.before, batch)
        raise error

    def position(self) -> bytes:
        """Return the stream's position after the last batch used, as msgpack; empty if its
        ``state()`` is None. ``TaskError`` if its state is not plain data."""
        if self._ahead is not None:
            return self._ahead.before
        state = self._batches.state()
        if state is None:
            return b""
        try:
            packed = packed_position(state)
        except (TypeError, ValueError, OverflowError) as error:
            said = f"batches().state() is not plain data ({PLAIN}): {error}"
            raise TaskError(f"task {self._task}: {said}") from None
        self._large = len(packed) > CURSOR_BYTES_MAX
        return packed

    @property
    def is_large(self) -> bool:
        return self._large

    def position_if_small(self) -> bytes:
        """The position if it is sent with every report; empty if it is too large for that."""
        return b"" if self._large else self.position()

    def go_to(self, position: bytes) -> None:
        self._ahead = None
        self._batches.restore(unpacked_position(position))

    def draw_again(self, count: int) -> None:
        """Skip ``count`` batches by drawing them; prints progress every ten seconds."""
        told_at = time.monotonic()
        for drawn in range(count):
            self.next()
            if time.monotonic() - told_at > TOLD_EVERY_S:
                told_at = time.monotonic()
                said = f"task {self._task}: {drawn + 1} of {count} used batches drawn again"
                print(f"ddloco: {said}", file=sys.stderr, flush=True)  # noqa: T201, it is progress

    def check(self, before: bytes, digest: bytes, digest_of: Callable[[Any], bytes]) -> None:
        """Check that the stream, restored to ``before``, yields the batch with this digest again;
        else ``TaskError``: such a job could be neither resumed nor replayed."""
        if not before:
            return
        self.go_to(before)
        if digest_of(self.next()) != digest:
            said = "restore(state()) does not bring the same batch again"
            raise TaskError(f"task {self._task}: batches(): {said}")


@dataclass(slots=True)
class ShardStream:
    """The stream of a data shard, and how many of its batches were used, by anybody."""

    data: DataStream
    used: int = 0


decode_cursor = msgspec.msgpack.Decoder(tuple[bytes, list[int]]).decode


def pack_cursor(position: bytes, counts: list[int]) -> bytes:
    """The position of a stream and the counts of an optimizer's schedules, as msgpack."""
    return cast("bytes", msgpack.packb((position, counts)))


def unpack_cursor(cursor: bytes) -> tuple[bytes, list[int]]:
    """The stream's position, empty if it cannot be restored, and the counts of the schedules. Of a
    cursor that is none, which a peer may have sent, nothing is known."""
    try:
        return decode_cursor(cursor)
    except (ValueError, RecursionError):  # Also what msgspec raises.
        return b"", []


def is_position(position: bytes) -> bool:
    """Whether this is a stream's position; it may come from a peer."""
    try:
        unpacked_position(position)
    except (ValueError, TypeError, RecursionError):
        return False
    return True


def travelling(cursor: bytes) -> bytes:
    """The part of a cursor that is sent with every report: all of it, or else only the counts."""
    if len(cursor) <= CURSOR_BYTES_MAX:
        return cursor
    return pack_cursor(b"", unpack_cursor(cursor)[1])
