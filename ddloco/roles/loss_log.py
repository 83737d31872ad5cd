"""The losses of learners on other hosts, in the log and the figure of their syncer.

Learners log their steps where they run. A syncer that was started by hand hears the newest loss of
each; it logs them at intervals, so that its run folder tells how training goes, and draws them when
it ends.
"""

from contextlib import suppress
from pathlib import Path

import trio

from clocks import actor_of, replace_file
from ddloco.job.config import Job
from ddloco.job.protocol.status import Status, status_from
from ddloco.monitoring.live_display import LOSSES, Board
from ddloco.stage.files.run_folder import LOSS_FILE
from ddloco.stage.nodes.node import HostedActor
from ddloco.stage.process.log_tail import LogTail

NOTE_S, NOTE_SHARE = (1.0, 10.0), 1 / 30
"""Seconds between two lines of the log, at least and at most: a share of the time so far. Short
jobs have some dozens of lines, a job of a day some thousands."""


class LossLog:
    """Logs what learners report to a syncer, and draws ``RUN/loss.svg``."""

    def __init__(self, job: Job, folder: Path) -> None:
        self._folder = folder
        self._board = Board(job)
        self._tail = LogTail(folder)
        self._noted: dict[str, int] = {}
        """The step of each learner whose loss was logged last."""

    async def run(self, hosted: HostedActor) -> None:
        began, (least, most) = trio.current_time(), NOTE_S
        while True:
            so_far = trio.current_time() - began
            await trio.sleep(min(max(so_far * NOTE_SHARE, least), most))
            self.note(hosted)
            await trio.to_thread.run_sync(self._read)

    def note(self, hosted: HostedActor) -> None:
        driver = hosted.driver
        if driver is None:
            return
        new = newest_losses(status_from(driver.status()), self._noted)
        if new:
            hosted.note(LOSSES, {"learners": new})
            self._noted |= {name: step for name, (step, _) in new.items()}

    def draw(self) -> None:
        """Write the figure, of all that the log tells; a full disk costs the figure only."""
        self._read()
        if any(view.curve.points() for view in self._board.learners.values()):
            with suppress(OSError):
                replace_file(self._folder / LOSS_FILE, [self._board.losses().encode()])

    def _read(self) -> None:
        self._tail.give(self._board.take)


def newest_losses(status: Status, noted: dict[str, int]) -> dict[str, tuple[int, float | None]]:
    """Step and loss of each learner in a syncer's status whose step is not the noted one."""
    found = {actor_of(each.learner): (each.step, each.loss) for each in status.members}
    return {who: said for who, said in found.items() if said[0] and noted.get(who) != said[0]}
