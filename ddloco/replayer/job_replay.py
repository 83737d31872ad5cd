"""The second run of a job; see ``ddloco.replayer.replay``."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ddloco.config.run_folder import place_of
from ddloco.nodes.resume import begin_with
from ddloco.protocol.events import FragmentMerged, StepFinished
from ddloco.replayer.job_tape_runner import JobTapeRunner
from ddloco.replayer.recording import job_of, open_recording, run_folder_of
from ddloco.replayer.replay import Replay
from ddloco.replayer.start_point import begin_tapes
from ddloco.workers.fragment_store import FragmentHistory
from ddloco.workers.simulated.work import FragmentMemory
from replay import Tape


class JobReplay(Replay):
    """Replays a run folder, or any set of its tapes.

    Args:
        folder: the run folder.
        progress: called with the number of events played so far.
        warn: called with what differs before the replay starts.
        snapshot: one to begin with, by id or ``latest``; what lies before its cut is not played.
        task: what is called in place of the task that the tapes name.
        salvage: whether to read damaged tapes up to the damage.
        turns: the file by which workers take turns at the terminal, where the task's own
            ``breakpoint()`` opens a debugger; None where it does not.

    Raises:
        TapeError: a tape cannot be read.
        ConfigError: the recorded job is none that this version can run.
        SnapshotError: the snapshot is not there, not intact, or of another version.
    """

    def __init__(
        self,
        folder: Path,
        progress: Callable[[int], None] = lambda _: None,
        warn: Callable[[str], None] = lambda _: None,
        snapshot: str = "",
        task: str = "",
        *,
        salvage: bool = False,
        turns: Path | None = None,
    ) -> None:
        tapes = open_recording(folder, salvage=salvage)
        self.job = job_of(tapes[0])
        self.task = task or self.job.job.task
        self.warn = warn
        self.turns = turns
        self.fragment_memories: dict[str, FragmentMemory] = {}
        self.histories: dict[str, FragmentHistory] = {}
        begin = partial(begin_with, job=self.job)
        beginning = begin_tapes(tapes, place_of(self.job, run_folder_of(folder)), begin, snapshot)
        super().__init__(tapes, self.job.names(), beginning, progress)
        self.report.counts = {"steps": 0, "merges": 0}

    def runner(self, each: Tape, folder: Path) -> JobTapeRunner:
        """What plays a tape."""
        return JobTapeRunner(self, each, folder)

    def count(self, event: Any) -> None:
        """Steps and merges."""
        self.report.counts["steps"] += isinstance(event, StepFinished)
        self.report.counts["merges"] += isinstance(event, FragmentMerged)
