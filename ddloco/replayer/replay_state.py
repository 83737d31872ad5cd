"""What the tapes of one replay share: their messages, how far they may go, and what was found."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import trio

from clocks import actor_of
from ddloco.replayer.message_matcher import Mailbox
from ddloco.replayer.report import Report
from ddloco.stage.driver.resume import StartPoint
from replay import Divergence, Tape


class ReplayGate:
    """How far each tape of a replay may go: to its end, or to a consistent cut. The limits of a cut
    are the clock of an event: no event within it depends on one outside, so all tapes come to their
    limits.

    Attributes:
        reached: set when every tape has come to its limit or to its end.
    """

    def __init__(self, tapes: Collection[str], limits: Mapping[str, int] | None = None) -> None:
        self._limits = limits
        self._running = set(tapes)
        self._stopped = {each: trio.Event() for each in tapes}
        self.reached = trio.Event()
        self._opened = trio.Event()

    def holds(self, incarnation: str) -> bool:
        """Whether none of a tape's events may be handled."""
        return self._limits is not None and not self._limits.get(incarnation, 0)

    def beyond(self, incarnation: str, number: int) -> bool:
        return self._limits is not None and number > self._limits.get(incarnation, 0)

    async def passing(self, incarnation: str, number: int) -> None:
        if self.beyond(incarnation, number):
            self.ended(incarnation)
            await self._opened.wait()

    async def stopped(self, incarnation: str) -> None:
        """Wait until a tape has come to its limit or to its end; one that is not replayed has."""
        if incarnation in self._stopped:
            await self._stopped[incarnation].wait()

    def ended(self, incarnation: str) -> None:
        self._running.discard(incarnation)
        self._stopped[incarnation].set()
        if not self._running:
            self.reached.set()


class ReplayState:
    def __init__(
        self,
        tapes: Sequence[Tape],
        missing: Collection[str],
        report: Report,
        *,
        optional: Collection[str],
        start_point: StartPoint[Any] | None,
        counted: Mapping[str, type],
        progress: Callable[[int], None],
        limits: Mapping[str, int] | None,
    ) -> None:
        self._tapes = {each.incarnation: each for each in tapes}
        self.report = report
        self.start_point = start_point
        self.mailbox = Mailbox(set(self._tapes))
        self.gate = ReplayGate(self._tapes, limits)
        self._counted = counted
        report.counts = dict.fromkeys(counted, 0)
        self._progress = progress
        self._lost: dict[str, tuple[int, int]] = {}
        """Of tapes that lost their ends the newest event that others heard of, and messages."""
        self._parted: set[str] = set()
        self._missing = dict.fromkeys(missing, 0)
        self._optional = frozenset(optional)

    def posted_by(self, sender: str, number: int) -> bool:
        """Whether there is a tape to check a message of the sender's event ``number`` against."""
        if self.gate.beyond(sender, number):
            # A message that came too late to be accepted: the clock of the cut does not know it.
            return False
        if sender in self._tapes:
            return not self._is_lost(sender, number)
        # Of an actor with other tapes in this replay, the incarnation is named that has none.
        actor = actor_of(sender)
        name = sender if any(actor_of(each) == actor for each in self._tapes) else actor
        self._missing[name] = self._missing.get(name, 0) + 1
        return False

    def _is_lost(self, sender: str, number: int) -> bool:
        """Whether an event came after the end of a tape that was cut short, and was heard of."""
        recording = self._tapes[sender]
        if recording.closed is not None or number <= recording.events:
            return False
        heard, messages = self._lost.get(sender, (0, 0))
        self._lost[sender] = max(heard, number), messages + 1
        return True

    def found_equal(self, incarnation: str, event: Any) -> None:
        self.report.events += 1
        equal = self.report.equal.get(incarnation)
        if equal is None:
            nothing = dict.fromkeys(("events", *self._counted), 0)
            equal = self.report.equal[incarnation] = nothing
        equal["events"] += 1
        for name, kind in self._counted.items():
            if isinstance(event, kind):
                self.report.counts[name] += getattr(event, "count", 1)
                equal[name] += getattr(event, "count", 1)
        self._progress(self.report.events)

    def parted(self, found: Divergence) -> None:
        """Note where a tape and its replay part; nothing after it is compared."""
        self.report.divergences.append(found)
        self._parted.add(found.actor)

    def depends(self, incarnation: str) -> None:
        """Note that a tape cannot be replayed further, because another one has parted."""
        self.report.dependent.append(incarnation)
        self._parted.add(incarnation)

    def has_parted(self, incarnation: str) -> bool:
        return incarnation in self._parted

    def conclude(self) -> Report:
        # A larger sum of entries never comes before a smaller one in causal order.
        self.report.divergences.sort(key=lambda each: (sum(each.clock.values()), each.actor))
        for name, (heard, messages) in sorted(self._lost.items()):
            last = self._tapes[name].events
            self.report.gaps.append(
                f"{name}: the tape ends after event {last}, others have heard of event {heard}; "
                f"{messages} of its messages were taken from the others' tapes"
            )
        for actor, messages in self._missing.items():
            if not messages and actor in self._optional:
                self.report.notes.append(f"{actor}: never took part")
                continue
            said = f"; {messages} of its messages were taken from the others' tapes"
            self.report.gaps.append(f"{actor}: no tape{said if messages else ''}")
        return self.report
