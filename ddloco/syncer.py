"""The syncer machine (paper: Algorithm 2).

It owns the global fragments. For every global step at which a fragment is due it waits for a quorum
and a grace window, pulls the fragment from those who have something new, merges what arrives before
the deadline, and tells everybody the result. Several syncs are under way at once, each of another
fragment. Whoever is slow or dead is simply not among them.
"""

from typing import Any

from clocks import actor_of, number_of
from ddloco import standing
from ddloco.bands import Bands
from ddloco.config import Job
from ddloco.effects import (
    Finish,
    MakeParameters,
    Observe,
    Recover,
    Status,
)
from ddloco.events import (
    Evaluated,
    FragmentMerged,
    ModelSaved,
    ParametersMade,
    PieceEncoded,
    Recovered,
    Started,
    StopRequested,
    WorkFailed,
)
from ddloco.farewell import FAREWELL, Farewell
from ddloco.fragments import FragmentPlan
from ddloco.members import Member
from ddloco.membership import Membership
from ddloco.messages import (
    Contribution,
    Progress,
    Pull,
)
from ddloco.pacing import Pacing, Waiting
from ddloco.relay import RELAY, Relay
from ddloco.schedule import Schedule
from ddloco.syncs import LATE, Global, Globals, Part, Sync, names
from transport import (
    CONTROL,
    CancelTimer,
    Drop,
    Effect,
    Event,
    Hangup,
    Keep,
    Listen,
    MessageArrived,
    PeerJoined,
    PeerLost,
    Send,
    SetTimer,
    TimerFired,
)

LAUNCH = "launch"


