"""The recorder of a tape that is bounded by snapshots: it starts a new file after each cut."""

from collections.abc import Callable, Sequence
from typing import Any

from ddloco.stage.actors.effects import CaptureState
from replay import OnError, Recorder, TapeWriter


class ChainRecorder(Recorder):
    """Writes one incarnation's tape as a chain of files. A cut is at the end of the event that
    requests the capture of the state. That event's effects are the last record of a file, and the
    next file begins with the clock of the cut, all entries of it."""

    def __init__(
        self, writer: TapeWriter, on_error: OnError, clock: Callable[[], dict[str, int]]
    ) -> None:
        super().__init__(writer, on_error)
        self._clock = clock

    def effects(self, n: int, effects: Sequence[Any]) -> None:
        super().effects(n, effects)
        if any(type(each) is CaptureState for each in effects):
            self.go_on(n, self._clock())
