"""Why nothing went on at the end of a run's tapes: for whom the last merge or message waits, and
what each of these did last, by its own tape. The run may have been killed, or still be running."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median

from msgspec import Struct

from clocks import actor_of
from ddloco.debugger.cluster_status import RecordedLearnerStatus, status_of
from ddloco.debugger.recorded_job import RecordedJob
from ddloco.debugger.recorded_run import RecordedRun
from ddloco.debugger.story import GAP_S
from ddloco.debugger.wording import clipped, listed, phrase
from ddloco.job.protocol.status import Status
from ddloco.monitoring.status_view import seconds, sync_in_words, waits_in_words
from ddloco.stage.actors.effects import Finish
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
        gone = f", {seconds(self.before_s)} before the others'" if self.is_gone else ""
        tape = f"its tape ends at {self.at:.2f} s{gone} ({self.event})"
        return f"  {self.actor}: {self.state}; {tape}"


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

    def lines(self) -> list[str]:
        shown = [each for each in self.actors if self.stuck or each.is_gone]
        more = len(shown) - SHOWN_MAX
        lines = [self.verdict, *self.waits, *(each.line() for each in shown[:SHOWN_MAX])]
        return [*lines, f"  and {more} more actors; --json has all"] if more > 0 else lines


def stuck_at_end(run: RecordedRun) -> Stuck:
    newest = {actor_of(who): who for who in run.tapes}
    told = {who: _told(run, who) for who in newest.values() if _begun(run, who)}
    if not told:
        raise ConfigError(f"{run.path}: its tapes have no events")
    latest = max(end.at for end, _ in told.values())
    ends = {who: _replaced(end, latest) for who, (end, _) in told.items()}
    if isinstance(run, RecordedJob):
        lead = newest.get(run.job.syncer_names()[0], "")
        if lead in told:
            return _of_job(run, ends, lead, told[lead][1])
    return _of_actors(ends, {who: status for who, (_, status) in told.items()})


def _begun(run: RecordedRun, who: str) -> bool:
    found = run.tape_of(who)
    return found.events > found.header.after


def _told(
    run: RecordedRun, who: str
) -> tuple[ActorEnd, Status | RecordedLearnerStatus | ActorStatus]:
    number = run.tape_of(who).events
    status, step = status_of(run, who, number), run.at(who, number)
    ended = next((each for each in step.effects if isinstance(each, Finish)), None)
    at = run.common(who, step.at)
    state = _state(status, at, step.event)
    said = f"{ended.status}: {ended.reason}" if ended is not None else ""
    return ActorEnd(who, f"{who}:{number}", at, 0.0, said, state), status


def _replaced(end: ActorEnd, latest: float) -> ActorEnd:
    return ActorEnd(end.actor, end.event, end.at, latest - end.at, end.ended, end.state)


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


def _of_job(run: RecordedJob, ends: dict[str, ActorEnd], lead: str, status: object) -> Stuck:
    assert isinstance(status, Status)
    end = ends[lead]
    where = f"at the end of the tape of {lead} ({end.event}, {end.at:.2f} s)"
    times = [run.common(merge.event.rpartition(":")[0], merge.at) for merge in run.merges()]
    since_s = end.at - (times[-1] if times else run.common(lead, 0.0))
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


def _of_actors(ends: dict[str, ActorEnd], told: dict[str, object]) -> Stuck:
    """Of actors of the user's own: nothing happens any more if nobody has work, a timer, or a
    message that was not taken."""
    open_ = [each for each in ends.values() if not each.ended]
    if not open_:
        ended = tuple(ends.values())
        return Stuck("every actor has ended; nothing is stuck", (), ended, stuck=False)
    active = {
        who for who, status in told.items() if isinstance(status, ActorStatus) and _moves(status)
    }
    idle = [each for each in open_ if each.actor not in active]
    verdict = f"{listed([each.actor for each in open_])} did not end"
    if len(idle) == len(open_):
        verdict += ": each waits for a message, and none is under way, no work and no timer"
    return Stuck(verdict, (), tuple(_others(ends, [])), stuck=len(idle) == len(open_))


def _moves(status: ActorStatus) -> bool:
    return bool(status.work or status.timers or any(each.waiting for each in status.linked))
