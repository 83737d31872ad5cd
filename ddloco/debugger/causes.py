"""The chain of causes of an event, back to what came from outside. The cause of a message is the
event of its sender that sent it; of a result, the event that asked for the work; of a timer, the
event that set it."""

from bisect import bisect_left

from msgspec import Struct
from msgspec.structs import replace

from ddloco.debugger.recorded_run import RecordedRun
from ddloco.debugger.wording import phrase
from ddloco.stage.actors.effects import Work
from ddloco.stage.actors.events import WorkResult
from transport import MessageArrived, SetTimer, Timer, TimerFired


class Cause(Struct, frozen=True):
    """One link of a chain.

    Attributes:
        at: its time, in seconds, on the one axis of the run (see ``timeline``); never after that of
            its effect.
        because: why, in words; it names the event that comes next in the chain, if there is one.
        before: that event; empty at the end of the chain.
    """

    event: str
    at: float
    what: str
    because: str
    before: str = ""


def chain(run: RecordedRun, incarnation: str, number: int, most: int) -> list[Cause]:
    """Return the chain of causes of an event, that event first; ``Divergence`` if this program
    decides otherwise than a tape says."""
    links: list[Cause] = []
    requests: dict[str, _Requests] = {}
    there: tuple[str, int] | None = (incarnation, number)
    while there is not None and len(links) < most:
        link, there = _link(run, requests, *there)
        if links and link.at > links[-1].at:  # Clocks that drift are not quite on one axis.
            link = replace(link, at=links[-1].at)
        links.append(link)
    return links


def _link(
    run: RecordedRun, requests: dict[str, "_Requests"], who: str, number: int
) -> tuple[Cause, tuple[str, int] | None]:
    at, event = run.event(who, number)
    at, ref, what = run.common(who, at), f"{who}:{number}", phrase(event)
    if isinstance(event, MessageArrived):
        sent = event.clock.get(event.sender, 0)
        origin = f"{event.sender}:{sent}"
        if event.sender not in run.tapes or sent > run.tapes[event.sender].events:
            return Cause(ref, at, what, f"{origin} sent it; there is no tape of that"), None
        if sent <= run.tapes[event.sender].header.after:
            return Cause(ref, at, what, f"{origin} sent it, before its tape begins"), None
        return Cause(ref, at, what, f"{origin} sent it", origin), (event.sender, sent)
    if not isinstance(event, WorkResult | TimerFired):
        return Cause(ref, at, what, "it came from outside"), None
    if who not in requests:  # Causes lie further and further back, so this covers all of them.
        requests[who] = _Requests(run, who, number)
    if isinstance(event, TimerFired):
        asked, verb = requests[who].timer(event.timer, number), "set this timer"
    else:
        asked, verb = requests[who].work(event.work), "asked for this work"
    if asked is None:
        return Cause(ref, at, what, f"an event before the tape begins {verb}"), None
    return Cause(ref, at, what, f"{who}:{asked} {verb}", f"{who}:{asked}"), (who, asked)


class _Requests:
    """Which events of one tape asked for work and set timers, up to one event."""

    def __init__(self, run: RecordedRun, who: str, until: int) -> None:
        self._works: dict[int, int] = {}
        self._timers: dict[Timer, list[int]] = {}
        for step in run.stepper(who).steps(until):
            for effect in step.effects:
                if type(effect) is SetTimer:
                    self._timers.setdefault(effect.timer, []).append(step.number)
                elif isinstance(effect, Work):
                    self._works[effect.work] = step.number

    def work(self, work: int) -> int | None:
        return self._works.get(work)

    def timer(self, timer: Timer, before: int) -> int | None:
        """Return the last event before event ``before`` that set a timer; None if none did."""
        setters = self._timers.get(timer, ())
        place = bisect_left(setters, before)
        return setters[place - 1] if place else None
