"""The second run: all tapes executed again on one machine, in causal order, without sockets.

Every tape has a task of its own that feeds its events to the same machine as live. Before an event
is handled, what it says must have become true again: a message was said by its sender's replay,
with the same clock, body and bytes; a result came out of the same work, with the same digests and
loss bits. So the tasks wait for each other exactly where the run's causality says, and nothing else
orders them: work runs side by side as it did live. A tape is replayed to its first difference; a
tape that depends on one is replayed up to there. So what is found are all differences that follow
from no other one, however the tasks were scheduled: the same ones in every replay.

Where a tape is missing, machines are still checked event by event, but what was computed from the
missing actor's arrays cannot be: it is counted as unverified, and the gap is named.
"""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import trio

from clocks import actor_of, number_of
from ddloco.replayer.gate import Gate
from ddloco.replayer.message_matcher import Mailbox
from ddloco.replayer.start_point import cut_of
from ddloco.runtime.errors import first_of
from ddloco.runtime.resume import Beginning
from replay import Divergence, Tape, TapeError, tape


class RunsTape(Protocol):
    """What plays a tape."""

    async def run(self) -> None:
        """Execute it to its end.

        Raises:
            Divergence: at the first difference.
        """
        ...


@dataclass
class Report:
    """What a replay found."""

    events: int = 0
    counts: dict[str, int] = field(default_factory=dict[str, int])
    """How much of what the run did, in words of its own."""
    payloads: int = 0
    unverified: int = 0
    gaps: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    divergences: list[Divergence] = field(default_factory=list[Divergence])
    """Every difference that follows from no other one, in a causal order."""
    dependent: list[str] = field(default_factory=list[str])
    """Incarnations that were not replayed to their ends, since they depend on a difference."""

    @property
    def divergence(self) -> Divergence | None:
        """The first difference."""
        return self.divergences[0] if self.divergences else None

    @property
    def identical(self) -> bool:
        """Whether everything was compared and found equal."""
        return self.divergence is None and not self.gaps

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        return {
            "identical": self.identical,
            "events": self.events,
            **self.counts,
            "payloads": self.payloads,
            "unverified": self.unverified,
            "gaps": self.gaps,
            "notes": self.notes,
            "divergence": self.divergence.as_dict() if self.divergence else None,
            "also": [each.as_dict() for each in self.divergences[1:]],
        }


def damage_said(each: Tape) -> str:
    """Return what is not read of a salvaged tape, in words."""
    return f"damaged at {each.damage}; read up to event {each.events}"


