"""The averager machine: synchronous data-parallel training, to measure what losing a replica costs.
An elastic job pauses to go on without it and to take it back (``[elastic]``, to which the time that
processes need to start is added); any other stops until every replica is back."""

from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from clocks import actor_of, number_of
from ddloco.job.config import Job
from ddloco.job.protocol.events import Started, WorkerBusy
from ddloco.job.protocol.fragment_plan import FragmentPlan
from ddloco.job.protocol.messages import Contribution, GlobalFragment, Progress, Roster
from ddloco.job.protocol.status import Numbers, SyncerStatus
from ddloco.job.protocol.timers import (
    LastSnapshotDeadline,
    PauseOver,
    ProbeDue,
    ShutdownDeadline,
    SnapshotDue,
)
from ddloco.job.protocol.work import (
    AverageGradients,
    Evaluated,
    FragmentMerged,
    MakeParameters,
    ModelSaved,
    ParametersMade,
    Share,
)
from ddloco.machines.syncer.members import Member
from ddloco.machines.syncer.membership import Membership
from ddloco.machines.syncer.shutdown import JobShutdown
from ddloco.machines.syncer.snapshot_policy import SnapshotPolicy
from ddloco.machines.syncer.standstill import (
    NAMES_MAX,
    REPEAT_S_MAX,
    STANDSTILL_S,
    STANDSTILL_STEPS,
    STARTING_S,
)
from ddloco.machines.syncer.status import member_status
from ddloco.machines.work_numbers import WorkNumbers
from ddloco.stage.actors.actor import OwnMachine
from ddloco.stage.actors.effects import Finish, Observe
from ddloco.stage.actors.events import (
    LeaveRequested,
    Restored,
    SnapshotRequested,
    SnapshotSettled,
    StopRequested,
    WorkFailed,
)
from transport import (
    BULK,
    CONTROL,
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

LOST = (
    "a data-parallel job keeps its parameters and its optimizer's state in its syncer, and the "
    "syncer before this one has ended, so the job cannot go on; run it again, or continue it from "
    "a snapshot with --from"
)
"""Why a syncer that was started again ends: it would begin at step 1, and no replica would join."""

PROBE_S = 2.0
"""Seconds between messages to the replicas that the averager waits for. A dead replica is detected
in about that time, which is short compared with the pause that its loss causes."""


class Gradient(Struct, frozen=True, forbid_unknown_fields=True):
    """One replica's gradient of the current step."""

    said: Contribution
    handle: str


class Coordinator(OwnMachine):
    """The state machine that coordinates one data-parallel job.

    Attributes:
        version: the last step that is done.
        group: replicas of the current step, each with whether it was sent the parameters.
        standing: no step is running: before the first, and while replicas are missing.
        pause_until: the end of a pause, in seconds; None if there is none.
        averaging: the work number of the average that is being computed; 0 if there is none.
        stepped_at: when the last step was done, in seconds.
        warn_at: when to warn that no step is done, in seconds.
        averaged_last: the replicas whose gradients are in the newest step.
        final: the numbers of the job when it began to wind up.
    """

    job: Job
    work: WorkNumbers = field(default_factory=WorkNumbers)
    plan: FragmentPlan | None = None
    membership: Membership = field(default_factory=lambda: Membership(1))
    version: int = 0
    group: dict[str, bool] = {}
    parts: dict[str, Gradient] = {}
    standing: bool = True
    pause_until: float | None = None
    averaging: int = 0
    shutdown: JobShutdown | None = None
    stopping: str | None = None
    stepped_at: float = 0.0
    warn_at: float = STARTING_S
    averaged_last: int = 0
    final: Numbers | None = None
    snapshots: SnapshotPolicy = field(default_factory=SnapshotPolicy)

    @property
    def elastic(self) -> bool:
        return self.job.job.method == "elastic-data-parallel"

    def handle(self, at: float, event: Event) -> list[Effect]:
        effects = self._take(at, event)
        if self.shutdown is not None:
            return effects + self.shutdown.leave(len(self.membership.members))
        return effects + self._advance(at)

    def status(self, at: float) -> SyncerStatus:
        members, versions = self.membership.members.values(), (self.version,)
        return SyncerStatus(
            **asdict(self.numbers(at)),
            t=self.version,
            merges=self.version,
            taking_part=len(self.group),
            averaged=self.averaged_last,
            versions=versions,
            members=tuple(member_status(at, m, self.membership, versions) for m in members),
            refused=dict(sorted(self.membership.refused.items())),
            disregarded=self.disregarded,
        )

    @property
    def disregarded(self) -> dict[str, str]:
        return self.membership.accounts.disregarded(self.version)

    def numbers(self, at: float) -> Numbers:
        """Return the job's numbers; those of its end once it winds up, which costs no goodput."""
        live = len(self.membership.members)
        if self.final is not None:
            return replace(self.final, live=live)
        quorum = 1 if self.elastic else self.job.job.learners
        counts = {"live": live, "quorum": quorum, "merges": self.version}
        return self.membership.accounts.numbers(at, **counts, fragments=1)

    def _take(self, at: float, event: Event) -> list[Effect]:
        match event:
            case Started():
                self.plan = self.job.plan(event.leaves)
                me = event.incarnation
                self.membership.newest[actor_of(me)] = number_of(me)
                if number_of(me) > 1:
                    return [Finish("failed", f"{me}: {LOST}")]
                made = MakeParameters(self.work.next(), (0,))
                return [Keep("theta/0/0"), Keep("wire/0/0"), made]
            case ParametersMade():
                assert self.plan is not None
                listening = Observe("listening", {"fragments": 1, "steps": self.job.job.steps})
                snapshots = self.snapshots.begin(at, self.job.snapshot)
                begun = [SetTimer(ProbeDue(), at + PROBE_S), *snapshots]
                return [self._listen(), listening, *begun]
            case MessageArrived():
                return self._message(at, event)
            case FragmentMerged():
                return self._averaged(at, event)
            case PeerJoined(peer, incarnation):
                return self._joined(at, peer, incarnation)
            case PeerLost(peer, reason):
                return self._lost(at, peer, reason)
            case TimerFired(timer):
                return self._timer(at, timer)
            case SnapshotRequested() | SnapshotSettled():
                return self.snapshots.heard(event)
            case Restored():
                return self._go_on(at)
            case Evaluated(_, loss, metrics) if self.shutdown is not None:
                failures = self.snapshots.failures
                return self.shutdown.result(loss, metrics, self.final, failures)
            case WorkerBusy():
                return [event.observed()]
            case ModelSaved() if self.shutdown is not None:
                return self.shutdown.announce(at, list(self.membership.members), None)
            case WorkFailed():
                return self._failed(event)
            case StopRequested(reason) | LeaveRequested(reason):
                # A restarted one could not continue; a new run can, from a snapshot.
                self.stopping = self.stopping or reason
                return []
            case _:
                return []

    def _timer(self, at: float, timer: Any) -> list[Effect]:
        match timer:
            case PauseOver():
                self.pause_until = None
            case ProbeDue() if self.shutdown is None:
                return self._probe(at)
            case SnapshotDue() if self.shutdown is None:
                return self.snapshots.periodic(at, len(self.membership.members), self.job.snapshot)
            case LastSnapshotDeadline():
                self.snapshots.late()
            case ShutdownDeadline() if self.shutdown is not None:
                self.shutdown.patient = False
            case _:
                pass
        return []

    def _listen(self) -> Effect:
        assert self.plan is not None, "known since the start"
        return Listen(self.job.agreement(self.plan))

    def _go_on(self, at: float) -> list[Effect]:
        """Continue from a snapshot; a shutdown that had begun is continued."""
        if self.shutdown is None:
            self.stopping = None
            self._end_if_done()
        self.stepped_at, self.warn_at = at, at + STARTING_S
        return [self._listen(), *self.snapshots.go_on(at, self.version, self.job.snapshot)]

    # Replicas that join and leave.

    def _joined(self, at: float, peer: str, incarnation: str) -> list[Effect]:
        member, effects = self.membership.join(at, peer, incarnation)
        if member is None:
            return effects
        if self.shutdown is not None:
            effects += self.shutdown.tell(peer)
        # A replica that rejoins was lost before, even if its loss was never detected.
        for former in [each for each in self.group if each not in self.membership.members]:
            effects += self._without(at, former)
        fields = {"learner": incarnation, "epoch": self.membership.epoch}
        return [Observe("joined", {**fields, **asdict(self.numbers(at))}), *effects]

    def _lost(self, at: float, peer: str, reason: str) -> list[Effect]:
        member = self.membership.lose(peer)
        if member is None:
            return []
        fields = {"learner": member.incarnation, "reason": reason}
        effects: list[Effect] = [Observe("lost", {**fields, **asdict(self.numbers(at))})]
        if self.shutdown is not None:
            return effects
        return [*effects, *self._without(at, peer)]

    def _without(self, at: float, peer: str) -> list[Effect]:
        """Continue without a lost replica if the job is elastic; otherwise stop stepping."""
        if self.group.pop(peer, None) is None:
            return []
        if not self.elastic or not self.group:
            self.standing = True  # The gradients of the others stay valid.
            return []
        return self._pause(at, self.job.elastic.downscale_s, f"{peer} was lost")

    def _probe(self, at: float) -> list[Effect]:
        """Send a message to every awaited replica; only a send detects that a peer is dead."""
        roster = Roster(self.membership.epoch, {})
        missing = [peer for peer in self.group if peer not in self.parts]
        sends = [Send(peer, CONTROL, roster, key="roster") for peer in missing]
        return [SetTimer(ProbeDue(), at + PROBE_S), *self._standstill(at), *sends]

    def _standstill(self, at: float) -> list[Effect]:
        """Warn if no step was done for long, and then at growing intervals."""
        if at < self.warn_at:
            return []
        since_s, t = at - self.stepped_at, self.version
        self.warn_at = at + min(since_s, REPEAT_S_MAX)
        members = self.membership.members
        waits = [peer for peer in members if peer in self.group and peer not in self.parts]
        if self.standing or not waits:
            many = f"{len(members)} of {self.job.job.learners} replicas are linked"
            how = "one is enough" if self.elastic and t else "a step needs all of them"
            reason = f"{many}, {how}"
        else:
            reason = f"the gradients of {', '.join(waits[:NAMES_MAX])}"
        fields = {"level": "warning", "since_s": round(since_s, 3), "t": t, "reason": reason}
        return [Observe("no merge", fields)]

    def _pause(self, at: float, seconds: float, reason: str) -> list[Effect]:
        if seconds <= 0:
            return []
        self.pause_until = max(self.pause_until or 0.0, at + seconds)
        seen = Observe("reconfigures", {"seconds": seconds, "reason": reason})
        return [SetTimer(PauseOver(), self.pause_until), seen]

    # Steps.

    def _advance(self, at: float) -> list[Effect]:
        if self.averaging or self.pause_until is not None:
            return []
        if self.stopping is not None:
            return self._wind_up(at, "stopped", self.stopping)
        if self.standing:
            return self._begin(at)
        effects = self._send_parameters()
        if any(peer not in self.parts for peer in self.group):
            return effects
        return [*effects, *self._average()]

    def _begin(self, at: float) -> list[Effect]:
        """Start a step with all connected replicas, if there are enough of them."""
        members = list(self.membership.members)
        complete = len(members) == self.job.job.learners
        if not members or not (complete or (self.elastic and self.version > 0)):
            return []
        self.standing = False
        self.group = dict.fromkeys(members, False)
        gone = [peer for peer in self.parts if peer not in self.group]
        effects: list[Effect] = [Drop(self.parts.pop(peer).handle) for peer in gone]
        if self.version > 0:
            elastic = self.job.elastic
            seconds = elastic.upscale_s if self.elastic else elastic.restart_s
            effects += self._pause(at, seconds, f"{len(members)} replicas go on")
        if self.pause_until is not None:
            return effects
        return [*effects, *self._send_parameters()]

    def _send_parameters(self) -> list[Effect]:
        unsent = [peer for peer, sent in self.group.items() if not sent]
        said = GlobalFragment(0, self.version)
        wire = f"wire/0/{self.version}"
        effects: list[Effect] = []
        for peer in unsent:
            self.group[peer] = True
            if peer not in self.parts:
                effects.append(Send(peer, BULK, said, wire, key="global/0"))
        return effects

    def _message(self, at: float, event: MessageArrived[Any]) -> list[Effect]:
        member, said = self.membership.members.get(event.peer), event.body
        if member is None:
            return []
        if isinstance(said, Progress):
            problem = self.membership.report(at, member, said)
            return self._refuse(member, problem) if problem is not None else []
        if not isinstance(said, Contribution) or not event.handle:
            return []
        fits = (said.steps, said.base, said.fragment) == (1, self.version, 0)
        if not fits or self.averaging or event.peer not in self.group or event.peer in self.parts:
            return self._refuse(member, "it does not answer this step")
        self.parts[event.peer] = Gradient(said, event.handle)
        return [Keep(event.handle)]

    def _refuse(self, member: Member, reason: str) -> list[Effect]:
        return [Observe("refused", {"learner": member.incarnation, "reason": reason})]

    def _average(self) -> list[Effect]:
        t = self.version + 1
        shares = tuple(
            Share(peer, part.handle, float(part.said.tokens), self.version)
            for peer, part in sorted(self.parts.items(), key=lambda each: each[0].encode())
        )
        out = (f"theta/0/{t}", f"wire/0/{t}")
        work = AverageGradients(self.work.next(), t, f"theta/0/{self.version}", shares, out)
        self.averaging = work.work
        return [*(Keep(handle) for handle in out), work]

    def _averaged(self, at: float, event: FragmentMerged) -> list[Effect]:
        self.averaging = 0
        patience_s = max(STANDSTILL_S, STANDSTILL_STEPS * (at - self.stepped_at))
        self.stepped_at, self.warn_at = at, at + patience_s
        parts, self.parts = self.parts, {}
        effects: list[Effect] = [Drop(part.handle) for part in parts.values()]
        for learner, reason in event.refused:
            effects += self.membership.refuse(learner, self.version + 1, 0, reason)
        old, new = self.version, self.version + 1
        for peer in self.group:
            self.group[peer] = False
        if not event.accepted:
            return [*effects, Drop(f"theta/0/{new}"), Drop(f"wire/0/{new}")]
        self.version, self.averaged_last = new, len(event.accepted)
        for replica in event.accepted:
            self.membership.accounts.use(replica)
        self.membership.accounts.merge(0, sum(parts[name].said.tokens for name in event.accepted))
        # Replicas that joined during the step take part from now on. A job that is not elastic
        # starts a step only with all replicas, so none can join during it.
        self.standing = self.elastic and any(
            peer not in self.group for peer in self.membership.members
        )
        effects += [Drop(f"theta/0/{old}"), Drop(f"wire/0/{old}"), self._seen(at, event)]
        self._end_if_done()
        return effects + self.snapshots.merged(new, self.job.snapshot)

    def _end_if_done(self) -> None:
        if self.version >= self.job.job.steps:
            self.stopping = self.stopping or ""

    def _seen(self, at: float, event: FragmentMerged) -> Observe:
        fields = {
            "t": self.version,
            "fragment": 0,
            "learners": list(event.accepted),
            "weights": [round(weight, 6) for weight in event.weights],
            "grace_s": 0.0,
            "taking_part": len(self.group),
            "averaged": len(event.accepted),
            **asdict(self.numbers(at)),
        }
        return Observe("merge", fields)

    # Shutdown.

    def _wind_up(self, at: float, status: Any, reason: str) -> list[Effect]:
        members = list(self.membership.members)
        taken = self.snapshots.end(at, len(members), self.job.snapshot)
        if taken or not self.snapshots.over(self.job.snapshot):
            return taken
        if not reason:
            status, reason = "done", f"global step {self.version}"
        evaluating, saving = self.work.next(), self.work.next()
        self.shutdown = JobShutdown(status, reason, self.version, self.version, evaluating)
        self.shutdown.disregarded = self.disregarded
        self.shutdown.unused = self.membership.accounts.unused()
        self.final = self.numbers(at)
        thetas = (f"theta/0/{self.version}",)
        return self.shutdown.begin(thetas, saving)

    def _failed(self, event: WorkFailed) -> list[Effect]:
        shutdown = self.shutdown
        if shutdown is not None and event.work == shutdown.evaluating:
            return shutdown.unknown(event.reason, self.final, self.snapshots.failures)
        status = "bad-input" if event.kind == "task" else "failed"
        farewells = [Hangup(peer, event.reason) for peer in self.membership.members]
        return [*farewells, Finish(status, event.reason)]
