"""The pen of a tape that is bounded by snapshots: behind each cut it goes on in another file."""

from collections.abc import Callable, Sequence
from typing import Any

from ddloco.actors.effects import CaptureState
from replay import OnError, Recorder, TapeWriter


class ChainRecorder(Recorder):
    """Writes one incarnation's tape as a chain of files.

    A cut is at the end of the event that asks for the state to be captured, so that event's effects
    are the last record of a file, and the next file begins with the clock of the cut.

    Args:
        writer: an open tape.
        on_error: what becomes of the actor when it cannot be written.
        clock: the actor's clock, all entries, behind the event that it handled last.
    """

    def __init__(
        self, writer: TapeWriter, on_error: OnError, clock: Callable[[], dict[str, int]]
    ) -> None:
        super().__init__(writer, on_error)
        self._clock = clock

    def effects(self, n: int, effects: Sequence[Any]) -> None:
        """What handling event ``n`` asked for, before any of it is done."""
        super().effects(n, effects)
        if any(type(each) is CaptureState for each in effects):
            self.go_on(n, self._clock())