class Replay(ABC):
    """Replays the tapes of one run.

    Args:
        tapes: all of them.
        names: the actors that the run had.
        beginning: the snapshot to begin with, if any; what lies before its cut is not played.
        progress: called with the number of events played so far.

    Raises:
        TapeError: there is no event to play.
    """

    def __init__(
        self,
        tapes: Sequence[Tape],
        names: Collection[str],
        beginning: Beginning[Any] | None,
        progress: Callable[[int], None],
    ) -> None:
        self.report = Report()
        self.beginning = beginning
        if beginning is not None and any(each.dropped for each in tapes):
            self.note(f"begins with snapshot {beginning.snapshot}: events before it were dropped")
        self.tapes = [each for each in tapes if not self._is_past(each)]
        for each in self.tapes:
            if each.damage:
                self.gap(f"{each.incarnation}: {damage_said(each)}")
        self.total = sum(max(each.events - self._after(each), 0) for each in self.tapes)
        if not self.total:
            # Nothing compared is nothing found equal.
            said = f" behind snapshot {beginning.snapshot}" if beginning is not None else ""
            raise TapeError(tapes[0].path, 0, f"nothing to replay: no tape has an event{said}")
        self.payloads = 0
        self.unverified = 0
        self._progress = progress
        self.gate = Gate([each.incarnation for each in self.tapes])
        self._runners: dict[str, RunsTape] = {}
        self._ended = {each.incarnation: trio.Event() for each in self.tapes}
        self._recorded = {each.incarnation: each for each in self.tapes}
        self._lost: dict[str, tuple[int, int]] = {}
        """Of tapes that lost their ends the newest event that others heard of, and messages."""
        self._parted: set[str] = set()
        self._mailbox = Mailbox(set(self._recorded))
        present = {actor_of(each.incarnation) for each in tapes}
        self._missing = {name: 0 for name in names if name not in present}

    def _after(self, each: Tape) -> int:
        return self.beginning.after(each.incarnation) if self.beginning is not None else 0

    def _is_past(self, each: Tape) -> bool:
        """Whether a tape is left out, for whoever left it was not in the snapshot."""
        beginning, name = self.beginning, each.incarnation
        if beginning is None or not beginning.is_past(name):
            return False
        if beginning.heard(name) < each.events and each.closed is None:
            if beginning.is_former(name):
                # What it did at its end nobody in the snapshot had heard of; should anybody hear
                # of it later, that is a gap by itself.
                self.note(f"{name}: had come back before {beginning.snapshot}, so not played")
            elif not cut_of(beginning.parts).goes_on(each):
                self.note(f"{name}: had ended before {beginning.snapshot}, so not played")
            else:
                self.gap(f"{name}: not in the snapshot {beginning.snapshot}, so not played")
        return True

    async def run(
        self,
        limits: Mapping[str, int] | None = None,
        look: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> Report:
        """Replay everything, or up to a consistent cut.

        Args:
            limits: the clock of an event: each tape is replayed up to its entry.
            look: called there with what plays each tape, by incarnation; workers are still open.

        Returns:
            What was found.
        """
        self.gate = Gate([each.incarnation for each in self.tapes], limits)
        with tempfile.TemporaryDirectory(prefix="ddloco-replay-") as folder:
            try:
                async with trio.open_nursery() as nursery:
                    for each in self.tapes:
                        nursery.start_soon(self._perform, each, Path(folder) / each.incarnation)
                    if limits is not None:
                        await self.gate.reached.wait()
                        if look is not None:
                            look(self._runners)
                        nursery.cancel_scope.cancel()
            except ExceptionGroup as group:
                raise first_of(group) from None
        # A larger sum of entries never stands before a smaller one in causal order.
        self.report.divergences.sort(key=lambda each: (sum(each.clock.values()), each.actor))
        self.report.payloads, self.report.unverified = self.payloads, self.unverified
        self._name_gaps()
        return self.report

    async def _perform(self, each: Tape, folder: Path) -> None:
        """One tape's part, after its actor's former one.

        A former incarnation that never heard of this one depends on nothing that this one did; so
        one worker at a time does for an actor, however often it has come back.
        """
        if self.gate.holds(each.incarnation):
            self.gate.ended(each.incarnation)
            return
        name, number = actor_of(each.incarnation), number_of(each.incarnation)
        before = self._ended.get(f"{name}.{number - 1}")
        if before is not None and not self._overlaps(f"{name}.{number - 1}", each.incarnation):
            await before.wait()
        runner = self._runners[each.incarnation] = self.runner(each, folder)
        await runner.run()
        self.gate.ended(each.incarnation)
        self._ended[each.incarnation].set()

    @abstractmethod
    def runner(self, each: Tape, folder: Path) -> RunsTape:
        """What plays a tape; ``folder`` is where its work may leave files."""

    def _overlaps(self, former: str, later: str) -> bool:
        """Whether a former incarnation went on after word of the later one had reached it."""
        recording = next(each for each in self.tapes if each.incarnation == former)
        events = (each for each in recording.records() if isinstance(each, tape.Event))
        return any(later in each.clock for each in events)

    def posted_by(self, sender: str, number: int) -> bool:
        """Whether there is a tape to check a message of the sender's event ``number`` against."""
        if sender in self._recorded:
            return not self._is_lost(sender, number)
        actor = actor_of(sender)
        self._missing[actor] = self._missing.get(actor, 0) + 1
        return False

    def _is_lost(self, sender: str, number: int) -> bool:
        """Whether an event came after the end of a tape that was cut short, and was heard of."""
        recording = self._recorded[sender]
        if recording.closed is not None or number <= recording.events:
            return False
        heard, messages = self._lost.get(sender, (0, 0))
        self._lost[sender] = max(heard, number), messages + 1
        return True

    @property
    def mailbox(self) -> Mailbox:
        """Where messages travel."""
        return self._mailbox

    def found_equal(self, event: Any) -> None:
        """One more event was found equal."""
        self.report.events += 1
        self.count(event)
        self._progress(self.report.events)

    @abstractmethod
    def count(self, event: Any) -> None:
        """Add an event to what the report counts."""

    def parted(self, found: Divergence) -> None:
        """Note where a tape and its replay part."""
        self.report.divergences.append(found)
        self._parted.add(found.actor)

    def depends(self, incarnation: str) -> None:
        """Note that a tape depends on a difference."""
        self.report.dependent.append(incarnation)
        self._parted.add(incarnation)

    def has_parted(self, incarnation: str) -> bool:
        """Whether a tape has parted from its replay, or depends on one that has."""
        return incarnation in self._parted

    def note(self, what: str) -> None:
        """Something that people should know afterwards."""
        self.report.notes.append(what)

    def gap(self, what: str) -> None:
        """Something could not be verified, so that the replay cannot be called identical."""
        self.report.gaps.append(what)

    def _name_gaps(self) -> None:
        for name, (heard, messages) in sorted(self._lost.items()):
            last = self._recorded[name].events
            self.report.gaps.append(
                f"{name}: the tape ends after event {last}, others have heard of event {heard}; "
                f"{messages} of its messages were taken from the others' tapes"
            )
        for actor, messages in self._missing.items():
            said = f"; {messages} of its messages were taken from the others' tapes"
            self.report.gaps.append(f"{actor}: no tape{said if messages else ''}")
