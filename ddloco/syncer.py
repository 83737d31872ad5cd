"""The syncer machine (paper: Algorithm 2).

It owns the global fragments. For every global step at which a fragment is due it waits for a quorum
and a grace window, pulls the fragment from those who have something new, merges what arrives before
the deadline, and tells everybody the result. Several syncs are under way at once, each of another
fragment. Whoever is slow or dead is simply not among them.
"""

from typing import Any

from clocks import actor_of, number_of
from ddloco import standing
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
)
from ddloco.relay import RELAY, Relay
from ddloco.rounds import Rounds
from ddloco.schedule import Schedule
from ddloco.syncs import Globals
from transport import (
    Effect,
    Event,
    Hangup,
    Listen,
    MessageArrived,
    PeerJoined,
    PeerLost,
    TimerFired,
)


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
        self._rounds: Rounds | None = None
        self._work = 0
        self._stopping: tuple[Status, str] | None = None
        self._farewell: Farewell | None = None
        self._relay = Relay(self._membership, self._globals, self._next_work)
        self._ready = False

    def handle(self, at: float, event: Event) -> list[Effect]:
        """Take one event; see the module for what a syncer does."""
        effects = self._take(at, event)
        return effects + self._advance(at)

    def status(self, at: float) -> dict[str, Any]:
        """How things stand at ``at``, as plain data for people; see ``standing``."""
        told = standing.tell(at, self._membership, self._globals, self._rounds)
        return {**told, "recovering": self._relay.waiting(at)}

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
                return self._under_way.merged(at, event)
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
                    if self._rounds is not None:
                        self._rounds.stop()
                return []
            case _:
                return []

    # Beginning.

    def _started(self, event: Started) -> list[Effect]:
        self._plan = self._job.plan(event.leaves)
        self._membership = Membership(len(self._plan.fragments))
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
        schedule = Schedule(self._plan, self._job.job.steps)
        schedule.recover(max(self._globals.versions))
        found = self._membership, self._globals, self._next_work
        self._rounds = Rounds(self._job, schedule, *found)
        if self._stopping:
            self._rounds.stop()
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
        effects += self._under_way.close_settled()
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
                return self._under_way.contribution(at, member, event.body, event.handle)
            case _:
                return self._relay.hear(at, member, event.body, event.handle)

    def _progress(self, at: float, member: Member, progress: Progress) -> list[Effect]:
        problem = member.report(at, progress)
        if problem is not None:
            return [Observe("refused", {"learner": member.incarnation, "reason": problem})]
        self._membership.note_batches(actor_of(member.incarnation), progress.batches)
        if (
            self._under_way.pacing.step_s is None
        ):  # Otherwise once a launch; the first window needs it now.
            self._under_way.pacing.observe_steps(self._membership.step_times())
        if self._farewell is not None:
            return []
        effects: list[Effect] = []
        if progress.step == 0 or self._relay.waits(member.peer):
            effects = self._relay.heard(at, member, progress.versions)
        if self._relay.waits(member.peer):
            return effects
        return effects + self._globals.tell_newer(at, member, progress)

    def _lost(self, at: float, peer: str, reason: str) -> list[Effect]:
        member = self._membership.lose(peer)
        relayed = self._relay.lost(at, peer)
        if member is None:
            return relayed  # Its place was taken by a newer incarnation.
        seen = Observe("lost", {"learner": member.incarnation, "reason": reason})
        return [seen, *relayed, *self._under_way.close_settled()]

    def _advance(self, at: float) -> list[Effect]:
        """Whatever happened: go on with what may go on now."""
        if self._farewell is not None:
            return self._farewell.leave(len(self._members))
        if not self._ready:
            return []
        effects = self._under_way.advance(at)
        if self._under_way.over:
            effects += self._wind_up(at)
        return effects

    def _timer(self, at: float, timer: str) -> list[Effect]:
        if timer.startswith(RELAY):
            return self._relay.late(at, timer)
        if timer == FAREWELL:
            if self._farewell is not None:
                self._farewell.patient = False
            return []
        return self._under_way.timer(timer)

    @property
    def _under_way(self) -> Rounds:
        assert self._rounds is not None, "whoever is heard was listened to, after the start"
        return self._rounds

    # The end.

    def _wind_up(self, at: float) -> list[Effect]:
        rounds = self._under_way
        t = rounds.schedule.t
        status, reason = self._stopping or ("done", f"global step {t}")
        evaluating, saving = self._next_work(), self._next_work()
        self._farewell = Farewell(status, reason, t, rounds.merges, evaluating)
        peers, thetas = list(self._members), self._globals.thetas()
        begun = self._farewell.begin(at, peers, thetas, saving, rounds.pacing.step_s)
        return [*rounds.end(), *begun]

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
