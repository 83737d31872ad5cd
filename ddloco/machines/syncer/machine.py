"""The syncer machine (paper: Algorithm 2).

A syncer owns global fragments. For every global step at which a fragment is due, it waits for a
quorum and a grace window, pulls the fragment from the learners that have trained since, merges the
contributions that arrive before the deadline, and sends the result to every learner. Several syncs
are in flight at once, each of a different fragment. A sync does not wait for slow or dead learners.

A job may have several syncers, called *shards*; each owns some of the fragments. The first one
leads: it ends the job, and evaluates and saves the model. See ``shards``.
"""

from typing import Any

from msgspec.structs import asdict, replace

from clocks import actor_of, number_of
from ddloco.job.config import Job
from ddloco.job.protocol.effects import MakeParameters, Recover
from ddloco.job.protocol.events import (
    Evaluated,
    FragmentMerged,
    ModelSaved,
    ParametersMade,
    PieceEncoded,
    Recovered,
    Started,
)
from ddloco.job.protocol.fragment_plan import FragmentPlan
from ddloco.job.protocol.messages import (
    Close,
    Contribution,
    GlobalFragment,
    Progress,
    ShardReport,
    Stop,
)
from ddloco.job.protocol.status import Numbers, SyncerStatus
from ddloco.machines.syncer.global_fragments import Globals
from ddloco.machines.syncer.members import Member
from ddloco.machines.syncer.membership import Membership
from ddloco.machines.syncer.rounds import FRUITLESS_MAX, Rounds
from ddloco.machines.syncer.schedule import Schedule
from ddloco.machines.syncer.shards import REPORT, REPORT_S, SHARDS, SHARDS_S, Shards, owned_by
from ddloco.machines.syncer.shutdown import LATE_S, SHUTDOWN, JobShutdown
from ddloco.machines.syncer.snapshot_policy import SNAPSHOT, SnapshotPolicy
from ddloco.machines.syncer.standstill import STANDSTILL, Standstill
from ddloco.machines.syncer.state_relay import RELAY, Relay
from ddloco.machines.syncer.status import status_of
from ddloco.machines.work_numbers import WorkNumbers
from ddloco.stage.actors.effects import Finish, Observe, Status
from ddloco.stage.actors.events import (
    LeaveRequested,
    Restored,
    SnapshotRequested,
    SnapshotSettled,
    StopRequested,
    WorkFailed,
)
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
    TimerFired,
)

LATE_INTERVALS = 16
"""A fragment that was not merged for half of the job, and for this many intervals, fails the job.
Fewer intervals pass while the process of a shard restarts."""

FRAGMENTS_NAMED_MAX = 8
"""Fragments that are named in one line of text."""


