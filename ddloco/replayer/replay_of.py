"""Prepares the replay of a run, be it of a job or of a user's program."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from ddloco.replayer.job_executor import StepWatch
from ddloco.replayer.job_replay import JobTapes
from ddloco.replayer.program_replay import ProgramTapes
from ddloco.replayer.recording import open_recording, permit_of, program_in, start_point_in
from ddloco.replayer.replay import Replay
from ddloco.replayer.replay_state import ReplayState
from ddloco.replayer.tape_runner import TapeRunner
from ddloco.roles.job_program import JobProgram
from replay import Tape


class Played(Protocol):
    start_point: Any

    @property
    def counted(self) -> Mapping[str, type]:
        """Return the classes of events that the report counts."""
        ...

    @property
    def optional(self) -> Sequence[str]:
        """The actors without whose tapes the replay is complete if nothing came from them."""
        ...

    def open(
        self, state: ReplayState, each: Tape, folder: Path
    ) -> AbstractAsyncContextManager[TapeRunner]:
        """Open what plays a tape."""
        ...


def replay_of(
    folder: Path,
    progress: Callable[[int], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
    snapshot: str = "",
    task: str = "",
    *,
    salvage: bool = False,
    trust: bool = False,
    turns: Path | None = None,
    limits: Mapping[str, int] | None = None,
    tapes: Sequence[Tape] = (),
    watch: StepWatch | None = None,
) -> Replay:
    """Prepare the replay of a run folder, or of any set of its tapes. ``warn`` is called with what
    differs before the replay starts. ``snapshot`` is an id or ``latest``; ``task`` is called in
    place of what the tapes name; ``salvage`` reads damaged tapes up to the damage; ``trust`` lets
    states of another user act; ``turns`` is the file by which workers take turns at the terminal,
    where a task's own ``breakpoint()`` opens a debugger; ``limits`` are those of ``Replay``;
    ``watch`` may look at the state of a job's actor after each step, and end the replay.
    ``SnapshotError`` if the snapshot is not there, not intact, or of another version; otherwise as
    ``open_recording`` and ``program_in``."""
    tapes = list(tapes) or open_recording(folder, salvage=salvage)
    permit = permit_of(tapes, folder, trust=trust)
    played: Played
    match program_in(tapes, folder, task, trust=trust):
        case JobProgram() as program:
            job = program.job
            played = JobTapes(job, task or job.job.task, warn, turns, permit, watch)
        case program:
            played = ProgramTapes(program, warn)
    found = played.start_point = start_point_in(program, tapes, folder, permit, snapshot)
    return Replay(
        tapes,
        program.names,
        played.open,
        played.counted,
        optional=played.optional,
        start_point=found,
        progress=progress,
        limits=limits,
        stops=limits is not None or watch is not None,
    )
