"""Applies the faults of a ``[chaos]`` table to real processes. Time is counted from the moment when
the syncer listens and every learner of the start has written its first line to the log, or has
ended. Which faults happen, and when, is a pure function of the job; what they do to a run is
not."""

import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import trio

from clocks import MonotonicTime
from ddloco.stage.files.faults import LINK_KINDS, Fault, Kind, schedule
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.runnable import Runnable
from ddloco.stage.process.log import ActorLog

LIVE_S_MAX = 24 * 3600.0
"""A schedule of faults lasts a day at most: it is drawn before it begins, and needs an end."""

SLOW_PERIOD_S = 0.1
"""The period, in seconds, in which a slow worker is stopped once: shorter than most steps, so that
each step is slower, and long enough that signals cost nothing."""

ABSENCES: tuple[Kind, ...] = ("crash", "leave")
AT_ONCE: tuple[Kind, ...] = ("reset", "join")

OVER = "the run is over"
GONE = "the actor is gone"


class Victim(Protocol):
    ended: trio.Event
    doomed: bool
    """Whether a fault ended it, so that its end is no failure of the job."""

    def send(self, number: signal.Signals) -> None:
        """Signal the actor and its worker process; nothing happens once it has ended."""
        ...

    def send_worker(self, number: signal.Signals) -> None:
        """Signal its worker process alone."""
        ...

    def ask_to_leave(self) -> None:
        """Ask the actor to leave in good order."""
        ...


class Actors(Protocol):
    awaited: set[str]
    """Actors that are not there and will be started: the job waits for them."""

    def newest(self, name: str) -> Victim | None:
        """An actor's newest process, ended or not; None if it never had one."""
        ...

    async def bring(self, name: str) -> None:
        """Start an actor's command again; it becomes the next incarnation."""
        ...


class LinkRelay(Protocol):
    def begin(self, fault: Fault) -> None:
        """Begin a cut, a delay or a limited bandwidth."""
        ...

    def end(self, fault: Fault) -> None:
        """End a fault."""
        ...

    def reset(self) -> None:
        """Break every connection."""
        ...


def live_schedule(program: Runnable) -> tuple[Fault, ...]:
    """Return all faults of a live run, in order of time; ``ConfigError`` if one cannot be applied
    to processes, or there are too many."""
    faults = schedule(program.chaos, program.followers, until_s=LIVE_S_MAX)
    for index, fault in enumerate(program.chaos.fault):
        if fault.at_s > LIVE_S_MAX:
            raise ConfigError(f"fault[{index}].at_s: {fault.at_s} is over {LIVE_S_MAX} s, a day")
    program.live_faults()
    return faults


def joiners(faults: tuple[Fault, ...]) -> frozenset[str]:
    return frozenset(each.who for each in faults if each.what == "join")


def relayed(faults: tuple[Fault, ...]) -> frozenset[str]:
    return frozenset(each.who for each in faults if each.what in LINK_KINDS)