class Syncer:
    """The state machine of one syncer.

    Args:
        job: the resolved job.
    """

    _was_done = False
    """Whether an earlier incarnation has ended the job as done, with the whole model saved. States
    of syncers for which this is not so do not contain it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._plan: FragmentPlan | None = None
        self._globals = Globals(0, (), 0)
        self._name: str = job.syncer_names()[0]
        self._lead: str = self._name
        self._shards = Shards()
        self._handed_over = False
        """Whether this shard has sent its final fragments to the lead."""
        self.membership = Membership(0)
        self.rounds: Rounds | None = None
        self._work = WorkNumbers()
        self._stopping: tuple[Status, str] | None = None
        self._shutdown: JobShutdown | None = None
        self._relay = Relay(self.membership, self._globals, self._work)
        self._snapshot_policy = SnapshotPolicy(job.snapshot)
        self._standstill = Standstill()
        self._ready = False
        self._late = False
        """Whether the job's last global step was already merged when this incarnation started."""
        self._run = ""
        self._settled = False
        """Whether a merge was done in this run, so that learners of other runs are refused."""
        self.final: Numbers | None = None
        """The numbers of the job when it began to wind up."""

    def handle(self, at: float, event: Event) -> list[Effect]:
        """Handle one event at ``at`` seconds; returns the effects to perform, in order."""
        if type(event) is LeaveRequested:
            return self._leave(event.reason)
        effects = self._take(at, event)
        return effects + self._advance(at)

    def status(self, at: float) -> SyncerStatus:
        """Return the status at ``at`` seconds."""
        return status_of(
            at,
            self.membership,
            self._globals,
            self.rounds,
            recovering=self._relay.waiting(at),
            standstill=self._no_merge(at),
            numbers=self.numbers(at),
        )

    def numbers(self, at: float) -> Numbers:
        """Return the job's numbers; those of its end once it winds up, which costs no goodput."""
        if self.final is not None:
            return replace(self.final, live=len(self._members))
        return self.rounds.numbers(at) if self.rounds is not None else Numbers(live=0)

    def _take(self, at: float, event: Event) -> list[Effect]:
        match event:
            # The most frequent ones first.
            case MessageArrived():
                return self._message(at, event)
            case LaneAdvanced(peer):
                if peer in self._members:
                    self._members[peer].moved_at = at
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
                return [*self._relay.moving(at, peer), *self._waits_for_shard(at, peer)]
            case PeerRefused(peer, reason, again):
                status: Status = "left" if again else "bad-input"
                return [Finish(status, f"{peer} refuses this shard: {reason}")]
            case PieceEncoded():
                return self._relay.encoded(event)
            case TimerFired(timer):
                return self._timer(at, timer)
            case SnapshotRequested() | SnapshotSettled():
                return self._snapshot_policy.heard(event)
            case Restored(run=run) if self.rounds is not None:
                return self._go_on(at, run)
            case Evaluated(_, loss, metrics) if self._shutdown is not None:
                return self._shutdown.result(loss, metrics, self.final)
            case ModelSaved() if self._shutdown is not None:
                self._shutdown.saved = True
                return []
            case WorkFailed():
                return self._work_failed(event)
            case StopRequested(reason):
                return self._stop_asked(at, reason)
            case _:
                return []

    def _merged(self, at: float, event: FragmentMerged) -> list[Effect]:
        rounds = self._under_way
        effects = rounds.merged(at, event)
        if rounds.fruitless == FRUITLESS_MAX:
            first = next(reason for _, reason in event.refused)
            reason = f"nothing was believed in {FRUITLESS_MAX} syncs in a row: {first}"
            effects += self._stop("failed", reason)
        self._end_if_spent()
        if self._name == self._lead:
            effects += self._snapshot_policy.merged(rounds.schedule.t)
        if self._run and event.accepted and not self._settled:
            self._settled = True
            effects.append(self._listen())
        return effects

    def _stop(self, status: Status, reason: str) -> list[Effect]:
        """Launch no more syncs; the job ends when none is in flight."""
        if self._shutdown is None:
            if self._stopping is None or status == "stopped":
                self._stopping = status, reason
            if self.rounds is not None:
                self.rounds.stop()
        return []

    def _end_if_spent(self) -> bool:
        """End a job whose tokens are merged, and every fragment at least once; returns whether they
        are. A budget of less than an interval would leave fragments as they were initialized."""
        tokens, rounds = self._job.job.tokens, self.rounds
        if tokens is None or rounds is None or self._name != self._lead:
            return False
        assert self._plan is not None
        due = self._globals.merged and rounds.schedule.t >= max(self._plan.offsets)
        if rounds.merged_tokens < tokens or not due:
            return False
        self._stop("done", f"{rounds.merged_tokens} merged tokens")
        return True

    def _stop_asked(self, at: float, reason: str) -> list[Effect]:
        """Handle a request to stop; a job that has not merged for too long ends as failed."""
        still = self._no_merge(at)
        if still:
            return self._stop("failed", f"{reason}; {still}")
        return self._stop("stopped", reason)

    def _no_merge(self, at: float) -> str:
        """What the job waits for if it has merged nothing for too long, otherwise empty."""
        if self.rounds is None or not self._ready or self._shutdown is not None:
            return ""
        return self._standstill.words(at, self.rounds, self.membership)

    def _leave(self, reason: str) -> list[Effect]:
        """Exit to be restarted: merged fragments are saved, and the peers redial until then."""
        others = (*self._job.syncer_names(), *self._members)
        goodbyes = (Hangup(peer, reason) for peer in others if peer != self._name)
        return [*goodbyes, Finish("left", reason)]

    # Start and resume.

    def _go_on(self, at: float, run: str) -> list[Effect]:
        """Continue from a snapshot as run ``run``; a shutdown of the earlier run is cancelled.

        A shutdown that had begun is continued.
        """
        self._run, self._settled = run, max(self._globals.versions) > 0
        if self._shutdown is None:
            self._stopping, self._handed_over = None, False
            self._shards.go_on()
            self._under_way.go_on()
            self._end_if_spent()
        t, leads = self._under_way.schedule.t, self._name == self._lead
        listening = [self._listen()] if self._ready else []
        return [*listening, *(self._snapshot_policy.go_on(at, t) if leads else [self._report()])]

    def _started(self, event: Started) -> list[Effect]:
        self._plan = self._job.plan(event.leaves)
        self.membership = Membership(len(self._plan.fragments))
        self._name, number = actor_of(event.incarnation), number_of(event.incarnation)
        self.membership.newest[self._name] = number
        self.membership.accounts.restarted = number > 1
        return [Recover(self._work.next())]

    def _recovered(self, event: Recovered) -> list[Effect]:
        """Restore the fragments that an earlier incarnation saved, and initialize the others.

        Syncs that it had launched and not merged are lost; those fragments are due again one
        interval later.
        """
        assert self._plan is not None
        sync, names = self._job.sync, self._job.syncer_names()
        parts = range(len(self._plan.fragments))
        owned = owned_by(self._name, names, parts)
        if self._name == self._lead:
            self._shards = Shards(names[1:], tuple(p for p in parts if p not in owned))
        lag = sync.staleness * sync.interval
        self._globals = Globals(len(parts), owned, lag, self._job.compress)
        for each in event.kept:
            self._globals.recover(each.fragment, each.version)
            self.membership.recover(each.fragment, each.spent, each.batches)
        self._relay = Relay(self.membership, self._globals, self._work)
        schedule = Schedule(self._plan, owned, self._job.job.last_step)
        schedule.recover(max(self._globals.versions))
        self.rounds = Rounds(self._job, schedule, self.membership, self._globals, self._work)
        self._run, self._settled = event.run, bool(event.kept)
        for each in event.kept:
            self.rounds.recover_tokens(each.fragment, each.tokens)
            self.membership.accounts.merge(each.fragment, each.tokens)
        over = self._end_if_spent() or schedule.next() is None
        self._late = bool(event.kept) and over
        if self._late and event.done:
            self._was_done = True
        if self._stopping:
            self.rounds.stop()
        effects = [*self.membership.recovered(), *self._globals.keep()]
        if event.kept:
            effects.append(Observe("recovered", {"t": schedule.t, "fragments": len(event.kept)}))
        found = [each.fragment for each in event.kept]
        made = tuple(p for p in owned if p not in found)
        return [*effects, MakeParameters(self._work.next(), made)]

    def _parameters_made(self, at: float) -> list[Effect]:
        assert self._plan is not None
        self._ready = True
        agreement, owned = self._job.agreement(self._plan), len(self._globals.owned)
        listening = Observe("listening", {"fragments": owned, "steps": self._job.job.steps})
        begun = [self._listen(), *self._standstill.begin(at)]
        if self._name == self._lead:
            return [*begun, *self._snapshot_policy.begin(at), listening]
        dialling = [Dial(self._lead, agreement), SetTimer(REPORT, at + REPORT_S)]
        return [*begun, *dialling, listening]

    def _listen(self) -> Effect:
        assert self._plan is not None
        return Listen(self._job.agreement(self._plan), self._run, self._settled)

    # Messages from learners and shards.

    def _joined(self, at: float, peer: str, incarnation: str) -> list[Effect]:
        if peer == self._lead:
            return self._closed() if self._handed_over else []
        if self._shards.knows(incarnation):
            return [*self._shards.join(peer), *self._patience(at)]
        member, effects = self.membership.join(at, peer, incarnation)
        if member is None:
            return effects
        effects += self._under_way.close_settled() + self._relay.forget_the_gone(at)
        if self._shutdown is not None:
            effects.append(self._shutdown.stop(peer))
        fields = {"learner": incarnation, "epoch": self.membership.epoch}
        return [Observe("joined", {**fields, **asdict(self.numbers(at))}), *effects]

    @property
    def _members(self) -> dict[str, Member]:
        return self.membership.members

    def _message(self, at: float, event: MessageArrived[Any]) -> list[Effect]:
        member = self._members.get(event.peer)
        if member is None:
            return self._heard_of_shards(at, event)
        match event.body:
            case Progress():
                return self._progress(at, member, event.body)
            case Contribution():
                return self._under_way.contribution(at, member, event.body, event.handle)
            case _:
                return self._relay.hear(at, member, event.body, event.handle)

    def _heard_of_shards(self, at: float, event: MessageArrived[Any]) -> list[Effect]:
        """Handle a message of another shard: from the lead to end, or to the lead how it ended."""
        match event.body:
            case GlobalFragment() if self._shutdown is None:
                final = self._shards.final(event.peer, event.body, event.handle)
                return [*final, *self._patience(at)]
            case ShardReport() if self._shutdown is None:
                self._shards.report(event.peer, event.body)
                return self._patience(at) if event.body.over else []
            case Close(reason) if event.peer == self._lead:
                return self._stop("done", reason)
            case Stop(t, reason) if event.peer == self._lead and self._shutdown is None:
                shutdown = JobShutdown("done", reason, t, self._under_way.merges, 0)
                self._shutdown = shutdown
                step_s = self._under_way.pacing.step_s
                return [*self._under_way.end(), *shutdown.follow(at, step_s, self._lead)]
            case _:
                return []

    def _progress(self, at: float, member: Member, progress: Progress) -> list[Effect]:
        problem = self.membership.report(at, member, progress)
        if problem is not None:
            return [Observe("refused", {"learner": member.incarnation, "reason": problem})]
        actor = actor_of(member.incarnation)
        self.membership.note_batches(actor, progress.batches, progress.cursor)
        rounds = self._under_way
        pacing = rounds.pacing
        # Step times are observed at every launch; the first grace window needs one before that.
        if pacing.step_s is None and progress.step_s:
            pacing.observe_steps(self.membership.step_times())
        if self._shutdown is not None:
            return []
        if progress.versions != self._globals.versions:
            ahead = self._globals.ahead(progress.versions)
            rounds.catch_up(min(ahead, self._job.job.last_step))
        effects: list[Effect] = []
        newcomer = progress.step == 0 and self._name == self._lead
        if newcomer or self._relay.waits(member.peer):
            effects = self._relay.heard(at, member, progress.versions)
        if self._relay.waits(member.peer):
            return effects
        return effects + self._globals.tell_newer(at, member, progress)

    def _lost(self, at: float, peer: str, reason: str) -> list[Effect]:
        if self._shards.knows(peer):
            return self._shards.lose(peer, reason)
        member = self.membership.lose(peer)
        relayed = self._relay.lost(at, peer)
        if member is None:
            return relayed  # Its place was taken by a newer incarnation.
        fields = {"learner": member.incarnation, "reason": reason}
        seen = Observe("lost", {**fields, **asdict(self.numbers(at))})
        return [seen, *relayed, *self._under_way.lost(peer)]

    def _advance(self, at: float) -> list[Effect]:
        """Start whatever the event has made possible: a sync, the shutdown, or the exit."""
        if self._shutdown is not None:
            # The shards hold parts of the model, so they may exit only when it is saved.
            over = self._shutdown.kept
            released = self._shards.release(self._shutdown.t, self._shutdown.reason) if over else []
            if released:
                self._shutdown.patient = True  # Wait again, for the shards to hang up.
                released += self._shutdown.follow(at, self._under_way.pacing.step_s)
            return [*released, *self._shutdown.leave(len(self._members) + self._shards.away())]
        if not self._ready:
            return []
        rounds = self._under_way
        effects = rounds.advance(at)
        if rounds.over:
            effects += self._wind_up(at)
        return effects

    def _timer(self, at: float, timer: str) -> list[Effect]:
        if timer.startswith(RELAY):
            return self._relay.late(at, timer)
        if timer == SHUTDOWN:
            if self._shutdown is not None:
                self._shutdown.patient = False
            return []
        if timer.startswith(SNAPSHOT):
            return self._snapshot_policy.timer(at, timer, len(self._members))
        if timer == SHARDS:
            self._shards.patient = self._shards.closing is None
            return []
        if timer == STANDSTILL:
            over = self._shutdown is not None
            rounds, membership = self._under_way, self.membership
            return [] if over else self._standstill.look(at, rounds, membership)
        if timer == REPORT:
            return [self._report(), SetTimer(REPORT, at + REPORT_S)]
        return self._under_way.timer(timer)

    @property
    def _under_way(self) -> Rounds:
        assert self.rounds is not None, "messages arrive only after the start"
        return self.rounds

    # Shutdown.

    def _wind_up(self, at: float) -> list[Effect]:
        """Begin the shutdown: no sync is in flight and none will be launched."""
        if self._name != self._lead:
            return self._hand_over(at)
        taken = self._snapshot_policy.end(at, len(self._members))
        if taken or not self._snapshot_policy.over:
            return taken
        rounds, shards = self._under_way, self._shards
        t = rounds.schedule.t
        status, reason = self._stopping or ("done", f"global step {t}")
        # The shards of a job that was done have left, and are not started again.
        known = self._was_done and not shards.complete and status == "done"
        left_out = self._left_out() if status == "done" and not known else ""
        if left_out:
            status, reason = "failed", left_out
        if not shards.complete and shards.patient:
            if shards.closing is not None:
                return []
            wait_s = LATE_S if known else SHARDS_S
            return [*rounds.end(), *shards.close(reason), SetTimer(SHARDS, at + wait_s)]
        self.final = self.numbers(at)
        evaluating, saving = self._work.next(), self._work.next()
        merges = rounds.merges + shards.merges
        shutdown = self._shutdown = JobShutdown(status, reason, t, merges, evaluating)
        shutdown.lingers = self._late and status == "done"
        effects = rounds.end()
        peers, step_s = list(self._members), rounds.pacing.step_s
        if known:
            return [*effects, *shutdown.again(at, peers, step_s)]
        if not shards.complete:
            lost = f"the model is not whole: {', '.join(shards.missing())} did not come back"
            return [*effects, *shutdown.without(at, peers, lost, step_s)]
        whole = shards.whole(self._globals.thetas())
        return [*effects, *shutdown.begin(at, peers, whole, saving, step_s)]

    def _left_out(self) -> str:
        """Return which fragments were never merged, or not for half of the job; empty if none.

        A job with such a fragment has failed, however many merges the other shards have done.
        """
        assert self._plan is not None
        job, t = self._job.job, self._under_way.schedule.t
        steps = job.steps if job.tokens is None else max(t, self._plan.interval)
        due = {self._plan.fragment_due(t) for t in range(1, min(self._plan.interval, steps) + 1)}
        finals = {p: version for p, (version, _) in self._shards.finals.items()}
        last = {p: finals.get(p, v) for p, v in enumerate(self._globals.versions) if p in due}
        initial = [p for p, version in last.items() if version == 0]
        if initial:
            return f"never merged, so as initialized: {self._named(initial)}"
        late = steps - max(steps // 2, LATE_INTERVALS * self._plan.interval)
        early = [p for p, version in last.items() if version < late]
        if not early:
            return ""
        newest = max(last[p] for p in early)
        return f"not merged after global step {newest} of {steps}: {self._named(early)}"

    def _named(self, fragments: list[int]) -> str:
        """Return the first of some fragments, and the number of all, as text."""
        which = ", ".join(map(str, fragments[:FRAGMENTS_NAMED_MAX]))
        more = ", ..." if len(fragments) > FRAGMENTS_NAMED_MAX else ""
        return f"fragments {which}{more} of {len(self._globals.versions)}"

    def _hand_over(self, at: float) -> list[Effect]:
        """Send this shard's final fragments to the lead, which then ends the job.

        A shard that was itself asked to stop does not wait for the lead.
        """
        effects: list[Effect] = []
        if not self._handed_over:
            self._handed_over = True
            effects = [*self._under_way.end(), *self._closed()]
        if self._stopping is None or self._stopping[0] == "done":
            return effects
        rounds = self._under_way
        self._shutdown = JobShutdown(*self._stopping, rounds.schedule.t, rounds.merges, 0)
        return [*effects, *self._shutdown.follow(at, rounds.pacing.step_s, self._lead)]

    def _closed(self) -> list[Effect]:
        """Return the final fragments and the report of this shard, for the lead."""
        return [*self._globals.finals(self._lead), self._report()]

    def _report(self) -> Effect:
        merges, versions = self._under_way.merges, self._globals.versions
        said = ShardReport(merges, versions, self._handed_over)
        return Send(self._lead, CONTROL, said, key="report")

    def _patience(self, at: float) -> list[Effect]:
        """Restart the wait for the shards, because one of them has sent something."""
        waits = self._shards.closing is not None and self._shutdown is None
        return [SetTimer(SHARDS, at + SHARDS_S)] if waits else []

    def _waits_for_shard(self, at: float, peer: str) -> list[Effect]:
        return self._patience(at) if self._shards.knows(peer) else []

    def _work_failed(self, event: WorkFailed) -> list[Effect]:
        shutdown = self._shutdown
        if shutdown is not None and event.work == shutdown.evaluating:
            seen = Observe("not evaluated", {"reason": event.reason})
            return [seen, *shutdown.result(None, numbers=self.final)]
        status: Status = "bad-input" if event.kind == "task" else "failed"
        farewells = [Hangup(peer, event.reason) for peer in list(self._members)]
        return [*farewells, Finish(status, event.reason)]
