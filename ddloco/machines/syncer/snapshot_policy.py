"""When the lead syncer takes snapshots: periodically, and once more at the end. One without
learners, in which nothing was merged since the last, is not taken: it would drive out older ones
from which the learners could continue."""

from msgspec import Struct

from ddloco.job.protocol.timers import LastSnapshotDeadline, SnapshotDue
from ddloco.stage.actors.effects import TakeSnapshot
from ddloco.stage.actors.events import SnapshotRequested, SnapshotSettled
from ddloco.stage.files.settings import SnapshotTable
from transport import CancelTimer, Effect, SetTimer

LAST_S = 30.0
"""Seconds that the shutdown waits for the last snapshot, which may still be completed later."""


class SnapshotPolicy(Struct, forbid_unknown_fields=True):
    """The times at which snapshots are due.

    Attributes:
        step: the global step at which the last snapshot by ``every_steps`` was due.
        last: whether the last snapshot has ended; None before it was requested.
        owed: whether the last snapshot waits for an earlier one to end.
        dirty: whether anything was merged since a snapshot was taken last.
        settled: how many snapshots have ended, complete or not.
    """

    step: int = 0
    last: bool | None = None
    under_way: int = 0
    owed: bool = False
    dirty: bool = False
    settled: int = 0
    failed: int = 0
    problem: str = ""

    @property
    def failures(self) -> str:
        said = f"{self.failed} of {self.settled} snapshots failed; the last: {self.problem}"
        return said if self.failed else ""

    def begin(self, at: float, table: SnapshotTable) -> list[Effect]:
        every_s = table.every_s
        return [SetTimer(SnapshotDue(), at + every_s)] if every_s else []

    def periodic(self, at: float, members: int, table: SnapshotTable) -> list[Effect]:
        """Take the periodic snapshot that is due, with that many learners connected."""
        return [*(self._due() if members or self.dirty else []), *self.begin(at, table)]

    def late(self) -> None:
        self.last = True

    def merged(self, t: int, table: SnapshotTable) -> list[Effect]:
        self.dirty = True
        every = table.every_steps
        if not every or t < self.step + every:
            return []
        self.step = t - t % every
        return self._due()

    def _due(self) -> list[Effect]:
        """Take a snapshot unless one is in progress; a slow disk would otherwise fall behind."""
        return self._take() if not self.under_way and self.last is None else []

    def _take(self) -> list[Effect]:
        self.under_way += 1
        self.dirty = False
        return [TakeSnapshot()]

    def go_on(self, at: float, t: int, table: SnapshotTable) -> list[Effect]:
        """Continue after ``t`` from a snapshot, which may be the last one of an ended run."""
        self.last, self.owed = None, False  # Those in progress settle one by one.
        self.step = t
        return [CancelTimer(LastSnapshotDeadline()), *self.begin(at, table)]

    def heard(self, event: SnapshotRequested | SnapshotSettled) -> list[Effect]:
        """Count a snapshot that was requested from outside, or one that has ended."""
        self.under_way += 1 if isinstance(event, SnapshotRequested) else -1
        if isinstance(event, SnapshotSettled):
            self.settled += 1
            if event.failed:  # What it would have held is in no snapshot yet.
                self.failed, self.problem, self.dirty = self.failed + 1, event.failed, True
        if self.last is not False or self.under_way:
            return []
        if self.owed and not (isinstance(event, SnapshotSettled) and event.refused):
            self.owed = False
            return self._take()
        self.last, self.owed = True, False  # Those under way are of the same moment.
        return [CancelTimer(LastSnapshotDeadline())]

    def over(self, table: SnapshotTable) -> bool:
        return self.last is True or not table.wanted

    def end(self, at: float, members: int, table: SnapshotTable) -> list[Effect]:
        """Take the last snapshot, after one in progress, while all actors are connected."""
        if self.last is not None or self.over(table):
            return []
        if not members and not self.dirty and not self.under_way:
            self.last = True
            return []
        self.last, self.owed = False, self.under_way > 0
        return [SetTimer(LastSnapshotDeadline(), at + LAST_S), *([] if self.owed else self._take())]
