"""Checks when syncs are launched and closed, and who is pulled: quorum-or-grace, overlap,
unmerged-pulled (paper: 3.2 and 3.3)."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from clocks import actor_of
from ddloco.job.protocol.messages import Contribution, Progress, Pull
from ddloco.job.protocol.timers import LaunchDue, PullDeadline, SumsDeadline
from ddloco.job.protocol.work import FragmentMerged, MergeFragment, Recovered
from ddloco.machines.clients import clients
from ddloco.machines.syncer.machine import Syncer
from ddloco.machines.syncer.membership import SILENCE_S_MIN
from ddloco.machines.syncer.pacing import LIVE_STEPS
from ddloco.machines.syncer.schedule import due_at
from ddloco.replayer.invariants.base import Incarnation, InvariantCheck, Stage
from ddloco.stage.actors.effects import Observe
from ddloco.stage.actors.events import StopRequested
from transport import (
    CONTROL,
    CancelTimer,
    Effect,
    Event,
    LaneBroken,
    MessageArrived,
    SetTimer,
    TimerFired,
    Transmit,
)

GRACE = "quorum-or-grace"
PULLED = "unmerged-pulled"
ROUNDING_S = 1e-6

HANDLED_FIRST = (TimerFired, LaneBroken, StopRequested)
"""Events that the driver handles before anything that arrives from outside."""


class Launches(InvariantCheck[Stage, Incarnation]):
    """quorum-or-grace, overlap, unmerged-pulled: how a sync is launched and closed.

    A sync is launched with a quorum of learners that finished a step since the last launch; not
    before its launch floor, and not after its grace window. It pulls every learner with trained
    steps of its fragment that are in no merge; with ``sync.pull = "fresh"`` only learners of the
    quorum. It is closed by its deadline. No more than ``sync.overlap`` syncs are in progress.

    Args:
        late_max: arrivals that may be handled after a timer is due and before it fires: none in
            virtual time; in a live run one, which arrived while the driver read the clock.
    """

    invariants = (GRACE, "overlap", PULLED)

    def __init__(self, late_max: int = 0) -> None:
        super().__init__()
        self._late_max = late_max
        self._forget()

    def _forget(self) -> None:
        self._under_way: dict[int, int] = {}
        self._work: dict[int, tuple[int, int]] = {}
        self._deadlines: dict[int, float] = {}
        self._late: Counter[int] = Counter()
        self._overdue = 0
        self._alarm: float | None = None
        self._steps: dict[str, int] = {}
        self._heard: dict[str, float] = {}
        self._fresh: set[str] = set()
        self._report_s: dict[str, float] = {}
        self._together: dict[str, int] = {}
        self._counted: dict[str, bool] = {}
        """Whether a learner has reported over its link: steps are counted from then on."""
        self._last = 0
        self._since: dict[str, int] = {}
        """The steps that each learner has reported since the last launch, with those left then
        that it had taken together."""
        self._median_done = 0
        self._fastest_s = 0.0
        """The shortest known time between two reports of a learner since the last launch."""
        self._graced: tuple[int, float] | None = None
        self._reports: dict[str, Progress] = {}
        self._bases: dict[tuple[str, int], int] = {}
        """By learner and fragment, the newest base version that it contributed from."""
        self._versions: Counter[int] = Counter()
        self._unheard: set[str] = set()
        """Learners that were pulled and have neither answered nor reported since. Parts of
        snapshots do not count as a sign of life, because the syncer's machine does not see them."""

    def started(self, stage: Stage, role: Incarnation) -> None:
        """Forget the syncs of the previous incarnation, which ended with it."""
        if role.actor_name in stage.job.syncer_names():
            self._forget()

    def see(self, stage: Stage, role: Incarnation, event: Event, effects: Sequence[Effect]) -> None:
        """Check the events of a syncer; only syncers launch syncs."""
        if not isinstance(role.actor.machine, Syncer):
            return
        if isinstance(event, MessageArrived):
            self._said(role.at, event)
        elif isinstance(event, FragmentMerged):
            t, fragment = self._work.pop(event.work, (0, 0))
            if event.accepted:
                self._versions[fragment] = t
        elif isinstance(event, Recovered):
            self._recovered(event)
        if isinstance(event, TimerFired) and event.timer == LaunchDue():
            self._alarm = None
        pulls: dict[tuple[int, int], list[str]] = {}
        for effect in effects:
            match effect:
                case Observe():
                    self._observed(role.at, effect)
                case Transmit(body=Pull(t, fragment)):
                    pulls.setdefault((t, fragment), []).append(effect.peer)
                case SetTimer(LaunchDue(), at):
                    self._alarm = at
                case CancelTimer(LaunchDue()):
                    self._alarm = None
                case SetTimer(PullDeadline(t) | SumsDeadline(t), at):
                    self._deadlines[t] = at
                case MergeFragment():
                    self._deadlines.pop(effect.t, None)
                    self._work[effect.work] = effect.t, effect.fragment
                case _:
                    pass
        for (t, fragment), peers in pulls.items():
            if t not in self._under_way:
                self._launched(stage, role, t, fragment, peers)
        self._waits(stage, role, event)
        if isinstance(event, HANDLED_FIRST):
            return
        for t, at in self._deadlines.items():
            self._late[t] = self._late[t] + 1 if role.at > at + ROUNDING_S else 0
            late = self._late[t] > self._late_max
            self.hold(not late, GRACE, f"sync {t} is open at {role.at}, its deadline was {at}")

    def _said(self, at: float, event: MessageArrived[Any]) -> None:
        peer, said = event.peer, event.body
        if isinstance(said, Contribution | Progress):
            self._unheard.discard(peer)
        if isinstance(said, Contribution):
            before = self._bases.get((peer, said.fragment), -1)
            self._bases[peer, said.fragment] = max(before, said.base)
        elif isinstance(said, Progress) and peer in self._heard:
            self._report(at, peer, said)

    def _recovered(self, event: Recovered) -> None:
        for each in event.kept:
            self._versions[each.fragment] = each.version
            for name, base in each.spent.items():
                self._bases[name, each.fragment] = base

    def _report(self, at: float, peer: str, progress: Progress) -> None:
        self._reports[peer] = progress
        self._heard[peer] = at
        if progress.step > self._steps[peer]:
            self._fresh.add(peer)
            new = progress.step - self._steps[peer] if self._counted[peer] else 0
            self._since[peer] += new
            self._steps[peer] = progress.step
        self._counted[peer] = True
        self._report_s[peer] = progress.report_s
        self._together[peer] = progress.together
        if progress.report_s:
            self._fastest_s = min(self._fastest_s, progress.report_s)
        self._median_done = max(self._median_done, self._now_done(at))

    def _now_done(self, at: float) -> int:
        """The steps since the last launch that half of the live learners, or more, have done; they
        were heard of in the last ``LIVE_STEPS`` reports of the fastest."""
        recent = at - LIVE_STEPS * self._fastest_s
        known = [heard for name, heard in self._heard.items() if self._report_s[name] > 0]
        live = sum(heard >= recent for heard in known)
        done = sorted((self._since[name] for name in self._heard), reverse=True)
        return done[max(live - 1, 0) // 2] if done else 0

    def _observed(self, at: float, what: Observe) -> None:
        match what:
            case Observe("joined", fields):
                name = fields["learner"]
                for each in [each for each in self._heard if actor_of(each) == actor_of(name)]:
                    del self._heard[each]
                    self._reports.pop(each, None)
                self._steps[name], self._heard[name], self._report_s[name] = 0, at, 0.0
                self._since[name], self._counted[name] = 0, False
                self._fresh.discard(name)
            case Observe("lost", fields):
                self._heard.pop(fields["learner"], None)
                self._reports.pop(fields["learner"], None)
                self._median_done = max(self._median_done, self._now_done(at))
            case Observe("sync repeated" | "merge", fields):
                self._under_way.pop(fields["t"], None)
                self._deadlines.pop(fields["t"], None)
            case _:
                pass

    def _launched(
        self, stage: Stage, role: Incarnation, t: int, fragment: int, peers: Sequence[str]
    ) -> None:
        sync, links, at = stage.job.sync, role.actor.links, role.at
        self.hold(len(set(peers)) == len(peers), GRACE, f"sync {t} pulls one twice")
        later = [each for each in links.peers() if links.waiting(each, CONTROL)[0]]
        if sync.blocking and t <= stage.job.job.last_step:
            self._launched_in_round(stage, t, peers)
        elif t <= stage.job.job.last_step:
            self._launched_by_pace(stage, at, t, {*peers, *later}, peers)
        self._unheard.update(peers)
        twice = fragment in self._under_way.values()
        self.hold(not twice, "overlap", f"sync {t} of fragment {fragment}, which is under way")
        self._under_way[t] = fragment
        many = len(self._under_way)
        most = max(sync.overlap, 1)
        self.hold(many <= most, "overlap", f"{many} under way, {most} at most")
        steps = max(t - self._last, 0) if self._last else 0
        self._last = max(t, self._last)
        for name, since in self._since.items():
            left = min(since - steps, self._together.get(name, 1) - 1)
            self._since[name] = max(left, 0)
        self._fastest_s = self._known_s()
        self._median_done = self._now_done(at)
        self._fresh = {name for name in self._fresh if self._since.get(name)}

    def _launched_in_round(self, stage: Stage, t: int, peers: Sequence[str]) -> None:
        """With ``sync.blocking`` a round is for the learners that have come to its global step."""
        train, quorum = clients(stage.job, t), stage.job.sync.quorum
        there = [
            name
            for name, report in self._reports.items()
            if report.position >= t and actor_of(name) in train
        ]
        self.hold(len(there) >= quorum, GRACE, f"round {t} has {there} of {quorum}")
        early = [name for name in peers if name not in there]
        self.hold(not early, GRACE, f"round {t} pulls {early}, which have not come to it")

    def _launched_by_pace(
        self, stage: Stage, at: float, t: int, asked: set[str], peers: Sequence[str]
    ) -> None:
        sync, fragment = stage.job.sync, due_at(stage.plan, t)
        many = len(asked & self._fresh)
        self.hold(many >= sync.quorum, GRACE, f"sync {t} has {many} of {sync.quorum}")
        if sync.pull == "fresh":
            stale = sorted({*peers} - self._fresh)
            self.hold(not stale, GRACE, f"sync {t} pulls {stale}, that did no step since the last")
        else:
            lag = sync.staleness * sync.interval
            left_out = self._unmerged(fragment, self._versions[fragment] - lag)
            left_out = sorted(left_out - asked)
            self.hold(not left_out, PULLED, f"sync {t} leaves out {left_out}")
        steps = max(t - self._last, 0) if self._last else 0
        done = max(self._median_done, self._now_done(at))
        self.hold(done >= steps, GRACE, f"sync {t}: the median has done {done} of {steps} steps")
        if self._graced is not None and self._graced[0] == t and at < self._graced[1] - ROUNDING_S:
            due_by = self._graced[1] if sync.pull == "unmerged" else math.inf
            missing = {
                each
                for each, heard in self._heard.items()
                if heard + self._report_s[each] <= due_by
                and at - heard
                < min(2 * self._report_s[each] or math.inf, SILENCE_S_MIN) - ROUNDING_S
            }
            early = sorted(missing - self._fresh)
            self.hold(
                not early, GRACE, f"sync {t} does not wait for {early} until {self._graced[1]}"
            )

    def _unmerged(self, fragment: int, oldest: int) -> set[str]:
        """The learners that, by their last report, have steps of ``fragment`` that they never
        contributed, without those that have not reported since they were pulled."""
        return {
            name
            for name, report in self._reports.items()
            if report.steps[fragment]
            and report.versions[fragment] >= max(oldest, self._bases.get((name, fragment), -1) + 1)
            and name not in self._unheard
        }

    def _known_s(self) -> float:
        """The shortest known time between two reports of any linked learner; 0 if none is known."""
        return min((s for name in self._heard if (s := self._report_s[name])), default=0.0)

    def _waits(self, stage: Stage, role: Incarnation, event: Event) -> None:
        """Check that a sync with a quorum is launched when its floor and grace window are over."""
        machine: Any = role.actor.machine
        waiting, at = machine.rounds.waiting if machine.rounds else None, role.at
        self._graced = None
        if waiting is None or waiting.quorum_at is None:
            self._overdue = 0
            return
        self._graced = waiting.t, waiting.quorum_at + waiting.grace_s
        if waiting.quorum_at == at:
            sync, step_s = stage.job.sync, machine.rounds.pacing.step_s or 0.0
            most = min(sync.grace * sync.overlap, sync.grace_steps_max) * step_s
            within = waiting.grace_s <= most + ROUNDING_S
            self.hold(
                within, GRACE, f"sync {waiting.t}: a window of {waiting.grace_s}, {most} at most"
            )
        if waiting.floor_at is None:
            self._overdue = 0
            return
        due = max(waiting.floor_at, self._graced[1])
        alarmed = self._alarm is not None and self._alarm <= due + ROUNDING_S
        self.hold(alarmed, GRACE, f"sync {waiting.t} is due at {due}, the timer at {self._alarm}")
        if at <= due + ROUNDING_S:
            self._overdue = 0
        elif not isinstance(event, HANDLED_FIRST):
            self._overdue += 1
        punctual = self._overdue <= self._late_max
        self.hold(punctual, GRACE, f"sync {waiting.t} was due at {due}, it is {at}")
