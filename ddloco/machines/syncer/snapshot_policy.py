"""When the lead syncer takes snapshots: periodically, and once more at the end.

A snapshot without learners, in which nothing was merged since the last one, is not worth taking:
it would hold nothing new, and drive out older ones from which the learners could continue.
"""

from ddloco.stage.actors.effects import TakeSnapshot
from ddloco.stage.actors.events import SnapshotRequested, SnapshotSettled
from ddloco.stage.files.settings import SnapshotTable
from transport import CancelTimer, Effect, SetTimer

SNAPSHOT = "snapshot"
LAST = "snapshot/last"

LAST_S = 30.0
"""Seconds that the shutdown waits for the last snapshot, which may still be completed later."""


class SnapshotPolicy:
    """The times at which snapshots are due.

    Args:
        table: the ``[snapshot]`` table of the job file.
    """

    def __init__(self, table: SnapshotTable) -> None:
        self._table = table
        self._step = 0
        """The global step at which the last snapshot by ``every_steps`` was due."""
        self._last: bool | None = None
        """Whether the last snapshot has ended; None before it was requested."""
        self._under_way = 0
        self._owed = False
        """Whether the last snapshot waits for an earlier one to end."""
        self._merged = False
        """Whether anything was merged since a snapshot was taken last."""

    def begin(self, at: float) -> list[Effect]:
        """Set the timer of the periodic snapshots."""
        every_s = self._table.every_s
        return [SetTimer(SNAPSHOT, at + every_s)] if every_s else []

    def timer(self, at: float, timer: str, members: int) -> list[Effect]:
        """Handle a timer of this machine, with that many learners connected."""
        if timer == LAST:
            self._last = True
            return []
        return [*(self._due() if members or self._merged else []), *self.begin(at)]

    def merged(self, t: int) -> list[Effect]:
        """Take a snapshot if one is due after the merge of global step ``t``."""
        self._merged = True
        every = self._table.every_steps
        if not every or t < self._step + every:
            return []
        self._step = t - t % every
        return self._due()

    def _due(self) -> list[Effect]:
        """Take a snapshot unless one is in progress; a slow disk would otherwise fall behind."""
        return self._take() if not self._under_way and self._last is None else []

    def _take(self) -> list[Effect]:
        self._under_way += 1
        self._merged = False
        return [TakeSnapshot()]

    def go_on(self, at: float, t: int) -> list[Effect]:
        """Continue after ``t`` from a snapshot, which may be the last one of an ended run."""
        self._last, self._owed = None, False  # Those in progress settle one by one.
        self._step = t
        return [CancelTimer(LAST), *self.begin(at)]

    def heard(self, event: SnapshotRequested | SnapshotSettled) -> list[Effect]:
        """Count a snapshot that was requested from outside, or one that has ended."""
        self._under_way += 1 if isinstance(event, SnapshotRequested) else -1
        if self._last is not False or self._under_way:
            return []
        if self._owed:
            self._owed = False
            return self._take()
        self._last = True
        return [CancelTimer(LAST)]

    @property
    def over(self) -> bool:
        """Whether the shutdown need not wait for a snapshot."""
        return self._last is True or not self._table.wanted

    def end(self, at: float, members: int) -> list[Effect]:
        """Take the last snapshot, after one in progress, while all actors are connected."""
        if self._last is not None or self.over:
            return []
        if not members and not self._merged and not self._under_way:
            self._last = True
            return []
        self._last, self._owed = False, self._under_way > 0
        return [SetTimer(LAST, at + LAST_S), *([] if self._owed else self._take())]
