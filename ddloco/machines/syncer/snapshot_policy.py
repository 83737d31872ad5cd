"""When the syncer that leads takes snapshots: every so often, and once more at the end."""

from ddloco.actors.effects import TakeSnapshot
from ddloco.actors.events import SnapshotRequested, SnapshotSettled
from ddloco.config.job import SnapshotTable
from transport import CancelTimer, Effect, SetTimer

SNAPSHOT = "snapshot"
LAST = "snapshot/last"

LAST_S = 30.0
"""At the end nobody waits longer than this for the last snapshot. It is under way by then, and may
still be written."""


class Occasions:
    """When snapshots are due.

    Args:
        table: what the job file says.
    """

    def __init__(self, table: SnapshotTable) -> None:
        self._table = table
        self._step = 0
        """The global step of the last one that was taken for its step."""
        self._last: bool | None = None
        """Whether the last one is over; None before it was asked for."""
        self._under_way = 0
        self._owed = False
        """Whether the last one waits for another to be over."""

    def begin(self, at: float) -> list[Effect]:
        """The job begins."""
        every_s = self._table.every_s
        return [SetTimer(SNAPSHOT, at + every_s)] if every_s else []

    def timer(self, at: float, timer: str) -> list[Effect]:
        """A timer of one's own has come due."""
        if timer == LAST:
            self._last = True
            return []
        return [*self._due(), *self.begin(at)]

    def merged(self, t: int) -> list[Effect]:
        """The merge of a global step is done."""
        every = self._table.every_steps
        if not every or t < self._step + every:
            return []
        self._step = t - t % every
        return self._due()

    def _due(self) -> list[Effect]:
        """One at a time: a slow disk would otherwise have more and more to write."""
        return self._take() if not self._under_way and self._last is None else []

    def _take(self) -> list[Effect]:
        self._under_way += 1
        return [TakeSnapshot()]

    def go_on(self, at: float, t: int) -> list[Effect]:
        """The job goes on from a snapshot, behind ``t``, also from one of its former end."""
        self._last, self._owed = None, False  # Those under way are settled one by one.
        self._step = t
        return [CancelTimer(LAST), *self.begin(at)]

    def heard(self, event: SnapshotRequested | SnapshotSettled) -> list[Effect]:
        """Somebody asked for one, which is begun without us; or one is there, or will not be."""
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
        """Whether nobody waits for a snapshot any more."""
        return self._last is True or not self._table.wanted

    def end(self, at: float) -> list[Effect]:
        """The job is about to end: one more while everybody is there. One that is under way does
        not hold the end: it comes first."""
        if self._last is not None or self.over:
            return []
        self._last, self._owed = False, self._under_way > 0
        return [SetTimer(LAST, at + LAST_S), *([] if self._owed else self._take())]