class Syncer:
    """One syncer's decisions.

    Args:
        job: the resolved job.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._plan: FragmentPlan | None = None
        self._globals = Globals(0, 0)
        self._membership = Membership(0)
        self._bands = Bands(job.sync.band, 0)
        self._pacing = Pacing(job.sync)
        self._schedule: Schedule | None = None
        self._waiting: Waiting | None = None
        self._look_at: float | None = None
        self._syncs: dict[int, Sync] = {}
        self._work = 0
        self._merges = 0
        self._stopping: tuple[Status, str] | None = None
        self._farewell: Farewell | None = None
        self._relay = Relay(self._membership, self._globals, self._next_work)
        self._ready = False
        self._seen: dict[str, Any] = {}

    def handle(self, at: float, event: Event) -> list[Effect]:
        """Take one event; see the module for what a syncer does."""
        effects = self._take(at, event)
        return effects + self._advance(at)

    def status(self, at: float) -> dict[str, Any]:
        """How things stand at ``at``, as plain data for people; see ``standing``."""
        told = standing.tell(at, self._membership, self._globals, self._syncs, self._waiting)
        last = {key: self._seen.get(key, 0) for key in ("taking_part", "averaged")}
        last["recovering"] = self._relay.waiting(at)
        t = self._schedule.t if self._schedule is not None else 0
        return {"t": t, "merges": self._merges, **last, **told}

    def _take(self, at: float, event: Event) -> list[Effect]:
        match event:
            case Started():
                return self._started(event)
            case Recovered():
                return self._recovered(event)
            case ParametersMade():
                return self._parameters_made()
            case MessageArrived():
                return self._message(at, event)
            case FragmentMerged():
                return self._merged(at, event)
            case PeerJoined(peer, incarnation):
                return self._joined(at, peer, incarnation)
            case PeerLost(peer, reason):
                return self._lost(at, peer, reason)
            case PieceEncoded():
                return self._relay.encoded(event)
            case TimerFired(timer):
                return self._timer(at, timer)
            case Evaluated(_, loss) if self._farewell is not None:
                return self._farewell.result(loss)
            case ModelSaved() if self._farewell is not None:
                self._farewell.saved = True
                return []
            case WorkFailed():
                return self._work_failed(event)
            case StopRequested(reason):
                if self._farewell is None:
                    self._stopping = self._stopping or ("stopped", reason)
                    self._waiting = None  # Its quorum may never come.
                return []
            case _:
                return []

    # Beginning.

    def _started(self, event: Started) -> list[Effect]:
        self._plan = self._job.plan(event.leaves)
        self._membership = Membership(len(self._plan.fragments))
        self._bands = Bands(self._job.sync.band, len(self._plan.fragments))
        self._membership.newest[actor_of(event.incarnation)] = number_of(event.incarnation)
        return [Recover(self._next_work())]

    def _recovered(self, event: Recovered) -> list[Effect]:
        """Go on from what an earlier incarnation kept; the rest is made anew, as it was at first.

        Whatever that incarnation had launched and not merged is lost with it: those fragments are
        due again an interval later.
        """
        assert self._plan is not None
        sync = self._job.sync
        self._globals = Globals(len(self._plan.fragments), sync.staleness * sync.interval)
        for each in event.kept:
            self._globals.recover(each.fragment, each.version)
            self._membership.recover(each.fragment, each.spent, each.batches)
        self._relay = Relay(self._membership, self._globals, self._next_work)
        schedule = self._schedule = Schedule(self._plan, self._job.job.steps)
        schedule.recover(max(self._globals.versions))
        effects = [*self._membership.recovered(), *self._globals.keep()]
        if event.kept:
            effects.append(Observe("recovered", {"t": schedule.t, "fragments": len(event.kept)}))
        found = [each.fragment for each in event.kept]
        made = tuple(p for p in range(len(self._globals)) if p not in found)
        return [*effects, MakeParameters(self._next_work(), made)]

    def _parameters_made(self) -> list[Effect]:
        assert self._plan is not None
        self._ready = True
        return [
            Listen(self._job.agreement(self._plan)),
            Observe("listening", {"fragments": len(self._globals), "steps": self._job.job.steps}),
        ]

    # What learners say.

    def _joined(self, at: float, peer: str, incarnation: str) -> list[Effect]:
        member, effects = self._membership.join(at, peer, incarnation)
        if member is None:
            return effects
        effects += self._close_settled()
        if self._farewell is not None:
            effects.append(self._farewell.stop(peer))
        fields = {"learner": incarnation, "epoch": self._membership.epoch}
        return [Observe("joined", fields), *effects]

    @property
    def _members(self) -> dict[str, Member]:
        return self._membership.members

    def _message(self, at: float, event: MessageArrived[Any]) -> list[Effect]:
        member = self._members.get(event.peer)
        if member is None:
            return []
        match event.body:
            case Progress():
                return self._progress(at, member, event.body)
            case Contribution():
                return self._contribution(at, member, event.body, event.handle)
            case _:
                return self._relay.hear(at, member, event.body, event.handle)

    def _progress(self, at: float, member: Member, progress: Progress) -> list[Effect]:
        problem = member.report(at, progress)
        if problem is not None:
            return [Observe("refused", {"learner": member.incarnation, "reason": problem})]
        self._membership.note_batches(actor_of(member.incarnation), progress.batches)
        if self._pacing.step_s is None:  # Otherwise once a launch; the first window needs it now.
            self._pacing.observe_steps(self._membership.step_times())
        if self._farewell is not None:
            return []
        effects: list[Effect] = []
        if progress.step == 0 or self._relay.waits(member.peer):
            effects = self._relay.heard(at, member, progress.versions)
        if self._relay.waits(member.peer):
            return effects
        return effects + self._globals.tell_newer(at, member, progress)

    def _contribution(
        self, at: float, member: Member, said: Contribution, handle: str
    ) -> list[Effect]:
        who = (member.incarnation, said.t, said.fragment)
        sync = self._syncs.get(said.t)
        problem = LATE if sync is None else sync.objection(member.peer, said, handle)
        if sync is None or problem is not None:
            return self._membership.refuse(*who, problem or LATE)
        p = sync.fragment
        problem = member.objection(said, self._globals[p].version, self._globals.oldest(p))
        if problem is None and self._bands.band:
            problem = member.doubt(at, said) or self._bands.objection(said)
        if problem is not None:
            return self._membership.refuse(*who, problem)
        sync.parts[member.peer] = Part(said, handle, member.merged)
        return [Keep(handle), *self._close_if_settled(sync)]

    def _lost(self, at: float, peer: str, reason: str) -> list[Effect]:
        member = self._membership.lose(peer)
        relayed = self._relay.lost(at, peer)
        if member is None:
            return relayed  # Its place was taken by a newer incarnation.
        seen = Observe("lost", {"learner": member.incarnation, "reason": reason})
        return [seen, *relayed, *self._close_settled()]

    def _close_settled(self) -> list[Effect]:
        """Somebody is gone: a sync may have waited for nobody else."""
        return [
            effect for sync in list(self._syncs.values()) for effect in self._close_if_settled(sync)
        ]

    # Launching: the one place that decides what comes next.

    def _advance(self, at: float) -> list[Effect]:
        if self._farewell is not None:
            return self._farewell.leave(len(self._members))
        if not self._ready:
            return []
        assert self._schedule is not None
        effects: list[Effect] = []
        while self._waiting is not None or self._choose(at, self._schedule):
            waiting = self._waiting
            assert waiting is not None
            able = self._membership.able(waiting.fragment, self._globals.oldest(waiting.fragment))
            missing = len(able) >= self._job.sync.quorum and self._membership.missing(at)
            look = self._pacing.wait_until(at, waiting, able=len(able), missing=missing)
            if look is None or look > at:
                return effects + self._look_again(look)
            self._schedule.launched(waiting.t)
            effects += self._launch(at, waiting, able)
        if not self._syncs and (self._stopping or self._schedule.next() is None):
            effects += self._wind_up(at)
        return effects

    def _close_if_settled(self, sync: Sync) -> list[Effect]:
        """Merge at once when nobody who was pulled can still answer."""
        parts, members = sync.parts, self._members
        settled = all(peer in parts or peer not in members for peer in sync.pulled)
        return self._close(sync) if settled and not sync.work else []

    def _choose(self, at: float, schedule: Schedule) -> bool:
        """Begin to wait for the next sync, unless enough are under way."""
        if self._stopping or len(self._syncs) >= self._job.sync.overlap:
            return False
        t = schedule.next()
        if t is None:
            return False
        fragment = schedule.fragment(t)
        if any(sync.fragment == fragment for sync in self._syncs.values()):
            return False
        self._pacing.observe_steps(self._membership.step_times())
        self._waiting = self._pacing.await_sync(at, t, fragment)
        return True

    def _look_again(self, look: float | None) -> list[Effect]:
        if look == self._look_at:
            return []
        self._look_at = look
        return [CancelTimer(LAUNCH) if look is None else SetTimer(LAUNCH, look)]

    def _launch(self, at: float, waiting: Waiting, able: list[Member]) -> list[Effect]:
        t, fragment = waiting.t, waiting.fragment
        deadline = self._pacing.launch(at, waiting)
        self._waiting = None
        pulled = tuple(member.peer for member in able)
        self._syncs[t] = Sync(t, fragment, pulled, waiting.grace_s, at, deadline)
        for member in self._members.values():
            member.fresh = False
        pulls = [Send(peer, CONTROL, Pull(t, fragment)) for peer in pulled]
        return [*self._look_again(None), SetTimer(f"pull/{t}", deadline), *pulls]

    # Closing, merging, telling.

    def _timer(self, at: float, timer: str) -> list[Effect]:
        if timer.startswith("pull/"):
            sync = self._syncs.get(int(timer.removeprefix("pull/")))
            return self._close(sync) if sync is not None and not sync.work else []
        if timer.startswith(RELAY):
            return self._relay.late(at, timer)
        if timer == LAUNCH:
            self._look_at = None
        if timer == FAREWELL and self._farewell is not None:
            self._farewell.patient = False
        return []

    def _close(self, sync: Sync) -> list[Effect]:
        """Merge what is there; with nothing there, this global step waits for a quorum again."""
        effects: list[Effect] = [CancelTimer(f"pull/{sync.t}")]
        if not sync.parts:
            return [*effects, *self._retry(sync, "no contribution before the deadline")]
        sync.work = self._next_work()
        merge = sync.merge(self._globals[sync.fragment], self._membership, self._bands)
        return [*effects, *(Keep(handle) for handle in merge.out), merge]

    def _retry(self, sync: Sync, reason: str) -> list[Effect]:
        del self._syncs[sync.t]
        assert self._schedule is not None
        self._schedule.repeat(sync.t)
        fields = {"t": sync.t, "fragment": sync.fragment, "reason": reason}
        return [Observe("sync repeated", fields)]

    def _merged(self, at: float, event: FragmentMerged) -> list[Effect]:
        sync = next(each for each in self._syncs.values() if each.work == event.work)
        p = sync.fragment
        out = names(p, sync.t)
        effects: list[Effect] = [Drop(part.handle) for part in sync.parts.values()]
        for learner, reason in event.refused:
            effects += self._membership.refuse(learner, sync.t, p, reason)
            if learner in self._members:
                over = self._membership.strike(self._members[learner])
                effects += over + self._globals.heal(
                    at, self._members[learner], p, whole=bool(over)
                )
        sync.learned(event, self._globals[p].version, self._bands)
        if not event.accepted:
            effects += [Drop(handle) for handle in out]
            return effects + self._retry(sync, "every contribution was refused")
        del self._syncs[sync.t]
        self._pacing.sync_s.add(at - sync.launched_at)
        effects += self._globals.replace(p, Global(sync.t, *out))
        for part in (sync.parts[learner] for learner in event.accepted):
            part.merged[p] = part.said.base
        self._membership.absolve(event.accepted)
        self._merges += 1
        effects += [self._globals.tell(at, member, p) for member in self._members.values()]
        self._seen = sync.seen(event, len(self._members), self._pacing.sync_s.value or 0.0)
        return [*effects, Observe("merge", self._seen)]

    # The end.

    def _wind_up(self, at: float) -> list[Effect]:
        assert self._schedule is not None
        t = self._schedule.t
        status, reason = self._stopping or ("done", f"global step {t}")
        self._waiting = None
        evaluating, saving = self._next_work(), self._next_work()
        self._farewell = Farewell(status, reason, t, self._merges, evaluating)
        peers = list(self._members)
        thetas = self._globals.thetas()
        begun = self._farewell.begin(at, peers, thetas, saving, self._pacing.step_s)
        return [*self._look_again(None), *begun]

    def _work_failed(self, event: WorkFailed) -> list[Effect]:
        farewell = self._farewell
        if farewell is not None and event.work == farewell.evaluating:
            return [Observe("not evaluated", {"reason": event.reason}), *farewell.result(None)]
        status: Status = "bad-input" if event.kind == "task" else "failed"
        farewells = [Hangup(peer, event.reason) for peer in list(self._members)]
        return [*farewells, Finish(status, event.reason)]

    def _next_work(self) -> int:
        self._work += 1
        return self._work
