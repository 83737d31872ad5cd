"""The syncer machine (paper: Algorithm 2). Several syncs are in flight at once, each of a different
fragment; none waits for slow or dead learners. A job may have several syncers, called *shards*; the
first one leads: it ends the job, and evaluates and saves the model. See ``shards``."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from clocks import actor_of, number_of
from ddloco.job.config import Job
from ddloco.job.protocol.events import Started, WorkerBusy
from ddloco.job.protocol.fragment_plan import FragmentPlan
from ddloco.job.protocol.messages import (
    Close,
    Contribution,
    ContributionSum,
    GlobalFragment,
    Progress,
    RelayReport,
    ShardReport,
    Stop,
)
from ddloco.job.protocol.status import Numbers, SyncerStatus
from ddloco.job.protocol.timers import (
    DataLook,
    DonorDeadline,
    LastSnapshotDeadline,
    LaunchDue,
    PullDeadline,
    ShardReportDue,
    ShardsDeadline,
    ShutdownDeadline,
    SnapshotDue,
    StandstillDue,
    SumsDeadline,
)
from ddloco.job.protocol.work import (
    Evaluated,
    FragmentMerged,
    MakeParameters,
    ModelSaved,
    ParametersMade,
    PieceEncoded,
    Recover,
    Recovered,
)
from ddloco.machines.syncer.data_roster import DataRoster, new_roster
from ddloco.machines.syncer.global_fragments import initial_globals
from ddloco.machines.syncer.members import Member
from ddloco.machines.syncer.membership import Membership
from ddloco.machines.syncer.outlier_history import OutlierHistory, Usual
from ddloco.machines.syncer.rounds import FRUITLESS_MAX, Rounds, Shared
from ddloco.machines.syncer.shards import REPORT_S, SHARDS_S, Shards, owned_by
from ddloco.machines.syncer.shutdown import LATE_S, JobShutdown
from ddloco.machines.syncer.snapshot_policy import SnapshotPolicy
from ddloco.machines.syncer.standstill import Standstill
from ddloco.machines.syncer.state_relay import StateRelay
from ddloco.machines.syncer.status import status_of
from ddloco.machines.work_numbers import WorkNumbers
from ddloco.stage.actors.actor import OwnMachine
from ddloco.stage.actors.effects import Finish, Observe, Status
from ddloco.stage.actors.events import (
    DismissRequested,
    LeaveRequested,
    Restored,
    SnapshotRequested,
    SnapshotSettled,
    StopRequested,
    WorkFailed,
)
from ddloco.stage.actors.observations import DISMISSED, NOT_DISMISSED
from transport import (
    CONTROL,
    BytesArrived,
    Dial,
    Effect,
    Event,
    Hangup,
    LaneAdvanced,
    Listen,
    MessageArrived,
    PeerJoined,
    PeerLost,
    PeerRefused,
    Send,
    SetTimer,
    Timer,
    TimerFired,
)

LATE_INTERVALS = 16
"""A fragment that was not merged for half of the job, and for this many intervals, fails the job.
Fewer intervals pass while the process of a shard restarts."""

FRAGMENTS_NAMED_MAX = 8
"""Fragments that are named in one line of text."""


class SyncerPlace(Struct, frozen=True, forbid_unknown_fields=True):
    incarnation: str
    lead: str
    plan: FragmentPlan

    @property
    def name(self) -> str:
        return actor_of(self.incarnation)

    @property
    def leads(self) -> bool:
        return self.name == self.lead


class Training(Struct, forbid_unknown_fields=True):
    """The state of a syncer that knows its global fragments.

    Attributes:
        run: which of the runs of the job this is.
        settled: a merge was done in this run, so that learners of other runs are refused.
        late: the job's last global step was already merged when this incarnation started.
        was_done: an earlier incarnation has ended the job as done, with the whole model saved.
        came: the learners, relays and shards that have come to this incarnation, and whether they
            are there, or have left at the job's end or for good.
    """

    rounds: Rounds
    relay: StateRelay
    shards: Shards
    run: str
    settled: bool
    late: bool
    was_done: bool
    ready: bool = False
    handed_over: bool = False
    came: dict[str, bool] = {}
    dismissed: dict[str, None] = {}


class Syncer(OwnMachine):
    """The state machine of one syncer.

    Attributes:
        place: what it knows from its start on; None before that.
        training: its state once it knows its global fragments; None before that.
        stopping: why no more syncs are launched; None while they are.
        final: the numbers of the job when it began to wind up.
    """

    job: Job
    work: WorkNumbers = field(default_factory=WorkNumbers)
    place: SyncerPlace | None = None
    training: Training | None = None
    stopping: tuple[Status, str] | None = None
    shutdown: JobShutdown | None = None
    snapshots: SnapshotPolicy = field(default_factory=SnapshotPolicy)
    standstill: Standstill = field(default_factory=Standstill)
    final: Numbers | None = None

    @property
    def rounds(self) -> Rounds | None:
        return self.training.rounds if self.training is not None else None

    @property
    def members(self) -> dict[str, Member]:
        return self.training.rounds.membership.members if self.training is not None else {}

    @property
    def _here(self) -> SyncerPlace:
        assert self.place is not None, "the first event is the start"
        return self.place

    @property
    def _trained(self) -> Training:
        assert self.training is not None, "messages arrive only after the parameters are made"
        return self.training

    @property
    def _shared(self) -> Shared:
        return Shared(self.job, self._here.plan, self.work)

    def handle(self, at: float, event: Event) -> list[Effect]:
        if type(event) is LeaveRequested:
            return self._leave(event.reason)
        effects = self._take(at, event)
        return effects + self._advance(at)

    def status(self, at: float) -> SyncerStatus:
        return status_of(
            at,
            self.rounds,
            self.job,
            recovering=self.training.relay.waiting(at) if self.training is not None else (),
            standstill=self._no_merge(at),
            numbers=self.numbers(at),
        )

    @property
    def disregarded(self) -> dict[str, str]:
        rounds = self.rounds
        return rounds.membership.accounts.disregarded(rounds.merges) if rounds is not None else {}

    def numbers(self, at: float) -> Numbers:
        """Return the job's numbers; those of its end once it winds up, which costs no goodput."""
        if self.final is not None:
            return replace(self.final, live=len(self.members))
        return self.rounds.numbers(at, self.job) if self.rounds is not None else Numbers(live=0)

    def _take(self, at: float, event: Event) -> list[Effect]:
        match event:
            # The most frequent ones first.
            case MessageArrived():
                return self._message(at, event)
            case LaneAdvanced(peer):
                linked = self.members.get(peer)
                if linked is None and self.rounds is not None:
                    linked = self.rounds.sites.relays.get(peer)
                if linked is not None:
                    linked.moved_at = at
                return []
            case Started():
                return self._started(event)
            case Recovered():
                return self._recovered(event)
            case ParametersMade():
                return self._parameters_made(at)
            case FragmentMerged():
                return self._merged(at, event)
            case PeerJoined(peer, incarnation):
                return self._joined(at, peer, incarnation)
            case PeerLost(peer, reason):
                return self._lost(at, peer, reason)
            case BytesArrived(peer):
                return [
                    *self._trained.relay.moving(at, peer, self._trained.rounds.membership),
                    *self._waits_for_shard(at, peer),
                ]
            case PeerRefused(peer, reason, again):
                status: Status = "left" if again else "bad-input"
                return [Finish(status, f"{peer} refuses this shard: {reason}")]
            case PieceEncoded():
                return self._trained.relay.encoded(event)
            case TimerFired(timer):
                return self._timer(at, timer)
            case SnapshotRequested() | SnapshotSettled():
                return self.snapshots.heard(event)
            case Restored(run=run) if self.rounds is not None:
                return self._go_on(at, run)
            case Evaluated(_, loss, metrics) if self.shutdown is not None:
                failures = self.snapshots.failures
                return self.shutdown.result(loss, metrics, self.final, failures)
            case WorkerBusy():
                return [event.observed()]
            case ModelSaved() if self.shutdown is not None:
                rounds = self._trained.rounds
                linked, report_s = self._linked_peers(), rounds.pacing.report_s
                counters = rounds.membership.counters[1]
                return self.shutdown.announce(at, linked, report_s, counters)
            case WorkFailed():
                return self._work_failed(event)
            case StopRequested(reason):
                return self._stop_asked(at, reason)
            case DismissRequested(who):
                return self._dismiss(who)
            case _:
                return []

    def _merged(self, at: float, event: FragmentMerged) -> list[Effect]:
        rounds = self._trained.rounds
        effects = rounds.merged(at, event, self.job)
        self._end_if_spent()
        if self._here.leads:
            effects += self.snapshots.merged(rounds.schedule.t, self.job.snapshot)
        training = self._trained
        if training.run and event.accepted and not training.settled:
            training.settled = True
            effects.append(self._listen())
        return effects

    def _stop(self, status: Status, reason: str) -> list[Effect]:
        """Launch no more syncs; the job ends when none is in flight."""
        if self.shutdown is None:
            if self.stopping is None or status == "stopped":
                self.stopping = status, reason
            if self.rounds is not None:
                self.rounds.stop()
        return []

    def _end_if_spent(self) -> bool:
        """End a job whose tokens are merged, and every fragment at least once; returns whether they
        are. A budget of less than an interval would leave fragments as they were initialized."""
        tokens, rounds = self.job.job.tokens, self.rounds
        if tokens is None or rounds is None or not self._here.leads:
            return False
        due = rounds.globals.merged and rounds.schedule.t >= max(self._here.plan.offsets)
        if rounds.merged_tokens < tokens or not due:
            return False
        self._stop("done", f"{rounds.merged_tokens} merged tokens")
        return True

    def _stop_asked(self, at: float, reason: str) -> list[Effect]:
        """Handle a request to stop; a job that has not merged for too long ends as failed."""
        still = self._no_merge(at)
        hurried = self.rounds.hurry(at) if self.rounds is not None else []
        if still:
            return [*hurried, *self._stop("failed", f"{reason}; {still}")]
        return [*hurried, *self._stop("stopped", reason)]

    def _dismiss(self, who: str) -> list[Effect]:
        """Let a learner leave for good; others get its data shards once it is gone."""
        if not self._here.leads or self.training is None or self.shutdown is not None:
            return []
        if who not in self.job.learner_names():
            names = self.job.learner_names()
            reason = f"{who} is no learner of this job, which has {names[0]} to {names[-1]}"
            return [Observe(NOT_DISMISSED, {"learner": who, "reason": reason})]
        rounds = self._trained.rounds
        members = rounds.membership.members.values()
        there = [each.peer for each in members if actor_of(each.incarnation) == who]
        rounds.membership.data.dismiss(who, linked=bool(there))
        self._trained.dismissed[who] = None
        said = Stop(rounds.schedule.t, f"{who} was asked to leave for good")
        return [
            *(Send(peer, CONTROL, said, key="stop") for peer in there),
            *rounds.membership.data.settle(members),
            Observe(DISMISSED, {"learner": who, "linked": bool(there)}),
        ]

    def _no_merge(self, at: float) -> str:
        """What the job waits for if it has merged nothing for too long, otherwise empty."""
        training = self.training
        if training is None or not training.ready or self.shutdown is not None:
            return ""
        return self.standstill.words(at, training.rounds, self.job, self._here.plan)

    def _leave(self, reason: str) -> list[Effect]:
        """Exit to be restarted: merged fragments are saved, and the peers redial until then. A job
        that is over is not continued, and waits for nobody any more."""
        if self.shutdown is not None and self.shutdown.kept:
            self.shutdown.patient = False
            return self.shutdown.leave(0)
        relays = self.rounds.sites.relays if self.rounds is not None else ()
        others = (*self.job.syncer_names(), *self.members, *relays)
        own = self.place.name if self.place is not None else self.job.syncer_names()[0]
        goodbyes = (Hangup(peer, reason) for peer in others if peer != own)
        return [*goodbyes, Finish("left", reason)]

    # Start and resume.

    def _go_on(self, at: float, run: str) -> list[Effect]:
        """Continue from a snapshot as run ``run``; a shutdown that had begun is continued."""
        training, rounds = self._trained, self._trained.rounds
        training.run, training.settled = run, max(rounds.globals.versions) > 0
        rounds.membership.is_first = False  # Learners may have gone on since the snapshot.
        if not training.settled:
            rounds.globals.merged_here.clear()
        if self.shutdown is None:
            self.stopping, training.handed_over = None, False
            training.shards.go_on()
            rounds.go_on()
            self._end_if_spent()
        listening = [self._listen()] if training.ready else []
        if not self._here.leads:
            return [*listening, self._report()]
        data = rounds.membership.data.go_on(at)
        go_on = self.snapshots.go_on(at, rounds.schedule.t, self.job.snapshot)
        return [*listening, *data, *go_on]

    def _started(self, event: Started) -> list[Effect]:
        plan, lead = self.job.plan(event.leaves), self.job.syncer_names()[0]
        self.place = SyncerPlace(event.incarnation, lead, plan)
        return [Recover(self.work.next())]

    def _recovered(self, event: Recovered) -> list[Effect]:
        """Restore the fragments that an earlier incarnation saved, and initialize the others. Syncs
        that were launched and not merged are lost; their fragments are due again one interval
        later."""
        rounds = self._rounds_from(event)
        parts, t = rounds.globals, rounds.schedule.t
        self.training = Training(
            rounds,
            StateRelay(),
            self._other_shards(parts.owned),
            run=event.run,
            settled=bool(event.kept),
            late=False,
            was_done=False,
        )
        spent = self._end_if_spent()
        if self.stopping:
            rounds.stop()
        spent = spent or rounds.over(self.job, self._here.plan)
        self.training.late = bool(event.kept) and spent
        self.training.was_done = self.training.late and event.done
        effects = [*rounds.membership.recovered(), *parts.keep()]
        if event.kept:
            effects.append(Observe("recovered", {"t": t, "fragments": len(event.kept)}))
        found = [each.fragment for each in event.kept]
        made = tuple(p for p in parts.owned if p not in found)
        return [*effects, MakeParameters(self.work.next(), made)]

    def _rounds_from(self, event: Recovered) -> Rounds:
        place = self._here
        parts = range(len(place.plan.fragments))
        owned = owned_by(place.name, self.job.syncer_names(), parts)
        initial = initial_globals(len(parts), owned, self.job.sync.lag)
        number = number_of(place.incarnation)
        membership = Membership(len(parts), data=self._new_data(number))
        membership.newest[place.name] = number
        membership.accounts.restarted = number > 1
        is_first = number == 1 and not event.kept
        membership.is_first = is_first and place.leads
        if is_first:  # Nothing was merged before, so nobody can hold what is not here.
            initial.merged_here = dict.fromkeys(owned)
        rounds = Rounds(membership, initial, OutlierHistory([Usual() for _ in parts]))
        for each in event.kept:
            initial.recover(each.fragment, each.version)
            membership.recover(each.fragment, each.spent, each.batches)
            rounds.recover_tokens(each.fragment, each.tokens)
            membership.accounts.merge(each.fragment, each.tokens)
        rounds.schedule.recover(max(initial.versions))
        if self.job.sync.blocking:
            rounds.repeat_unmerged(place.plan)
        return rounds

    def _new_data(self, number: int) -> DataRoster:
        job, leads = self.job, self._here.leads
        shards = job.job.shards if leads else None
        return new_roster(job.learner_names(), shards, job.elastic.gone_s, number)

    def _other_shards(self, owned: Sequence[int]) -> Shards:
        if not self._here.leads:
            return Shards()
        parts = range(len(self._here.plan.fragments))
        return Shards(self.job.syncer_names()[1:], tuple(p for p in parts if p not in owned))

    def _parameters_made(self, at: float) -> list[Effect]:
        self._trained.ready = True
        place, owned = self._here, len(self._trained.rounds.globals.owned)
        listening = Observe("listening", {"fragments": owned, "steps": self.job.job.steps})
        begun = [self._listen(), *self.standstill.begin(at)]
        if place.leads:
            data = self._trained.rounds.membership.data.begin(at)
            return [*begun, *data, *self.snapshots.begin(at, self.job.snapshot), listening]
        dialling = [
            Dial(place.lead, self.job.agreement(place.plan)),
            SetTimer(ShardReportDue(), at + REPORT_S),
        ]
        return [*begun, *dialling, listening]

    def _listen(self) -> Effect:
        training = self._trained
        return Listen(self.job.agreement(self._here.plan), training.run, training.settled)

    # Messages from learners and shards.

    def _joined(self, at: float, peer: str, incarnation: str) -> list[Effect]:
        if peer == self._here.lead:
            return self._closed() if self._trained.handed_over else []
        if self._trained.shards.knows(incarnation):
            self._trained.came[actor_of(peer)] = True
            return [*self._trained.shards.join(peer), *self._patience(at)]
        if actor_of(peer) in self.job.relay:
            return self._relay_joined(at, peer)
        member, effects = self._trained.rounds.membership.join(at, peer, incarnation)
        if member is None:
            return effects
        self._trained.came[actor_of(incarnation)] = True
        self._trained.rounds.membership.data.joined(at, member)
        rounds, relay = self._trained.rounds, self._trained.relay
        if number_of(incarnation) > 1:
            effects += rounds.sites.announce(rounds.membership.roster())
        effects += rounds.close_settled(at, self._shared) + relay.forget_the_gone(at, rounds)
        if self.shutdown is not None:
            effects += self.shutdown.tell(peer)
        fields = {"learner": incarnation, "epoch": rounds.membership.epoch}
        return [Observe("joined", {**fields, **asdict(self.numbers(at))}), *effects]

    def _relay_joined(self, at: float, peer: str) -> list[Effect]:
        rounds = self._trained.rounds
        effects = rounds.sites.join(at, peer, len(rounds.globals))
        self._trained.came[actor_of(peer)] = True
        if peer in rounds.sites.relays:
            for former in rounds.sites.former(peer):
                rounds.sites.lose(former, rounds.membership.members)
                effects += rounds.relay_lost(former, self._shared)
                effects.append(Hangup(former, f"{peer} has its place", final=True))
            effects += rounds.sites.announce(rounds.membership.roster(), peer)
            effects += self.shutdown.tell(peer) if self.shutdown is not None else []
        return effects

    def _from_relay(self, at: float, event: MessageArrived[Any]) -> list[Effect]:
        rounds, peer = self._trained.rounds, event.peer
        match event.body:
            case RelayReport() as said:
                own = self.job.relay[actor_of(peer)].learners
                reached = {n: link for n, link in said.learners.items() if actor_of(n) in own}
                relay, said = rounds.sites.relays[peer], replace(said, learners=reached)
                members, fragments = rounds.membership.members, rounds.globals
                return rounds.sites.report(at, relay, said, members, fragments)
            case ContributionSum() as said:
                return rounds.summed(at, peer, said, event.handle, self._shared)
            case _:
                return []

    def _message(self, at: float, event: MessageArrived[Any]) -> list[Effect]:
        training, body = self._trained, event.body
        rounds = training.rounds
        if event.peer in rounds.sites.relays:
            return self._from_relay(at, event)
        member = rounds.membership.members.get(event.peer)
        if member is None:
            return self._heard_of_shards(at, event)
        match body:
            case Progress():
                return self._progress(at, member, body)
            case Contribution():
                return rounds.contribution(at, member, body, event.handle, self._shared)
            case _:
                relay, work = training.relay, self.work
                return relay.hear(at, member, body, event.handle, rounds=rounds, work=work)

    def _heard_of_shards(self, at: float, event: MessageArrived[Any]) -> list[Effect]:
        """Handle a message of another shard: from the lead to end, or to the lead how it ended."""
        match event.body:
            case GlobalFragment() if self.shutdown is None:
                final = self._trained.shards.final(event.peer, event.body, event.handle)
                return [*final, *self._patience(at)]
            case ShardReport() if self.shutdown is None:
                self._trained.shards.report(event.peer, event.body)
                return self._patience(at) if event.body.over else []
            case Close(reason, hurry) if event.peer == self._here.lead:
                hurried = self._trained.rounds.hurry(at) if hurry else []
                return [*hurried, *self._stop("done", reason)]
            case Stop(t, reason) if event.peer == self._here.lead and self.shutdown is None:
                shutdown = JobShutdown("done", reason, t, self._trained.rounds.merges, 0)
                self.shutdown = shutdown
                report_s = self._trained.rounds.pacing.report_s
                return [
                    *self._trained.rounds.end(),
                    *shutdown.follow(at, bool(self.members), report_s, self._here.lead),
                ]
            case _:
                return []

    def _progress(self, at: float, member: Member, progress: Progress) -> list[Effect]:
        training = self._trained
        rounds, relay = training.rounds, training.relay
        membership = rounds.membership
        problem = rounds.beyond(progress, self._shared)
        problem = problem or membership.report(at, member, progress)
        if problem is not None:  # Over another link it reports again, whatever was false here.
            seen = Observe("refused", {"learner": member.incarnation, "reason": problem})
            return [seen, Hangup(member.peer, problem), *self._lost(at, member.peer, problem)]
        if self.job.job.shards is None:
            actor = actor_of(member.incarnation)
            membership.note_batches(actor, progress.batches, progress.cursor)
        membership.data.report(at, member, progress)
        pacing = rounds.pacing
        # Step times are observed at every launch; the first grace window needs one before that.
        if pacing.report_s is None and progress.step_s:
            pacing.observe(membership.members.values())
        if self.shutdown is not None:
            return []
        lacking = progress.versions != rounds.globals.versions
        if lacking:
            ahead = rounds.globals.ahead(progress.versions)
            rounds.catch_up(min(ahead, self.job.last_sync))
        effects = membership.data.settle(membership.members.values())
        newcomer = progress.step == 0 and self._here.leads
        if newcomer or relay.waits(member.peer):
            effects += relay.heard(at, member, progress.versions, rounds)
        if relay.waits(member.peer) or not lacking:
            return effects
        told, lacks = rounds.told(member, self.job.compress), rounds.globals.lacking
        fragments = lacks(at, member, progress)
        return effects + rounds.sites.tell_newer(at, told, fragments, rounds.globals)

    def _lost(self, at: float, peer: str, reason: str) -> list[Effect]:
        at_end = self.shutdown is not None and reason == self.shutdown.reason
        who = actor_of(peer)
        self._trained.came[who] = at_end or who in self._trained.dismissed
        if self._trained.shards.knows(peer):
            return self._trained.shards.lose(peer, reason)
        rounds = self._trained.rounds
        if rounds.sites.lose(peer, rounds.membership.members):
            seen = Observe("relay lost", {"relay": peer, "reason": reason})
            return [seen, *rounds.relay_lost(peer, self._shared)]
        member = rounds.membership.lose(peer)
        relayed = self._trained.relay.lost(at, peer, rounds)
        if member is None:
            return relayed  # Its place was taken by a newer incarnation.
        rounds.membership.data.lost(at, member)
        fields = {"learner": member.incarnation, "reason": reason}
        seen = Observe("lost", {**fields, **asdict(self.numbers(at))})
        given = rounds.membership.data.settle(rounds.membership.members.values())
        return [seen, *relayed, *given, *rounds.lost(at, peer, self._shared)]

    def _advance(self, at: float) -> list[Effect]:
        if self.shutdown is not None:
            # The shards hold parts of the model, so they may exit only when it is saved.
            over = self.shutdown.kept
            shards, shutdown = self._trained.shards, self.shutdown
            released = shards.release(shutdown.t, shutdown.reason) if over else []
            if released:
                shutdown.patient = True  # Wait again, for the shards to hang up.
                report_s = self._trained.rounds.pacing.report_s
                released += shutdown.follow(at, True, report_s)
            relays = self._trained.rounds.sites.relays
            return [*released, *shutdown.leave(len(self.members) + len(relays) + shards.away())]
        training, place = self.training, self.place
        if training is None or place is None or not training.ready:
            return []
        shared = Shared(self.job, place.plan, self.work)
        if training.rounds.fruitless >= FRUITLESS_MAX and self.stopping is None:
            *_, last = training.rounds.membership.reasons.values()
            self._stop("failed", f"nothing was believed in {FRUITLESS_MAX} syncs in a row: {last}")
        effects = training.rounds.advance(at, shared)
        if training.rounds.over(shared.job, shared.plan):
            effects += self._wind_up(at)
        return effects

    def _timer(self, at: float, timer: Timer) -> list[Effect]:
        match timer:
            case PullDeadline(t):
                return self._trained.rounds.late(at, t, self._shared)
            case SumsDeadline(t):
                return self._trained.rounds.sums_late(t, self._shared)
            case LaunchDue():
                self._trained.rounds.look_at = None
            case DonorDeadline(peer):
                return self._trained.relay.late(at, peer, self._trained.rounds)
            case StandstillDue() if self.shutdown is None:
                rounds, plan = self._trained.rounds, self._here.plan
                return self.standstill.look(at, rounds, self.job, plan)
            case DataLook() if self.shutdown is None:
                return self._look_for_the_gone(at)
            case SnapshotDue():
                return self.snapshots.periodic(at, len(self.members), self.job.snapshot)
            case LastSnapshotDeadline():
                self.snapshots.late()
            case ShardReportDue():
                return [self._report(), SetTimer(ShardReportDue(), at + REPORT_S)]
            case ShardsDeadline():
                self._trained.shards.patient = self._trained.shards.closing is None
            case ShutdownDeadline() if self.shutdown is not None:
                self.shutdown.patient = False
            case _:
                pass
        return []

    def _look_for_the_gone(self, at: float) -> list[Effect]:
        membership = self._trained.rounds.membership
        members = membership.members.values()
        return [*membership.data.look(at, members), *membership.data.settle(members)]

    # Shutdown.

    def _wind_up(self, at: float) -> list[Effect]:
        """Begin the shutdown: no sync is in flight and none will be launched."""
        if not self._here.leads:
            return self._hand_over(at)
        table = self.job.snapshot
        taken = self.snapshots.end(at, len(self.members), table)
        if taken or not self.snapshots.over(table):
            return taken
        rounds, shards = self._trained.rounds, self._trained.shards
        t = rounds.schedule.t
        status, reason = self.stopping or ("done", f"global step {t}")
        # The shards of a job that was done have left, and are not started again.
        known = self._trained.was_done and not shards.complete and status == "done"
        left_out = self._left_out() if status == "done" and not known else ""
        if left_out:
            status, reason = "failed", left_out
        if not shards.complete and shards.patient:
            if shards.closing is not None:
                return []
            wait_s = LATE_S if known else SHARDS_S
            closed = shards.close(Close(reason, hurry=status == "stopped"))
            return [*rounds.end(), *closed, SetTimer(ShardsDeadline(), at + wait_s)]
        self.final = self.numbers(at)
        evaluating, saving = self.work.next(), self.work.next()
        merges = rounds.merges + shards.merges
        shutdown = self.shutdown = JobShutdown(status, reason, t, merges, evaluating)
        shutdown.absent = self._absent(at) if status == "done" else {}
        shutdown.disregarded = self.disregarded
        shutdown.unused = rounds.membership.accounts.unused()
        effects = rounds.end()
        peers, report_s = self._linked_peers(), rounds.pacing.report_s
        if known:
            return [*effects, *shutdown.again(at, peers, report_s)]
        if not shards.complete:
            lost = f"the model is not whole: {', '.join(shards.missing())} did not come back"
            return [*effects, *shutdown.without(at, peers, lost, report_s)]
        whole = shards.whole(self._trained.rounds.globals.thetas())
        return [*effects, *shutdown.begin(whole, saving)]

    def _left_out(self) -> str:
        """Return which fragments were never merged, or not for half of the job; empty if none. A
        job with such a fragment has failed, however many merges the other shards have done."""
        plan = self._here.plan
        job, t = self.job.job, self._trained.rounds.schedule.t
        steps = job.steps if job.tokens is None else max(t, plan.interval)
        due = {plan.fragment_due(t) for t in range(1, min(plan.interval, steps) + 1)}
        finals = {p: version for p, (version, _) in self._trained.shards.finals.items()}
        last = {
            p: finals.get(p, v)
            for p, v in enumerate(self._trained.rounds.globals.versions)
            if p in due
        }
        initial = [p for p, version in last.items() if version == 0]
        if initial:
            return f"never merged, so as initialized: {self._named(initial)}"
        late = steps - max(steps // 2, LATE_INTERVALS * plan.interval)
        early = [p for p, version in last.items() if version < late]
        if not early:
            return ""
        newest = max(last[p] for p in early)
        return f"not merged after global step {newest} of {steps}: {self._named(early)}"

    def _named(self, fragments: list[int]) -> str:
        which = ", ".join(map(str, fragments[:FRAGMENTS_NAMED_MAX]))
        more = ", ..." if len(fragments) > FRAGMENTS_NAMED_MAX else ""
        return f"fragments {which}{more} of {len(self._trained.rounds.globals.versions)}"

    def _hand_over(self, at: float) -> list[Effect]:
        """Send this shard's final fragments to the lead, which then ends the job. A shard that was
        itself asked to stop does not wait for the lead."""
        effects: list[Effect] = []
        if not self._trained.handed_over:
            self._trained.handed_over = True
            effects = [*self._trained.rounds.end(), *self._closed()]
        if self.stopping is None or self.stopping[0] == "done":
            return effects
        rounds = self._trained.rounds
        self.shutdown = JobShutdown(*self.stopping, rounds.schedule.t, rounds.merges, 0)
        linked, report_s = bool(self.members), rounds.pacing.report_s
        return [*effects, *self.shutdown.follow(at, linked, report_s, self._here.lead)]

    def _absent(self, at: float) -> dict[str, None]:
        """Who has not come to this incarnation, as long as somebody may who knew the last one."""
        if at >= LATE_S or not (self._trained.late or number_of(self._here.incarnation) > 1):
            return {}
        names = (*self.job.learner_names(), *self.job.relay)
        known = self._trained.came.keys() | self._trained.dismissed.keys()
        return dict.fromkeys(name for name in names if name not in known)

    @property
    def untold(self) -> list[str]:
        """Who was lost or has not answered at the end, and may not know of it."""
        if self.training is None or self.shutdown is None:
            return []
        silent = {actor_of(peer) for peer in self._linked_peers()}
        came = self.training.came.items()
        return [name for name, there in came if not there or name in silent]

    def _linked_peers(self) -> list[str]:
        return [*self.members, *self._trained.rounds.sites.relays]

    def _closed(self) -> list[Effect]:
        return [*self._trained.rounds.globals.finals(self._here.lead), self._report()]

    def _report(self) -> Effect:
        merges, versions = self._trained.rounds.merges, self._trained.rounds.globals.versions
        said = ShardReport(merges, versions, self._trained.handed_over)
        return Send(self._here.lead, CONTROL, said, key="report")

    def _patience(self, at: float) -> list[Effect]:
        """Restart the wait for the shards, because one of them has sent something."""
        waits = self._trained.shards.closing is not None and self.shutdown is None
        return [SetTimer(ShardsDeadline(), at + SHARDS_S)] if waits else []

    def _waits_for_shard(self, at: float, peer: str) -> list[Effect]:
        return self._patience(at) if self._trained.shards.knows(peer) else []

    def _work_failed(self, event: WorkFailed) -> list[Effect]:
        shutdown = self.shutdown
        if shutdown is not None and event.work == shutdown.evaluating:
            return shutdown.unknown(event.reason, self.final, self.snapshots.failures)
        ours = event.kind != "task"
        status: Status = "failed" if ours else "bad-input"
        relays = self.rounds.sites.relays if self.rounds is not None else ()
        farewells = [Hangup(peer, event.reason) for peer in (*self.members, *relays)]
        # Another incarnation continues from what is kept, once there is room or memory again.
        return [*farewells, Finish(status, event.reason, again=ours)]
