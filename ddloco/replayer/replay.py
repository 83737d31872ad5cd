"""The second run: all tapes executed again on one machine, in causal order, without sockets. Before
an event is handled, what it says must have become true again: the same message, or the same result.
So the tasks of the tapes wait for each other exactly where the run's causality says.

A tape is replayed to its first difference; one that depends on it up to there. So what is found are
all differences that follow from no other one, the same ones in every replay. Where a tape is
missing, machines are still checked; what was computed from that actor's arrays is unverified, and
the gap is named.
"""

import tempfile
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, final

import trio

from clocks import actor_of, number_of
from ddloco.replayer.gaps import two_runs
from ddloco.replayer.message_matcher import StuckError
from ddloco.replayer.replay_state import ReplayState
from ddloco.replayer.report import Report, damage_said
from ddloco.replayer.start_point import cut_of
from ddloco.replayer.tape_runner import TapeRunner
from ddloco.stage.driver.resume import StartPoint
from ddloco.stage.process.errors import first_of
from replay import Tape, TapeError, tape

OpenRunner = Callable[[ReplayState, Tape, Path], AbstractAsyncContextManager[TapeRunner]]
"""Opens what plays a tape, and closes it, given a folder where its work may leave files."""


@final
class Replay:
    """Replays the tapes of one run, to their ends, to ``limits``, the clock of an event, or, if it
    ``stops``, until the gate is told that it has been reached.
    ``names`` are the actors that the run may have had; without tapes of the ``optional`` ones the
    replay is complete if nothing came from them. What is before the cut of ``start_point`` is not
    played. ``TapeError`` if there is no event to play."""

    def __init__(
        self,
        tapes: Sequence[Tape],
        names: Collection[str],
        open_runner: OpenRunner,
        counted: Mapping[str, type],
        *,
        optional: Collection[str] = (),
        start_point: StartPoint[Any] | None = None,
        progress: Callable[[int], None] = lambda _: None,
        limits: Mapping[str, int] | None = None,
        stops: bool = False,
    ) -> None:
        report = self.report = Report()
        self.start_point = start_point
        if start_point is not None and any(each.dropped for each in tapes):
            said = f"begins with snapshot {start_point.snapshot}: events before it were dropped"
            report.notes.append(said)
        self.tapes = [each for each in tapes if not self._is_past(each)]
        for each in self.tapes:
            if each.damage:
                report.gaps.append(f"{each.incarnation}: {damage_said(each)}")
        after = start_point.after if start_point is not None else lambda _: 0
        self.total = sum(max(each.events - after(each.incarnation), 0) for each in self.tapes)
        if not self.total:
            # Nothing compared is nothing found equal.
            said = f" after snapshot {start_point.snapshot}" if start_point is not None else ""
            raise TapeError(tapes[0].path, 0, f"nothing to replay: no tape has an event{said}")
        present = {actor_of(each.incarnation) for each in tapes}
        missing = [name for name in names if name not in present]
        self._state = ReplayState(
            self.tapes,
            missing,
            report,
            optional=optional,
            start_point=start_point,
            counted=counted,
            progress=progress,
            limits=limits,
        )
        self._stops = stops
        self._open_runner = open_runner
        self._runners: dict[str, TapeRunner] = {}

    def _is_past(self, each: Tape) -> bool:
        """Whether a tape is left out, because its actor was not in the snapshot."""
        start_point, name = self.start_point, each.incarnation
        if start_point is None or not start_point.is_past(name):
            return False
        if start_point.heard(name) < each.events and each.closed is None:
            notes, snapshot = self.report.notes, start_point.snapshot
            if start_point.is_former(name):
                # No actor of the snapshot knew its last events. If one learns of them later,
                # that is reported as a gap.
                notes.append(f"{name}: had come back before {snapshot}, so not played")
            elif not cut_of(start_point.parts).leaves_out(each):
                notes.append(f"{name}: had ended before {snapshot}, so not played")
            else:
                gap = f"{name}: not in the snapshot {snapshot}, so not played"
                self.report.gaps.append(gap)
        return True

    async def run(
        self, look: Callable[[Mapping[str, TapeRunner]], Awaitable[None]] | None = None
    ) -> Report:
        """Replay everything, or until it stops, where ``look`` is called with what plays each tape,
        by incarnation; workers are still open."""
        with tempfile.TemporaryDirectory(prefix="ddloco-replay-") as folder:
            try:
                async with trio.open_nursery() as nursery:
                    for each in self.tapes:
                        nursery.start_soon(self._play, each, Path(folder) / each.incarnation)
                    if self._stops:
                        await self._state.gate.reached.wait()
                        if look is not None:
                            await look(self._runners)
                        nursery.cancel_scope.cancel()
            except ExceptionGroup as group:
                error = first_of(group)
                said = two_runs(self.tapes) if isinstance(error, StuckError) else None
                raise TapeError(self.tapes[0].path, 0, said) if said else error from None
        said = two_runs(self.tapes) if self.report.divergences else None
        self.report.notes += [said] if said else []
        return self._state.conclude()

    async def _play(self, each: Tape, folder: Path) -> None:
        """Play one tape, after that of its actor's former incarnation. A former incarnation that
        never heard of this one depends on nothing that this one did; so one worker at a time does
        for an actor, however often it has come back."""
        gate = self._state.gate
        if gate.holds(each.incarnation):
            gate.ended(each.incarnation)
            return
        former = f"{actor_of(each.incarnation)}.{number_of(each.incarnation) - 1}"
        if not self._overlaps(former, each.incarnation):
            with self._state.mailbox.waits_for_end(each.incarnation, former):
                await gate.stopped(former)
        async with self._open_runner(self._state, each, folder) as runner:
            self._runners[each.incarnation] = runner
            await runner.execute()
        gate.ended(each.incarnation)

    def _overlaps(self, former: str, later: str) -> bool:
        """Whether a former incarnation had events after it learned of the later one."""
        recordings = (each for each in self.tapes if each.incarnation == former)
        records = (record for recording in recordings for record in recording.records())
        return any(later in each.clock for each in records if isinstance(each, tape.Event))