class FaultInjector:
    def __init__(
        self,
        faults: tuple[Fault, ...],
        seed: int,
        actors: Actors,
        relays: Mapping[str, LinkRelay],
        log: ActorLog,
    ) -> None:
        self.applied: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self._faults = faults
        self._seed = seed
        self._actors = actors
        self._relays = relays
        self._log = log
        self._time = MonotonicTime()
        log.began = self._time.began
        self._scope = trio.CancelScope()
        self._stalls: Counter[Victim] = Counter()
        self._factors: dict[Victim, list[float]] = {}
        self._coming: set[str] = set()

    async def run(self, ready: Callable[[], Awaitable[None]]) -> None:
        """Once all are ready, apply each fault at its time, until the last is over or ``calm``."""
        with self._scope:
            await ready()
            begun, self._time = trio.current_time(), MonotonicTime()
            self._log.began = self._time.began
            async with trio.open_nursery() as self._nursery:
                for number, fault in enumerate(self._faults, 1):
                    await trio.sleep_until(begun + fault.at_s)
                    await self._nursery.start(self._happen, number, fault)

    def calm(self) -> None:
        """Stop: faults under way end, stopped processes continue, and no actor is restarted."""
        self._scope.cancel()

    def summary(self) -> str:
        done = ", ".join(f"{count} {what}" for what, count in sorted(self.applied.items()))
        missed = f" ({sum(self.skipped.values())} skipped)" if self.skipped else ""
        return f"chaos: {done or 'nothing was applied'}{missed}"

    # One fault.

    async def _happen(
        self,
        number: int,
        fault: Fault,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        victim = self._actors.newest(fault.who)
        problem = self._obstacle(fault, victim)
        if problem is not None:
            self.skipped[fault.what] += 1
            self._note("fault skipped", number, fault, {"reason": problem})
            task_status.started()
            return
        self.applied[fault.what] += 1
        self._note("fault", number, fault, {"for_s": fault.for_s, **_measure(fault)})
        reason = OVER
        try:
            with self._applied(fault, victim):
                task_status.started()
                reason = await self._last(fault, victim)
        finally:
            self._note("fault ended", number, fault, {"reason": reason})

    def _obstacle(self, fault: Fault, victim: Victim | None) -> str | None:
        there = victim is not None and not victim.ended.is_set()
        if fault.what == "join":
            there_soon = there or fault.who in self._coming
            return "it is there already" if there_soon else None
        if not there:
            return "it is not there"
        if fault.what == "leave" and victim is not None and victim.doomed:
            return "it is leaving already"
        return None

    @contextmanager
    def _applied(self, fault: Fault, victim: Victim | None) -> Iterator[None]:
        match fault.what:
            case "crash" | "leave":
                assert victim is not None, "see _obstacle"
                self._take_away(fault, victim)
                yield
            case "stall":
                assert victim is not None, "see _obstacle"
                with self._stalled(victim):
                    yield
            case "slow":
                assert victim is not None, "see _obstacle"
                with self._slowed(victim, fault.factor):
                    yield
            case "join":
                yield
            case "reset":
                self._relays[fault.who].reset()
                yield
            case "cut" | "delay" | "bandwidth":
                self._relays[fault.who].begin(fault)
                try:
                    yield
                finally:
                    self._relays[fault.who].end(fault)

    async def _last(self, fault: Fault, victim: Victim | None) -> str:
        over_at = trio.current_time() + (float("inf") if fault.for_s is None else fault.for_s)
        if fault.what in ABSENCES:
            assert victim is not None, "see _obstacle"
            return await self._absence(fault.who, victim, over_at)
        if fault.what == "join":
            await self._bring(fault.who)
        if fault.what in AT_ONCE:
            return "it happens at once"
        with trio.move_on_at(over_at):
            if fault.what in LINK_KINDS:
                await trio.sleep_forever()  # The next incarnation has the same link.
            assert victim is not None, "see _obstacle"
            await victim.ended.wait()
            return GONE
        return "its time is up"

    # Absences.

    def _take_away(self, fault: Fault, victim: Victim) -> None:
        victim.doomed = True
        if fault.for_s is not None:
            self._actors.awaited.add(fault.who)
        if fault.what == "crash":
            victim.send(signal.SIGKILL)
        else:
            victim.ask_to_leave()

    async def _absence(self, name: str, victim: Victim, over_at: float) -> str:
        """Wait for its end and its time to come back; never before it is really gone."""
        await victim.ended.wait()
        await trio.sleep_until(over_at)
        if self._actors.newest(name) is not victim or name in self._coming:
            return "it came back already"
        await self._bring(name)
        return "it is back"

    async def _bring(self, name: str) -> None:
        self._coming.add(name)
        try:
            await self._actors.bring(name)
        finally:
            self._coming.discard(name)

    # Stops.

    @contextmanager
    def _stalled(self, victim: Victim) -> Iterator[None]:
        self._stalls[victim] += 1
        victim.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self._stalls[victim] -= 1
            if not self._stalls[victim]:
                del self._stalls[victim]
                victim.send(signal.SIGCONT)

    @contextmanager
    def _slowed(self, victim: Victim, factor: float) -> Iterator[None]:
        """Its worker runs a share of the time; several factors multiply."""
        factors = self._factors.setdefault(victim, [])
        factors.append(factor)
        if len(factors) == 1:
            self._nursery.start_soon(self._take_turns, victim, factors)
        try:
            yield
        finally:
            factors.remove(factor)
            if not factors:
                del self._factors[victim]

    async def _take_turns(self, victim: Victim, factors: list[float]) -> None:
        try:
            while factors and not victim.ended.is_set():
                share = 1.0
                for factor in factors:
                    share /= factor
                await trio.sleep(SLOW_PERIOD_S * share)
                self._send_worker(victim, signal.SIGSTOP)
                await trio.sleep(SLOW_PERIOD_S * (1.0 - share))
                self._send_worker(victim, signal.SIGCONT)
        finally:
            self._send_worker(victim, signal.SIGCONT)

    def _send_worker(self, victim: Victim, number: signal.Signals) -> None:
        if victim not in self._stalls:  # A stalled process stays stopped.
            victim.send_worker(number)

    # The log.

    def _note(self, event: str, number: int, fault: Fault, more: dict[str, Any]) -> None:
        """Log one line; its ``ref`` has the number of the fault in the schedule."""
        planned = {"at_s": round(fault.at_s, 3), "seed": self._seed}
        fields = {"what": fault.what, "who": fault.who, **planned, **more}
        self._log.observe(event, self._time.now(), number, fields)


def _measure(fault: Fault) -> dict[str, Any]:
    link = {"direction": fault.direction}
    match fault.what:
        case "slow":
            return {"factor": fault.factor}
        case "cut":
            return link
        case "delay":
            return {**link, "delay_s": fault.delay_s}
        case "bandwidth":
            return {**link, "mbit": fault.mbit}
        case _:
            return {}
