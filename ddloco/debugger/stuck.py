"""Why nothing went on at the end of a run's tapes: for whom the last merge or message waits, and
what each of these did last, by its own tape. The run may have been killed, or still be running."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from clocks import actor_of
from ddloco.debugger.cluster_status import RecordedLearnerStatus, status_of
from ddloco.debugger.recorded_job import RecordedJob
from ddloco.debugger.recorded_run import RecordedRun, parse_event
from ddloco.debugger.story import GAP_S
from ddloco.debugger.wording import clipped, listed, phrase
from ddloco.job.protocol.status import Status
from ddloco.monitoring.status_view import seconds, sync_in_words, waits_in_words
from ddloco.stage.actors.events import StopRequested
from ddloco.stage.actors.status import ActorStatus
from ddloco.stage.files.toml import ConfigError

LONG_TIMES = 5.0
"""Merges come regularly: how many times their usual distance is a standstill."""

SHOWN_MAX = 8
"""Actors of which a line is shown."""


class ActorEnd(Struct, frozen=True):
    """How the newest tape of an actor ends.

    Attributes:
        at: the time of its last ``event``, in seconds on the one axis of the run.
        before_s: for how long the tapes of others go on after it.
        ended: how it ended, by its own word; empty if it did not.
        state: what it does, or waits for.
    """

    actor: str
    event: str
    at: float
    before_s: float
    ended: str
    state: str

    @property
    def is_gone(self) -> bool:
        return not self.ended and self.before_s >= GAP_S

    def line(self) -> str:
        if self.ended:
            return f"  {self.actor} ended at {self.at:.2f} s: {self.ended} ({self.event})"
        gone = f", {seconds(self.before_s)} before that" if self.is_gone else ""
        last = f"its last event was at {self.at:.2f} s{gone} ({self.event})"
        return f"  {self.actor}: {self.state}; {last}"


class Stuck(Struct, frozen=True):
    """What a run waits for at the end of its tapes.

    Attributes:
        verdict: in one sentence.
        waits: for what, in more detail.
        actors: those that are waited for first.
        stuck: whether nothing goes on.
    """

    verdict: str
    waits: tuple[str, ...]
    actors: tuple[ActorEnd, ...]
    stuck: bool

    def shown(self) -> Sequence[ActorEnd]:
        wanted = [each for each in self.actors if self.stuck or each.is_gone]
        return wanted[:SHOWN_MAX]

    def lines(self) -> list[str]:
        more = sum(self.stuck or each.is_gone for each in self.actors) - SHOWN_MAX
        lines = [self.verdict, *self.waits, *(each.line() for each in self.shown())]
        return [*lines, f"  and {more} more actors; --json has all"] if more > 0 else lines


def stuck_at_end(run: RecordedRun) -> Stuck:
    """Return what a run waits for at its end; of one that was asked to stop, if it waited for
    something just before that, then."""
    asked = _asked_to_stop(run)
    if asked is not None:
        found = _stuck(run, asked)
        if found is not None and found.stuck:
            said = f"until it was asked to stop, at {asked:.2f} s, it was {found.verdict}"
            return replace(found, verdict=said)
    found = _stuck(run, None)
    if found is None:
        raise ConfigError(f"{run.path}: its tapes have no events")
    return found


def _asked_to_stop(run: RecordedRun) -> float | None:
    times = [
        run.common(who, record.at)
        for who in run.tapes
        for record, event in run.events(who, StopRequested)
        if isinstance(event, StopRequested)
    ]
    return min(times, default=None)


def _stuck(run: RecordedRun, until: float | None) -> Stuck | None:
    """What the events say that came before a time; None if there are none."""
    newest = {actor_of(who): who for who in run.tapes}
    ends = {who: end for who in newest.values() if (end := _end_of(run, who, until)) is not None}
    if not ends:
        return None
    now = max(end.at for end in ends.values()) if until is None else until
    ends = {who: replace(end, before_s=now - end.at) for who, end in ends.items()}
    lead = newest.get(run.job.syncer_names()[0], "") if isinstance(run, RecordedJob) else ""
    found = None
    if isinstance(run, RecordedJob) and lead in ends:
        found = _of_job(run, ends, lead, ends[lead].at if until is None else until)
    found = found if found is not None else _of_actors(run, ends, until)
    shown = {each.actor for each in found.shown()}
    return replace(
        found, actors=tuple(_with_state(run, e) if e.actor in shown else e for e in found.actors)
    )


def _end_of(run: RecordedRun, who: str, until: float | None) -> ActorEnd | None:
    """As the tape says; no machine is stepped."""
    found = run.tape_of(who)
    number, ended = found.events, found.closed or ""
    if until is not None:
        numbers = range(found.header.after + 1, found.events + 1)
        before = bisect_left(numbers, until, key=lambda n: run.common(who, run.event(who, n)[0]))
        number, ended = numbers.start + before - 1, ended * (before == len(numbers))
    if number <= found.header.after:
        return None
    at, _ = run.event(who, number)
    return ActorEnd(who, f"{who}:{number}", run.common(who, at), 0.0, ended, "")


def _with_state(run: RecordedRun, end: ActorEnd) -> ActorEnd:
    if end.ended:
        return end
    _, last = run.event(*parse_event(end.event))
    return replace(end, state=_state(_status(run, end), end.at, last))


def _status(run: RecordedRun, end: ActorEnd) -> Status | RecordedLearnerStatus | ActorStatus:
    return status_of(run, *parse_event(end.event))


def _state(status: Status | RecordedLearnerStatus | ActorStatus, at: float, last: object) -> str:
    if isinstance(status, RecordedLearnerStatus):
        if status.running_s is not None and not status.stopping:
            return f"runs step {status.step + 1} since {at - status.running_s:.2f} s"
        return status.state
    if isinstance(status, Status):
        return f"global step {status.t}"
    if status.work:
        return f"works on {listed(status.work)}"
    if status.timers:
        return f"waits for {listed([*status.timers])}"
    return f"waits for a message since {clipped(phrase(last))}"


def _of_job(run: RecordedJob, ends: dict[str, ActorEnd], lead: str, now: float) -> Stuck | None:
    """None where the lead is none that merges, as that of data-parallel training."""
    end = ends[lead]
    where = f"at the end of the tape of {lead} ({end.event}, {end.at:.2f} s)"
    known = [run.common(merge.event.rpartition(":")[0], merge.at) for merge in run.merges()]
    times = [at for at in known if at <= now]
    since_s = now - (times[-1] if times else run.common(lead, 0.0))
    last = f"the last merge was done {seconds(since_s)} before" if times else "there is no merge"
    gaps = [b - a for a, b in pairwise(times)]
    long_s = max(GAP_S, LONG_TIMES * median(gaps)) if gaps else GAP_S
    if end.ended:
        verdict = f"the job has ended: {end.ended} ({end.event}); nothing is stuck"
    elif end.before_s > long_s:
        verdict = f"stuck: {lead} does nothing since {end.at:.2f} s, while others go on"
        return Stuck(verdict, (), tuple(_others(ends, [lead])), stuck=True)
    elif since_s <= long_s:
        verdict = f"nothing is stuck {where}: {last}"
    else:
        status = _status(run, end)
        if not isinstance(status, Status):
            return None
        missing = [*_missing(status)]
        of = f"it waits for {listed(missing)}" if missing else "it waits for no learner"
        busy = [f"  {m.learner} is in {m.busy}" for m in status.members if m.busy]
        waits = [*map(sync_in_words, status.in_flight), *busy]
        waits += waits_in_words(status.waiting) if status.waiting is not None else []
        verdict = f"stuck {where}: {last}, and {of}"
        return Stuck(verdict, tuple(waits), tuple(_others(ends, missing)), stuck=True)
    return Stuck(verdict, (), tuple(_others(ends, [])), stuck=False)


def _missing(status: Status) -> Iterator[str]:
    """Whose answers the oldest sync under way waits for; of a sync that is not launched yet, whose
    reports."""
    for sync in status.in_flight[:1]:
        yield from sync.sums_of or (who for who in sync.pulled if who not in sync.arrived)
    if not status.in_flight and status.waiting is not None:
        yield from status.waiting.missing or status.waiting.absent


def _others(ends: dict[str, ActorEnd], first: Sequence[str]) -> Iterable[ActorEnd]:
    """Those that are waited for, then those that did not end, the earliest first."""
    named = [ends[who] for who in first if who in ends]
    more = sorted(ends.values(), key=lambda each: (bool(each.ended), each.at, each.actor))
    return [*named, *(each for each in more if each not in named)]


def _of_actors(run: RecordedRun, ends: dict[str, ActorEnd], until: float | None) -> Stuck:
    """Of actors of the user's own: nothing happens any more if nobody has work, a timer, or a
    message that was not taken."""
    open_ = [each for each in ends.values() if not each.ended]
    if not open_:
        ended = tuple(ends.values())
        return Stuck("every actor has ended; nothing is stuck", (), ended, stuck=False)
    rests = until is None or all(each.before_s >= GAP_S for each in open_)
    idle = rests and all(not _moves(_status(run, each)) for each in open_)
    verdict = f"{listed([each.actor for each in open_])} did not end"
    if idle:
        idle_said = "each waits for a message, and none is under way, no work and no timer"
        verdict = f"stuck: {verdict}: {idle_said}"
    return Stuck(verdict, (), tuple(_others(ends, [])), stuck=idle)


def _moves(status: object) -> bool:
    if not isinstance(status, ActorStatus):
        return True
    return bool(status.work or status.timers or any(each.waiting for each in status.linked))
